"""Pages that move when ``cpuset.mems`` changes: which ones, where to, and whether they fit there.

The kernel moves each source node's pages to one target node and to no other, and what finds no room
there stays behind; the write succeeds all the same (``do_migrate_pages``, mm/mempolicy.c, and
cgroup2-facts section 3).  All amounts are bytes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.core.cpuset import NodeSet
from agent.core.quantity import format_bytes

ByNode = Mapping[int, int]
"""Bytes by NUMA node."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What a NUMA node could still take.

    ``cache_bytes`` are clean pages of files, which the kernel drops when it needs the room;
    ``huge_bytes`` are free huge pages, by page size in KiB.
    """

    free_bytes: int
    cache_bytes: int = 0
    huge_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def available_bytes(self) -> int:
        """What processes can have without anything being killed."""
        return self.free_bytes + self.cache_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What is charged to a cgroup and to all below it.

    ``movable`` is what follows ``cpuset.mems``: anonymous memory, and pages of files that are
    mapped.  ``huge`` are huge pages, by page size in KiB, on the nodes where they were first used:
    they move, too, but the kernel's tally stays (``hugetlb_cgroup_migrate``, mm/hugetlb_cgroup.c).
    ``droppable_bytes`` are pages of files, mapped or not, on all nodes.
    """

    movable: ByNode = field(default_factory=dict)
    huge: Mapping[int, ByNode] = field(default_factory=dict)
    droppable_bytes: int = 0

    def outside(self, nodes: NodeSet) -> int:
        """Return how much lies on other nodes than these and could be moved, as far as that is told.

        Of huge pages it is not.
        """
        return sum_outside(self.movable, nodes)

    def huge_within(self, nodes: NodeSet) -> dict[int, ByNode]:
        """Return the huge pages of a cgroup that is on these nodes.

        What is tallied elsewhere moved with it; on which of several nodes it came to be nobody says,
        and the first one counts.
        """
        first = next(iter(nodes), None)
        return {
            kib: {
                node: pages.get(node, 0) + (sum_outside(pages, nodes) if node == first else 0)
                for node in nodes
            }
            for kib, pages in self.huge.items()
        }


def sum_outside(pages: ByNode, nodes: NodeSet) -> int:
    """Return the bytes that lie on other nodes than these."""
    return sum(size for node, size in pages.items() if node not in nodes)


def destination(node: int, old: NodeSet, new: NodeSet) -> int:
    """Return where a node's pages go when the effective nodes change; itself where they stay.

    The n-th old node goes to the n-th new one, counted in a circle (``node_remap``), but among sets
    of different size nothing leaves a node of the new set.
    """
    if node not in old or (len(old) != len(new) and node in new):
        return node
    position = sum(other < node for other in old)
    return list(new)[position % len(new)]


def arrivals(pages: ByNode, old: NodeSet, new: NodeSet) -> dict[int, int]:
    """Return how much more will be on each node; the kernel empties a node before it fills it."""
    change: Counter[int] = Counter()
    for node, size in pages.items():
        change[destination(node, old, new)] += size
        change[node] -= size
    return {node: more for node, more in change.items() if more > 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of a cgroup's effective nodes, and what it means for its memory.

    ``growth_bytes`` is how much the cgroup may still come to hold before its ``memory.max``; None
    where it has no such limit.
    """

    old: NodeSet
    new: NodeSet
    charge: Charge
    growth_bytes: int | None = None

    def obstacle(self, rooms: Mapping[int, NodeRoom], margin_bytes: int) -> str | None:
        """Say what does not fit where it would have to go, None where all does.

        ``margin_bytes`` must stay free on each node.  Of a node without a room nothing is known, and
        anything fits.
        """
        return next(self._obstacles(rooms, margin_bytes), None)

    def _obstacles(self, rooms: Mapping[int, NodeRoom], margin_bytes: int) -> Iterator[str]:
        for node, size in arrivals(self.charge.movable, self.old, self.new).items():
            room = rooms.get(node)
            if room is not None and size + margin_bytes > room.available_bytes:
                yield (
                    f"{mib(size)} would move to NUMA node {node}, which has {mib(room.free_bytes)}"
                    f" free and {mib(room.cache_bytes)} in clean pages of files, and keeps"
                    f" {mib(margin_bytes)} of that: free memory there"
                )
        for page_kib, pages in self.charge.huge_within(self.old).items():
            for node, size in arrivals(pages, self.old, self.new).items():
                room = rooms.get(node)
                free = size if room is None else room.huge_bytes.get(page_kib, 0)
                if size > free:
                    yield (
                        f"{mib(size)} in huge pages of {format_bytes(page_kib * 1024)} would move to"
                        f" NUMA node {node}, which has {mib(free)} of them free: raise nr_hugepages"
                        " there"
                    )
        is_let_out = self.old <= self.new
        if self.growth_bytes is not None and not is_let_out and self.new <= NodeSet(rooms):
            needed = sum_outside(self.charge.movable, self.new) + self.growth_bytes
            available = sum(rooms[node].available_bytes for node in self.new)
            if needed + margin_bytes * len(self.new) > available:
                yield (
                    f"up to its memory.max it may ask for {mib(needed)} more on NUMA nodes {self.new},"
                    f" which have {mib(available)} free or in clean pages of files, and keep"
                    f" {mib(margin_bytes)} each: free memory there, or lower its limit"
                )


def mib(amount: int) -> str:
    """Return an amount in whole MiB, for people: ``600Mi``, ``2Gi``, ``0``."""
    return format_bytes(amount // _MIB * _MIB)
