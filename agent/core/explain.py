"""A verdict and its reason for every container, in words for the person who runs it."""

from dataclasses import dataclass, replace

from agent.core.cgroups import CpuMax
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.desired import (
    container_cpus,
    container_mems,
    container_quota,
    node_shared,
    pod_quota,
)
from agent.core.device_hints import device_nodes
from agent.core.entitlement import why_unsupported
from agent.core.isolation import Isolation, isolation
from agent.core.pods import CPU, MEMORY, MILLI, Container, Kind, Pod, QosClass, qos_class
from agent.core.quantity import format_milli
from agent.core.startup import Rules
from agent.core.state import Block, NodeState, PodEntry

WAITING_FOR_DEVICES = "WaitingForDevices"
"""A reason of our own, of a pod that is neither admitted nor rejected yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerVerdict:
    """What one container gets, and why not more."""

    name: str
    kind: Kind
    verdict: Isolation
    reason: str
    cpus: CPUSet
    mems: NodeSet
    cpu_max: CpuMax
    memory: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVerdict:
    """What one pod gets; ``reason`` and ``message`` say why it was rejected."""

    pod: Pod
    qos: QosClass
    admitted: bool
    reason: str = ""
    message: str = ""
    pool: CPUSet
    nodes: NodeSet
    cpu_max: CpuMax
    containers: tuple[ContainerVerdict, ...]


def explain(
    rules: Rules, state: NodeState, pod: Pod, rejection: tuple[str, str] | None = None
) -> PodVerdict:
    """Return the verdicts on a pod; ``rejection`` is the reason and message of a rejected one."""
    demand, entry = Demand(rules, pod), _in_force(rules, state.pods.get(pod.uid, PodEntry()))
    reason, message = rejection or ("", "")
    blocks = entry.memory_pool or tuple(b for held in entry.memory.values() for b in held)
    nodes = NodeSet.from_bits(0)
    for block in blocks:
        nodes |= block.nodes
    return PodVerdict(
        pod=pod,
        qos=qos_class(pod, pod_level_resources=rules.knows_budgets),
        admitted=rejection is None,
        reason=reason,
        message=message,
        pool=entry.held,
        nodes=nodes or rules.topology.nodes_of(entry.held),
        cpu_max=pod_quota(demand, entry),
        containers=tuple(
            _container_verdict(demand, state, entry, c, reason)
            for c in (*pod.containers, *pod.ephemeral_containers)
        ),
    )


def _in_force(rules: Rules, entry: PodEntry) -> PodEntry:
    """Return what a pod really has: without a CPU manager nobody has CPUs of his own.

    What he was given while there was one is remembered, in case that it comes back.
    """
    return entry if rules.manages_cpus else replace(entry, pool=None, cpus={})


def _container_verdict(
    demand: Demand, state: NodeState, entry: PodEntry, container: Container, rejected: str
) -> ContainerVerdict:
    level = isolation(demand, entry, container)
    own, online = entry.cpus.get(container.name), demand.rules.topology.cpus
    cpus = (
        container_cpus(demand, state, container.name) if own else node_shared(demand.rules, state)
    )
    cpus &= online
    return ContainerVerdict(
        name=container.name,
        kind=container.kind,
        verdict=level,
        reason=why_unsupported(demand.pod)
        if level is Isolation.UNSUPPORTED_RUNTIME
        else _reason(demand, container, level, len(own or ()), rejected)
        + _beside_devices(demand, container, level, cpus)
        + _offline(own or online, online),
        cpus=cpus,
        mems=container_mems(entry, container.name) or NodeSet(),
        cpu_max=container_quota(demand, entry, container),
        memory=entry.memory.get(container.name, ()),
    )


def _reason(
    demand: Demand, container: Container, level: Isolation, held: int, rejected: str
) -> str:
    if level is Isolation.EXCLUSIVE:
        if demand.cpus[container.name] != held:
            return "it runs, and keeps the CPUs that it was given for what it asked then"
        whole = format_milli(container.resources.requests[CPU])
        return f"requests and limits are equal, and cpu {whole} is a whole number"
    if rejected:
        waits = rejected == WAITING_FOR_DEVICES
        return "it is not decided on yet" if waits else f"the pod was rejected: {rejected}"
    if container.kind is Kind.EPHEMERAL:
        return "ephemeral containers run on the node's shared CPUs"
    return _why_pod_shares(demand) or _why_container_shares(container)


def _beside_devices(demand: Demand, container: Container, level: Isolation, cpus: CPUSet) -> str:
    """Say whether CPUs followed the devices of their container or pod; nothing where none count."""
    rules, devices = demand.rules, demand.pod.devices
    if devices is None or level not in (Isolation.EXCLUSIVE, Isolation.POD_SHARED):
        return ""
    if rules.policy.topology_policy == "none":
        return ""  # there were no hints
    by_container = rules.policy.topology_scope == "container"
    nodes = device_nodes(rules, demand.pod, container.name if by_container else None)
    where = f"devices on NUMA node{'s' if len(nodes) > 1 else ''} {nodes}"
    if not nodes:
        unknown = not devices.in_time and (container.extended or not by_container)
        return "; the kubelet did not say in time where its devices are" if unknown else ""
    if not devices.in_time:
        return f"; it stays, since it was placed before the kubelet told of its {where}"
    if rules.topology.nodes_of(cpus) <= nodes:
        return f"; beside its {where}"
    return f"; not all beside its {where}, where too little was free"


def _offline(own: CPUSet, online: CPUSet) -> str:
    """Say which of a container's own CPUs have gone, and on what it runs then; nothing if none has."""
    if own <= online:
        return ""
    others = "" if own & online else ", and it runs on shared ones until they are back"
    return f"; CPUs {own - online} of its own {own} are offline{others}"


def _why_pod_shares(demand: Demand) -> str | None:
    """Say why no container of a pod can be exclusive, None where one could."""
    if not demand.rules.manages_cpus:
        return "cpuManagerPolicy is none"
    if demand.ignored:
        return "the pod has a budget, and the feature gate PodLevelResourceManagers is off"
    if not demand.guaranteed:
        return "the pod is not Guaranteed: its cpu and memory limits must be set and equal requests"
    whole_pod = demand.by_budget and demand.rules.policy.topology_scope == "pod"
    if whole_pod and not demand.pod_cpus:
        return "the pod's budget is not a whole number of CPUs"
    return None


def _why_container_shares(container: Container) -> str:
    requests, limits = container.resources.requests, container.resources.limits
    for name in (CPU, MEMORY):
        if not requests.get(name):
            return f"it requests no {name}"
        if requests[name] != limits.get(name):
            return f"its {name} request differs from its limit"
    if requests[CPU] % MILLI:
        return f"cpu {format_milli(requests[CPU])} is not a whole number"
    return "the topology manager's policy gives it no CPUs of its own"
