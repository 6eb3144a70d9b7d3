"""The ``numalet state`` commands: look into the checkpoint, and exchange it with a kubelet's files."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agent import app, tables
from agent.cli_options import ConfigOption, Output, OutputOption, SimulateOption, StateOption
from agent.config import KUBELET_FOLDER, load
from agent.core.kubelet_validation import restore
from agent.core.restore import fits
from agent.core.startup import Rules, StartupRefused
from agent.core.state import NodeState
from agent.errors import InputError, StateFileError
from agent.node import kubelet_state
from agent.node.checkpoint import COPIES, CheckpointStore
from agent.node.checkpoint_format import Damaged, Decoded, NewerVersion, decode
from agent.node.state_folder import StateFolderLock
from agent.node.sysfs import read_topology
from agent.ports import Remembered
from agent.report.verdicts import state_document
from agent.whatif import configure

commands = typer.Typer(help="The agent's checkpoint.", no_args_is_help=True)

KubeletOption = Annotated[
    Path | None,
    typer.Option("--kubelet", help="A folder with cpu_manager_state and memory_manager_state."),
]


@dataclass(frozen=True)
class Copies:
    """The checkpoint's files: those that are whole, and a sentence for each that is not."""

    whole: dict[Path, Decoded]
    problems: tuple[str, ...]

    @property
    def newest(self) -> Decoded:
        """The copy that counts; raises `StateFileError` where there is none."""
        if not self.whole:
            raise StateFileError("; ".join(("no checkpoint that can be used", *self.problems)))
        return max(self.whole.values(), key=lambda copy: copy.generation)


def read_copies(path: Path) -> Copies:
    """Read one checkpoint file, or both copies in a state folder; nothing is changed."""
    files = [path / name for name in COPIES] if path.is_dir() else [path]
    whole: dict[Path, Decoded] = {}
    problems = []
    for file in files:
        try:
            whole[file] = decode(file.read_bytes())
        except OSError as error:
            problems.append(f"{file}: cannot be read: {error.strerror}")
        except (Damaged, NewerVersion) as error:
            problems.append(f"{file}: {error}")
    return Copies(whole, tuple(problems))


@commands.command()
def show(
    state: StateOption = None, config: ConfigOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Print who holds what, as it is on disk."""
    newest = read_copies(state or load(config).state_dir).newest
    document = state_document(newest.remembered, newest.generation, newest.written_at_s)
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
) -> None:
    """Say whether the checkpoint is whole and fits this machine and configuration.

    With --kubelet, whether a kubelet would start with the files in that folder; if not, its words.
    Ends with status 5 where it does not.
    """
    with _rules(config, simulate) as rules:
        if kubelet is not None:
            _restore(rules, kubelet)
            print(f"{kubelet}: a kubelet would start with these files")
            return
        copies = read_copies(state or load(config).state_dir)
        newest = copies.newest
        problems = list(copies.problems)
        if not fits(rules, newest.remembered.state):
            problems.append("the state does not fit this machine and configuration")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise StateFileError("the next start sets aside what is damaged and keeps what pods hold")
    print(f"generation {newest.generation}: whole, and fits this machine and configuration")


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
    newest = read_copies(state or load(config).state_dir).newest
    with _rules(config, simulate) as rules:
        kubelet_state.write(to, kubelet_state.render(rules, newest.remembered.state))
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
    with _rules(config, simulate) as rules, StateFolderLock(folder):
        imported = _restore(rules, kubelet)
        twice = imported.two_owners()
        if twice:
            raise StateFileError(
                f"CPUs {twice} have two owners in these files: end one of the pods, and restart "
                "the kubelet, before numalet takes over"
            )
        CheckpointStore(folder, app.SystemClock()).save(Remembered(state=imported))
    print(f"imported {len(imported.pods)} pods; default CPU set {imported.default}")


def _restore(rules: Rules, folder: Path) -> NodeState:
    cpu, memory = kubelet_state.read(folder)
    if cpu is None and memory is None:
        raise InputError(
            "has neither cpu_manager_state nor memory_manager_state", where=str(folder)
        )
    try:
        return restore(rules, cpu, memory, folder=str(folder))
    except StartupRefused as refusal:
        raise StateFileError(f"{refusal.stage}: {refusal}") from refusal


@contextmanager
def _rules(config: Path | None, simulate: Path | None) -> Iterator[Rules]:
    if simulate is None:
        yield configure(config, read_topology())[1]
        return
    with app.simulated_topology(simulate) as topology:
        yield configure(config, topology)[1]
