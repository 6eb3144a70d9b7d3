"""Machines small enough to know by heart."""

from agent.core.cpuset import CPUSet
from agent.core.topology import Core, NodeTopology, NumaNode

GI = 1 << 30


def machine(
    *nodes: NumaNode, cores_per_node: int = 2, first_node_with_cpus: int = 0
) -> NodeTopology:
    """Return a machine with hyperthreads: CPU n and n + half share a core."""
    with_cpus = [n for n in nodes if n.id >= first_node_with_cpus]
    half = cores_per_node * len(with_cpus)
    cores = tuple(
        Core(cpus=CPUSet([c, c + half]), node=with_cpus[c // cores_per_node].id, socket=0, uncore=0)
        for c in range(half)
    )
    return NodeTopology(nodes=nodes, cores=cores, socket_count=1)


def two_nodes() -> NodeTopology:
    """Return CPUs 0, 1, 4, 5 on node 0 and 2, 3, 6, 7 on node 1, with 16 GiB each."""
    return machine(NumaNode(id=0, memory_bytes=16 * GI), NumaNode(id=1, memory_bytes=16 * GI))
