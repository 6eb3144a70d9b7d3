"""Cases from the field as written in ``public-cases.yaml``, read into what the core takes.

Nothing is overlooked in silence: a key, topology or amount that the reader does not know is an error.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import (
    CPU,
    MEMORY,
    MILLI,
    Amounts,
    Container,
    Kind,
    Pod,
    PodUID,
    Resources,
    qos_class,
)
from agent.core.policy import Policy
from agent.core.quantity import milli_cpu, whole_bytes
from agent.core.restore import rebuild
from agent.core.startup import (
    ALIGN_BY_SOCKET,
    DISTRIBUTE_NUMA,
    FULL_PCPUS_ONLY,
    PREFER_UNCORE,
    STRICT_RESERVATION,
    Rules,
)
from agent.core.state import Block, NodeState, PodEntry
from agent.core.topology import NodeTopology, kubelet_view
from agent.node.sysfs import read_topology
from agent.simulation.description import SCHEMA, Description, load_description
from agent.simulation.machine import topology_of

DATA = Path(__file__).parents[1] / "data"
Json = Any

SYSTEM_MEMORY = 100 << 20
"""What a case that places memory keeps for the system: the kubelet refuses to keep nothing."""

SMALL = "64Mi"
"""Memory of a container that says none in a Guaranteed pod."""

_CPU_OPTIONS = {
    "strict_reserved": STRICT_RESERVATION,
    "full_cores_only": FULL_PCPUS_ONLY,
    "distribute_across_numa": DISTRIBUTE_NUMA,
    "align_by_socket": ALIGN_BY_SOCKET,
    "prefer_align_l3": PREFER_UNCORE,
}
_SAYS_NOTHING = {
    "allowed",  # numalet needs no such key: CPUs that are offline never count
    "take_cores",  # the event says it again
    "reserved_first_core",  # what numalet does where nothing is reserved
}
_FACTORS = {"topology", "config", "state"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One run of a case: a machine, a policy, pods, what is remembered, and what is expected."""

    topology: NodeTopology
    policy: Policy
    pods: Mapping[PodUID, Pod]
    remembered: Mapping[str, Json]
    events: tuple[str, ...]
    expect: Mapping[str, Json]


@dataclass(frozen=True)
class Case:
    """One entry of the file."""

    raw: Mapping[str, Json]

    @property
    def id(self) -> str:
        return str(self.raw["id"])

    @property
    def departs(self) -> bool:
        """Tell whether the entry says that the kubelet answers otherwise."""
        return "departs" in self.raw

    def variants(self, workdir: Path) -> Iterator[Variant]:
        """Yield the runs: a list of topologies, configurations or states means one run for each.

        Trees of sysfs are written below ``workdir``.
        """
        lists = [v for k, v in self.raw.items() if k in _FACTORS and isinstance(v, list)]
        runs = len(lists[0]) if lists else 1
        for i in range(runs):
            raw = {k: _chosen(v, i) if k in _FACTORS else v for k, v in self.raw.items()}
            if runs > 1:
                raw["expect"] = {
                    k: v if k == "properties" else _chosen(v, i) for k, v in raw["expect"].items()
                }
            yield _variant(raw, workdir / f"{self.id}-{i}")


def read_cases() -> list[Case]:
    """Return every entry of the file, in its order."""
    text = (DATA / "cases/public-cases.yaml").read_text(encoding="utf-8")
    return [Case(raw) for raw in yaml.safe_load(text)]


def _chosen(value: Json, i: int) -> Json:
    return value[i] if isinstance(value, list) else value


def _variant(raw: Mapping[str, Json], workdir: Path) -> Variant:
    topology = kubelet_view(topology_of(_machine(raw), workdir, read_topology))
    places_memory = "memory" in str(raw["area"])
    return Variant(
        topology=topology,
        policy=_policy(raw.get("config", {}), topology, places_memory=places_memory),
        pods={PodUID(name): _pod(name, pod) for name, pod in raw.get("pods", {}).items()},
        remembered=raw.get("state", {}),
        events=tuple(raw["events"]),
        expect=raw["expect"],
    )


def _machine(raw: Mapping[str, Json]) -> Description:
    description = _described(raw["topology"])
    totals = raw.get("machine", {}).get("memory", {})
    nodes = {
        i: node.model_copy(update={"mem_kib": totals[i]["total"] // 1024} if i in totals else {})
        for i, node in description.known_nodes().items()
    }
    cpu = description.cpu.model_copy(
        update={
            "online": description.cpu.online - CPUSet.parse(raw.get("offline", "")),
            "isolated": CPUSet.parse(raw.get("isolated", "")),
        }
    )
    return description.model_copy(update={"cpu": cpu, "nodes": nodes})


def _described(topology: Json) -> Description:
    if isinstance(topology, Mapping):
        return _spelled_out(**topology)
    if match := re.fullmatch(r"file (\S+)", topology):
        return load_description(DATA / f"topologies/{match[1]}.yaml")
    if topology == "VM with 2 sockets and only node0":
        return _spelled_out(cores="0;1", nodes={0: "0-1"}, packages={0: "0", 1: "1"})
    if match := re.fullmatch(
        r"(\d+) nodes, allocatable (\S+) each(?:, (\d+) CPUs each)?", topology
    ):
        nodes, size, cpus = int(match[1]), whole_bytes(match[2]), int(match[3] or 4)
        # The first node has what is kept for the system besides.
        memory = [size + (SYSTEM_MEMORY if i == 0 else 0) for i in range(nodes)]
        return _regular(nodes, 1, cpus, 1, memory=memory)
    return _shorthand(topology)


def _shorthand(topology: str) -> Description:
    """Read ``2s/1n/8c/2t offset`` and what may follow a comma."""
    match = re.fullmatch(r"(\d+)s/(\d+)n/(\d+)c/(\d+)t(?: (offset|adjacent))?(?:, (.+))?", topology)
    assert match is not None, f"the topology {topology!r} is not understood"
    sockets, per_socket, cores, threads = (int(match[i]) for i in range(1, 5))
    memory, pages = None, 0
    remark = match[6] or ""
    if size := re.fullmatch(r"(\S+)(?: and (\d+) 2Mi pages)? per node", remark):
        memory = [whole_bytes(size[1])] * (sockets * per_socket)
        pages = int(size[2] or 0)
    else:
        # The simulated machine counts the cores of each socket from 0 anyway.
        assert remark in ("", "core_id restarts at 0 on socket 1"), remark
    return _regular(
        sockets,
        per_socket,
        cores,
        threads,
        adjacent=match[5] == "adjacent",
        memory=memory,
        pages=pages,
    )


def _regular(  # noqa: PLR0913 - the counts that describe a machine
    sockets: int,
    nodes_per_socket: int,
    cores_per_node: int,
    threads: int,
    *,
    adjacent: bool = False,
    memory: list[int] | None = None,
    pages: int = 0,
) -> Description:
    count = sockets * nodes_per_socket * cores_per_node
    first, step = (threads, 1) if adjacent else (1, count)
    cores = [CPUSet(i * first + step * t for t in range(threads)) for i in range(count)]
    nodes, packages = (
        [CPUSet(cpu for core in cores[i : i + size] for cpu in core) for i in range(0, count, size)]
        for size in (cores_per_node, cores_per_node * nodes_per_socket)
    )
    return _spelled_out(
        cores=";".join(map(str, cores)),
        nodes={i: str(cpus) for i, cpus in enumerate(nodes)},
        packages={i: str(cpus) for i, cpus in enumerate(packages)},
        memory=memory,
        pages=pages,
    )


def _spelled_out(  # noqa: PLR0913 - the parts of a machine
    *,
    cores: str,
    nodes: Mapping[int, str],
    packages: Mapping[int, str] | None = None,
    l3: str = "",
    memory: list[int] | None = None,
    pages: int = 0,
) -> Description:
    groups = cores.split(";")
    return Description.model_validate(
        {
            "schema": SCHEMA,
            "name": "case",
            "cpu": {"online": ",".join(groups)},
            "packages": packages,
            "threads": {"kind": "list", "groups": groups},
            "l3": [{"cpus": cpus} for cpus in l3.split(";")] if l3 else None,
            "nodes": {
                i: {
                    "cpus": cpus,
                    "mem_kib": memory[i] // 1024 if memory else None,
                    "hugepages": {"2048kB": pages} if pages else {},
                    "distance": [10 if i == j else 20 for j in range(len(nodes))],
                }
                for i, cpus in nodes.items()
            },
        }
    )


def _policy(raw: Mapping[str, Json], topology: NodeTopology, *, places_memory: bool) -> Policy:
    config = {key: value for key, value in raw.items() if key not in _SAYS_NOTHING}
    reserved = CPUSet.parse(config.pop("reserved", "")) or CPUSet.from_bits(
        next(iter(topology.core_bits.values()))
    )
    options = {_CPU_OPTIONS[key]: "true" for key in _CPU_OPTIONS if config.pop(key, False)}
    keep = {MEMORY: SYSTEM_MEMORY} if places_memory else {}
    policy = Policy(
        topology_policy=config.pop("topology_policy", "none"),
        topology_scope=config.pop("scope", "container"),
        cpu_policy=config.pop("policy", "static"),
        cpu_options=options,
        reserved_cpus=reserved,
        node_reservation={CPU: len(reserved) * MILLI, **keep},
        memory_policy="Static" if places_memory else "None",
        reserved_memory=((min(topology.memory_nodes), keep),) if places_memory else (),
    )
    assert not config, f"configuration that is not understood: {config}"
    return policy


def _pod(name: str, raw: Mapping[str, Json]) -> Pod:
    parts = dict(raw)
    qos, budget = parts.pop("qos"), parts.pop("pod", None)
    containers = {
        kind: tuple(
            Container(name=name, kind=kind, resources=_resources(of, qos))
            for name, of in parts.pop(kind, {}).items()
        )
        for kind in (Kind.INIT, Kind.SIDECAR, Kind.APP)
    }
    pod = Pod(
        uid=PodUID(name),
        name=name,
        # The budget of a pod that says no memory holds what its containers are given.
        budget=None if budget is None else _resources({"mem": "1Gi", **budget}, qos),
        init_containers=containers[Kind.INIT] + containers[Kind.SIDECAR],
        app_containers=containers[Kind.APP],
    )
    unknown = parts.keys() - {"restart", "created"}  # neither is told to the core
    assert not unknown, f"pod {name} with {unknown}, which is not understood"
    assert qos_class(pod).upper().startswith(qos)
    return pod


def _resources(raw: Mapping[str, str | int], qos: str) -> Resources:
    """Read ``cpu``, ``mem`` and huge pages, request and limit alike, or ``req`` and ``lim`` of CPU."""
    if raw.keys() & {"req", "lim"}:
        requests, limits = (
            {CPU: milli_cpu(str(raw[k]))} if k in raw else {} for k in ("req", "lim")
        )
        return Resources(requests=requests, limits=limits)
    if qos == "G" and "cpu" in raw:
        raw = {"mem": SMALL, **raw}
    amounts = dict(_amount(key, str(value)) for key, value in raw.items())
    return Resources(requests=amounts, limits=amounts)


def _amount(key: str, text: str) -> tuple[str, int]:
    if key == "cpu":
        return CPU, milli_cpu(text)
    assert key == "mem" or key.startswith("hugepages-"), key
    return (MEMORY if key == "mem" else key), whole_bytes(text)


def remembered_state(
    rules: Rules, pods: Mapping[PodUID, Pod], raw: Mapping[str, Json]
) -> NodeState:
    """Return the state that a case's agent finds; the one without assignments where it says none."""
    unknown = raw.keys() - {
        "entries",
        "pod_entries",
        "default",
        "memory",
        "booked",
        "policy",
        "note",
    }
    assert not unknown, f"state that is not understood: {unknown}"
    entries = {
        PodUID(uid): PodEntry(cpus={name: CPUSet.parse(cpus) for name, cpus in of.items()})
        for uid, of in raw.get("entries", {}).items()
    } | {
        PodUID(uid): _pool(pods[PodUID(uid)], of) for uid, of in raw.get("pod_entries", {}).items()
    }
    state = rebuild(rules, entries)
    for i, amount in raw.get("booked", {}).items():
        assert state.memory[i].tables[MEMORY].reserved == whole_bytes(str(amount))
    if "default" in raw:
        state = replace(state, default=CPUSet.parse(raw["default"]))
    return replace(state, memory=_with_totals(state, raw.get("memory", {})))


def _pool(pod: Pod, raw: Json) -> PodEntry:
    """Return what a pod holds whose containers all share its pool."""
    parts = raw if isinstance(raw, Mapping) else {"cpus": raw}
    pool, memory = CPUSet.parse(parts["cpus"]), tuple[Block, ...]()
    if "mem" in parts:
        memory = (Block(NodeSet.parse(parts["mems"]), MEMORY, whole_bytes(parts["mem"])),)
    return PodEntry(
        pool=pool,
        cpus={c.name: pool for c in pod.containers},
        memory_pool=memory or None,
        memory={c.name: memory for c in pod.containers} if memory else {},
    )


def _with_totals(state: NodeState, totals: Mapping[int, Amounts]) -> Mapping[int, Json]:
    """Return the memory tables as saved when the nodes had other totals."""
    tables = dict(state.memory)
    for i, saved in totals.items():
        table = replace(tables[i].tables[MEMORY], total=saved["total"])
        tables[i] = replace(tables[i], tables={**tables[i].tables, MEMORY: table})
    return tables
