"""Desired minus observed: the writes to make, in an order in which no CPU ever has two owners."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet

CPUS_FILE = "cpuset.cpus"
MEMS_FILE = "cpuset.mems"
CPU_MAX_FILE = "cpu.max"
CPU_WEIGHT_FILE = "cpu.weight"
MEMORY_MAX_FILE = "memory.max"
_AMOUNTS = (CPU_MAX_FILE, CPU_WEIGHT_FILE, MEMORY_MAX_FILE)


class Phase(IntEnum):
    """When a write is made: everything is given up before anything is taken."""

    SHRINK = 0
    WIDEN = 1
    """Above a pod that moves: room for where it was and where it will be."""
    MOVE = 2
    NARROW = 3
    """Above a pod that has moved: only where it is now."""
    GROW = 4
    QUOTA = 5
    """How much of what a cgroup may use: time, weight, memory."""
    MEMS = 6
    """Last and apart: the kernel moves the pages within the write, and blocks others meanwhile."""


@dataclass(frozen=True, slots=True, order=True)
class Write:
    """One value for one file of one cgroup; the order of writes is the order to make them in."""

    phase: Phase
    position: int
    path: CgroupPath
    file: str
    value: str


def file_values(values: CgroupValues) -> Mapping[str, object]:
    """Return what the files of a cgroup say or should say, by name; None where that is open."""
    return {
        CPUS_FILE: values.cpus,
        MEMS_FILE: values.mems,
        CPU_MAX_FILE: values.cpu_max,
        CPU_WEIGHT_FILE: values.cpu_weight,
        MEMORY_MAX_FILE: values.memory_max,
    }


def differences(want: CgroupValues, have: CgroupValues) -> list[tuple[str, str, str]]:
    """Return file, wanted text and text of each file that is wanted to say something else."""
    wanted, seen = file_values(want), file_values(have)
    return [
        (file, str(wanted[file]), "" if seen[file] is None else str(seen[file]))
        for file in wanted
        if wanted[file] is not None and wanted[file] != seen[file]
    ]


def plan_writes(
    desired: Mapping[CgroupPath, CgroupValues], observed: Mapping[CgroupPath, CgroupValues]
) -> list[Write]:
    """Return the writes that make the observed cgroups say what they should, in order.

    Cgroups that are not observed have vanished or are not there yet, and are left out.  Equal values
    are never rewritten: before Linux 6.2 any real change un-pins threads that pinned themselves.
    All shrinks come before any grow; a set that both loses and gains is first cut down to what
    stays.  One of which nothing stays moves, and whoever leaves CPUs does so before others come
    onto them.  Shrinks go from the leaves up, grows from the top down, so that no child is cut short
    by a parent that has not grown yet.  A set that is never empty is written: a desired empty set is
    an error of ours and raises `agent.core.cpuset.IdSetError`.
    """
    above = _above_moves(desired, observed)
    writes: list[Write] = []
    for path, want in desired.items():
        have = observed.get(path)
        if have is None:
            continue
        if want.cpus is not None and want.cpus != have.cpus:
            writes += _cpu_writes(path, want.cpus, have, around_moves=path in above)
        writes += _amount_writes(path, want, have)
        if want.mems is not None and want.mems != have.mems:
            value = want.mems.for_write()
            writes.append(Write(Phase.MEMS, path.depth, path, MEMS_FILE, value))
    moves = [write for write in writes if write.phase is Phase.MOVE]
    others = [write for write in writes if write.phase is not Phase.MOVE]
    return sorted([*others, *_leavers_first(moves, observed)])


def _above_moves(
    desired: Mapping[CgroupPath, CgroupValues], observed: Mapping[CgroupPath, CgroupValues]
) -> set[CgroupPath]:
    """Return the cgroups above a pod that moves as a whole.

    A set that shares nothing with its parent's gets all of that (cgroup2-facts section 1): for a
    container that is its own pod's, but for a pod it would be what other pods have, too.
    """
    parents = {path.parent for path in desired}
    moving = (
        path
        for path in parents & desired.keys() & observed.keys()
        if (desired[path].cpus or CPUSet()).isdisjoint(_usable(observed[path]))
    )
    return {above for path in moving for above in desired if path != above and path.is_below(above)}


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


def _amount_writes(path: CgroupPath, want: CgroupValues, have: CgroupValues) -> Iterator[Write]:
    wanted, seen = file_values(want), file_values(have)
    for file in _AMOUNTS:
        if wanted[file] is not None and wanted[file] != seen[file]:
            yield Write(Phase.QUOTA, path.depth, path, file, str(wanted[file]))


def _usable(have: CgroupValues) -> CPUSet:
    """Return what a cgroup can use now: its own list, or what it inherits while unset."""
    return have.effective_cpus if have.cpus is None else have.cpus


def _cpu_writes(
    path: CgroupPath, want: CPUSet, have: CgroupValues, *, around_moves: bool
) -> Iterator[Write]:
    def write(phase: Phase, cpus: CPUSet) -> Write:
        top_down = phase in (Phase.WIDEN, Phase.GROW)
        return Write(
            phase, path.depth if top_down else -path.depth, path, CPUS_FILE, cpus.for_write()
        )

    now = _usable(have)
    if around_moves and not want <= now:
        yield write(Phase.WIDEN, now | want)
        if not now <= want:
            yield write(Phase.NARROW, want)
    elif want <= now:
        yield write(Phase.NARROW if around_moves else Phase.SHRINK, want)
    elif now <= want:
        yield write(Phase.GROW, want)
    elif stays := now & want:
        yield write(Phase.SHRINK, stays)
        yield write(Phase.GROW, want)
    else:
        yield write(Phase.MOVE, want)
