"""Masks that touch a number of sockets, and what they can add up to (``align-by-socket``)."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Spread:
    """All masks whose nodes touch exactly ``count`` sockets; ``sockets`` of each node as bits."""

    count: int
    sockets: Mapping[int, int]

    def touched(self, mask: int) -> int:
        """Return the sockets of the mask's nodes."""
        touched = 0
        while mask:
            low = mask & -mask
            touched |= self.sockets.get(low, 0)
            mask ^= low
        return touched

    def admits(self, mask: int) -> bool:
        """Tell whether a mask is spread like this."""
        return self.touched(mask).bit_count() == self.count


class Touching:
    """Which sockets a mask touches while nodes are added, by their position in a list of nodes."""

    def __init__(self, spread: Spread, nodes: Sequence[int]) -> None:
        self.spread = spread
        self.sockets = [spread.sockets.get(bit, 0) for bit in nodes]
        self._below: list[int] = [0, *accumulate(self.sockets, operator.or_)]

    def by(self, mask: int) -> tuple[int, int]:
        """Return the sockets that a mask touches, and how many it is to touch more."""
        touched = self.spread.touched(mask)
        return touched, self.spread.count - touched.bit_count()

    def adding(self, i: int, touched: int, more: int) -> tuple[int, int]:
        """Return the same once the ``i``-th node is added."""
        sockets = self.sockets[i]
        return touched | sockets, more - (sockets & ~touched).bit_count()

    def below(self, end: int, touched: int) -> int:
        """Return those of the sockets that are touched by the first ``end`` nodes too."""
        return touched & self._below[end]

    def can(self, end: int, touched: int, more: int) -> bool:
        """Tell whether the first ``end`` nodes have so many sockets more."""
        return 0 <= more <= (self._below[end] & ~touched).bit_count()


class Room:
    """The most that nodes can add up to when they touch a number of sockets more.

    Nodes are gone through socket by socket, whatever their order in the search is.
    """

    def __init__(
        self, touching: Touching, nodes: Sequence[int], amounts: Sequence[tuple[int, ...]]
    ) -> None:
        sockets = touching.sockets
        by_socket = sorted(range(len(nodes)), key=lambda i: (sockets[i], nodes[i]))
        place = {i: 1 << n for n, i in enumerate(by_socket)}
        self._sockets = [sockets[i] for i in by_socket]
        self._amounts = list(zip(*(amounts[i] or (0,) for i in by_socket), strict=True))
        self._before = [0, *accumulate((place[i] for i in range(len(nodes))), operator.or_)]
        self._found: dict[tuple[int, int, int, int], list[int]] = {}
        self._present: dict[int, int] = {0: 0}

    def reaches(
        self, end: int, missing: int, lacks: Sequence[int], touched: int, more: int
    ) -> bool:
        """Tell whether ``missing`` of the first ``end`` nodes can have what each sum lacks."""
        rest = self._before[end]
        touched &= self._present_in(rest)
        return more >= 0 and all(
            self._most(i, rest, more, touched)[missing] >= max(0, lack)
            for i, lack in enumerate(lacks or (0,))
        )

    def _most(self, i: int, rest: int, more: int, touched: int) -> list[int]:
        """Return the largest amount by number of nodes, -1 where so many cannot be had."""
        key = i, rest, more, touched
        found = self._found.get(key)
        if found is None:
            self._found[key] = found = self._computed(i, rest, more, touched)
        return found

    def _computed(self, i: int, rest: int, more: int, touched: int) -> list[int]:
        if more > (self._present_in(rest) & ~touched).bit_count():
            return [-1] * (rest.bit_count() + 1)
        if not rest:
            return [0]
        last = rest.bit_length() - 1
        rest ^= 1 << last
        sockets, amount, present = (
            self._sockets[last],
            self._amounts[i][last],
            self._present_in(rest),
        )
        leaving = [*self._most(i, rest, more, touched & present), -1]
        more -= (sockets & ~touched).bit_count()
        if more < 0:
            return leaving
        taking = self._most(i, rest, more, (touched | sockets) & present)
        return list(map(max, leaving, [-1, *[x + amount if x >= 0 else -1 for x in taking]]))

    def _present_in(self, rest: int) -> int:
        """Return the sockets of the nodes that are left."""
        found = self._present.get(rest)
        if found is None:
            last = rest.bit_length() - 1
            found = self._present_in(rest ^ 1 << last) | self._sockets[last]
            self._present[rest] = found
        return found
