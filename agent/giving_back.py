"""Gives cgroups back what they said before numalet wrote to them."""

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from agent.core.cgroups import CgroupPath
from agent.core.overwritten import Overwritten, in_order
from agent.errors import CgroupError
from agent.ports import GONE, Cgroups


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """What became of overwritten values.

    ``done`` are given back or have no cgroup any more, ``notes`` say where the kernel did not take
    the old value and what it has instead; ``problems`` are what could not be done.
    """

    done: tuple[Overwritten, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def give_back(cgroups: Cgroups, entries: Iterable[Overwritten]) -> GivenBack:
    """Write values back, from the top down; a cgroup that was made again is another one.

    A list that was unset cannot be emptied while processes run in the cgroup (cgroup2-facts
    section 1): it gets its parent's effective one then.
    """
    done, notes, problems = [], [], []
    for entry in in_order(entries):
        try:
            if cgroups.identity(entry.path) == entry.identity:
                notes += _write(cgroups, entry)
        except CgroupError as error:
            problems.append(str(error))
        else:
            done.append(entry)
    return GivenBack(done=tuple(done), notes=tuple(notes), problems=tuple(problems))


def _write(cgroups: Cgroups, entry: Overwritten) -> list[str]:
    """Give one value back; return what to say where it is another one."""
    if cgroups.read(entry.path, entry.file) in (entry.value, GONE):
        return []
    try:
        cgroups.write(entry.path, entry.file, entry.value or "\n")
    except CgroupError as error:
        if entry.value or error.errno != errno.ENOSPC:
            raise
    else:
        return []
    above = cgroups.read(entry.path.parent, f"{entry.file}.effective")
    if not isinstance(above, str) or not above:
        return []
    cgroups.write(entry.path, entry.file, above)
    what = f"{entry.path}/{entry.file} says {above}, as the cgroup above"
    return [f"{what}: it was unset, and the kernel unsets no list while processes run there"]


def remove_empty(cgroups: Cgroups, path: CgroupPath) -> list[CgroupPath]:
    """Remove a cgroup with all below it, but for what holds processes; return what is left."""
    left = [one for child in cgroups.children(path) for one in remove_empty(cgroups, child)]
    if left:
        return [*left, path]
    try:
        cgroups.remove(path)
    except CgroupError as error:
        if error.errno != errno.EBUSY:
            raise
        return [path]
    return []
