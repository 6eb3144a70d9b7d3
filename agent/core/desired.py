"""What every cgroup should say, computed bottom-up from who holds what.

A container may use its slice, or its pod's shared pool, or the default CPU set.  A pod may use the
union of what its containers may use.  A quality-of-service parent may use the default set and the
pools of the managed pods below it.  So a pod is born outside every exclusive CPU of others, and no
parent ever cuts a child short.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.core.cgroups import PERIOD_US, CgroupPath, CgroupValues, CpuMax
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.isolation import container_quota_lifted, pod_quota_lifted
from agent.core.pod_limits import (
    container_memory_max,
    container_weight,
    pod_memory_max,
    pod_weight,
)
from agent.core.pods import CPU, MILLI, Container, Kind, Pod
from agent.core.startup import Rules
from agent.core.state import UNNAMED, NodeState, PodEntry

SMALLEST_QUOTA_US = 1000
"""The kernel refuses smaller ones; the kubelet raises to it (``minQuotaPeriod``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCgroups:
    """Where a pod's cgroups are; ``leaves`` maps each one to a container's name.

    The name is None for the sandbox, and while nobody knows whose cgroup it is.
    """

    pod: Pod
    path: CgroupPath
    leaves: Mapping[CgroupPath, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """All that the values of one pod's cgroups follow from."""

    rules: Rules
    shared: CPUSet
    entry: PodEntry | None
    cgroups: PodCgroups
    quota_is_ours: bool


class PodValues:
    """The values of each pod's cgroups, for as long as all that they follow from stays the same."""

    def __init__(self) -> None:
        self._former: dict[CgroupPath, tuple[_Question, Mapping[CgroupPath, CgroupValues]]] = {}

    def of(
        self,
        rules: Rules,
        state: NodeState,
        pods: Iterable[PodCgroups],
        *,
        quota_is_ours: bool,
    ) -> list[tuple[PodCgroups, Mapping[CgroupPath, CgroupValues]]]:
        """Return each pod with its values; pods that are not among these are forgotten."""
        shared, former = node_shared(rules, state), self._former
        self._former = {}
        for cgroups in pods:
            question = _Question(
                rules=rules,
                shared=shared,
                entry=state.pods.get(cgroups.pod.uid),
                cgroups=cgroups,
                quota_is_ours=quota_is_ours,
            )
            known = former.get(cgroups.path)
            if known is None or known[0] != question:
                values = _pod_values(rules, state, cgroups, quota_is_ours=quota_is_ours)
                known = question, values
            self._former[cgroups.path] = known
        return [(question.cgroups, values) for question, values in self._former.values()]


def desired_values(  # noqa: PLR0913 - all that the values follow from, and what is known of them
    rules: Rules,
    state: NodeState,
    pods: Iterable[PodCgroups],
    qos_parents: Iterable[CgroupPath],
    *,
    quota_is_ours: bool = True,
    of_pods: PodValues | None = None,
) -> dict[CgroupPath, CgroupValues]:
    """Return the values of every cgroup that is known.

    A QoS parent that the configuration lays above Guaranteed pods (``kubepods`` itself) must not be
    among ``qos_parents``: it is never narrowed.

    A pod without containers is one that no source has named: it gets the default CPU set, or keeps the
    CPUs that it holds, or both where it was seen on more than these; nothing else of it is written.
    Where the quota is not ours, only that is written which an exclusive slice needs: no limit; weights
    and limits of memory are not ours then.

    In a fence another CPU manager has the CPUs outside.  Each set above containers has all of these (but
    those reserved strictly), so nobody loses one that he was given there; and the containers of pods
    that hold nothing are his: only what is above them keeps them off the CPUs that are given here.

    Who asks again and again gives ``of_pods``: then only pods are looked at for which something changed.
    """
    values: dict[CgroupPath, CgroupValues] = {}
    parents = dict.fromkeys(qos_parents, node_shared(rules, state))
    of_pods = of_pods or PodValues()
    for cgroups, of_pod in of_pods.of(rules, state, pods, quota_is_ours=quota_is_ours):
        allowed = of_pod[cgroups.path].cpus
        values |= of_pod
        if cgroups.path.parent in parents and allowed is not None:
            parents[cgroups.path.parent] |= allowed
    values |= {path: CgroupValues(cpus=cpus) for path, cpus in parents.items()}
    if rules.manages_cpus:
        return values
    return {path: replace(of_path, cpus=None) for path, of_path in values.items()}


def within(
    possible: CPUSet, values: Mapping[CgroupPath, CgroupValues]
) -> dict[CgroupPath, CgroupValues]:
    """Return values that name no other CPUs: slices from before a boot with fewer have such.

    The kernel refuses them (ERANGE).
    """
    return {
        path: of if of.cpus is None or of.cpus <= possible else replace(of, cpus=of.cpus & possible)
        for path, of in values.items()
    }


def node_shared(rules: Rules, state: NodeState) -> CPUSet:
    """Return the CPUs of everybody who holds none: the default CPU set.

    Strict reservation can leave it empty; the kubelet then writes an empty list, which lets shared
    containers run anywhere, on exclusive CPUs too (kubernetes/kubernetes#141196).  Here they run on
    the reserved CPUs instead.  Without a CPU manager all CPUs are shared.
    """
    if not rules.manages_cpus:
        return rules.topology.cpus
    if state.default:
        return state.default
    held = CPUSet()
    for entry in state.pods.values():
        held |= entry.held
    return rules.reserved - held or rules.reserved or rules.topology.cpus


def container_cpus(demand: Demand, state: NodeState, name: str | None) -> CPUSet:
    """Return the CPUs that a container may use.

    One whose name is not known (None) gets the pod shared pool (the pool, if that is empty), never a
    sibling's slice.  Where the pod has no pool it gets the default set, or what the pod holds if
    that is all that the pod may use.

    Of a slice that is partly offline the kernel uses the rest, and all of it again as soon as it is
    back.  One whose container would have no CPU at all moves: the kernel would let it run on all
    that the cgroup above has (cgroup2-facts section 6).
    """
    entry = state.pods.get(demand.pod.uid, PodEntry())
    shared = node_shared(demand.rules, state)
    choices: tuple[CPUSet, ...]
    if name is not None:
        choices = (entry.cpus.get(name) or shared, shared_pool(demand, entry))
    elif entry.pool is not None:
        choices = (shared_pool(demand, entry) or entry.pool,)
    else:
        choices = () if _shares_node(demand.pod, entry) else (entry.held,)
    return next((cpus for cpus in choices if cpus & demand.rules.topology.cpus), shared)


def shared_pool(demand: Demand, entry: PodEntry) -> CPUSet:
    """Return the pod's pool without the slices of app containers and sidecars.

    Ordinary init containers end before it is used.
    """
    pool = entry.pool or CPUSet()
    for c in demand.pod.containers:
        if c.kind is not Kind.INIT and demand.cpus[c.name]:
            pool -= entry.cpus.get(c.name, CPUSet())
    return pool


def container_mems(entry: PodEntry, name: str) -> NodeSet | None:
    """Return the NUMA nodes of a container's memory, None where it has none of its own."""
    nodes = NodeSet()
    for block in entry.memory.get(name, ()):
        nodes |= block.nodes
    return nodes or None


def _pod_values(
    rules: Rules, state: NodeState, cgroups: PodCgroups, *, quota_is_ours: bool
) -> dict[CgroupPath, CgroupValues]:
    pod = cgroups.pod
    demand, entry = Demand(rules, pod), state.pods.get(pod.uid, PodEntry())
    if not pod.containers:
        cpus = entry.held if entry.held & rules.topology.cpus else node_shared(rules, state)
        if UNNAMED in entry.cpus:
            cpus |= node_shared(rules, state)
        return {cgroups.path: CgroupValues(cpus=cpus, keeps_rest=True)}
    if rules.policy.fence and not quota_is_ours and pod.uid not in state.pods:
        theirs = dict.fromkeys(cgroups.leaves, CgroupValues(is_theirs=True))
        shared = CgroupValues(cpus=node_shared(rules, state), is_theirs=True)
        return {**theirs, cgroups.path: shared}
    by_name = {c.name: c for c in pod.containers}
    known = {*by_name, *(c.name for c in pod.ephemeral_containers)}
    values = {}
    for path, told in cgroups.leaves.items():
        name = told if told in known else None  # a runtime may know of one before the source does
        container = by_name.get(name) if name is not None else None
        values[path] = CgroupValues(
            cpus=container_cpus(demand, state, name),
            mems=container_mems(entry, name) if name is not None else None,
            cpu_max=None
            if container is None
            or not (quota_is_ours or container_quota_lifted(demand, entry, container))
            else container_quota(demand, entry, container),
        )
    values[cgroups.path] = CgroupValues(
        cpus=_pod_cpus(demand, state, entry),
        mems=_pod_mems(pod, entry),
        cpu_max=pod_quota(demand, entry)
        if quota_is_ours or _pod_quota_lifted(demand, entry)
        else None,
    )
    return _with_amounts(demand, cgroups, values) if quota_is_ours else values


def _with_amounts(
    demand: Demand, cgroups: PodCgroups, values: Mapping[CgroupPath, CgroupValues]
) -> dict[CgroupPath, CgroupValues]:
    """Add weights and limits of memory, where no kubelet and runtime set them."""
    containers = {c.name: c for c in demand.pod.containers}
    named = {path: containers[n] for path, n in cgroups.leaves.items() if n in containers}
    of_containers = {
        path: replace(
            values[path],
            cpu_weight=container_weight(container),
            memory_max=container_memory_max(demand, container),
        )
        for path, container in named.items()
    }
    of_pod = replace(
        values[cgroups.path], cpu_weight=pod_weight(demand), memory_max=pod_memory_max(demand)
    )
    return {**values, **of_containers, cgroups.path: of_pod}


def _pod_cpus(demand: Demand, state: NodeState, entry: PodEntry) -> CPUSet:
    """Return the union of what the pod's containers may use, whether they run yet or not."""
    cpus = entry.held | container_cpus(demand, state, None)
    for c in demand.pod.containers:
        cpus |= container_cpus(demand, state, c.name)
    if _shares_node(demand.pod, entry):
        cpus |= node_shared(demand.rules, state)
    return cpus


def _shares_node(pod: Pod, entry: PodEntry) -> bool:
    """Tell whether some container of a pod runs on the default CPU set."""
    return bool(pod.ephemeral_containers) or any(c.name not in entry.cpus for c in pod.containers)


def _pod_mems(pod: Pod, entry: PodEntry) -> NodeSet | None:
    """Return the union over the containers; None as soon as one of them may use any node."""
    nodes = NodeSet()
    for c in pod.containers:
        mems = container_mems(entry, c.name)
        if mems is None:
            return None
        nodes |= mems
    return None if pod.ephemeral_containers else nodes or None


def quota(milli: int | None) -> CpuMax:
    """Return ``cpu.max`` for a CPU limit in milli-CPUs, None for no limit (``MilliCPUToQuota``)."""
    if not milli:
        return CpuMax()
    return CpuMax(max(SMALLEST_QUOTA_US, milli * PERIOD_US // MILLI))


def container_quota(demand: Demand, entry: PodEntry, container: Container) -> CpuMax:
    """Return a container's quota; one without a limit of its own has its pod's."""
    if container_quota_lifted(demand, entry, container):
        return CpuMax()
    limit = container.resources.limits.get(CPU)
    if limit is None and demand.rules.knows_budgets and demand.pod.budget is not None:
        limit = demand.pod.budget.limits.get(CPU)
    return quota(limit)


def pod_quota(demand: Demand, entry: PodEntry) -> CpuMax:
    """Return the pod's quota: its budget's limit, else the sum where every container has one.

    Mirrors ``ResourceConfigForPod`` (pkg/kubelet/cm/helpers_linux.go).
    """
    pod = demand.pod
    if _pod_quota_lifted(demand, entry):
        return CpuMax()
    if demand.rules.knows_budgets and pod.budget is not None and CPU in pod.budget.limits:
        return quota(pod.budget.limits[CPU])
    if not all(CPU in c.resources.limits for c in pod.containers):
        return CpuMax()
    return quota(demand.over_life(lambda c: c.resources.limits[CPU]))


def _pod_quota_lifted(demand: Demand, entry: PodEntry) -> bool:
    return pod_quota_lifted(demand, entry, departures=demand.rules.policy.departures)
