"""Whether the checkpoint, or a kubelet's state files, could be started from; nothing is changed."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent.core.kubelet_validation import restore
from agent.core.restore import fits
from agent.core.startup import Rules, StartupRefused
from agent.core.state import NodeState
from agent.errors import InputError, StateFileError
from agent.node import kubelet_state
from agent.node.checkpoint import COPIES
from agent.node.checkpoint_format import Damaged, Decoded, NewerVersion, decode

NO_FIT = "the state does not fit this machine and configuration"


class Status(StrEnum):
    """How a file is, in the words of ``numalet state verify -o json``."""

    WHOLE = "whole"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    DAMAGED = "damaged"
    NEWER = "newer"
    """Written by a newer numalet."""
    PRESENT = "present"
    """A kubelet's file; it is judged together with the other one."""


@dataclass(frozen=True, kw_only=True)
class File:
    """One file, and why it cannot be used, if it cannot."""

    path: Path
    status: Status
    decoded: Decoded | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The checkpoint's copies: both, or the one that was named."""

    files: tuple[File, ...]

    @property
    def newest(self) -> Decoded | None:
        """The copy that counts; None where no copy is whole."""
        whole = (file.decoded for file in self.files if file.decoded is not None)
        return max(whole, key=lambda decoded: decoded.generation, default=None)

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each copy that is not whole."""
        return tuple(f"{file.path}: {file.reason}" for file in self.files if file.reason)

    def usable(self) -> Decoded:
        """Return the copy that counts; raises `StateFileError` where there is none."""
        if self.newest is None:
            raise StateFileError("; ".join(("no checkpoint that can be used", *self.problems)))
        return self.newest


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong, and in ``summary`` what a start makes of it."""

    files: tuple[File, ...]
    problems: tuple[str, ...]
    summary: str

    def document(self) -> dict[str, object]:
        """Return it as ``numalet state verify -o json`` prints it."""
        return {
            "files": [
                {
                    "path": str(file.path),
                    "status": file.status.value,
                    "generation": file.decoded.generation if file.decoded else None,
                    "reason": file.reason,
                }
                for file in self.files
            ],
            "problems": list(self.problems),
            "summary": self.summary,
        }


def read_copies(path: Path) -> Copies:
    """Read one checkpoint file, or both copies in a state folder."""
    paths = [path / name for name in COPIES] if path.is_dir() else [path]
    return Copies(files=tuple(map(_read_copy, paths)))


def _read_copy(path: Path) -> File:
    try:
        return File(path=path, status=Status.WHOLE, decoded=decode(path.read_bytes()))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        status = Status.MISSING if missing else Status.UNREADABLE
        return File(path=path, status=status, reason=f"cannot be read: {error.strerror}")
    except NewerVersion as error:
        return File(path=path, status=Status.NEWER, reason=str(error))
    except Damaged as error:
        return File(path=path, status=Status.DAMAGED, reason=str(error))


def verify_copies(rules: Rules, copies: Copies) -> Verdict:
    """Judge the checkpoint on this machine and configuration."""
    problems, newest = copies.problems, copies.newest
    if newest is not None and not fits(rules, newest.remembered.state):
        problems = (*problems, NO_FIT)
    return Verdict(files=copies.files, problems=problems, summary=_outlook(copies, problems))


def _outlook(copies: Copies, problems: tuple[str, ...]) -> str:
    """Say what the next start does with these copies (`agent.node.checkpoint`, `agent.recall`)."""
    newest, found = copies.newest, {file.status for file in copies.files}
    if newest is not None and not problems:
        return f"generation {newest.generation}: whole, and fits this machine and configuration"
    if Status.NEWER in found:
        return (
            "the next start only observes, and leaves what a newer numalet wrote as it is: start "
            "that one again, or move the file away"
        )
    if newest is None and len(copies.files) < len(COPIES):
        return "this copy cannot be used: name the folder, to see what the next start has"
    does = []
    if found & {Status.DAMAGED, Status.UNREADABLE}:
        does.append("sets aside what is damaged")
    if newest is None:
        does.append("takes over what runs from its cgroups, and decides on all others anew")
    else:
        does.append(f"goes on from generation {newest.generation}: pods keep what they hold")
    if NO_FIT in problems:
        does.append("works out anew what is left")
    if newest is not None and found != {Status.WHOLE}:
        does.append("writes both copies again")
    return f"the next start {'; it '.join(does)}"


def verify_kubelet(rules: Rules, folder: Path) -> Verdict:
    """Judge as a kubelet would that starts with the files in a folder; its words are the summary.

    Raises `InputError` where there are none.
    """
    paths = [folder / name for name in (kubelet_state.CPU_FILE, kubelet_state.MEMORY_FILE)]
    files = tuple(
        File(path=path, status=Status.PRESENT if path.exists() else Status.MISSING)
        for path in paths
    )
    try:
        restore_kubelet(rules, folder)
    except StateFileError as refusal:
        return Verdict(files=files, problems=(str(refusal),), summary=str(refusal))
    summary = f"{folder}: a kubelet would start with these files"
    return Verdict(files=files, problems=(), summary=summary)


def restore_kubelet(rules: Rules, folder: Path) -> NodeState:
    """Return the state that a kubelet's files say.

    Raises `InputError` where there are none, `StateFileError` where a kubelet would refuse them.
    """
    cpu, memory = kubelet_state.read(folder)
    if cpu is None and memory is None:
        raise InputError(
            "has neither cpu_manager_state nor memory_manager_state", where=str(folder)
        )
    try:
        return restore(rules, cpu, memory, folder=str(folder))
    except StartupRefused as refusal:
        raise StateFileError(f"{refusal.stage}: {refusal}") from refusal
