"""The distributed pick: ``distribute-cpus-across-numa`` (``takeByTopologyNUMADistributed``)."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from agent.core.departures import MORE_THAN_8_NODES
from agent.core.take import (
    Pool,
    TakeError,
    Taken,
    TakeOptions,
    check_enough,
    numa_order,
    take_packed,
)
from agent.core.topology import NodeTopology

MOST_NODES = 8
"""Above this many CPU-bearing NUMA nodes combinations are not enumerated."""


@dataclass(frozen=True, slots=True)
class _Share:
    """How much each NUMA node gives: ``each`` CPUs from every member, the rest in rounds."""

    members: Sequence[int]
    each: int
    rest_from: Sequence[int]


def take(topology: NodeTopology, pool: Pool, count: int, options: TakeOptions) -> Taken:
    """Return ``count`` CPUs of a pool as the options say; this is the one entry to picking.

    Raises `agent.core.take.TakeError` with the kubelet's words.
    """
    if not options.across_numa:
        return take_packed(topology, pool, count, options, uncore=options.uncore_aligned)
    group = topology.cpus_per_core if options.whole_cores else 1
    if count % group:
        return take_packed(topology, pool, count, options, uncore=False)
    if count < 1:
        return Taken(0)
    check_enough(pool, count)
    return _take_distributed(topology, pool, count, options, group)


def _take_distributed(
    topology: NodeTopology, pool: Pool, count: int, options: TakeOptions, group: int
) -> Taken:
    nodes = numa_order(topology, pool.available)
    free = {n: (topology.cpu_bits_by_node[n] & pool.available).bit_count() for n in nodes}
    node_count = len(topology.cpu_bits_by_node)
    groups_per_node = _ceil(_ceil(len(topology.cpus), group), node_count)
    groups = _ceil(count, group)
    wide = node_count > MOST_NODES
    find = _widest if wide else _most_balanced
    for k in range(_ceil(groups, groups_per_node), min(groups, len(nodes)) + 1):
        share = find(nodes, free, k, count, group)
        if share is not None:
            taken = _hand_out(topology, pool, count, options, group, share)
            return Taken(taken.bits, taken.departures | ({MORE_THAN_8_NODES} if wide else set()))
    return take_packed(topology, pool, count, options, uncore=False)


def _ceil(amount: int, size: int) -> int:
    return -(-amount // size)


def _hand_out(  # noqa: PLR0913, PLR0917 - the pick's five inputs and its decision
    topology: NodeTopology,
    pool: Pool,
    count: int,
    options: TakeOptions,
    group: int,
    share: _Share,
) -> Taken:
    taken, departures = 0, frozenset[str]()
    node_bits = topology.cpu_bits_by_node

    def take_from(node: int, amount: int) -> None:
        nonlocal taken, departures
        pick = take_packed(
            topology, pool.without(taken) & node_bits[node], amount, options, uncore=False
        )
        taken |= pick.bits
        departures |= pick.departures

    for node in share.members:
        take_from(node, share.each)
    rest = count - share.each * len(share.members)
    while rest > 0:
        before = rest
        for node in share.rest_from:
            if rest > 0 and (pool.available & ~taken & node_bits[node]).bit_count() >= group:
                take_from(node, group)
                rest -= group
        if rest == before:
            break
    missing = count - taken.bit_count()
    if missing > 0:
        raise TakeError(f"accounting error, not enough CPUs allocated, remaining: {missing}")
    if missing < 0:
        raise TakeError(f"accounting error, too many CPUs allocated, remaining: {missing}")
    return Taken(taken, departures)


def _most_balanced(
    nodes: Sequence[int], free: dict[int, int], k: int, count: int, group: int
) -> _Share | None:
    """Return the k nodes that leave the machine most evenly used, or None where no k do."""
    best_score = math.inf
    best: tuple[_GoSlice, _GoSlice | None] | None = None
    each = count // k // group * group
    for combination in _combinations(nodes, k):
        if best_score == 0:
            break
        members = combination.values()
        if (
            sum(free[n] for n in members) < count
            or sum(free[n] // group for n in members) * group < count
            or min(free[n] for n in members) < each
        ):
            continue
        after = {n: f - each if n in members else f for n, f in free.items()}
        score, rest_from = _balance(after, members, count - each * k, group)
        if score < best_score:
            best_score, best = score, (combination, rest_from)
    if best is None:
        return None
    combination, remembered = best
    return _Share(combination.values(), each, remembered.values() if remembered else ())


def _balance(
    after: dict[int, int], members: Sequence[int], rest: int, group: int
) -> "tuple[float, _GoSlice | None]":
    """Return the best score of handing out the rest, and the nodes that it comes from."""
    if rest == 0:
        return _deviation(after.values()), None
    candidates = [n for n in members if after[n] >= group]
    best_score: float = math.inf
    best = None
    for j in range(len(candidates), 0, -1):
        for combination in _combinations(candidates, j):
            subset = combination.values()
            if sum(after[n] for n in subset) < rest:
                continue
            score = _deviation(_after_rounds(after, subset, rest, group).values())
            if score < best_score:
                best_score, best = score, combination
    return best_score, best


def _after_rounds(
    after: dict[int, int], subset: Sequence[int], rest: int, group: int
) -> dict[int, int]:
    left = dict(after)
    while rest > 0:
        before = rest
        for n in subset:
            if rest > 0 and left[n] >= group:
                left[n] -= group
                rest -= group
        if rest == before:
            break
    return left


def _deviation(values: Collection[int]) -> float:
    """Return the population deviation; mean and result are rounded to 3 decimals, which decides ties."""
    mean = _round3(sum(values) / len(values))
    return _round3(math.sqrt(sum((v - mean) * (v - mean) for v in values) / len(values)))


def _round3(value: float) -> float:
    """Round a non-negative value to 3 decimals, halves up (Go's ``math.Round``)."""
    thousandths = value * 1000
    floor = math.floor(thousandths)
    return (floor + (thousandths - floor >= 0.5)) / 1000  # noqa: PLR2004 - one half


def _widest(
    nodes: Sequence[int], free: dict[int, int], k: int, count: int, group: int
) -> _Share | None:
    """Return the k nodes with most free CPUs where they can share the request, else None.

    The rule above 8 CPU-bearing nodes: as few nodes as can hold equal shares, those with most free
    CPUs first (ties in the order in which the packed pick uses nodes), the rest in rounds from the
    same nodes.  One sort instead of all combinations.
    """
    members = sorted(nodes, key=lambda n: -free[n])[:k]
    each = count // k // group * group
    whole_groups = sum(free[n] // group for n in members) * group
    if whole_groups < count or min(free[n] for n in members) < each:
        return None
    return _Share(members, each, members)


class _GoSlice:
    """The first ``length`` items of an array that others may share and overwrite.

    The kubelet remembers combinations without copying them; Go's ``append`` writes in place while
    the array has room, so later combinations with the same beginning overwrite the end of a
    remembered one.  Which CPUs a pod gets depends on it (kubelet-semantics 3.3).
    """

    __slots__ = ("array", "length")

    def __init__(self, array: list[int], length: int) -> None:
        self.array = array
        self.length = length

    def append(self, value: int) -> "_GoSlice":
        array = self.array
        if self.length == len(array):
            array = array + [0] * max(1, len(array))
        array[self.length] = value
        return _GoSlice(array, self.length + 1)

    def values(self) -> list[int]:
        return self.array[: self.length]


def _combinations(items: Sequence[int], k: int) -> Iterator[_GoSlice]:
    """Yield all k-combinations in lexicographic order of position (``iterateCombinations``)."""

    def extend(prefix: _GoSlice, start: int, missing: int) -> Iterator[_GoSlice]:
        if missing == 0:
            yield prefix
            return
        for i in range(start, len(items) - missing + 1):
            yield from extend(prefix.append(items[i]), i + 1, missing - 1)

    return extend(_GoSlice([], 0), 0, k)
