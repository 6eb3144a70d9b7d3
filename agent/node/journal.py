"""The journal of overwritten values, on disk before a value is overwritten.

One JSON document in the state folder::

    {"version":1,"boot_id":"...","values":[["kubepods.slice",1234,"cpuset.cpus",""],...]}

It is true for one boot only: cgroups do not outlive it.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.core.cgroups import CgroupPath
from agent.core.overwritten import FILES, Overwritten
from agent.core.plan import CPU_MAX_FILE
from agent.errors import StateFileError
from agent.node.cgroup_layout import SINGLE_HOST_SLICE
from agent.node.durable import Disk, replace_file

JOURNAL_FILE = "journal.json"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    version: Literal[1]
    boot_id: str
    values: list[tuple[str, int, str, str]]


class Journal:
    """What was overwritten since the boot: of a set the first value, of a quota the last.

    A container's quota is the kubelet's; where it writes another one, that is what it wants back.  On a
    single host it is the agent's own, also one that it does not remember from before a restart.
    """

    def __init__(self, folder: Path, *, boot_id: str, disk: Disk | None = None) -> None:
        self._path = folder / JOURNAL_FILE
        self._boot_id = boot_id
        self._disk = disk or Disk()
        self._entries: dict[tuple[CgroupPath, str], Overwritten] = {}

    def load(self) -> str:
        """Read the file; return a sentence where it cannot be used: it is set aside then."""
        try:
            file = _File.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return ""
        except (OSError, ValidationError) as error:
            return self._set_aside(error)
        if file.boot_id == self._boot_id:
            entries = (
                Overwritten(path=CgroupPath(path), identity=identity, file=name, value=value)
                for path, identity, name, value in file.values
                if name in FILES
            )
            self._entries = {(entry.path, entry.file): entry for entry in entries}
        return ""

    @property
    def entries(self) -> tuple[Overwritten, ...]:
        """All that was overwritten and not given back."""
        return tuple(self._entries.values())

    def lost(self) -> tuple[str, ...]:
        """Return a sentence where a journal of this boot was set aside, by whatever agent."""
        damaged = self._damaged
        what = "could not be used: the values in it are not given back; the next boot undoes them"
        return (f"{damaged} {what}",) if damaged.exists() else ()

    def note(self, entries: Iterable[Overwritten]) -> None:
        """Remember values about to be overwritten; those known of the same cgroup stay.

        Raises `StateFileError` where they cannot be put on disk: then they must not be overwritten.
        """
        new = {(entry.path, entry.file): entry for entry in entries if not self._knows(entry)}
        if new:
            self._replace(self._entries | new)

    def forget(self, is_over: Callable[[Overwritten], bool]) -> None:
        """Drop what was given back, or whose cgroup has gone; raises `StateFileError`."""
        left = {key: entry for key, entry in self._entries.items() if not is_over(entry)}
        if len(left) < len(self._entries):
            self._replace(left)

    def _knows(self, entry: Overwritten) -> bool:
        known = self._entries.get((entry.path, entry.file))
        if known is None or known.identity != entry.identity:
            return False
        is_ours = entry.file != CPU_MAX_FILE or entry.path.is_below(SINGLE_HOST_SLICE)
        return is_ours or known.value == entry.value

    def _replace(self, entries: dict[tuple[CgroupPath, str], Overwritten]) -> None:
        values = [(e.path.relative, e.identity, e.file, e.value) for e in entries.values()]
        text = json.dumps({"version": 1, "boot_id": self._boot_id, "values": values})
        try:
            replace_file(self._path, f"{text}\n".encode(), self._disk)
        except OSError as error:
            raise StateFileError(
                f"cannot save {self._path}: {error.strerror}; nothing is overwritten until it can"
            ) from error
        self._entries = entries

    def _set_aside(self, problem: Exception) -> str:
        first = str(problem).splitlines()[0]
        text = f"{self._path} cannot be used ({first}): values overwritten earlier are unknown"
        try:
            self._disk.rename(self._path, self._damaged)
        except OSError as error:
            return f"{text}, and it cannot be set aside: {error.strerror}"
        return f"{text}; set aside as {self._damaged.name}"

    @property
    def _damaged(self) -> Path:
        """Where what cannot be used in this boot is kept."""
        return self._path.with_name(f"{JOURNAL_FILE}.damaged-{self._boot_id}")
