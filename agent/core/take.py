"""Choose CPUs out of a set of available ones, as the kubelet's CPU manager does.

Mirrors ``pkg/kubelet/cm/cpumanager/cpu_assignment.go`` of Kubernetes v1.36: the packed pick
(``takeByTopologyNUMAPacked``), the distributed pick (``takeByTopologyNUMADistributed``) and the
uncore step (``takeUncoreCache``).  The same function chooses reserved CPUs, slices of the node and
slices inside a pod's pool.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.core.departures import DOUBLE_ALLOCATION
from agent.core.topology import NodeTopology


class TakeError(ValueError):
    """The CPUs cannot be chosen; the text is the kubelet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOptions:
    """The CPU manager options that change which CPUs are chosen."""

    whole_cores: bool = False
    """``full-pcpus-only``: the distributed pick hands out whole cores."""
    across_numa: bool = False
    """``distribute-cpus-across-numa``."""
    across_cores: bool = False
    """``distribute-cpus-across-cores``."""
    uncore_aligned: bool = False
    """``prefer-align-cpus-by-uncorecache``."""


class Pool(NamedTuple):
    """CPU bits to choose from, and those that may be taken with them.

    On uneven machines a core, socket or cache is sometimes taken whole although a part of it lies
    outside ``available``; that is harmless as long as the part belongs to nobody (``unowned``).
    """

    available: int
    unowned: int

    def __and__(self, bits: int) -> "Pool":
        return Pool(self.available & bits, self.unowned)

    def without(self, bits: int) -> "Pool":
        """Return the pool after these CPUs have gone."""
        return Pool(self.available & ~bits, self.unowned & ~bits)


class Taken(NamedTuple):
    """CPU bits chosen, and the departures from the kubelet's answer that were needed."""

    bits: int
    departures: frozenset[str] = frozenset()


def take_packed(
    topology: NodeTopology, pool: Pool, count: int, options: TakeOptions, *, uncore: bool
) -> Taken:
    """Return ``count`` CPUs of a pool: whole NUMA nodes, sockets and cores first, then fill.

    ``uncore`` says whether the uncore step runs.  Raises `TakeError` where the pool is too small.
    """
    if count < 1:
        return Taken(0)
    check_enough(pool, count)
    pick = _Pick(topology, pool, count)
    levels = (pick.take_whole_nodes, pick.take_whole_sockets)
    for take_level in levels if pick.numa_on_top else reversed(levels):
        take_level()
    if uncore:
        pick.take_uncores()
    if not options.across_cores:
        pick.take_whole_cores()
    pick.take_single_cpus(across_cores=options.across_cores)
    departures = frozenset({DOUBLE_ALLOCATION}) if pick.spared_owned_cpus else frozenset()
    return Taken(pick.taken, departures)


def check_enough(pool: Pool, count: int) -> None:
    """Raise `TakeError` with the kubelet's words where fewer than ``count`` CPUs are available."""
    if count > pool.available.bit_count():
        raise TakeError(
            "not enough cpus available to satisfy request: "
            f"requested={count}, available={pool.available.bit_count()}"
        )


def by_size(free: int, groups: Mapping[int, int], within: int = -1) -> list[int]:
    """Return the ids of groups with free CPUs ``within``, fewest free CPUs (of the group) first."""
    sized = [((free & bits).bit_count(), i) for i, bits in groups.items() if free & bits & within]
    return [i for _, i in sorted(sized)]


def numa_order(topology: NodeTopology, free: int) -> list[int]:
    """Return NUMA nodes with free CPUs in the order in which they are used (``sortAvailableNUMANodes``)."""
    nodes, sockets = topology.cpu_bits_by_node, topology.cpu_bits_by_socket
    if topology.socket_count >= len(nodes):
        return by_size(free, nodes)
    return [n for s in by_size(free, sockets) for n in by_size(free, nodes, sockets[s])]


class _Pick:
    """The CPUs still free, how many are still needed, and those taken (``cpuAccumulator``)."""

    def __init__(self, topology: NodeTopology, pool: Pool, count: int) -> None:
        self.topology = topology
        self.free = pool.available
        self.unowned = pool.unowned | pool.available
        self.need = count
        self.taken = 0
        self.spared_owned_cpus = False
        self.numa_on_top = topology.socket_count >= len(topology.cpu_bits_by_node)

    def take(self, bits: int) -> None:
        self.taken |= bits
        self.free &= ~bits
        self.unowned &= ~bits
        self.need -= bits.bit_count()

    def take_elements(self, elements: Iterable[int], groups: Mapping[int, int]) -> None:
        """Take each element's CPUs whole while the need is at least that many.

        On uneven machines the kubelet calls an element whole by comparing with an average, and
        would take CPUs that somebody owns: such an element is passed over here.
        """
        for i in elements:
            bits = groups[i]
            if self.need >= bits.bit_count():
                if bits & ~self.unowned:
                    self.spared_owned_cpus = True
                else:
                    self.take(bits)

    def take_whole_nodes(self) -> None:
        nodes = self.topology.cpu_bits_by_node
        if self.need:
            order = numa_order(self.topology, self.free)
            self.take_elements([n for n in order if not nodes[n] & ~self.free], nodes)

    def take_whole_sockets(self) -> None:
        sockets, size = self.topology.cpu_bits_by_socket, self.topology.cpus_per_socket
        if self.need:
            order = [s for s in self.socket_order() if (sockets[s] & self.free).bit_count() == size]
            self.take_elements(order, sockets)

    def take_whole_cores(self) -> None:
        cores, size = self.topology.core_bits, self.topology.cpus_per_core
        for outer in self.core_groups() if self.need else ():
            inside = self.topology.cores_inside(outer)
            # Cores that pass are equally full, so the order by size is the order of their ids.
            self.take_elements([c for c, b in inside if (b & self.free).bit_count() == size], cores)

    def take_single_cpus(self, *, across_cores: bool) -> None:
        if not self.need:
            return
        for bits in self.socket_cpus() if across_cores else self.core_cpus():
            # A node that spans sockets is listed with each; the kubelet counts its CPUs twice.
            rest = bits & self.free
            self.spared_owned_cpus |= rest != bits
            while rest and self.need:
                low = rest & -rest
                self.take(low)
                rest ^= low
            if not self.need:
                return

    def socket_order(self) -> list[int]:
        sockets, nodes = self.topology.cpu_bits_by_socket, self.topology.cpu_bits_by_node
        if not self.numa_on_top:
            return by_size(self.free, sockets)
        order = numa_order(self.topology, self.free)
        return [s for n in order for s in by_size(self.free, sockets, nodes[n])]

    def core_groups(self) -> list[int]:
        """Return CPU bits of the sockets, or NUMA nodes, in the order in which cores are looked at."""
        if self.numa_on_top:
            sockets = self.topology.cpu_bits_by_socket
            return [sockets[s] for s in self.socket_order()]
        nodes = self.topology.cpu_bits_by_node
        return [nodes[n] for n in numa_order(self.topology, self.free)]

    def core_cpus(self) -> Iterable[int]:
        free = self.free
        for outer in self.core_groups():
            inside = self.topology.cores_inside(outer)
            sized = [((b & free).bit_count(), core, b & free) for core, b in inside if b & free]
            yield from (bits for _, _, bits in sorted(sized))

    def socket_cpus(self) -> Iterable[int]:
        free, sockets = self.free, self.topology.cpu_bits_by_socket
        return [sockets[s] & free for s in self.socket_order()]

    def uncore_order(self) -> list[int]:
        uncores, nodes = self.topology.cpu_bits_by_uncore, self.topology.cpu_bits_by_node
        order = numa_order(self.topology, self.free)
        return [u for n in order for u in by_size(self.free, uncores, nodes[n])]

    def take_uncores(self) -> None:
        uncores = self.topology.cpu_bits_by_uncore
        for u in self.uncore_order() if self.need else ():
            if self.need >= self.topology.cpus_per_uncore:
                order = self.uncore_order()
                self.take_elements([v for v in order if not uncores[v] & ~self.free], uncores)
                if not self.need:
                    return
            self.take_part_of(uncores[u])
            if not self.need:
                return

    def take_part_of(self, uncore: int) -> None:
        """Take the rest of the need from one cache, or nothing (``takePartialUncore``)."""
        threads = self.topology.cpus_per_core
        wanted = -(-self.need // threads)
        cores = [b & self.free for b in self.topology.core_bits.values() if b & self.free & uncore]
        found = 0
        for bits in cores[:wanted]:
            found |= bits
        if self.need % 2 and threads > 1 and found.bit_count() > self.need:
            found ^= 1 << (found.bit_length() - 1)
        if found.bit_count() == self.need:
            self.take(found)
