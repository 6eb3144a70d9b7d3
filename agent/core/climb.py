"""Good sets of near nodes, quickly: grown from every node, then improved by swaps."""

import operator
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from agent.core.masks import Loose
from agent.core.near import SCALE, Near
from agent.core.spread import Spread

_GROWING, _GROWING_BY_AMOUNTS = 1024, 640
"""So many times a node may be added, over all sets grown: from each of 64 nodes up to 16, or 10."""


class Climb:
    """Sets of ``missing`` nodes more than those that the family's masks must contain."""

    def __init__(self, near: Near, family: Loose, missing: int, spread: Spread | None) -> None:
        self._near = near
        self._must = family.must
        self._missing = missing
        self._sums = [
            _Amounts(
                near, [s.amounts.get(bit, 0) for bit in near.nodes], s.need - s.of(family.must)
            )
            for s in family.sums
        ]
        self._sockets = None if spread is None else _Sockets(near, spread, family.must)

    def sets(self) -> Iterator[tuple[int, int]]:
        """Yield the total distance and the mask of each set grown and improved.

        From each node on, always the nearest one is added out of those after which the others can be;
        where two are as near, in every other set the one with larger amounts.  Where amounts bind, more
        sets are grown that think of them first.  From some nodes only where sets are large.
        """
        seen = set[int]()
        for start, lacks in self._growths():
            grown = self._grown(start, lacks, seen)
            if grown is not None and self._improve(grown, seen):
                yield grown.distance, grown.mask

    def lowered(self, mask: int) -> tuple[int, int]:
        """Return a set as close as this one with a mask that no single swap makes lower."""
        lowered = _Set(self._near, self._must, len(self._sums))
        for i, bit in enumerate(self._near.nodes):
            if bit & mask:
                lowered.add(i, self._sums)
        while (swap := self._lower_swap(lowered)) is not None:
            out, into = swap
            lowered.remove(out, self._sums)
            lowered.add(into, self._sums)
        return lowered.distance, lowered.mask

    def _growths(self) -> Iterator[tuple[int, int]]:
        """Yield the node to start from, and what lacking amounts count beside distances."""
        count = len(self._near.nodes)
        stride = -(-count * self._missing // (_GROWING_BY_AMOUNTS if self._sums else _GROWING))
        some = self._lacks(SCALE - 1)
        for i, start in enumerate(range(0, count, stride)):
            yield start, some if i % 2 else 0
        if some:
            much = self._lacks(SCALE * self._near.span * self._missing // 3)
            for start in range(0, count, 3 * stride):
                yield start, much

    def _lacks(self, most: int) -> int:
        """Return how much less than the largest amounts each node has, up to ``most``, packed."""
        lacks = [0] * len(self._near.nodes)
        for s in self._sums:
            all_largest = s.ranked[-1] * len(self._sums)
            for i, amount in enumerate(s.amounts):
                lacks[i] += most * (s.ranked[-1] - amount) // max(1, all_largest)
        return self._near.pack(lacks)

    def _grown(self, start: int, lacks: int, seen: set[int]) -> "_Set | None":
        """Return the set grown from a node, None where it cannot be or becomes one of those seen."""
        near, grown = self._near, _Set(self._near, self._must, len(self._sums))
        pools = [_Pool(s, self._missing) for s in self._sums]
        for missing in range(self._missing, 0, -1):
            allowed = self._allowed(grown, pools, missing)
            if missing == self._missing:
                allowed &= near.guards[start]
            if not allowed:
                return None
            _, i = near.lowest(grown.added * SCALE + lacks, allowed)
            grown.add(i, self._sums)
            way = grown.inside | (lacks << 1 if missing > 1 else 0)
            if way in seen:
                return None
            seen.add(way)
            for pool, s in zip(pools, self._sums, strict=True):
                pool.take(s.amounts[i], missing)
        return grown if self._sockets is None or self._sockets.are_right(grown) else None

    def _allowed(self, grown: "_Set", pools: "Sequence[_Pool]", missing: int) -> int:
        """Return the guards of the nodes after which the others can still be added."""
        allowed = self._near.guard & ~grown.inside
        for s, pool in zip(self._sums, pools, strict=True):
            allowed &= s.at_least(pool.ranked[-missing] - pool.excess)
        if self._sockets is not None:
            allowed &= self._sockets.growing(grown, missing)
        return allowed

    def _improve(self, found: "_Set", seen: set[int]) -> bool:
        """Swap one node for another, always the two that bring most, as long as there are such.

        Return False where that leads to a set that was seen.
        """
        while (swap := self._best_swap(found)) is not None:
            out, into = swap
            found.remove(out, self._sums)
            found.add(into, self._sums)
            if found.inside in seen:
                return False
            seen.add(found.inside)
        return True

    def _best_swap(self, found: "_Set") -> tuple[int, int] | None:
        near, gain, swap = self._near, 0, None
        added = near.unpack(found.added, len(near.nodes))
        touched = self._touched(found)
        for out in found.chosen:
            more = added[out] - gain
            if more <= 0:
                continue
            without = found.added - near.between[out]
            nearer = near.at_most(without, more - 1) & ~found.inside
            if nearer and (nearer := nearer & self._replacing(found, out, touched)):
                distance, into = near.lowest(without, nearer)
                gain += more - distance
                swap = out, into
        return swap

    def _lower_swap(self, found: "_Set") -> tuple[int, int] | None:
        near, touched = self._near, self._touched(found)
        for out in sorted(found.chosen, key=near.nodes.__getitem__, reverse=True):
            without = found.added - near.between[out]
            as_near = near.at_most(without, near.at(found.added, out)) & ~found.inside
            as_near &= self._replacing(found, out, touched)
            bits = {bit: i for i, bit in enumerate(near.nodes) if near.guards[i] & as_near}
            if bits and min(bits) < near.nodes[out]:
                return out, bits[min(bits)]
        return None

    def _touched(self, found: "_Set") -> tuple[int, int]:
        return (0, 0) if self._sockets is None else self._sockets.touched(found.chosen)

    def _replacing(self, found: "_Set", out: int, touched: tuple[int, int]) -> int:
        """Return the guards of the nodes one of which may stand in place of ``out``."""
        allowed = self._near.guard
        for s, have in zip(self._sums, found.have, strict=True):
            allowed &= s.at_least(s.need - have + s.amounts[out])
        if self._sockets is not None:
            allowed &= self._sockets.replacing(*touched, out)
        return allowed


class _Amounts:
    """The amounts of one sum, node by node, and what must be added up."""

    def __init__(self, near: Near, amounts: list[int], need: int) -> None:
        self.amounts = amounts
        self.need = need
        by_amount = sorted(range(len(amounts)), key=amounts.__getitem__)
        self.ranked = [amounts[i] for i in by_amount]
        largest_first = accumulate((near.guards[i] for i in reversed(by_amount)), operator.or_)
        self._guards: list[int] = [0, *largest_first][::-1]

    def at_least(self, amount: int) -> int:
        """Return the guards of the nodes with at least this amount."""
        return self._guards[bisect_left(self.ranked, amount)]


class _Pool:
    """The amounts of the nodes that a growing set does not have yet."""

    def __init__(self, amounts: _Amounts, missing: int) -> None:
        self.ranked = amounts.ranked.copy()
        self.excess = sum(self.ranked[-missing:]) - amounts.need
        """How much more than needed the largest ones would make."""

    def take(self, amount: int, missing: int) -> None:
        """Take one of those missing."""
        self.excess -= max(0, self.ranked[-missing] - amount)
        del self.ranked[bisect_left(self.ranked, amount)]


class _Sockets:
    """Which nodes can be added so that the right number of sockets is touched."""

    def __init__(self, near: Near, spread: Spread, must: int) -> None:
        self._count = spread.count
        self._must = spread.touched(must)
        self._sockets = [spread.sockets.get(bit, 0) for bit in near.nodes]
        self._guards: dict[int, int] = {}
        for sockets, guard in zip(self._sockets, near.guards, strict=True):
            self._guards[sockets] = self._guards.get(sockets, 0) | guard
        self._touching: dict[tuple[int, int], int] = {}

    def touched(self, chosen: Sequence[int]) -> tuple[int, int]:
        """Return the sockets that are touched, and those by one chosen node alone."""
        touched = twice = self._must
        for i in chosen:
            twice |= touched & self._sockets[i]
            touched |= self._sockets[i]
        return touched, touched & ~twice

    def are_right(self, grown: "_Set") -> bool:
        """Tell whether a set touches the right number of sockets."""
        return self.touched(grown.chosen)[0].bit_count() == self._count

    def replacing(self, touched: int, once: int, out: int) -> int:
        """Return the guards of the nodes one of which may stand in place of ``out``."""
        touched &= ~(once & self._sockets[out])
        return self._adding(touched, self._count - touched.bit_count())

    def growing(self, grown: "_Set", missing: int) -> int:
        """Return the guards of the nodes after which the others find room in as many sockets.

        Where a node touches several it is a guess.
        """
        touched, _ = self.touched(grown.chosen)
        more = self._count - touched.bit_count()
        known = self._adding(touched, 0)
        if more == 0:
            return known
        others = sorted(
            ((g.bit_count(), g) for s, g in self._guards.items() if s & ~touched), reverse=True
        )
        if more < 0 or len(others) < more:
            return 0
        room = (known & ~grown.inside).bit_count() + sum(count for count, _ in others[:more])
        least = others[more - 1][0] - (room - missing)
        return sum(g for count, g in others if count >= least) | (known if missing > more else 0)

    def _adding(self, touched: int, more: int) -> int:
        """Return the guards of the nodes that touch so many sockets more."""
        found = self._touching.get((touched, more))
        if found is None:
            fitting = (g for s, g in self._guards.items() if (s & ~touched).bit_count() == more)
            found = self._touching[touched, more] = sum(fitting)
        return found


class _Set:
    """A set while it grows and changes: its nodes by position, what it adds up to, its distances."""

    def __init__(self, near: Near, must: int, sums: int) -> None:
        self._near = near
        self.mask = must
        self.distance = near.must_distance
        self.chosen: list[int] = []
        self.inside = 0
        self.added = near.alone
        self.have = [0] * sums

    def add(self, i: int, sums: Sequence[_Amounts]) -> None:
        near = self._near
        self.mask |= near.nodes[i]
        self.chosen.append(i)
        self.inside |= near.guards[i]
        self.distance += near.at(self.added, i)
        self.added += near.between[i]
        self.have = [have + s.amounts[i] for have, s in zip(self.have, sums, strict=True)]

    def remove(self, i: int, sums: Sequence[_Amounts]) -> None:
        near = self._near
        self.mask ^= near.nodes[i]
        self.chosen.remove(i)
        self.inside ^= near.guards[i]
        self.added -= near.between[i]
        self.distance -= near.at(self.added, i)
        self.have = [have - s.amounts[i] for have, s in zip(self.have, sums, strict=True)]
