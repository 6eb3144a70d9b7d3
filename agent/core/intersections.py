"""Masks that one hint of each of several families leaves together.

Every node that such a mask lacks is left out by one of the hints; all the others may have it.  So each
family has to meet its sums with the mask and with what other families leave out.
"""

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from agent.core.masks import Loose, Sum, node_bits, unexceeded

_Amounts = tuple[int, ...]
_Parting = tuple[_Amounts, ...]

_WAYS, _NUMBERS = 500, 60
"""So many ways that lead to one mask are kept apart, and so many numbers of what may follow: with fewer
a search looks into more branches in vain, but overlooks none."""


class Intersections:
    """All masks of ``size`` nodes that one mask of each family leaves of the nodes ``left``.

    All the families may have all of these nodes.
    """

    def __init__(self, left: int, families: Sequence[Loose], size: int) -> None:
        self.size = size
        self._nodes = node_bits(left)
        self._families = [
            [s for s in _conditions(family.inside(left)) if self._binds(s)] for family in families
        ]
        self.are_all = not all(self._families)
        """Whether any mask will do, because one family can leave out whatever there is besides."""
        sums = [(i, s) for i, binding in enumerate(self._families) for s in binding]
        self._needs = tuple(s.need for _, s in sums)
        self._with = [tuple(s.amounts.get(bit, 0) for _, s in sums) for bit in self._nodes]
        self._without = [
            {tuple(s.amounts.get(bit, 0) * (i != j) for j, s in sums) for i in range(len(families))}
            for bit in self._nodes
        ]
        self._most_kept = max(2, _NUMBERS // max(1, len(sums)))
        self._reached: dict[tuple[int, int], list[_Amounts]] = {}

    def admits(self, mask: int) -> bool:
        """Tell whether a mask of ``size`` of these nodes is one of them."""
        if self.are_all or any(all(s.of(mask) >= s.need for s in sums) for sums in self._families):
            return True
        outside = [bit for bit in self._nodes if not bit & mask]
        return _Parts(self._families, self._nodes, outside).exist()

    def lowest(self) -> int | None:
        """Return the numerically lowest of them, or None."""
        if self.size > len(self._nodes):
            return None
        first = sum(self._nodes[: self.size])
        if self.admits(first):
            return first
        ahead = [(len(self._nodes), self.size, 0, [tuple(0 for _ in self._needs)])]
        while ahead:
            end, missing, mask, have = ahead.pop()
            if not self._reaches(end, missing, have):
                continue
            if end == 0:
                if self.admits(mask):
                    return mask
                continue
            last = end - 1
            taking = self._sums(have, [self._with[last]])
            leaving = self._sums(have, self._without[last])
            ahead.append((last, missing - 1, mask | self._nodes[last], unexceeded(taking, _WAYS)))
            ahead.append((last, missing, mask, unexceeded(leaving, _WAYS)))
        return None

    def _binds(self, wanted: Sum) -> bool:
        """Tell whether a sum is not met by every mask of this size."""
        smallest = sorted(wanted.amounts.get(bit, 0) for bit in self._nodes)[: self.size]
        return sum(smallest) < wanted.need

    def _sums(self, some: Iterable[_Amounts], others: Iterable[_Amounts]) -> set[_Amounts]:
        """Return every sum of one and another; what is more than the need counts as the need."""
        return {tuple(map(min, self._needs, map(operator.add, a, b))) for a in some for b in others}

    def _reaches(self, end: int, missing: int, have: Iterable[_Amounts]) -> bool:
        """Tell whether ``missing`` of the first ``end`` nodes, and leaving out the rest, may do."""
        return self._needs in self._sums(have, self._most(end, missing))

    def _most(self, end: int, missing: int) -> list[_Amounts]:
        """Return what can be had of the first ``end`` nodes, with ``missing`` of them in the mask."""
        if not 0 <= missing <= end:
            return []
        if end == 0:
            return [tuple(0 for _ in self._needs)]
        found = self._reached.get((end, missing))
        if found is None:
            last = end - 1
            taking = self._sums(self._most(last, missing - 1), [self._with[last]])
            leaving = self._sums(self._most(last, missing), self._without[last])
            found = self._reached[end, missing] = unexceeded(taking | leaving, self._most_kept)
        return found


class _Parts:
    """Ways to part nodes so that each family can do without one part of them.

    To pack several knapsacks is hard in general.  It is tried depth first, what is spare being used up
    evenly, which as a rule comes to an end at once; what failed is not tried again.
    """

    def __init__(
        self, families: Sequence[Sequence[Sum]], nodes: Iterable[int], outside: Iterable[int]
    ) -> None:
        everything = sum(nodes)
        self._spare = tuple(tuple(s.of(everything) - s.need for s in sums) for sums in families)
        self._kinds = [families.index(sums) for sums in families]
        amounts = (
            [tuple(s.amounts.get(bit, 0) for s in sums) for sums in families] for bit in outside
        )
        # What a family has nothing of is left out by it for nothing; the largest others go first.
        self._nodes = sorted((a for a in amounts if all(map(any, a))), reverse=True)
        self._smallest: dict[int, list[list[list[int]]]] = {}
        self._failed: set[tuple[int, tuple[tuple[int, _Amounts], ...]]] = set()

    def exist(self) -> bool:
        """Tell whether there is one."""
        return self._can(0, self._spare)

    def _can(self, done: int, spare: _Parting) -> bool:
        """Tell whether the nodes after the first ``done`` can be parted with so much to spare."""
        if done == len(self._nodes):
            return True
        state = done, tuple(sorted(zip(self._kinds, spare, strict=True)))
        if state in self._failed:
            return False
        ways = {}
        if self._most_nodes(done, spare) >= len(self._nodes) - done:
            for i, amounts in enumerate(self._nodes[done]):
                left = tuple(map(operator.sub, spare[i], amounts))
                if min(left) >= 0:
                    ways[self._kinds[i], spare[i]] = (*spare[:i], left, *spare[i + 1 :])
        if any(self._can(done + 1, way) for way in sorted(ways.values(), key=self._tightest)):
            return True
        self._failed.add(state)
        return False

    def _most_nodes(self, done: int, spare: _Parting) -> int:
        """Return how many nodes all families could do without, each the smallest ones."""
        smallest = self._smallest.get(done)
        if smallest is None:
            smallest = self._smallest[done] = [
                [list(accumulate(sorted(amounts))) for amounts in zip(*of_nodes, strict=True)]
                for of_nodes in zip(*self._nodes[done:], strict=True)
            ]
        return sum(
            min(map(bisect_right, sums, amounts))
            for sums, amounts in zip(smallest, spare, strict=True)
        )

    def _tightest(self, spare: _Parting) -> float:
        """Return how far what is spare has shrunk where it has most: the best way shrinks least."""
        return max(
            1 - left / all_of_it
            for lefts, wholes in zip(spare, self._spare, strict=True)
            for left, all_of_it in zip(lefts, wholes, strict=True)
            if all_of_it
        )


def _conditions(family: Loose) -> list[Sum]:
    """Return all that a family asks for as sums: it must have some nodes, and have so many."""
    must = dict.fromkeys(node_bits(family.must), 1)
    nodes = dict.fromkeys(node_bits(family.universe), 1)
    return [*family.sums, Sum(must, len(must)), Sum(nodes, family.least)]
