"""Two copies of the checkpoint on disk, of which one is whole at every instant.

First one copy is replaced durably (`agent.node.durable`), then the other.  The newest whole copy
counts.  What cannot be read is set aside under a name that says so, and never keeps the agent
from starting.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent.core.topology import NodeTopology
from agent.errors import StateFileError
from agent.node.checkpoint_format import (
    Damaged,
    Decoded,
    NewerVersion,
    Renderer,
    Writer,
    decode,
    frame,
)
from agent.node.durable import Disk, replace_file
from agent.ports import Clock, Remembered

COPIES = ("checkpoint-a.json", "checkpoint-b.json")
KEPT_ASIDE = 4
"""So many files of one copy and cause are kept aside; the oldest go first."""

_CURES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota on that file system",
    errno.EROFS: "mount that file system read-write",
    errno.EIO: "the disk fails: look at the kernel's log, and move the state folder elsewhere",
    errno.EACCES: "the state folder must be writable for numalet",
    errno.EPERM: "the state folder must be writable for numalet",
    errno.ENOENT: "the state folder was removed: make it again",
}


class CheckpointNotSaved(StateFileError):
    """The disk refused the new state; the one saved before is whole."""

    def __init__(self, path: Path, error: OSError) -> None:
        number = error.errno or 0
        name = errno.errorcode.get(number, str(number))
        cure = f"; {_CURES[number]}" if number in _CURES else ""
        super().__init__(
            f"cannot save {path}: {name} ({os.strerror(number)}){cure}; "
            "what was saved before is whole and holds until then"
        )
        self.path = path
        self.errno = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was found: ``remembered`` is None where nothing usable was, and ``notes`` say why.

    ``newer_version`` says that a newer numalet wrote a copy: observe only, until told otherwise.
    That copy stays where it is until the first save.
    """

    remembered: Remembered | None = None
    writer: Writer | None = None
    generation: int = 0
    written_at_s: float = 0.0
    newer_version: bool = False
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Findings:
    whole: dict[Path, Decoded] = field(default_factory=dict)
    newer: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class CheckpointStore:
    """The two copies in one folder, which must exist and be locked by the caller.

    ``boot_id`` and ``topology`` (`topology_fingerprint`) say what the state is true for.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        boot_id: str = "",
        topology: str = "",
        disk: Disk | None = None,
    ) -> None:
        self._paths = tuple(folder / name for name in COPIES)
        self._folder = folder
        self._clock = clock
        self._disk = disk or Disk()
        self._renderer = Renderer(Writer(boot_id=boot_id, topology=topology))
        self._generation: int | None = None
        self._saved_body = ""
        self._newer: list[Path] = []
        self._loaded: Path | None = None

    def load(self) -> Loaded:
        """Return the newest whole copy and set damaged ones aside; raises nothing."""
        found = _Findings()
        for path in self._paths:
            self._examine(path, found)
        whole = list(found.whole.values())
        newest = max(whole, key=lambda copy: copy.generation, default=None)
        self._loaded = next((path for path, copy in found.whole.items() if copy is newest), None)
        self._newer = found.newer
        self._generation = newest.generation if newest else 0
        same = len(whole) == len(COPIES) and whole[0] == whole[1]
        self._saved_body = newest.body if newest and same else ""
        if found.newer:
            return Loaded(newer_version=True, notes=tuple(found.notes))
        if newest is None:
            if found.notes:
                found.notes.append(
                    "no whole copy is left: running pods keep what their cgroups say, the others "
                    "are decided on anew"
                )
            return Loaded(notes=tuple(found.notes))
        if found.notes:
            found.notes.append(f"the other copy is whole (generation {newest.generation})")
        return Loaded(
            remembered=newest.remembered,
            writer=newest.writer,
            generation=newest.generation,
            written_at_s=newest.written_at_s,
            notes=tuple(found.notes),
        )

    def save(self, remembered: Remembered) -> bool:
        """Write both copies; False if they say the same already, and nothing was written.

        Raises `CheckpointNotSaved`; at least one whole copy, of the old state or the new, is left.
        """
        if self._generation is None:
            self.load()
        body = self._renderer.body(remembered)
        if body == self._saved_body:
            return False
        while self._newer:
            self._set_aside(self._newer[-1], "newer")
            self._newer.pop()
        self._saved_body = ""
        self._generation = (self._generation or 0) + 1
        data = frame(body, self._generation, self._clock.now_s())
        for path in self._paths:
            with self._reported(path):
                replace_file(path, data, self._disk)
        self._saved_body = body
        return True

    def keep_loaded(self) -> None:
        """Keep what was loaded beside the copies, for a person who wants to know; raises nothing.

        It is for a whole file that cannot be true here, and that the next save replaces.
        """
        if self._loaded is not None:
            with contextlib.suppress(OSError):  # to start is more than to explain
                shutil.copyfile(self._loaded, self._name_aside(self._loaded, "unfit"))

    def _examine(self, path: Path, found: _Findings) -> None:
        try:
            found.whole[path] = decode(path.read_bytes())
        except FileNotFoundError:
            return
        except NewerVersion as error:
            found.newer.append(path)
            found.notes.append(
                f"{path} was written by a newer numalet ({error}): it stays as it is, and nothing "
                "is enforced; start the newer numalet again, or move the file away"
            )
        except (Damaged, OSError) as error:
            found.notes.append(self._set_damaged_aside(path, error))

    def _set_damaged_aside(self, path: Path, problem: Exception) -> str:
        try:
            aside = self._set_aside(path, "damaged")
        except CheckpointNotSaved as error:
            return f"{path} is damaged ({problem}) and could not be set aside: {error}"
        return f"{path} is damaged ({problem}): set aside as {aside.name}"

    def _set_aside(self, path: Path, why: str) -> Path:
        """Rename a copy to a name that tells why and when."""
        aside = self._name_aside(path, why)
        with self._reported(path):
            self._disk.rename(path, aside)
        return aside

    def _name_aside(self, path: Path, why: str) -> Path:
        """Return a new name that tells why and when, and bound how many there are of this kind."""
        earlier = sorted(path.parent.glob(f"{path.name}.{why}-*"), key=_stamp)
        with contextlib.suppress(OSError):  # too many is better than none
            for oldest in earlier[: 1 - KEPT_ASIDE]:
                oldest.unlink()
        # later than the latest even where the clock was set back: it is the oldest that go
        stamp = max([int(self._clock.now_s()), *(_stamp(one) + 1 for one in earlier[-1:])])
        return path.with_name(f"{path.name}.{why}-{stamp}")

    @contextlib.contextmanager
    def _reported(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointNotSaved(path, error) from error


def _stamp(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def topology_fingerprint(topology: NodeTopology) -> str:
    """Return a short text that is the same for as long as the same CPUs are in the same places.

    Amounts of memory are left out: they change a little with every kernel.
    """
    places = sorted((str(c.cpus), c.node, c.socket, c.uncore) for c in topology.cores)
    return hashlib.sha256(repr((str(topology.node_ids), places)).encode()).hexdigest()[:16]
