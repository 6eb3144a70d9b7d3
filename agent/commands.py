"""The commands of ``numalet``."""

# ruff: noqa: FBT001, FBT002, T201 - typer makes flags of boolean parameters; commands print

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from agent import __version__, state_cli, tables
from agent.cli_options import (
    ConfigOption,
    Output,
    OutputOption,
    SimulateOption,
    SocketOption,
    StateOption,
    SysfsOption,
)
from agent.config import AgentConfig, describe, load
from agent.core.entitlement import Entitlement
from agent.core.restore import fits
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.core.topology import NodeTopology
from agent.doctor_cli import doctor
from agent.errors import InputError, StateFileError
from agent.exec_cli import exec_
from agent.lean_import import uncollected
from agent.node.numalib import cross_check
from agent.node.sysfs import SYSFS, survey
from agent.place import KUBERNETES, Place, RunOptions, simulated_topology
from agent.ports import Snapshot
from agent.release_cli import release
from agent.report.status_client import ask, find_pod
from agent.report.verdicts import plan_document
from agent.sources.manifests import read_manifests
from agent.verification import read_copies
from agent.whatif import Planned, configure, plan

cli = typer.Typer(
    help="Exclusive, NUMA-aligned CPUs for one container; a shared pool for its sidecars.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(state_cli.commands, name="state")
cli.command()(doctor)
cli.command()(release)
cli.command("exec")(exec_)

REJECTED = 1


class TopologyOutput(StrEnum):
    """How ``topology`` prints; yaml and json are description files for ``--simulate``."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"numalet {__version__}")
        raise typer.Exit


@cli.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it, and end.")
    ] = False,
) -> None:
    del version  # its callback has printed it


@cli.command()
def run(  # noqa: PLR0913, PLR0917 - one parameter an option
    config: ConfigOption = None,
    pods: Annotated[
        str | None, typer.Option(help="kubernetes, or a folder of manifests.", metavar="DIR")
    ] = None,
    node_name: Annotated[
        str, typer.Option(help="This node's name in Kubernetes; else the host name.")
    ] = "",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Credentials; else those of the pod that we run in.")
    ] = None,
    simulate: SimulateOption = None,
    observe: Annotated[bool, typer.Option(help="Compute and report; write nothing.")] = False,
    once: Annotated[bool, typer.Option(help="End once everything is placed.")] = False,
    print_config: Annotated[bool, typer.Option(help="Print what holds and from where.")] = False,
    wait_for_lock: Annotated[bool, typer.Option(help="Wait while another agent runs.")] = False,
) -> None:
    """Run the daemon."""
    if print_config:
        _print_config(configure(config, _machine(simulate, None))[0])
        return
    if pods is None:
        raise InputError("say where pods come from: --pods kubernetes, or --pods FOLDER")
    if pods != KUBERNETES and not Path(pods).is_dir():
        raise InputError("is not a folder: make it, or name another one", where=f"--pods {pods}")
    options = RunOptions(
        pods="kubernetes" if pods == KUBERNETES else Path(pods),
        node_name=node_name,
        kubeconfig=kubeconfig,
        config=config,
        simulate=simulate,
        observe=observe,
        once=once,
        wait_for_lock=wait_for_lock,
        on_start=_announce,
        on_snapshot=_TablePrinter() if simulate is not None else lambda _snapshot: None,
    )
    with uncollected():
        from agent import app  # noqa: PLC0415 - half of all modules, and the other commands want none of them

    app.run(options)


def _print_config(config: AgentConfig) -> None:
    out = tables.console()
    for sentence in config.warnings:
        print(f"numalet: warning: {sentence}", file=sys.stderr)
    tables.print_config(out, describe(config))


def _announce(place: Place, config: AgentConfig) -> None:
    """Tell a person who watches where everything is."""
    if place.mode != "simulated":
        return
    print(f"simulated node: CPUs {place.topology.cpus}, {len(place.topology.nodes)} NUMA nodes")
    print(f"cgroup files:   {place.cgroup_root}")
    print(f"ask it:         numalet status --socket {config.status_socket}")
    print(f"metrics:        http://{config.metrics_address}/metrics", flush=True)


class _TablePrinter:
    """Prints the table of pods whenever it changed."""

    def __init__(self) -> None:
        self._printed: dict[str, Any] = {}

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.tentative:
            return
        document = plan_document(snapshot.rules, snapshot.state, snapshot.verdicts)
        if document != self._printed:
            self._printed = document
            out = tables.console()
            out.print()
            tables.print_pods(out, document)
            sys.stdout.flush()


def _machine(simulate: Path | None, sysfs: Path | None) -> NodeTopology:
    if simulate is not None and sysfs is not None:
        raise InputError("--simulate and --sysfs exclude each other: give one of them")
    if sysfs is not None and not sysfs.is_dir():
        raise InputError("is not a folder: name a copy of a whole /sys", where=f"--sysfs {sysfs}")
    if simulate is not None:
        return simulated_topology(simulate)
    surveyed = survey(sysfs or SYSFS)
    for note in surveyed.notes:
        print(f"numalet: note: {note}", file=sys.stderr)
    return surveyed.topology


@cli.command()
def topology(
    sysfs: SysfsOption = None,
    simulate: SimulateOption = None,
    output: Annotated[TopologyOutput, typer.Option("-o", "--output")] = TopologyOutput.TEXT,
) -> None:
    """Print the machine, as a map or as a description file."""
    # pydantic models that no other command needs
    from agent.simulation.description import description_data, dump_description  # noqa: PLC0415
    from agent.simulation.machine import describe as describe_machine  # noqa: PLC0415

    machine = _machine(simulate, sysfs)
    description = describe_machine(machine, name="this-machine")
    match output:
        case TopologyOutput.YAML:
            print(dump_description(description), end="")
        case TopologyOutput.JSON:
            print(json.dumps(description_data(description)))
        case TopologyOutput.TEXT:
            tables.print_topology(tables.console(), machine)
    if sysfs is None and simulate is None:
        for sentence in cross_check(machine).differences:
            print(f"numalet: libnuma differs: {sentence}", file=sys.stderr)


@cli.command("plan")
def plan_command(  # noqa: PLR0913, PLR0917 - one parameter an option
    files: Annotated[
        list[str],
        typer.Option("-f", "--file", help="Manifest file or folder; - is standard input."),
    ],
    config: ConfigOption = None,
    sysfs: SysfsOption = None,
    simulate: SimulateOption = None,
    state: StateOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say who would get which CPUs, or the reason why not; write nothing.

    Ends with status 0 if all pods are admitted, 1 if one is rejected, 2 for bad input.

    As json, "memory" of a container has bytes by NUMA node: {"0": bytes}. What is charged to a group
    of nodes as a whole, as the kubelet does where one node is too small, has the list of the group
    as its key: {"0-1": bytes}.
    """
    pods, problems = read_manifests("-" if name == "-" else Path(name) for name in files)
    if problems:
        raise InputError("\nnumalet: ".join(f"{p.where}: {p.reason}" for p in problems))
    configured, rules = configure(config, _machine(simulate, sysfs))
    for sentence in configured.warnings:
        print(f"numalet: warning: {sentence}", file=sys.stderr)
    unsupported = Entitlement(unsupported_classes=configured.entitlement.unsupported_classes)
    planned = plan(rules, _state(state, rules), pods, unsupported)
    _print_planned(planned, output)
    if not planned.all_admitted:
        raise typer.Exit(REJECTED)


def _state(path: Path | None, rules: Rules) -> NodeState:
    if path is None:
        return rules.initial_state()
    try:
        state = read_copies(path).usable().remembered.state
    except StateFileError as error:
        raise InputError(str(error), where="--state") from error
    if not fits(rules, state):
        raise InputError("does not fit this machine and configuration", where=str(path))
    return state


def _print_planned(planned: Planned, output: Output) -> None:
    document = plan_document(planned.rules, planned.state, planned.verdicts)
    if output is Output.JSON:
        print(json.dumps(document, indent=2))
    else:
        tables.print_pods(tables.console(), document)


def _ask(socket: Path | None, config: Path | None) -> dict[str, Any]:
    return ask(socket or load(config).status_socket)


@cli.command()
def status(
    socket: SocketOption = None, config: ConfigOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Print what the running agent knows and does."""
    document = _ask(socket, config)
    if output is Output.JSON:
        print(json.dumps(document, indent=2))
    else:
        tables.print_status(tables.console(), document)


@cli.command()
def explain(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/POD")],
    socket: SocketOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say what a pod's containers got, and why not more."""
    document = find_pod(_ask(socket, config), pod)
    if output is Output.JSON:
        print(json.dumps(document, indent=2))
    else:
        tables.print_explanation(tables.console(), document)
