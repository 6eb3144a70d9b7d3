"""Desired minus observed: the writes to make, in an order in which no CPU ever has two owners."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet

CPUS_FILE = "cpuset.cpus"
MEMS_FILE = "cpuset.mems"
CPU_MAX_FILE = "cpu.max"


class Phase(IntEnum):
    """When a write is made: everything is given up before anything is taken."""

    SHRINK = 0
    MOVE = 1
    GROW = 2
    QUOTA = 3
    MEMS = 4
    """Last and apart: the kernel moves the pages within the write, and blocks others meanwhile."""


@dataclass(frozen=True, slots=True, order=True)
class Write:
    """One value for one file of one cgroup; the order of writes is the order to make them in."""

    phase: Phase
    position: int
    path: CgroupPath
    file: str
    value: str


def plan_writes(
    desired: Mapping[CgroupPath, CgroupValues], observed: Mapping[CgroupPath, CgroupValues]
) -> list[Write]:
    """Return the writes that make the observed cgroups say what they should, in order.

    Cgroups that are not observed have vanished or are not there yet, and are left out.  Equal values
    are never rewritten: before Linux 6.2 any real change un-pins threads that pinned themselves.
    All shrinks come before any grow; a set that both loses and gains is first cut down to what
    stays; one of which nothing stays moves, and whoever leaves CPUs does so before others come onto
    them.  Shrinks go from the leaves up, grows from the top down, so that no child is cut short by
    a parent that has not grown yet.  A set that is never empty is written: a desired empty set is an
    error of ours and raises `agent.core.cpuset.IdSetError`.
    """
    writes: list[Write] = []
    for path, want in desired.items():
        have = observed.get(path)
        if have is None:
            continue
        if want.cpus is not None and want.cpus != have.cpus:
            writes += _cpu_writes(path, want.cpus, have)
        if want.cpu_max is not None and want.cpu_max != have.cpu_max:
            writes.append(Write(Phase.QUOTA, path.depth, path, CPU_MAX_FILE, str(want.cpu_max)))
        if want.mems is not None and want.mems != have.mems:
            value = want.mems.for_write()
            writes.append(Write(Phase.MEMS, path.depth, path, MEMS_FILE, value))
    moves = [write for write in writes if write.phase is Phase.MOVE]
    others = [write for write in writes if write.phase is not Phase.MOVE]
    return sorted([*others, *_leavers_first(moves, observed)])


def _leavers_first(
    moves: list[Write], observed: Mapping[CgroupPath, CgroupValues]
) -> Iterator[Write]:
    """Yield moves in their order; of those that wait for each other in a ring, any goes first."""
    left = sorted(moves)
    for position in range(len(moves)):
        in_use = [(write, _usable(observed[write.path])) for write in left]
        free = (
            write
            for write in left
            if all(
                other is write or used.isdisjoint(CPUSet.parse(write.value))
                for other, used in in_use
            )
        )
        chosen = next(free, left[0])
        left.remove(chosen)
        yield replace(chosen, position=position)


def _usable(have: CgroupValues) -> CPUSet:
    """Return what a cgroup can use now: its own list, or what it inherits while unset."""
    return have.effective_cpus if have.cpus is None else have.cpus


def _cpu_writes(path: CgroupPath, want: CPUSet, have: CgroupValues) -> list[Write]:
    def write(phase: Phase, cpus: CPUSet) -> Write:
        position = path.depth if phase is Phase.GROW else -path.depth
        return Write(phase, position, path, CPUS_FILE, cpus.for_write())

    now = _usable(have)
    if want <= now:
        return [write(Phase.SHRINK, want)]
    if now <= want:
        return [write(Phase.GROW, want)]
    stays = now & want
    if not stays:
        return [write(Phase.MOVE, want)]
    return [write(Phase.SHRINK, stays), write(Phase.GROW, want)]
