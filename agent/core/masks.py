"""Sets of NUMA nodes that satisfy sums: found by search, never by enumerating all subsets.

A `Loose` rule describes a family of node masks that is closed upwards inside its universe: every
mask that contains the nodes it must contain, has enough nodes, and whose amounts add up to what is
needed.  CPU hints are one such family, memory hints are one plus a few listed masks.  The searches
visit masks of one size in ascending numerical order and cut off branches that cannot reach the sums,
so 64 nodes cost no more patience than 2.
"""

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from agent.core.spread import Room, Spread, Touching

Distances = Mapping[int, Mapping[int, int]]
"""Distance from node to node, both directions and to itself."""

MOST_VECTORS = 32
"""So many sums at most are kept apart; a search then looks into a branch in vain, but overlooks none."""


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
    return Search(family).masks(size)


def lowest(family: Loose, size: int) -> int | None:
    """Return the family's numerically lowest mask of ``size`` nodes, or None."""
    return Search(family).lowest(size)


def smallest_size(family: Loose) -> int | None:
    """Return how many nodes the family's smallest mask has; None where the family is empty."""
    if not family.admits(family.universe):
        return None
    nodes = node_bits(family.universe)
    fewest = [_fewest(s, nodes) for s in family.sums]
    low = max(1, family.least, family.must.bit_count(), *fewest)
    if len(fewest) == 1 and not family.must:
        return low
    search = Search(family)
    return next(s for s in range(low, len(nodes) + 1) if search.lowest(s) is not None)


def _fewest(wanted: Sum, nodes: Iterable[int]) -> int:
    """Return how many nodes it takes to reach a sum, those with the largest amounts first."""
    largest = sorted((wanted.amounts.get(bit, 0) for bit in nodes), reverse=True)
    return bisect_left(list(accumulate(largest)), wanted.need) + 1


class Partial(NamedTuple):
    """A mask on its way: its sums, the sockets it touches, and how many it is to touch more."""

    mask: int
    have: tuple[int, ...]
    touched: int
    more: int


class Search:
    """Depth first from the last node to the first, leaving a node out before taking it in.

    The nodes that a mask must contain are in it from the start.  With a spread only masks that have
    it are looked for.
    """

    def __init__(
        self, family: Loose, nodes: Sequence[int] | None = None, spread: Spread | None = None
    ) -> None:
        self.family = family
        self.spread = spread
        self.needs = tuple(s.need for s in family.sums)
        self.nodes = node_bits(family.universe & ~family.must) if nodes is None else nodes
        self._reached: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        self._most_alone: dict[int, list[list[int]]] = {}

    @cached_property
    def amounts(self) -> list[tuple[int, ...]]:
        """What each node adds to each sum."""
        return [tuple(s.amounts.get(bit, 0) for s in self.family.sums) for bit in self.nodes]

    @cached_property
    def _touching(self) -> Touching | None:
        return None if self.spread is None else Touching(self.spread, self.nodes)

    @cached_property
    def _room(self) -> Room | None:
        touching = self._touching
        return None if touching is None else Room(touching, self.nodes, self.amounts)

    def lowest(self, size: int, accept: Callable[[int], bool] | None = None) -> int | None:
        """Return the first mask of ``size`` nodes that is accepted, or None."""
        return next((m for m in self.masks(size) if accept is None or accept(m)), None)

    def masks(self, size: int) -> Iterator[int]:
        """Yield the masks of ``size`` nodes, in ascending numerical order if the nodes are."""
        family = self.family
        if size < max(1, family.least) or family.must & ~family.universe:
            return
        if size == 1 and self.spread is None:
            yield from (bit for bit in node_bits(family.universe) if family.admits(bit))
            return
        start = self.start()
        ahead = [(len(self.nodes), size - start.mask.bit_count(), start)]
        while ahead:
            end, missing, partial = ahead.pop()
            if not self.reaches(end, missing, partial):
                continue
            if missing == 0:
                yield partial.mask
                continue
            ahead.append((end - 1, missing - 1, self._taking(end - 1, partial)))
            ahead.append((end - 1, missing, partial))

    def can(self, size: int) -> bool:
        """Tell whether there can be a mask of ``size`` nodes.

        It is sure for one sum; where several bind, a mask may turn out not to exist.
        """
        start = self.start()
        missing = size - start.mask.bit_count()
        return self.reaches(len(self.nodes), missing, start)

    def start(self) -> Partial:
        """Return the mask with nothing but the nodes that it must contain."""
        must = self.family.must
        touched, more = (0, 0) if self._touching is None else self._touching.by(must)
        return Partial(must, tuple(s.of(must) for s in self.family.sums), touched, more)

    def reaches(self, end: int, missing: int, partial: Partial) -> bool:
        """Tell whether ``missing`` of the first ``end`` nodes can make up what a mask lacks."""
        if not self.may_reach(end, missing, partial.have):
            return False
        lacks = tuple(map(operator.sub, self.needs, partial.have))
        if len(lacks) > 1 and not any(
            all(map(operator.ge, most, lacks)) for most in self.most(end, missing)
        ):
            return False
        touched, more = partial.touched, partial.more
        return self._room is None or self._room.reaches(end, missing, lacks, touched, more)

    def may_reach(self, end: int, missing: int, have: Sequence[int]) -> bool:
        """Tell whether ``missing`` of the first ``end`` nodes can make up each sum for itself."""
        if not 0 <= missing <= end:
            return False
        most = self._most_alone.get(end)
        if most is None:
            largest = (
                sorted((amounts[i] for amounts in self.amounts[:end]), reverse=True)
                for i in range(len(self.needs))
            )
            most = self._most_alone[end] = [[0, *accumulate(amounts)] for amounts in largest]
        return all(
            had + total[missing] >= need
            for had, total, need in zip(have, most, self.needs, strict=True)
        )

    def _taking(self, i: int, partial: Partial) -> Partial:
        mask, have, touched, more = partial
        if self._touching is not None:
            touched, more = self._touching.adding(i, touched, more)
        have = tuple(map(operator.add, have, self.amounts[i]))
        return Partial(mask | self.nodes[i], have, touched, more)

    def most(self, end: int, size: int) -> list[tuple[int, ...]]:
        """Return the sums that ``size`` of the first ``end`` nodes reach and no others exceed.

        What is more than the need counts as the need.
        """
        if not 0 < size <= end:
            return [] if size else [(0,) * len(self.needs)]
        found = self._reached.get((end, size))
        if found is None:
            amounts = self.amounts[end - 1]
            taking = [
                tuple(map(min, self.needs, map(operator.add, others, amounts)))
                for others in self.most(end - 1, size - 1)
            ]
            found = unexceeded(taking + self.most(end - 1, size), MOST_VECTORS)
            self._reached[end, size] = found
        return found


def unexceeded(
    vectors: Iterable[tuple[int, ...]], most: int | None = None
) -> list[tuple[int, ...]]:
    """Return the vectors that no other one equals or exceeds in every place.

    Where they are more than ``most``, the last ones are replaced by one that exceeds them.
    """
    kept: list[tuple[int, ...]] = []
    for vector in sorted(set(vectors), reverse=True):
        # Of pairs in this order, the last one kept has the larger second number of all.
        others = kept if vector[2:] else kept[-1:]
        if not any(all(map(operator.ge, other, vector)) for other in others):
            kept.append(vector)
    if most is not None and len(kept) > most:
        kept[most - 1 :] = [tuple(map(max, *kept[most - 1 :]))]
    return kept


def total_distance(mask: int, distances: Distances) -> int:
    """Return the sum of distances over all ordered pairs of the mask's nodes, itself included."""
    bits = node_bits(mask)
    return sum(distances[a][b] for a in bits for b in bits)
