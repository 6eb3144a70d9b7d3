"""The closest nodes of a family: those with the smallest distances between each other.

To find them is hard in general (a clique of least weight), and easy on machines as they are built:
sockets and boards whose nodes are at equal distances.  First sets are grown and improved by swaps
(`agent.core.climb`), which gives a good one quickly.  Then all sets are gone through in layers, node by
node, which finds a better one or proves that there is none: what cannot beat the best known is left
out (`agent.core.ahead`), and of all beginnings that leave the same nodes at the same distances only the
best goes on.

The search ends with the proof if it takes no more than `PATIENCE`, and whatever it takes among at most
`PROVED_NODES` nodes and for at most `PROVED_SIZE` nodes to be added.  Otherwise only the most promising
beginnings go on: the answer is as close as the best set that is grown and improved, or closer, but a closer
one, or a lower mask that is as close, may exist.  Patience is counted in work done, not in time, so that
equal questions have equal answers.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.core.ahead import Ahead, Bounds
from agent.core.climb import Climb
from agent.core.masks import Distances, Loose, Search, node_bits, total_distance
from agent.core.near import Apart, Near
from agent.core.spread import Touching

PATIENCE = 30_000
"""About so many nodes are looked at, over all beginnings of sets."""

PROVED_NODES, PROVED_SIZE = 14, 4

_STATE, _BEGINNING = 120, 6
"""What it takes at least to go on from a state, and from each of its beginnings."""
_SHARE = 20
"""One layer may take this part of the patience that is left, or its equal part if that is more."""

_Accept = Callable[[int], bool]
_Found = tuple[int, int]
"""Total distance and mask, which compare in this order."""
_State = tuple[int, ...]
"""Of a beginning: how many nodes are missing, what each node that is left would add to the distances
(packed), which sockets are touched that those nodes touch too, how many are to be touched more; and
the mask, where masks are accepted one by one."""
_Beginning = tuple[int, int, tuple[int, ...]]
"""Total distance, mask, and what it has of each sum."""


def closest(search: Search, first: int, distances: Distances, accept: _Accept | None = None) -> int:
    """Return the accepted mask with as many nodes as the first whose average distance is smallest.

    ``first`` is the lowest one that the search finds.  Among equals the lowest mask wins
    (``HintMerger`` with ``prefer-closest-numa-nodes``).
    """
    if accept is not None:
        lowest = search.lowest(first.bit_count())
        best = closest(search, first if lowest is None else lowest, distances)
        if accept(best):
            return best
    missing = (first & ~search.family.must).bit_count()
    family = _binding(search.family, missing)
    nodes = _fitting(family, missing)
    known = total_distance(first, distances), first
    if missing in (0, len(nodes)):
        return first
    apart = Apart(nodes, family.must, distances)
    if known[0] == apart.least(missing):
        return first
    near = Near(apart)
    layers = Layers(near, Search(family, near.nodes, search.spread), missing, known, accept)
    climb = Climb(near, family, missing, search.spread)
    for found in climb.sets():
        if accept is None or accept(found[1]):
            layers.best = min(layers.best, found)
        if layers.best[0] == layers.least:
            break
    if accept is None:
        layers.best = min(layers.best, climb.lowered(layers.best[1]))
    layers.search()
    return layers.best[1]


def _binding(family: Loose, missing: int) -> Loose:
    """Return the family without the sums that it takes no care to meet."""
    nodes = node_bits(family.universe & ~family.must)
    binding = (
        s
        for s in family.sums
        if sum(sorted(s.amounts.get(bit, 0) for bit in nodes)[:missing])
        < s.need - s.of(family.must)
    )
    return replace(family, sums=tuple(binding))


def _fitting(family: Loose, missing: int) -> list[int]:
    """Return the nodes that can be among those missing: with all others large, the sums are met."""
    nodes = node_bits(family.universe & ~family.must)
    for s in family.sums:
        largest = sorted((s.amounts.get(bit, 0) for bit in nodes), reverse=True)
        least = s.need - s.of(family.must) - sum(largest[: max(0, missing - 1)])
        nodes = [bit for bit in nodes if s.amounts.get(bit, 0) >= least]
    return nodes


@dataclass(slots=True)
class _Entry:
    """What is common to the beginnings of one state, and those."""

    ahead: Ahead
    beginnings: list[_Beginning]

    @property
    def promise(self) -> int:
        """The least distance that a set can have in the end."""
        return self.beginnings[0][0] + self.ahead.least


class Layers:
    """All sets, from the last node to the first; a layer holds the beginnings above one node.

    ``best`` is the closest set known, ``least`` a distance that no set can be below, and ``is_proof``
    whether the search looked at all there is.
    """

    def __init__(
        self, near: Near, search: Search, missing: int, best: _Found, accept: _Accept | None = None
    ) -> None:
        count = len(near.nodes)
        self._near = near
        self._search = search
        self._missing = missing
        self._accept = accept
        self._touching = Touching(search.spread, near.nodes) if search.spread else None
        self._bounds = Bounds(near, missing)
        self._layers: list[dict[_State, _Entry]] = [{} for _ in range(count + 1)]
        self._work = self._expanded = 0
        self.best = best
        self.least = near.must_distance + self._bounds.ahead(count, missing, near.alone).least
        self.is_proof = True

    @property
    def work(self) -> int:
        """So many nodes were looked at, about."""
        return self._work + self._bounds.work

    def search(self) -> None:
        """Look for better sets."""
        near, (mask, have, touched, more) = self._near, self._search.start()
        count, added = len(near.nodes), near.alone
        if self._touching is not None and more == 0:
            added += self._out_of_reach(touched)
        start: _Beginning = near.must_distance, mask, have
        self._put(count, (self._missing, added, touched, more), [start])
        for end in range(count, 0, -1):
            layer = self._layers[end]
            for state in self._worth(end):
                self._expand(end, state, layer[state])
            layer.clear()

    def _worth(self, end: int) -> Sequence[_State]:
        """Return the states of a layer, only the most promising ones where they are too many."""
        layer = self._layers[end]
        if len(self._near.nodes) > PROVED_NODES and self._missing > PROVED_SIZE:
            left = max(0, PATIENCE - self.work)
            each = max(_STATE, self.work // max(1, self._expanded))
            most = 1 + left // (each * min(_SHARE, end))
            if len(layer) > most:
                self.is_proof = False
                return sorted(layer, key=lambda state: layer[state].promise)[:most]
        return list(layer)

    def _put(self, end: int, state: _State, beginnings: list[_Beginning]) -> None:
        """Put beginnings with a common state above the first ``end`` nodes."""
        layer = self._layers[end]
        if self._accept is not None:
            state = *state[:4], beginnings[0][1]
        if state in layer:
            layer[state].beginnings = _undominated([*layer[state].beginnings, *beginnings])
            return
        ahead = self._bounds.ahead(end, state[0], state[1])
        if (beginnings[0][0] + ahead.least, beginnings[0][1]) < self.best:
            layer[state] = _Entry(ahead, beginnings)

    def _expand(self, end: int, state: _State, entry: _Entry) -> None:
        """Put what beginnings become with one node more, and without the nodes that matter."""
        missing, added, touched, more = state[:4]
        ahead, near = entry.ahead, self._near
        self._expanded += 1
        self._work += _BEGINNING * len(entry.beginnings)
        beginnings = self._possible(end, state, entry)
        if not beginnings:
            return
        farthest = self.best[0] - beginnings[0][0] - ahead.others
        for i in range(end - 1, missing - 2, -1):
            if ahead.far[i] > farthest:
                continue
            rest = added & near.below[i]
            least = ahead.far[i] + ahead.others
            taken = self._with(i, near.at(added, i), least, beginnings)
            if not taken:
                continue
            then = rest + (near.between[i] & near.below[i])
            self._take(i, (missing - 1, then, touched, more), taken)
            if ahead.far[i] <= ahead.last and missing > 1:
                if i >= missing:
                    below = self._touching.below(i, touched) if self._touching else 0
                    self._put(i, (missing, rest, below, more), beginnings)
                return

    def _possible(self, end: int, state: _State, entry: _Entry) -> list[_Beginning]:
        """Return the beginnings that can still become a better set."""
        missing, _, touched, more = state[:4]
        if self._touching is not None and not self._touching.can(end, touched, more):
            return []
        least = entry.ahead.least
        return [
            beginning
            for beginning in entry.beginnings
            if (beginning[0] + least, beginning[1]) < self.best
            and self._search.may_reach(end, missing, beginning[2])
        ]

    def _with(
        self, i: int, distance: int, least: int, beginnings: Sequence[_Beginning]
    ) -> list[_Beginning]:
        """Return the beginnings with the ``i``-th node added that can become a better set."""
        bit, amounts = self._near.nodes[i], self._search.amounts[i]
        return [
            (far + distance, mask | bit, tuple(map(operator.add, have, amounts)))
            for far, mask, have in beginnings
            if (far + least, mask | bit) < self.best
        ]

    def _take(self, i: int, state: _State, beginnings: list[_Beginning]) -> None:
        """Put beginnings that have the ``i``-th node now; the sockets are those from before."""
        missing, added, touched, more = state
        if self._touching is not None:
            before = more
            touched, more = self._touching.adding(i, touched, more)
            if more == 0 < before:
                added += self._out_of_reach(touched) & self._near.below[i]
            touched = self._touching.below(i, touched)
        if missing == 0:
            self._finish(beginnings, more)
        elif more >= 0:
            self._put(i, (missing, added, touched, more), beginnings)

    def _out_of_reach(self, touched: int) -> int:
        """Return a number above all distances for the nodes that touch further sockets, packed."""
        sockets = self._touching.sockets if self._touching else []
        return sum(
            guard >> 1
            for guard, of_node in zip(self._near.guards, sockets, strict=True)
            if of_node & ~touched
        )

    def _finish(self, sets: Sequence[_Beginning], more: int) -> None:
        """Take the best of whole sets, if it is better than the best known."""
        for distance, mask, have in sets:
            if (
                (distance, mask) < self.best
                and more == 0
                and all(map(operator.ge, have, self._search.needs))
                and (self._accept is None or self._accept(mask))
            ):
                self.best = distance, mask


def _undominated(beginnings: Sequence[_Beginning]) -> list[_Beginning]:
    """Return the beginnings than which none is closer, or lower, and has as much of every sum."""
    kept: list[_Beginning] = []
    for beginning in sorted(beginnings):
        if not any(all(map(operator.ge, other[2], beginning[2])) for other in kept):
            kept.append(beginning)
    return kept
