"""Machines, pods, policies and histories: random ones, small enough to be fast, and builders.

`machine`, `pod` and `rules_for` build what a test describes; the rest are hypothesis strategies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.departures import OPT_IN
from agent.core.pods import CPU, MEMORY, Container, Kind, Pod, PodUID, Resources
from agent.core.policy import Policy
from agent.core.quantity import milli_cpu, whole_bytes
from agent.core.startup import (
    ALIGN_BY_SOCKET,
    CLOSEST,
    CPU_OPTIONS,
    SCOPES,
    TOPOLOGY_POLICIES,
    Rules,
    StartupRefused,
    start,
)
from agent.core.state import MemoryTable, NodeMemory
from agent.core.topology import Core, NodeTopology, NumaNode

GI = 1 << 30
HUGE = "hugepages-2Mi"
HUGE_BYTES = 2 << 20
NEAR, FAR, VERY_FAR = 12, 20, 32


def machine(  # noqa: PLR0913 - the counts that describe a machine
    *,
    sockets: int = 1,
    nodes_per_socket: int = 1,
    cores_per_node: int = 4,
    threads: int = 2,
    uncores_per_node: int = 1,
    memory_bytes: int = 16 * GI,
    huge_pages: int = 0,
    siblings_apart: bool = False,
) -> NodeTopology:
    """Build an ordinary machine; siblings have neighbouring numbers, or lie half a machine apart."""
    node_count = sockets * nodes_per_socket
    core_count = node_count * cores_per_node
    cores = []
    for i in range(core_count):
        first, step = (i, core_count) if siblings_apart else (i * threads, 1)
        node, inside = divmod(i, cores_per_node)
        cores.append(
            Core(
                cpus=CPUSet(first + step * t for t in range(threads)),
                node=node,
                socket=node // nodes_per_socket,
                uncore=node * uncores_per_node + inside * uncores_per_node // cores_per_node,
            )
        )

    def distance(a: int, b: int) -> int:
        if a == b:
            return 10
        same_socket = a // nodes_per_socket == b // nodes_per_socket
        return NEAR if same_socket else FAR if abs(a - b) < 2 * nodes_per_socket else VERY_FAR

    return NodeTopology(
        nodes=tuple(
            NumaNode(
                id=a,
                memory_bytes=memory_bytes,
                hugepages={2048: huge_pages} if huge_pages else {},
                distances=tuple(distance(a, b) for b in range(node_count)),
            )
            for a in range(node_count)
        ),
        cores=tuple(cores),
        socket_count=sockets,
    )


def amounts(text: str) -> dict[str, int]:
    """Read ``"cpu=1500m memory=9Gi"``."""
    pairs = (item.split("=") for item in text.split())
    return {name: (milli_cpu if name == CPU else whole_bytes)(value) for name, value in pairs}


def resources(requests: str = "", limits: str | None = None) -> Resources:
    """Build requests and limits; without ``limits`` they are the requests."""
    return Resources(
        requests=amounts(requests), limits=amounts(requests if limits is None else limits)
    )


def container(
    name: str, requests: str = "", limits: str | None = None, kind: Kind = Kind.APP
) -> Container:
    return Container(name=name, kind=kind, resources=resources(requests, limits))


def pod(uid: str, *containers: Container, budget: str | None = None) -> Pod:
    def of(*kinds: Kind) -> tuple[Container, ...]:
        return tuple(c for c in containers if c.kind in kinds)

    return Pod(
        uid=PodUID(uid),
        name=uid,
        budget=None if budget is None else resources(budget),
        init_containers=of(Kind.INIT, Kind.SIDECAR),
        app_containers=of(Kind.APP),
        ephemeral_containers=of(Kind.EPHEMERAL),
    )


def rules_for(topology: NodeTopology, **changes: Any) -> Rules:
    """Start with CPU 0 and its sibling, and 1Gi of node 0, reserved; ``changes`` are of `Policy`."""
    threads = topology.cpus_per_core
    reserved = {MEMORY: GI}
    policy = Policy(
        node_reservation={CPU: threads * 1000, **reserved}, reserved_memory=((0, reserved),)
    )
    return start(topology, replace(policy, **changes))


def ordinary_machines() -> st.SearchStrategy[NodeTopology]:
    return st.builds(
        machine,
        sockets=st.integers(1, 2),
        nodes_per_socket=st.integers(1, 2),
        cores_per_node=st.integers(2, 6),
        threads=st.integers(1, 2),
        uncores_per_node=st.integers(1, 2),
        memory_bytes=st.integers(2, 12).map(lambda n: n * GI),
        huge_pages=st.sampled_from((0, 0, 512)),
        siblings_apart=st.booleans(),
    )


@st.composite
def odd_machines(
    draw: st.DrawFn, *, min_nodes: int = 1, max_nodes: int = 5, most_cores: int = 3
) -> NodeTopology:
    """Return machines with sparse node ids, memory-only nodes, uneven cores, sockets and nodes."""
    ids = sorted(
        draw(
            st.one_of(
                st.integers(min_nodes, max_nodes).map(range),
                st.sets(st.integers(0, 9), min_size=min_nodes, max_size=max_nodes),
            )
        )
    )
    sockets = draw(st.integers(1, 3))
    cores: list[Core] = []
    cpu = 0
    for node in ids:
        for _ in range(draw(st.integers(0 if cores or node != ids[-1] else 1, most_cores))):
            threads = draw(st.integers(1, 2))
            socket = draw(st.integers(0, sockets - 1))
            cpus = CPUSet(range(cpu, cpu + threads))
            cores.append(Core(cpus=cpus, node=node, socket=socket, uncore=draw(st.integers(0, 2))))
            cpu += threads
    row = st.lists(st.sampled_from((11, 12, 20, 21)), min_size=ids[-1] + 1, max_size=ids[-1] + 1)
    nodes: list[NumaNode] = []
    for node in ids:
        distances = draw(row)
        distances[node] = 10
        gigabytes = draw(st.integers(0 if nodes else 2, 8))
        pages = draw(st.sampled_from((0, 0, 256))) if gigabytes else 0
        nodes.append(
            NumaNode(
                id=node,
                memory_bytes=gigabytes * GI,
                hugepages={2048: pages},
                distances=tuple(distances),
            )
        )
    with_cpus = len({core.socket for core in cores})
    return NodeTopology(
        nodes=tuple(nodes),
        cores=tuple(cores),
        socket_count=draw(st.sampled_from((with_cpus, with_cpus, sockets))),
    )


def machines() -> st.SearchStrategy[NodeTopology]:
    return st.one_of(ordinary_machines(), ordinary_machines(), odd_machines())


@st.composite
def policies(draw: st.DrawFn, topology: NodeTopology) -> Policy:
    """Return policies of all kinds with CPUs, and memory of the first node, reserved."""
    topology_policy = draw(st.sampled_from(TOPOLOGY_POLICIES))
    options = draw(st.sets(st.sampled_from(CPU_OPTIONS), max_size=2))
    if topology_policy == "single-numa-node":
        options -= {ALIGN_BY_SOCKET}
    cpus = draw(st.integers(1, 2))
    named = draw(st.sets(st.sampled_from(sorted(topology.cpus)), min_size=cpus, max_size=cpus))
    explicit = draw(st.booleans())
    departures = st.sampled_from(sorted(OPT_IN))
    closest = draw(st.booleans()) and topology_policy != "none"
    reserved = {MEMORY: GI // 2}
    return Policy(
        topology_policy=topology_policy,
        topology_scope=draw(st.sampled_from(SCOPES)),
        topology_options={CLOSEST: "true"} if closest else {},
        cpu_options=dict.fromkeys(sorted(options), "true"),
        reserved_cpus=CPUSet(named if explicit else ()),
        node_reservation={CPU: cpus * 1000 - draw(st.sampled_from((0, 500))), **reserved},
        memory_policy=draw(st.sampled_from(("Static", "Static", "None"))),
        reserved_memory=((topology.nodes[0].id, reserved),),
        departures=draw(st.one_of(st.just(frozenset[str]()), st.frozensets(departures))),
        min_default_cpus=draw(st.sampled_from((0, 0, 0, 2))),
    )


@st.composite
def rules(draw: st.DrawFn, topologies: st.SearchStrategy[NodeTopology] | None = None) -> Rules:
    """Return what every decision needs, for a machine on which the kubelet would start."""
    topology = draw(machines() if topologies is None else topologies)
    assume(len(topology.cpus) > 2)
    try:
        return start(topology, draw(policies(topology)))
    except StartupRefused:
        assume(condition=False)
        raise


def _amounts(cpu_milli: int, gigabytes: int, huge_pages: int) -> dict[str, int]:
    amounts = {CPU: cpu_milli, MEMORY: gigabytes * GI // 2, HUGE: huge_pages * HUGE_BYTES}
    return {name: amount for name, amount in amounts.items() if amount}


_cpu_amounts = st.sampled_from((1000, 1000, 2000, 3000, 4000, 500, 1500, 0))
_amounts_of_any = st.builds(
    _amounts, _cpu_amounts, st.integers(0, 4), st.sampled_from((0, 0, 0, 100))
)
_exclusive = st.builds(
    _amounts,
    st.sampled_from((1000, 1000, 2000, 3000)),
    st.integers(1, 3),
    st.sampled_from((0, 0, 0, 100)),
)


def _equal(amounts: Mapping[str, int]) -> Resources:
    return Resources(requests=amounts, limits=amounts)


_resources = st.one_of(
    _exclusive.map(_equal),
    _exclusive.map(_equal),
    st.builds(Resources, requests=_amounts_of_any, limits=_amounts_of_any),
    st.builds(Resources),
)


@st.composite
def pods(draw: st.DrawFn, uid: str = "pod") -> Pod:
    """Return pods with and without a budget; most could be admitted somewhere."""
    has_budget = draw(st.booleans())
    each = st.one_of(_exclusive.map(_equal), _resources) if has_budget else _exclusive.map(_equal)
    if draw(st.integers(0, 9)) == 0:
        each = _resources
    init_kind = st.sampled_from((Kind.INIT, Kind.SIDECAR))
    init = draw(st.lists(st.tuples(init_kind, each), max_size=2))
    apps = draw(st.lists(each, min_size=1, max_size=3))
    return Pod(
        uid=PodUID(uid),
        name=uid,
        budget=_equal(draw(_budgets([r for _, r in init] + apps))) if has_budget else None,
        init_containers=tuple(
            Container(name=f"i{n}", kind=kind, resources=resources)
            for n, (kind, resources) in enumerate(init)
        ),
        app_containers=tuple(
            Container(name=f"a{n}", resources=resources) for n, resources in enumerate(apps)
        ),
        ephemeral_containers=draw(
            st.sampled_from(((), (), (Container(name="debug", kind=Kind.EPHEMERAL),)))
        ),
    )


@st.composite
def _budgets(draw: st.DrawFn, containers: Sequence[Resources]) -> dict[str, int]:
    """Return the containers' sum and a little more; now and then something else."""
    if draw(st.integers(0, 9)) == 0:
        return draw(_amounts_of_any)
    total = {name: sum(c.requests.get(name, 0) for c in containers) for name in (CPU, MEMORY, HUGE)}
    whole_cpus = -(-total[CPU] // 1000) + draw(st.integers(0, 2))
    more = draw(st.integers(1, 2)) * GI
    budget = {CPU: whole_cpus * 1000, MEMORY: total[MEMORY] + more, HUGE: total[HUGE]}
    return {name: amount for name, amount in budget.items() if amount}


@dataclass(frozen=True)
class Add:
    pod: Pod


@dataclass(frozen=True)
class Remove:
    """Take away the pod at this position, counted modulo the number of pods."""

    position: int


@dataclass(frozen=True)
class Start:
    """Start the containers of the pod at this position, in order."""

    position: int


Step = Add | Remove | Start


@st.composite
def histories(draw: st.DrawFn, *, most: int = 6) -> list[Step]:
    """Return arrivals and departures of pods; every uid is new."""
    steps: list[Step] = []
    for n in range(draw(st.integers(1, most))):
        if steps and draw(st.integers(0, 3)) == 0:
            position = draw(st.integers(0, 5))
            steps.append(Remove(position) if draw(st.booleans()) else Start(position))
        else:
            steps.append(Add(draw(pods(f"pod{n}"))))
    return steps


@st.composite
def memory_tables(draw: st.DrawFn, topology: NodeTopology) -> dict[int, NodeMemory]:
    """Return tables of a machine in use: groups, single assignments, nodes that lack a type."""
    ids = [node.id for node in topology.nodes]
    types = (MEMORY, HUGE, "hugepages-1Gi")
    group_of = {node: draw(st.integers(0, len(ids) - 1)) for node in ids}
    grouped, busy = draw(st.booleans()), draw(st.booleans())
    tables = {}
    for node in ids:
        assignments = draw(st.integers(0, 2)) if busy else 0
        group = [n for n in ids if group_of[n] == group_of[node]] if grouped else [node]
        by_type = {}
        for name in types:
            allocatable = draw(st.integers(0, 6))
            reserved = draw(st.integers(0, allocatable)) if assignments else 0
            free = allocatable - reserved
            table = MemoryTable(allocatable, 0, allocatable, reserved, free)
            if name == MEMORY or draw(st.integers(0, 7)):
                by_type[name] = table
        cells = NodeSet(group if assignments else [node])
        tables[node] = NodeMemory(assignments, cells, by_type)
    return tables
