"""How much memory is charged to a cgroup, where it lies, and how much more there may be."""

import re
from collections.abc import Iterable, Mapping

from agent.core.cgroups import CgroupPath
from agent.core.memory_moves import ByNode, Charge
from agent.core.plan import MEMORY_MAX_FILE
from agent.ports import Cgroups

NUMA_STAT_FILE = "memory.numa_stat"
CURRENT_FILE = "memory.current"

_BY_NODE = re.compile(r"\bN(\d+)=(\d+)", re.ASCII)
_MOVES = ("anon", "file_mapped")
"""What tasks have mapped follows them; the rest of the page cache and the kernel's own stays."""


def read_charge(cgroups: Cgroups, path: CgroupPath, page_sizes_kib: Iterable[int] = ()) -> Charge:
    """Return what is charged to a cgroup with all below it; nothing where no controller counts it.

    Huge pages of the given sizes are in a controller of their own.  Raises
    `agent.errors.CgroupError`.
    """
    rows = _rows(_text(cgroups, path, NUMA_STAT_FILE))
    movable: dict[int, int] = {}
    for name in _MOVES:
        for node, size in rows.get(name, {}).items():
            movable[node] = movable.get(node, 0) + size
    huge = {
        kib: by_node(_text(cgroups, path, f"hugetlb.{_size_name(kib)}.numa_stat"))
        for kib in page_sizes_kib
    }
    # Of tmpfs and shared memory, which count as files, nothing can be dropped.
    droppable = sum(rows.get("file", {}).values()) - sum(rows.get("shmem", {}).values())
    return Charge(movable=movable, huge=huge, droppable_bytes=max(0, droppable))


def read_growth(cgroups: Cgroups, path: CgroupPath, charge: Charge) -> int | None:
    """Return how many more bytes a cgroup may come to hold that cannot be dropped.

    It is ``memory.max`` less ``memory.current``, and its pages of files besides, which make room
    for others in it.  None where it has no limit.  Raises `agent.errors.CgroupError`.
    """
    limit, current = (_text(cgroups, path, file) for file in (MEMORY_MAX_FILE, CURRENT_FILE))
    if not limit.isdecimal() or not current.isdecimal():
        return None
    return max(0, int(limit) - max(0, int(current) - charge.droppable_bytes))


def by_node(row: str) -> ByNode:
    """Read one row: ``anon N0=4096 N1=0``."""
    return {int(node): int(size) for node, size in _BY_NODE.findall(row)}


def _rows(numa_stat: str) -> Mapping[str, ByNode]:
    return {row.partition(" ")[0]: by_node(row) for row in numa_stat.splitlines()}


def _size_name(kib: int) -> str:
    """Return a page size as the files of the controller spell it (``mem_fmt``, mm/hugetlb_cgroup.c)."""
    for name, scale in (("GB", 1 << 20), ("MB", 1 << 10)):
        if kib >= scale:
            return f"{kib // scale}{name}"
    return f"{kib}KB"


def _text(cgroups: Cgroups, path: CgroupPath, file: str) -> str:
    text = cgroups.read(path, file)
    return text if isinstance(text, str) else ""
