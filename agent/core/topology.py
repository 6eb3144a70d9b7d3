"""The machine as the decisions see it: CPUs, cores, uncore caches, sockets, NUMA nodes, memory.

Everything derived is computed once per topology and kept as integers with one bit a CPU or a
NUMA node, because the decisions are made of intersections and counts of such sets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from agent.core.cpuset import CPUSet, NodeSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core: its online threads and where they are.

    Its identity is its lowest CPU number, since the ``core_id`` of sysfs is not unique.
    ``uncore`` is the id of its last-level cache; the socket id where the machine shows none.
    """

    cpus: CPUSet
    node: int
    socket: int
    uncore: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node; it may have no CPUs, or no memory.

    ``hugepages`` maps page size in KiB to the number of pages; ``distances`` is the node's row of
    the SLIT table, by position in the list of nodes.
    """

    id: int
    memory_bytes: int
    hugepages: Mapping[int, int] = field(default_factory=dict)
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeTopology:
    """A whole machine: its NUMA nodes in ascending order of id, and its online cores.

    ``socket_count`` is what the machine reports, which on odd machines differs from the number of
    sockets that have online CPUs.
    """

    nodes: tuple[NumaNode, ...]
    cores: tuple[Core, ...]
    socket_count: int

    @cached_property
    def cpus(self) -> CPUSet:
        """All online CPUs."""
        return CPUSet.from_bits(_union(core.cpus.bits for core in self.cores))

    @cached_property
    def node_ids(self) -> NodeSet:
        """All NUMA nodes, with or without CPUs."""
        return NodeSet(node.id for node in self.nodes)

    @cached_property
    def cpu_bits_by_node(self) -> dict[int, int]:
        """CPU bits of every NUMA node that has CPUs, ascending by node id."""
        return _grouped((core.node, core.cpus.bits) for core in self.cores)

    @cached_property
    def cpu_bits_by_socket(self) -> dict[int, int]:
        """CPU bits of every socket, ascending by socket id."""
        return _grouped((core.socket, core.cpus.bits) for core in self.cores)

    @cached_property
    def cpu_bits_by_uncore(self) -> dict[int, int]:
        """CPU bits of every uncore cache, ascending by cache id."""
        return _grouped((core.uncore, core.cpus.bits) for core in self.cores)

    @cached_property
    def core_bits(self) -> dict[int, int]:
        """CPU bits of every core, keyed by and ascending by its lowest CPU number."""
        return _grouped((min(core.cpus), core.cpus.bits) for core in self.cores)

    @cached_property
    def _cores_inside(self) -> dict[int, list[tuple[int, int]]]:
        return {}

    def cores_inside(self, bits: int) -> list[tuple[int, int]]:
        """Return (id, CPU bits) of the cores that have CPUs in ``bits``, ascending; remembered."""
        found = self._cores_inside.get(bits)
        if found is None:
            found = [(c, core) for c, core in self.core_bits.items() if core & bits]
            self._cores_inside[bits] = found
        return found

    @cached_property
    def memory_nodes(self) -> NodeSet:
        """NUMA nodes that have memory."""
        return NodeSet(node.id for node in self.nodes if node.memory_bytes)

    @property
    def cpus_per_core(self) -> int:
        """Threads of an average core, rounded down (``CPUTopology.CPUsPerCore``)."""
        return len(self.cpus) // len(self.cores) if self.cores else 0

    @property
    def cpus_per_socket(self) -> int:
        """CPUs of an average socket, rounded down (``CPUTopology.CPUsPerSocket``)."""
        return len(self.cpus) // self.socket_count if self.socket_count else 0

    @property
    def cpus_per_uncore(self) -> int:
        """CPUs of an average uncore cache, rounded down (``CPUTopology.CPUsPerUncore``)."""
        return len(self.cpus) // len(self.cpu_bits_by_uncore) if self.cores else 0

    def distance(self, a: int, b: int) -> int | None:
        """Return the SLIT distance from node id ``a`` to node id ``b``; None where not known.

        The kubelet uses the id as a position in the row and crashes on sparse ids (0 and 8, say);
        there the position of the node in the list is used.
        """
        row = next(node.distances for node in self.nodes if node.id == a)
        ids = [node.id for node in self.nodes]
        position = b if ids[-1] < len(row) else ids.index(b)
        return row[position] if position < len(row) else None

    @cached_property
    def distances_by_bit(self) -> dict[int, dict[int, int]]:
        """Distance from node bit to node bit; an unknown one counts as 10 local, 20 remote."""
        ids = list(self.node_ids)
        return {
            1 << a: {1 << b: self.distance(a, b) or (10 if a == b else 20) for b in ids}
            for a in ids
        }

    def cpus_of(self, node: int) -> CPUSet:
        """Return the CPUs of a NUMA node; the empty set for one without CPUs."""
        return CPUSet.from_bits(self.cpu_bits_by_node.get(node, 0))

    def nodes_of(self, cpus: CPUSet) -> NodeSet:
        """Return the NUMA nodes that own at least one of ``cpus``."""
        return NodeSet(n for n, bits in self.cpu_bits_by_node.items() if bits & cpus.bits)


def kubelet_view(topology: NodeTopology) -> NodeTopology:
    """Return the machine with the uncore caches that the kubelet knows of.

    cAdvisor (``addCacheInfo``) counts an L3 cache with as many CPUs as its NUMA node to the node, not
    among the uncore caches, and the kubelet then lets the socket stand in.
    """
    nodes, caches = topology.cpu_bits_by_node, topology.cpu_bits_by_uncore
    return replace(
        topology,
        cores=tuple(
            replace(core, uncore=core.socket)
            if caches[core.uncore].bit_count() == nodes[core.node].bit_count()
            else core
            for core in topology.cores
        ),
    )


def _union(bits: Iterable[int]) -> int:
    total = 0
    for b in bits:
        total |= b
    return total


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    groups: dict[int, int] = {}
    for key, bits in pairs:
        groups[key] = groups.get(key, 0) | bits
    return dict(sorted(groups.items()))
