"""The ``numalet doctor`` command: is this node ready, and what to do about it."""

# ruff: noqa: T201 - commands print

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent import tables
from agent.cli_options import ConfigOption, Output, OutputOption
from agent.config import AgentConfig, load
from agent.core.cgroups import CgroupPath
from agent.core.findings import Finding, Level, is_ready
from agent.core.node_facts import RunningProcess
from agent.errors import EnvironmentProblem, InputError
from agent.node import procfs
from agent.node.cgroup_layout import SINGLE_HOST_SLICE, CgroupLayout
from agent.whatif import configure

if TYPE_CHECKING:
    from rich.console import Console

NOT_READY = 1

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    root: Annotated[
        Path, typer.Option("--root", help="Where the node's own / is, for use in a container.")
    ] = Path("/"),
) -> None:
    """Say whether this node is ready, and what to do about it; change nothing.

    Ends with status 0 if it is ready, warnings or not, 1 if there is a problem, 2 for bad input.
    """
    findings = examine(config, root)
    if output is Output.JSON:
        print(json.dumps(document(findings), indent=2))
    else:
        print_findings(tables.console(), findings)
    if not is_ready(findings):
        raise typer.Exit(NOT_READY)


def examine(config: Path | None, root: Path) -> tuple[Finding, ...]:
    """Return what there is to say about the node whose files are below ``root``.

    The state folder of the configuration is this process's own, not one below ``root``.  Raises
    `InputError` where the configuration is wrong or does not fit the machine.
    """
    # What only a doctor needs is not in the daemon's memory.
    from agent.core.checkup import check_up  # noqa: PLC0415
    from agent.node.inspection import inspect  # noqa: PLC0415

    if not root.is_dir():
        raise InputError("is not a folder: name the place of the host's /", where=f"--root {root}")
    loaded = load(config)
    for sentence in loaded.warnings:
        print(f"numalet: warning: {sentence}", file=sys.stderr)
    facts = inspect(
        root,
        state_dir=loaded.state_dir,
        pods=_pod_cgroups(loaded),
        processes=_processes(root),
        pod_resources=loaded.devices.socket if loaded.devices.ask == "auto" else None,
    )
    if isinstance(facts.topology, str):
        return check_up(facts, None)
    return check_up(facts, configure(config, facts.topology)[1])


def _pod_cgroups(config: AgentConfig) -> Iterable[CgroupPath]:
    """Return where pods can be: under either of the kubelet's drivers, or on a single host."""
    root = CgroupPath(config.cgroup_root.strip("/"))
    yield CgroupLayout(driver="systemd", root=root).kubepods()
    yield CgroupLayout(driver="cgroupfs", root=root).kubepods()
    yield SINGLE_HOST_SLICE


def _processes(root: Path) -> tuple[RunningProcess, ...]:
    procfs.use_proc_root(root / "proc")
    try:
        return procfs.processes()
    except EnvironmentProblem:
        return ()  # which the check-up has a sentence for


def document(findings: Iterable[Finding]) -> tables.Json:
    """Return what ``numalet doctor -o json`` prints."""
    findings = tuple(findings)
    return {
        "ready": is_ready(findings),
        "findings": [
            {"check": f.check, "level": f.level, "what": f.sentence, "cure": f.cure}
            for f in findings
        ],
    }


def print_findings(out: "Console", findings: Iterable[Finding]) -> None:
    """Print a table of findings, and what they come to."""
    from rich.table import Table  # noqa: PLC0415 - as in `agent.tables`
    from rich.text import Text  # noqa: PLC0415

    findings = tuple(findings)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("LEVEL", "CHECK", "WHAT", "WHAT TO DO"):
        table.add_column(title, no_wrap=title in ("LEVEL", "CHECK"), overflow="fold")
    for finding in findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(level, finding.check, Text(finding.sentence), Text(finding.cure))
    out.print(table)
    counts = {level: sum(f.level is level for f in findings) for level in _STYLES}
    verdict = "ready" if is_ready(findings) else "not ready"
    problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    out.print(Text(f"this node is {verdict}; problems: {problems}, warnings: {warnings}"))
