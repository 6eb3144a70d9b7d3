"""What is mounted where, by a mountinfo file (proc(5))."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount: its place, the type of its file system, and whether it may not be written to."""

    point: Path
    kind: str
    read_only: bool


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Return the mounts in their order."""
    return tuple(_mount(line) for line in text.splitlines())


def mount_around(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount that a resolved path lies in, None where the table has none.

    Of mounts at the same place the last one covers the others.
    """
    around = [mount for mount in mounts if path.is_relative_to(mount.point)]
    return max(reversed(around), key=lambda mount: len(mount.point.parts), default=None)


def _mount(line: str) -> Mount:
    own, _, shared = line.partition(" - ")
    fields, (kind, _, super_options) = own.split(" "), shared.split(" ", 2)
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
    options = {*fields[5].split(","), *super_options.split(",")}
    return Mount(point=Path(point), kind=kind, read_only="ro" in options)
