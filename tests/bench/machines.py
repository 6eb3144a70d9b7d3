"""Machines beyond the kubelet's limit of 8 NUMA nodes, and pods that fill them."""

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from agent.core.cpuset import CPUSet
from agent.core.pods import CPU, MEMORY, MILLI, Amounts, Container, Pod, PodUID, Resources
from agent.core.policy import Policy
from agent.core.startup import CLOSEST, Rules, start
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.node.sysfs import read_topology
from agent.simulation.description import load_description
from agent.simulation.machine import topology_of

MIB, GIB = 1 << 20, 1 << 30
_TOPOLOGIES = Path(__file__).parents[1] / "data" / "topologies"
_NODES_PER_SOCKET = 4
_SELF, _SAME_SOCKET, _OTHER_SOCKET = 10, 12, 32


def described(name: str) -> NodeTopology:
    """Return a machine out of the descriptions of real ones."""
    description = load_description(_TOPOLOGIES / f"{name}.yaml")
    with tempfile.TemporaryDirectory() as folder:
        return topology_of(description, Path(folder), read_topology)


def grid(nodes: int, cores_per_node: int) -> NodeTopology:
    """Return an even machine: four NUMA nodes a socket, 64 GiB and an uncore cache each."""
    sockets = [n // _NODES_PER_SOCKET for n in range(nodes)]
    return NodeTopology(
        nodes=tuple(
            NumaNode(
                id=n,
                memory_bytes=64 * GIB,
                hugepages={2048: 1024, 1 << 20: 4},
                distances=tuple(_distance(n, other) for other in range(nodes)),
            )
            for n in range(nodes)
        ),
        cores=tuple(
            Core(cpus=CPUSet([n * cores_per_node + i]), node=n, socket=sockets[n], uncore=n)
            for n in range(nodes)
            for i in range(cores_per_node)
        ),
        socket_count=max(sockets) + 1,
    )


def _distance(a: int, b: int) -> int:
    if a == b:
        return _SELF
    return _SAME_SOCKET if a // _NODES_PER_SOCKET == b // _NODES_PER_SOCKET else _OTHER_SOCKET


def rules(topology: NodeTopology, policy: str, *, closest: bool = False) -> Rules:
    """Return the rules of scope ``pod``, with one CPU and 1 GiB of the first node reserved."""
    return start(
        topology,
        Policy(
            topology_policy=policy,
            topology_options={CLOSEST: "true"} if closest else {},
            node_reservation={CPU: MILLI, MEMORY: GIB},
            reserved_memory=((min(topology.memory_nodes), {MEMORY: GIB}),),
        ),
    )


def pods(cpus: int, exclusive: int, hugepages: Amounts | None = None) -> Iterator[Pod]:
    """Yield pods without end: one exclusive container, one in the pod shared pool."""
    budget = {CPU: cpus * MILLI, MEMORY: 256 * MIB, **(hugepages or {})}
    main = {CPU: exclusive * MILLI, MEMORY: 128 * MIB}
    for number in count():
        yield Pod(
            uid=PodUID(f"pod-{number}"),
            budget=Resources(requests=budget, limits=budget),
            app_containers=(
                Container(name="main", resources=Resources(requests=main, limits=main)),
                Container(name="side", resources=Resources(requests={CPU: 100})),
            ),
        )
