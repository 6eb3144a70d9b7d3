"""Sets of NUMA nodes that satisfy sums: found by search, never by enumerating all subsets.

A `Loose` rule describes a family of node masks that is closed upwards inside its universe: every
mask that contains the nodes it must contain, has enough nodes, and whose amounts add up to what is
needed.  CPU hints are one such family, memory hints are one plus a few listed masks.  The searches
visit masks of one size in ascending numerical order and cut off branches that cannot reach the sums,
so 64 nodes cost no more patience than 2.
"""

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

Distances = Mapping[int, Mapping[int, int]]
"""Distance from node to node, both directions and to itself."""

PATIENCE = 1 << 14
"""So many branches are looked at for the closest mask before the best so far is good enough."""

_MOST_VECTORS = 32


@dataclass(frozen=True, slots=True)
class Sum:
    """The amounts of a mask's nodes must add up to ``need``; amounts are keyed by node bit."""

    amounts: Mapping[int, int]
    need: int

    def of(self, mask: int) -> int:
        """Return the sum over the mask's nodes."""
        amounts, total = self.amounts, 0
        while mask:
            low = mask & -mask
            total += amounts.get(low, 0)
            mask ^= low
        return total


@dataclass(frozen=True, slots=True)
class Loose:
    """All masks inside ``universe`` that contain ``must``, have ``least`` nodes and meet every sum."""

    universe: int
    sums: tuple[Sum, ...]
    must: int = 0
    least: int = 1

    def admits(self, mask: int) -> bool:
        """Tell whether a mask belongs to the family."""
        return (
            not mask & ~self.universe
            and not self.must & ~mask
            and mask.bit_count() >= self.least
            and all(s.of(mask) >= s.need for s in self.sums)
        )

    def inside(self, bounds: int) -> "Loose":
        """Return what masks of the family leave in ``bounds``; outside they may have all nodes."""
        outside = self.universe & ~bounds
        return Loose(
            self.universe & bounds,
            tuple(Sum(s.amounts, s.need - s.of(outside)) for s in self.sums),
            self.must & bounds,
            max(1, self.least - outside.bit_count()),
        )

    def __and__(self, other: "Loose") -> "Loose":
        return Loose(
            self.universe & other.universe,
            self.sums + other.sums,
            self.must | other.must,
            max(self.least, other.least),
        )


def node_bits(mask: int) -> list[int]:
    """Return the single-node masks of a mask, ascending."""
    bits = []
    while mask:
        low = mask & -mask
        bits.append(low)
        mask ^= low
    return bits


def ascending(family: Loose, size: int) -> Iterator[int]:
    """Yield the family's masks of ``size`` nodes in ascending numerical order."""
    if size < max(1, family.least) or family.must & ~family.universe:
        return iter(())
    if size == 1:
        return (bit for bit in node_bits(family.universe) if family.admits(bit))
    search = _Search(family)
    return search.masks(len(search.nodes), size - family.must.bit_count(), family.must)


def smallest_size(family: Loose) -> int | None:
    """Return how many nodes the family's smallest mask has; None where the family is empty."""
    if not family.admits(family.universe):
        return None
    nodes = node_bits(family.universe)
    fewest = [_fewest(s, nodes) for s in family.sums]
    low = max(1, family.least, family.must.bit_count(), *fewest)
    if len(fewest) == 1 and not family.must:
        return low
    return next(
        size
        for size in range(low, len(nodes) + 1)
        if next(ascending(family, size), None) is not None
    )


def _fewest(wanted: Sum, nodes: Iterable[int]) -> int:
    """Return how many nodes it takes to reach a sum, those with the largest amounts first."""
    largest = sorted((wanted.amounts.get(bit, 0) for bit in nodes), reverse=True)
    return bisect_left(list(accumulate(largest)), wanted.need) + 1


class _Search:
    """Depth first from the highest node down, leaving a node out before taking it in.

    The nodes that a mask must contain are in it from the start.
    """

    def __init__(self, family: Loose) -> None:
        self.needs = [s.need for s in family.sums]
        self.sums = family.sums
        self.nodes = node_bits(family.universe & ~family.must)
        self.amounts = [tuple(s.amounts.get(bit, 0) for s in family.sums) for bit in self.nodes]
        self.reached: dict[tuple[int, int], list[tuple[int, ...]]] = {}

    def masks(self, end: int, size: int, mask: int) -> Iterator[int]:
        """Yield the family's masks that add ``size`` of the first ``end`` nodes to ``mask``."""
        if not self.can(end, size, mask):
            return
        if size == 0:
            yield mask
            return
        yield from self.masks(end - 1, size, mask)
        yield from self.masks(end - 1, size - 1, mask | self.nodes[end - 1])

    def can(self, end: int, size: int, mask: int) -> bool:
        """Tell whether adding ``size`` of the first ``end`` nodes to ``mask`` can meet all sums."""
        missing = [s.need - s.of(mask) for s in self.sums]
        return any(all(map(operator.ge, most, missing)) for most in self.most(end, size))

    def most(self, end: int, size: int) -> list[tuple[int, ...]]:
        """Return the sums that ``size`` of the first ``end`` nodes reach and no others exceed.

        What is more than the need counts as the need.
        """
        if not 0 < size <= end:
            return [] if size else [(0,) * len(self.needs)]
        found = self.reached.get((end, size))
        if found is None:
            amounts = self.amounts[end - 1]
            taking = [
                tuple(map(min, self.needs, map(operator.add, others, amounts)))
                for others in self.most(end - 1, size - 1)
            ]
            found = _unexceeded(taking + self.most(end - 1, size))
            self.reached[end, size] = found
        return found


def _unexceeded(vectors: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the vectors that no other one equals or exceeds in every place.

    Where they are many, the last ones are replaced by one that exceeds them: the search then looks
    into a branch in vain, but overlooks none.
    """
    kept: list[tuple[int, ...]] = []
    for vector in sorted(set(vectors), reverse=True):
        if not any(all(map(operator.ge, other, vector)) for other in kept):
            kept.append(vector)
    if len(kept) > _MOST_VECTORS:
        kept[_MOST_VECTORS - 1 :] = [tuple(map(max, *kept[_MOST_VECTORS - 1 :]))]
    return kept


def lowest(family: Loose, size: int, accept: Callable[[int], bool] | None = None) -> int | None:
    """Return the numerically lowest mask of ``size`` nodes that is accepted, or None."""
    return next((m for m in ascending(family, size) if accept is None or accept(m)), None)


def total_distance(mask: int, distances: Distances) -> int:
    """Return the sum of distances over all ordered pairs of the mask's nodes, itself included."""
    bits = node_bits(mask)
    return sum(distances[a][b] for a in bits for b in bits)


def closest(
    family: Loose, size: int, distances: Distances, accept: Callable[[int], bool] | None = None
) -> int | None:
    """Return the accepted mask of ``size`` nodes with the smallest average distance, or None.

    Among equals the lowest mask wins (``HintMerger`` with ``prefer-closest-numa-nodes``).  Masks are
    grown node by node; a branch ends where even the nearest further nodes could not beat the best.
    After `PATIENCE` branches the best so far counts, which fewer than 15 nodes cannot reach.
    """
    if size < max(1, family.least) or family.must & ~family.universe:
        return None
    search = _Closest(family, distances, accept)
    must = node_bits(family.must)
    added = {
        n: distances[n][n] + sum(distances[n][m] + distances[m][n] for m in must)
        for n in search.nodes
    }
    cost = total_distance(family.must, distances)
    search.grow(len(search.nodes), size - len(must), family.must, cost, added)
    return search.best


class _Closest(_Search):
    """The same search by branch and bound."""

    def __init__(
        self, family: Loose, distances: Distances, accept: Callable[[int], bool] | None
    ) -> None:
        super().__init__(family)
        self.distances = distances
        self.accept = accept
        self.best: int | None = None
        self.best_cost = 0
        self.patience = PATIENCE
        self.nearest = {
            n: [0, *accumulate(sorted(distances[n][m] for m in self.nodes if m != n))]
            for n in self.nodes
        }

    def grow(self, end: int, missing: int, mask: int, cost: int, added: Mapping[int, int]) -> None:
        """Look at the masks that add ``missing`` of the first ``end`` nodes to ``mask``.

        ``cost`` is the total distance of ``mask``, ``added`` what each further node adds to it.
        """
        self.patience -= 1
        if self.is_beaten(end, missing, cost, added) or not self.can(end, missing, mask):
            return
        if missing == 0:
            if self.accept is None or self.accept(mask):
                self.best, self.best_cost = mask, cost
            return
        bit, distances = self.nodes[end - 1], self.distances
        self.grow(end - 1, missing, mask, cost, added)
        further = {
            n: added[n] + distances[n][bit] + distances[bit][n] for n in self.nodes[: end - 1]
        }
        self.grow(end - 1, missing - 1, mask | bit, cost + added[bit], further)

    def is_beaten(self, end: int, missing: int, cost: int, added: Mapping[int, int]) -> bool:
        """Tell whether nothing that is closer than the best can be grown, or patience is over.

        Each further node is at least so far from those chosen, and from the others to come.
        """
        if self.best is None:
            return False
        apart = sorted(added[n] + self.nearest[n][missing - 1] for n in self.nodes[:end])
        return self.patience < 0 or cost + sum(apart[:missing]) >= self.best_cost
