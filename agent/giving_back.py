"""Gives cgroups back what they said before numalet wrote to them."""

import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agent.core.cgroups import EVENTS_FILE, CgroupPath, says_populated
from agent.core.overwritten import Overwritten, in_order
from agent.core.plan import CPU_MAX_FILE
from agent.errors import CgroupError
from agent.node.cgroup_layout import SINGLE_HOST_SLICE, is_own_container
from agent.ports import GONE, Cgroups, Journal


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


def release(cgroups: Cgroups, journal: Journal, own: CgroupPath) -> GivenBack:
    """Give everything back, and remove the agent's own cgroups below ``own`` where nothing runs.

    Raises `agent.errors.StateFileError` where the journal cannot be written.
    """
    given = give_back(cgroups, journal.entries)
    done = set(given.done)
    journal.forget(lambda entry: entry in done)
    left = remove_empty(cgroups, own) if cgroups.identity(own) is not GONE else []
    stays = [f"{path} stays: something runs there" for path in left if not _has_left(path, left)]
    return replace(given, notes=(*given.notes, *stays))


def _has_left(path: CgroupPath, left: Iterable[CgroupPath]) -> bool:
    return any(other != path and other.is_below(path) for other in left)


def _is_newer(entry: Overwritten, now: str) -> bool:
    """Tell whether a kubelet has set another quota since: the agent only ever lifts what he sets."""
    is_kubelets = entry.file == CPU_MAX_FILE and not entry.path.is_below(SINGLE_HOST_SLICE)
    return is_kubelets and not any(value.startswith("max") for value in (entry.value, now))


def _write(cgroups: Cgroups, entry: Overwritten) -> list[str]:
    """Give one value back; return what to say where it is another one."""
    now = cgroups.read(entry.path, entry.file)
    if now in (entry.value, GONE) or _is_newer(entry, str(now)):
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
    if cgroups.read(entry.path, entry.file) != above:
        cgroups.write(entry.path, entry.file, above)
    what = f"{entry.path}/{entry.file} says {above}, as the cgroup above"
    return [f"{what}: it was unset, and the kernel unsets no list while processes run there"]


def remove_empty(cgroups: Cgroups, path: CgroupPath) -> list[CgroupPath]:
    """Remove a cgroup with all below it, but for what holds processes; return what is left.

    Below a container's cgroup with processes all is the program's, also where nothing runs.
    """
    if is_own_container(path) and says_populated(cgroups.read(path, EVENTS_FILE)):
        return [path]
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
