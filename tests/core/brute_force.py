"""Hints and their merge by enumeration: what `agent.core.hints` must find without enumerating.

Written from the rules alone (kubelet-semantics 4.2, 5.2, 6.2 and 6.3) on plain sets of node numbers,
and from ``HintMerger.compare`` of pkg/kubelet/cm/topologymanager/policy.go; nothing of the searches
under test is used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations

from agent.core.state import MemoryTable, NodeMemory

Nodes = frozenset[int]
Hint = tuple[Nodes | None, bool]
"""NUMA nodes (None: any) and whether the hint is preferred."""
Distance = Callable[[int, int], int]


def subsets(nodes: Iterable[int]) -> Iterator[Nodes]:
    """Yield the non-empty subsets by size, then lexicographically."""
    ordered = sorted(nodes)
    for size in range(1, len(ordered) + 1):
        yield from map(frozenset, combinations(ordered, size))


def mask_of(nodes: Nodes) -> int:
    return sum(1 << node for node in nodes)


def cpu_hints(
    count: int,
    cpus_of_node: Mapping[int, set[int]],
    available: set[int],
    reusable: set[int],
    align: tuple[Mapping[int, int], int] | None = None,
) -> list[Hint]:
    """Enumerate by 4.2; ``align`` (``align-by-socket``) is the socket of each CPU and their number."""
    minimum = len(cpus_of_node)
    found: list[Nodes] = []
    for nodes in subsets(cpus_of_node):
        inside = set[int]().union(*(cpus_of_node[n] for n in nodes))
        if len(inside) >= count:
            minimum = min(minimum, len(nodes))
        if reusable <= inside and len(reusable) + len(available & inside) >= count:
            found.append(nodes)

    def fits_sockets(nodes: Nodes) -> bool:
        if align is None:
            return False
        socket_of_cpu, socket_count = align
        nodes_per_socket = len(cpus_of_node) // socket_count
        if nodes_per_socket == 0:
            return False
        touched = {socket_of_cpu[cpu] for n in nodes for cpu in cpus_of_node[n]}
        return len(touched) == -(-minimum // nodes_per_socket)

    return [(nodes, len(nodes) == minimum or fits_sockets(nodes)) for nodes in found]


def memory_hints(
    tables: Mapping[int, NodeMemory],
    request: Mapping[str, int],
    reusable: Mapping[tuple[int, str], int],
) -> list[Hint] | None:
    """Enumerate by 5.2; None where there is no hint at all.  A type that a node lacks counts 0."""

    def amount(nodes: Nodes, name: str, of: Callable[[MemoryTable], int]) -> int:
        return sum(of(tables[n].tables[name]) for n in nodes if name in tables[n].tables)

    minimum = len(tables)
    found: list[Nodes] = []
    for nodes in subsets(tables):
        if any(amount(nodes, t, lambda m: m.allocatable) < need for t, need in request.items()):
            continue
        minimum = min(minimum, len(nodes))
        if len(nodes) == 1 and any(len(tables[n].cells) > 1 for n in nodes):
            continue
        if len(nodes) > 1 and any(
            tables[n].assignments > 0
            and (len(tables[n].cells) == 1 or set(tables[n].cells) != nodes)
            for n in nodes
        ):
            continue
        if all(
            amount(nodes, t, lambda m: m.free) + reusable.get((mask_of(nodes), t), 0) >= need
            for t, need in request.items()
        ):
            found.append(nodes)
    return [(nodes, len(nodes) == minimum) for nodes in found] or None if request else None


def lists_of(offers: Iterable[tuple[int, list[Hint] | None]]) -> list[list[Hint]]:
    """Return the lists to merge by 6.2, from each provider's number of resources and hints."""
    lists: list[list[Hint]] = []
    for resources, hints in offers:
        if hints is None:
            lists.append([(None, True)])
        else:
            lists += [hints or [(None, False)]] * resources
    return lists


def merge(lists: Sequence[list[Hint]], full: Nodes, distance: Distance | None) -> Hint:
    """Merge as best-effort and restricted do; ``distance`` where the closest nodes are preferred."""
    smallest = [[len(nodes) for nodes, _ in hints if nodes is not None] for hints in lists]
    wanted = max(min(sizes, default=0) for sizes in smallest)

    def rank(nodes: Nodes) -> tuple[int, int, int]:
        apart = sum(distance(a, b) for a in nodes for b in nodes) if distance else 0
        return len(nodes), apart, mask_of(nodes)

    def compare(current: tuple[Nodes, bool], other: tuple[Nodes, bool]) -> tuple[Nodes, bool]:
        better = min(current, other, key=lambda hint: rank(hint[0]))
        if current[1] != other[1]:
            return current if current[1] else other
        now, then = len(current[0]), len(other[0])
        if current[1] or now > wanted or now == then:
            return better
        if now == wanted:
            return current
        if then <= wanted:
            return max(current, other, key=lambda hint: len(hint[0]))
        return current

    candidates = [c for c in _candidates(lists, full) if c[0]]
    return reduce(compare, candidates) if candidates else (full, False)


def merge_single_node(lists: Sequence[list[Hint]], full: Nodes) -> Hint:
    """Merge as single-numa-node does (6.4)."""
    single = [
        [(nodes, True) for nodes, preferred in hints if preferred and _at_most_one(nodes)]
        for hints in lists
    ]
    nodes, preferred = merge(single, full, None)
    return None if nodes == full else nodes, preferred


def _at_most_one(nodes: Nodes | None) -> bool:
    return nodes is None or len(nodes) == 1


def _candidates(lists: Sequence[list[Hint]], full: Nodes) -> list[tuple[Nodes, bool]]:
    """Fold list by list: what is common so far, the one mask so far, all preferred and equal so far."""
    folded: dict[tuple[Nodes, Nodes | None, bool], None] = {(full, None, True): None}
    for hints in lists:
        folded = {
            (
                common if nodes is None else common & nodes,
                first if first is not None else nodes,
                together and preferred and (nodes is None or first is None or nodes == first),
            ): None
            for common, first, together in folded
            for nodes, preferred in hints
        }
    return [(common, together) for common, _, together in folded]
