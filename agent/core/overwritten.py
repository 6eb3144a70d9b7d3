"""What cgroups said before numalet wrote to them, so that it can be given back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.plan import (
    CPU_MAX_FILE,
    CPU_WEIGHT_FILE,
    CPUS_FILE,
    MEMORY_MAX_FILE,
    MEMS_FILE,
    file_values,
)

FILES = (CPU_MAX_FILE, CPU_WEIGHT_FILE, MEMORY_MAX_FILE, CPUS_FILE, MEMS_FILE)
"""What is given back, in this order; ``cpuset.mems`` comes last: it is the write that takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """The value of one file of one cgroup, that with this inode number; empty for an unset one."""

    path: CgroupPath
    identity: int
    file: str
    value: str


def in_order(entries: Iterable[Overwritten]) -> list[Overwritten]:
    """Return entries in the order in which they are given back.

    Sets from the top down, so that no child gets back what its parent still withholds.
    """
    return sorted(entries, key=lambda e: (FILES.index(e.file), e.path.depth, e.path))


def no_longer_ours(
    entries: Iterable[Overwritten], desired: Mapping[CgroupPath, CgroupValues]
) -> list[Overwritten]:
    """Return what is to be given back though the cgroup stays: nothing is decided there any more.

    A pod whose exclusive slice ended gets the kubelet's quota back, and all get their sets back once
    there is no CPU manager.
    """
    return in_order(
        entry for entry in entries if entry.path in desired and _is_free(entry, desired[entry.path])
    )


def _is_free(entry: Overwritten, want: CgroupValues) -> bool:
    if want.keeps_rest or (entry.file == MEMS_FILE and not want.is_theirs):
        return False
    return file_values(want)[entry.file] is None
