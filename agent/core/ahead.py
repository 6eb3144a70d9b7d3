"""How little the nodes still missing from a set can add to its distances, without trying them."""

import operator
from itertools import accumulate, pairwise
from typing import NamedTuple

from agent.core.near import Near

_STEP = 16
"""Only from so many nodes to so many more is it worth to look anew which ones are nearest."""
_TREE, _LOOK = 50, 50
"""What a look costs besides the nodes looked at, with and without the tree."""


class Ahead(NamedTuple):
    """What is ahead of a set that is to have some of the first nodes more."""

    least: int
    """All that are missing add at least so much."""
    far: tuple[int, ...]
    """Each node adds at least so much, if it is among them, with its share of what is between them."""
    others: int
    """All others that are missing add at least so much then."""
    last: int
    """One that adds no more than this makes a difference to ``least`` when it is left out."""


class Bounds:
    """Two bounds, of which the larger counts.

    By the nearest: each node is from the others to come at least as far as from those nearest to it.
    By the tree: two nodes are at least as far apart as the longest gap between them in the order of
    `Near`, so that the nodes form a tree of sockets and boards, in which the best number for every
    branch can be computed.  It is exact where distances are those of a tree, and asked only where it says
    more than the other at the start.
    """

    def __init__(self, near: Near, missing: int) -> None:
        self._near = near
        self._missing = missing
        self._nearest: dict[int, list[list[int]]] = {}
        self._packed: dict[tuple[int, int], int] = {}
        self._inner: dict[tuple[int, int], list[int]] = {}
        self._spines: dict[int, list[int]] = {}
        self.work = 0
        """Grows by what the looks have cost."""
        count = len(near.nodes)
        alone = sum(sorted(near.unpack(near.alone, count))[:missing])
        self._has_tree = False
        tree = alone + self._apart(0, count)[missing]
        self._has_tree = tree > self.ahead(count, missing, near.alone).least

    def ahead(self, end: int, missing: int, added: int) -> Ahead:
        """Look at ``missing`` of the first ``end`` nodes; each alone would add what ``added`` says."""
        near = self._near
        shares = self._shares(end, missing) & near.below[end]
        far = near.unpack(added + shares, end)
        ordered = sorted(far)
        others, last = sum(ordered[: missing - 1]), ordered[missing - 1]
        least = others + last
        self.work += _LOOK + end
        if self._has_tree:
            least = max(least, self._by_tree(end, missing, near.unpack(added, end)))
            self.work += _TREE * len(self._spine(end))
        return Ahead(least, far, others, last)

    def _shares(self, end: int, missing: int) -> int:
        """Return how far each node is at least from the others that are missing, packed."""
        until = min(-(-end // _STEP) * _STEP, len(self._near.nodes))
        packed = self._packed.get((until, missing))
        if packed is None:
            if until not in self._nearest:
                rows = [row[:until] for row in self._near.both[:until]]
                self._nearest[until] = [
                    [0, *accumulate(sorted(row[:i] + row[i + 1 :]))] for i, row in enumerate(rows)
                ]
            packed = self._near.pack([sums[missing - 1] // 2 for sums in self._nearest[until]])
            self._packed[until, missing] = packed
        return packed

    def _by_tree(self, end: int, missing: int, added: tuple[int, ...]) -> int:
        """Part the nodes where the last branch of the tree begins, and again where its last one does."""
        *branches, (start, _) = pairwise([*self._spine(end), end])
        taken = self._taken(start, end, added)
        for start, middle in reversed(branches[1:]):
            taken = self._joined(self._taken(start, middle, added), taken, middle)
        if not branches:
            return taken[missing]
        middle = branches[0][1]
        before, gap = self._taken(0, middle, added), self._near.gaps[middle]
        fewest, most = max(0, missing - len(before) + 1), min(missing, len(taken) - 1)
        return min(
            before[missing - n] + taken[n] + gap * n * (missing - n)
            for n in range(fewest, most + 1)
        )

    def _spine(self, end: int) -> list[int]:
        """Return where the last branches of the tree begin, down to one without branches."""
        found = self._spines.get(end)
        if found is None:
            found = [0]
            while (middle := self._middle(found[-1], end)) > found[-1]:
                if min(self._near.gaps[found[-1] + 1 : end]) == self._near.gaps[middle]:
                    break
                found.append(middle)
            self._spines[end] = found
        return found

    def _middle(self, start: int, end: int) -> int:
        """Return where the gap is longest, the last such place; the start where there is one node."""
        gaps = self._near.gaps[start + 1 : end]
        return end - 1 - gaps[::-1].index(max(gaps)) if gaps else start

    def _taken(self, start: int, end: int, added: tuple[int, ...]) -> list[int]:
        """Return what nodes from ``start`` to ``end`` add at least, by how many are taken."""
        nearest = accumulate(sorted(added[start:end]), initial=0)
        return [*map(operator.add, nearest, self._apart(start, end))]

    def _apart(self, start: int, end: int) -> list[int]:
        """Return what is between the nodes from ``start`` to ``end`` at least, by how many are taken."""
        found = self._inner.get((start, end))
        if found is None:
            middle = self._middle(start, end)
            gaps = self._near.gaps[start + 1 : end] or [0]
            if min(gaps) == max(gaps):
                most = min(end - start, self._missing)
                found = [gaps[0] * n * (n - 1) // 2 for n in range(most + 1)]
            else:
                found = self._joined(self._apart(start, middle), self._apart(middle, end), middle)
            self._inner[start, end] = found
        return found

    def _joined(self, before: list[int], after: list[int], middle: int) -> list[int]:
        """Return the least of both sides of a gap together, by how many are taken."""
        gap, most = self._near.gaps[middle], min(len(before) + len(after) - 2, self._missing)
        few, many = sorted((before, after), key=len)
        found = [few[-1] + many[-1] + gap * most * most] * (most + 1)
        for n, some in enumerate(few):
            row = [some + other + gap * n * m for m, other in enumerate(many[: most + 1 - n])]
            found[n : n + len(row)] = map(min, found[n : n + len(row)], row)
        return found
