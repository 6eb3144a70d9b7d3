"""Whether the NUMA nodes that cgroups are bound to can hold what these may still ask for.

A process that is bound to full nodes gets nothing from others: it is killed, or who has most there
(cgroup2-facts section 3).  So what may still come, which is the sum of ``memory.max`` less what is
held over all that is bound to a set of nodes, is compared with what these nodes have, and a margin
is kept.  All amounts are bytes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import NodeSet
from agent.core.memory_moves import ByNode, NodeRoom, mib, sum_outside

_ENOUGH = 2
"""A shortage is over once so many margins are left, so that it does not come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A cgroup that is, or is to be, bound to NUMA nodes.

    ``movable`` is where its memory is, and ``growth_bytes`` how much it may still come to need
    before it reaches its ``memory.max``; None where it has no such limit.
    """

    path: CgroupPath
    nodes: NodeSet
    movable: ByNode = field(default_factory=dict)
    growth_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What a set of nodes has, and what everything that is bound inside it may still ask for."""

    nodes: NodeSet
    available_bytes: int
    needed_bytes: int
    margin_bytes: int

    @property
    def left_bytes(self) -> int:
        """What would be left; negative where processes may come to be killed."""
        return self.available_bytes - self.needed_bytes

    def is_short(self, *, was_short: bool) -> bool:
        """Tell whether the margin is not kept; once that was so, twice the margin is asked for."""
        return self.left_bytes < self.margin_bytes * (_ENOUGH if was_short else 1)

    def __str__(self) -> str:
        return (
            f"NUMA nodes {self.nodes} have {mib(self.available_bytes)} free or in clean pages of"
            f" files, and what is bound to them, or is to be, may ask for {mib(self.needed_bytes)}"
            f" more, with {mib(self.margin_bytes)} to keep: where that comes about, the kernel kills"
            " somebody there, though other nodes have memory; free some, lower memory limits, or"
            " set mems: soft"
        )


def headrooms(
    bound: Collection[Bound], rooms: Mapping[int, NodeRoom], margin_bytes: int
) -> tuple[Headroom, ...]:
    """Return the headroom of every set of nodes that something is bound to.

    ``margin_bytes`` is to be kept on each node.  Sets with a node of which nothing is known are left
    out.
    """
    sets = sorted({one.nodes for one in bound}, key=lambda nodes: nodes.bits)
    return tuple(
        Headroom(
            nodes=nodes,
            available_bytes=sum(rooms[node].available_bytes for node in nodes),
            needed_bytes=_needed(nodes, bound),
            margin_bytes=margin_bytes * len(nodes),
        )
        for nodes in sets
        if nodes <= NodeSet(rooms)
    )


def short_sets(
    headrooms: Iterable[Headroom], former: Collection[NodeSet] = ()
) -> frozenset[NodeSet]:
    """Return the sets of nodes that are too small; ``former`` is the last such answer."""
    return frozenset(h.nodes for h in headrooms if h.is_short(was_short=h.nodes in former))


def widened(bound: Collection[Bound], short: Collection[NodeSet]) -> frozenset[CgroupPath]:
    """Return who must not stay bound: all that share a shortage, and what is bound above them.

    It is all of them, since one that is bound no longer still fills the nearest node first, and who
    stayed bound would be killed for it.
    """
    in_need = {one.path for one in bound if any(one.nodes <= nodes for nodes in short)}
    affected = in_need.union(*map(_above, in_need))
    return frozenset(one.path for one in bound if one.path in affected)


def _needed(nodes: NodeSet, bound: Collection[Bound]) -> int:
    """Return what all that is bound inside ``nodes`` may still bring there, each counted once."""
    inside = {one.path: one for one in bound if one.nodes <= nodes}
    below: dict[CgroupPath | None, list[Bound]] = {}
    for one in inside.values():
        nearest = next((path for path in _above(one.path) if path in inside), None)
        below.setdefault(nearest, []).append(one)

    def growth(one: Bound) -> int:
        """Count its own limit, else those of what is bound below."""
        if one.growth_bytes is not None:
            return one.growth_bytes
        return sum(map(growth, below.get(one.path, ())))

    return sum(growth(top) + sum_outside(top.movable, nodes) for top in below.get(None, ()))


def _above(path: CgroupPath) -> list[CgroupPath]:
    """Return the cgroups above, the nearest first, without the root."""
    above = []
    while (path := path.parent).relative:
        above.append(path)
    return above
