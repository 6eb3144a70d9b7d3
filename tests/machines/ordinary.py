"""Random ordinary machines: a description, and the topology that must come out of it."""

from dataclasses import dataclass

from hypothesis import strategies as st

from agent.core.cpuset import CPUSet
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.simulation.description import (
    L3,
    SCHEMA,
    Adjacent,
    CPUFiles,
    Description,
    NumaNodeFiles,
    Offset,
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Counts: NUMA nodes a socket, cores a node, threads a core, and how threads are numbered."""

    sockets: int
    nodes: int
    cores: int
    threads: int
    adjacent: bool

    @property
    def all_cores(self) -> int:
        return self.sockets * self.nodes * self.cores

    def threads_of(self, core: int) -> CPUSet:
        if self.adjacent:
            return CPUSet(core * self.threads + i for i in range(self.threads))
        return CPUSet(core + i * self.all_cores for i in range(self.threads))

    def union_of(self, first_core: int, count: int) -> CPUSet:
        cores = range(first_core, first_core + count)
        return CPUSet(cpu for core in cores for cpu in self.threads_of(core))


@dataclass(frozen=True, kw_only=True)
class Ordinary:
    description: Description
    topology: NodeTopology


def _distinct(ids: st.SearchStrategy[int], count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(ids, min_size=count, max_size=count, unique=True).map(sorted)


@st.composite
def ordinary_machines(draw: st.DrawFn) -> Ordinary:
    shape = Shape(
        sockets=draw(st.integers(1, 3)),
        nodes=draw(st.integers(1, 2)),
        cores=draw(st.sampled_from([1, 2])),
        threads=draw(st.sampled_from([1, 2, 4])),
        adjacent=draw(st.booleans()),
    )
    node_count = shape.sockets * shape.nodes
    sockets = draw(_distinct(st.integers(0, 40), shape.sockets))
    node_ids = draw(_distinct(st.integers(0, 300), node_count) | st.just(list(range(node_count))))
    # One L3 cache a core, a NUMA node or a socket; or none.
    cache_cores = draw(st.sampled_from([0, 1, shape.cores, shape.nodes * shape.cores]))
    cache_count = shape.all_cores // cache_cores if cache_cores else 0
    cache_ids = draw(st.none() | _distinct(st.integers(0, 900), cache_count))
    caches = [
        L3(
            cpus=shape.union_of(i * cache_cores, cache_cores),
            size="32768K",
            id=cache_ids[i] if cache_ids else None,
        )
        for i in range(cache_count)
    ]
    rows = _rows(draw, node_count)
    nodes = [
        NumaNode(
            id=node,
            memory_bytes=draw(st.integers(1, 1 << 32)) * 1024,
            hugepages=draw(
                st.dictionaries(st.sampled_from([64, 2048, 1048576]), st.integers(0, 9999))
            ),
            distances=row,
        )
        for node, row in zip(node_ids, rows, strict=True)
    ]
    return Ordinary(
        description=_description(shape, sockets, nodes, caches),
        topology=_topology(shape, sockets, nodes, caches),
    )


def _rows(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    return [
        tuple(10 if a == b else draw(st.integers(11, 254)) for b in range(count))
        for a in range(count)
    ]


def _description(
    shape: Shape, sockets: list[int], nodes: list[NumaNode], caches: list[L3]
) -> Description:
    per_socket = shape.nodes * shape.cores
    return Description(
        schema=SCHEMA,
        name="ordinary",
        cpu=CPUFiles(online=shape.union_of(0, shape.all_cores)),
        packages={s: shape.union_of(i * per_socket, per_socket) for i, s in enumerate(sockets)},
        threads=(
            Adjacent(kind="adjacent", threads_per_core=shape.threads)
            if shape.adjacent
            else Offset(kind="offset", threads_per_core=shape.threads, offset=shape.all_cores)
        ),
        l3=caches,
        nodes={
            node.id: NumaNodeFiles(
                cpus=shape.union_of(i * shape.cores, shape.cores),
                mem_kib=node.memory_bytes // 1024,
                distance=list(node.distances),
                hugepages={f"{size}kB": count for size, count in node.hugepages.items()},
            )
            for i, node in enumerate(nodes)
        },
    )


def _topology(
    shape: Shape, sockets: list[int], nodes: list[NumaNode], caches: list[L3]
) -> NodeTopology:
    cores = []
    for i in range(shape.all_cores):
        cpus = shape.threads_of(i)
        socket = sockets[i // (shape.nodes * shape.cores)]
        cache = next((cache for cache in caches if cpus <= cache.cpus), None)
        uncore = socket if cache is None else min(cache.cpus) if cache.id is None else cache.id
        cores.append(Core(cpus=cpus, node=nodes[i // shape.cores].id, socket=socket, uncore=uncore))
    return NodeTopology(nodes=tuple(nodes), cores=tuple(cores), socket_count=len(sockets))
