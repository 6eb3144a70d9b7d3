"""Who holds what: every assignment on the node, immutable.

The two tables of the kubelet's CPU and memory managers in one value.  `PodEntry` is everything
that one pod holds; a pod without an entry holds nothing and runs on the default CPU set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import PodUID

UNNAMED = ""
"""Whose CPUs are, in `PodEntry.cpus`, what some container has of which not even the name is known."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """The merged hint of a pod or container: ``nodes`` is None where any node will do."""

    nodes: NodeSet | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class Block:
    """An amount of memory of one type, charged to a group of NUMA nodes."""

    nodes: NodeSet
    resource: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEntry:
    """All that one pod holds.

    ``pool`` and ``memory_pool`` are the pod-level entries (pod scope with a budget), ``cpus`` and
    ``memory`` the entries of the containers: an exclusive slice, or the pod shared pool.
    A container absent from ``cpus`` runs on the default CPU set.  ``first`` is what of
    ``pool`` and slices a pod had before it grew, None where it did not: where it shrinks, that stays.
    """

    pool: CPUSet | None = None
    cpus: Mapping[str, CPUSet] = field(default_factory=dict)
    memory_pool: tuple[Block, ...] | None = None
    memory: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    affinity: Mapping[str, Affinity] = field(default_factory=dict)
    first: "PodEntry | None" = None

    @property
    def held(self) -> CPUSet:
        """All CPUs that this pod keeps from everybody else."""
        bits = self.pool.bits if self.pool is not None else 0
        for cpus in self.cpus.values():
            bits |= cpus.bits
        return CPUSet.from_bits(bits)


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """One type of memory on one NUMA node, in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """One NUMA node in the memory tables: assignments, the group it belongs to, a table a type."""

    assignments: int
    cells: NodeSet
    tables: Mapping[str, MemoryTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Everything that is assigned on the node."""

    default: CPUSet
    pods: Mapping[PodUID, PodEntry] = field(default_factory=dict)
    memory: Mapping[int, NodeMemory] = field(default_factory=dict)

    def two_owners(self) -> CPUSet:
        """Return the CPUs that belong to two pods, or to a pod and the default CPU set: none, ever."""
        seen, twice = self.default.bits, 0
        for entry in self.pods.values():
            held = entry.held.bits
            twice |= seen & held
            seen |= held
        return CPUSet.from_bits(twice)
