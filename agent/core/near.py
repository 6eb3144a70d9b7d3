"""Distances between NUMA nodes, packed for adding whole rows at a time.

A packed number holds one lane a node.  The top bit of each lane, its guard, stays free for comparing
all lanes at a time; guards also stand for sets of nodes wherever packed numbers are at work.
"""

import operator
import struct
from collections.abc import Sequence

from agent.core.masks import Distances, node_bits, total_distance

SCALE = 16
"""Lanes hold this many times the largest sum of distances, so that ties can be broken."""


class Apart:
    """How far nodes are from each other, and from those of ``must`` that they may be added to."""

    def __init__(self, nodes: Sequence[int], must: int, distances: Distances) -> None:
        others, of_nodes = node_bits(must), operator.itemgetter(*nodes)
        self.nodes = tuple(nodes)
        self.rows: list[tuple[int, ...]] = [of_nodes(distances[a]) for a in nodes]
        self.alone = [
            distances[n][n] + sum(distances[n][m] + distances[m][n] for m in others) for n in nodes
        ]
        """What each node adds to the distances where only the nodes of ``must`` are."""
        self.must_distance = total_distance(must, distances)

    def least(self, missing: int) -> int:
        """Return what a set has at least: each node is from the others as far as from the nearest."""
        each = [
            alone + sum(sorted(row[:i] + row[i + 1 :])[: missing - 1])
            for i, (alone, row) in enumerate(zip(self.alone, self.rows, strict=True))
        ]
        return self.must_distance + sum(sorted(each)[:missing])


class Near:
    """The same, packed, with the nodes in an order that keeps near ones together.

    That is the first, then always the one that is nearest to any before; ``gaps`` says how near.  Where
    the nodes of a socket, and the sockets of a board, are at equal distances, those of one socket, and of
    one board, follow each other.
    """

    def __init__(self, apart: Apart) -> None:
        columns = zip(*apart.rows, strict=True)
        both = [list(map(operator.add, *ways)) for ways in zip(apart.rows, columns, strict=True)]
        order, self.gaps = _nearest_next(both)
        in_order = operator.itemgetter(*order)
        count = len(order)
        self.nodes: tuple[int, ...] = in_order(apart.nodes)
        self.must_distance = apart.must_distance
        self.both: list[tuple[int, ...]] = [in_order(row) for row in in_order(both)]
        """Distance from each node to each, there and back."""
        self.span = max(map(max, both)) + 1
        """More than there is between any two nodes, both ways."""
        largest = SCALE * count * (max(apart.alone) + 2 * self.span)
        self.width = 32 if largest < 1 << 31 else 64 * (largest.bit_length() // 64 + 1)
        self._code = {32: "I", 64: "Q"}.get(self.width)
        self.lane = (1 << self.width) - 1
        self.ones = sum(1 << i * self.width for i in range(count))
        self.guard = self.ones << self.width - 1
        self.guards = [1 << (i + 1) * self.width - 1 for i in range(count)]
        self.alone = self.pack(in_order(apart.alone))
        self.between = [
            self.pack(row) & ~(self.lane << i * self.width) for i, row in enumerate(self.both)
        ]
        """What each node adds more, both ways, because of the one node; nothing for itself."""
        self.below = [(1 << i * self.width) - 1 for i in range(count + 1)]
        """All bits of the lanes of the first nodes, by their number."""

    def pack(self, numbers: Sequence[int]) -> int:
        """Return numbers, one a node from the first on, as one number."""
        if self._code is None:
            return sum(number << i * self.width for i, number in enumerate(numbers))
        return int.from_bytes(struct.pack(f"<{len(numbers)}{self._code}", *numbers), "little")

    def unpack(self, packed: int, count: int) -> tuple[int, ...]:
        """Return the numbers of the first ``count`` lanes; there must not be any other."""
        if self._code is None:
            return tuple(self.at(packed, i) for i in range(count))
        packed_bytes = packed.to_bytes(count * self.width // 8, "little")
        return struct.unpack(f"<{count}{self._code}", packed_bytes)

    def at(self, packed: int, i: int) -> int:
        """Return the number in the lane of the ``i``-th node."""
        return packed >> i * self.width & self.lane

    def at_most(self, packed: int, most: int) -> int:
        """Return the guards of the lanes whose number is not above ``most``, which is not negative."""
        return self.ones * most + self.guard - packed & self.guard

    def lowest(self, packed: int, guards: int) -> tuple[int, int]:
        """Return the smallest number in the lanes with these guards, and the first lane that has it."""
        numbers = self.unpack(packed | self.guard & ~guards, len(self.nodes))
        number = min(numbers)
        return number, numbers.index(number)


def _nearest_next(both: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return the order of the nodes, and how near each was to the nearest before (0 for the first)."""
    taken = max(map(max, both)) + 1
    order, steps, gaps = [0], [0], list(both[0])
    while len(order) < len(both):
        gaps[order[-1]] = taken
        steps.append(min(gaps))
        order.append(gaps.index(steps[-1]))
        gaps = [
            gap if gap == taken or gap < new else new
            for gap, new in zip(gaps, both[order[-1]], strict=True)
        ]
    return order, steps
