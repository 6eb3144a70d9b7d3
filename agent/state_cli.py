"""The ``numalet state`` commands: look into the checkpoint, and exchange it with a kubelet's files."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent import tables
from agent.cli_options import ConfigOption, Output, OutputOption, SimulateOption, StateOption
from agent.config import load
from agent.core.startup import Rules
from agent.errors import InputError, StateFileError
from agent.node import kubelet_state
from agent.node.checkpoint import CheckpointStore
from agent.node.state_folder import StateFolderLock
from agent.node.sysfs import read_topology
from agent.own_config import KUBELET_FOLDER
from agent.place import SystemClock, simulated_topology
from agent.ports import Remembered
from agent.report.verdicts import state_document
from agent.verification import read_copies, restore_kubelet, verify_copies, verify_kubelet
from agent.whatif import configure

commands = typer.Typer(help="The agent's checkpoint.", no_args_is_help=True)

KubeletOption = Annotated[
    Path | None,
    typer.Option("--kubelet", help="A folder with cpu_manager_state and memory_manager_state."),
]


@commands.command()
def show(
    state: StateOption = None, config: ConfigOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Print who holds what, as it is on disk."""
    copy = read_copies(state or load(config).state_dir).usable()
    document = state_document(copy.remembered, copy.generation, copy.written_at_s)
    if output is Output.JSON:
        print(json.dumps(document, indent=2))
    else:
        tables.print_state(tables.console(), document)


@commands.command()
def verify(
    state: StateOption = None,
    config: ConfigOption = None,
    simulate: SimulateOption = None,
    kubelet: KubeletOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say whether the checkpoint is whole and fits this machine and configuration.

    With --kubelet, whether a kubelet would start with the files in that folder; if not, its words.
    Ends with status 5 where it does not.

    As json: {"files": [{"path", "status", "generation", "reason"}], "problems": [...], "summary"}.
    A status is whole, missing, unreadable, damaged, newer (written by a newer numalet) or, of a
    kubelet's file, present; generation is null where the file does not tell one.
    """
    rules = _rules(config, simulate)
    if kubelet is None:
        verdict = verify_copies(rules, read_copies(state or load(config).state_dir))
    else:
        verdict = verify_kubelet(rules, kubelet)
    if output is Output.JSON:
        print(json.dumps(verdict.document(), indent=2))
    elif not verdict.problems:
        print(verdict.summary)
    elif kubelet is None:
        print("\n".join(verdict.problems), file=sys.stderr)
    if verdict.problems:
        raise StateFileError(verdict.summary)


@commands.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="The folder to write both files into.")],
    state: StateOption = None,
    config: ConfigOption = None,
    simulate: SimulateOption = None,
) -> None:
    """Write the checkpoint as cpu_manager_state and memory_manager_state."""
    if to.absolute().is_relative_to(KUBELET_FOLDER):
        raise InputError("is the kubelet's own folder: write elsewhere, and copy", where=str(to))
    copy = read_copies(state or load(config).state_dir).usable()
    files = kubelet_state.render(_rules(config, simulate), copy.remembered.state)
    kubelet_state.write(to, files)
    print(f"wrote {to / kubelet_state.CPU_FILE} and {to / kubelet_state.MEMORY_FILE}")


@commands.command("import")
def import_(
    kubelet: Annotated[Path, typer.Option("--kubelet", help="The folder with a kubelet's files.")],
    state: StateOption = None,
    config: ConfigOption = None,
    simulate: SimulateOption = None,
) -> None:
    """Make a kubelet's files the checkpoint, while numalet does not run.

    Pods that its next list shows keep what the files say; the others are let go.
    """
    folder = state or load(config).state_dir
    rules = _rules(config, simulate)
    with StateFolderLock(folder):
        imported = restore_kubelet(rules, kubelet)
        twice = imported.two_owners()
        if twice:
            raise StateFileError(
                f"CPUs {twice} have two owners in these files: end one of the pods, and restart "
                "the kubelet, before numalet takes over"
            )
        CheckpointStore(folder, SystemClock()).save(Remembered(state=imported))
    print(f"imported {len(imported.pods)} pods; default CPU set {imported.default}")


def _rules(config: Path | None, simulate: Path | None) -> Rules:
    topology = read_topology() if simulate is None else simulated_topology(simulate)
    return configure(config, topology)[1]
