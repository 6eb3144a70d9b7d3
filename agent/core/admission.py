"""Decide on one pod: admit it and place it, or reject it; and take back what a pod held.

Mirrors the admission of ``pkg/kubelet/cm/topologymanager`` (scopes ``pod`` and ``container``,
policies none, best-effort, restricted, single-numa-node) over the CPU and memory managers of
Kubernetes v1.36.  Every function returns new values and changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from agent.core import cpu_allocation, init_inside_app, memory_allocation
from agent.core.cpuset import NodeSet
from agent.core.departures import LEAKED_CPUS, READMIT
from agent.core.device_hints import with_devices
from agent.core.draft import NO_AFFINITY, Draft, Refusal
from agent.core.hints import Merger, Offer
from agent.core.keeping import held_affinity
from agent.core.memory import Tables, release
from agent.core.pods import Container, Kind, Pod, PodUID
from agent.core.startup import Rules
from agent.core.state import Affinity, Block, NodeState, PodEntry

DEFAULT_SET_TOO_SMALL = "DefaultSetTooSmall"
"""A reason of our own: only where ``minDefaultCPUs`` is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The pod is placed; ``state`` is the node's new state.

    ``entry`` is what the pod holds, with its affinity; a pod that holds nothing has one as well,
    but not in the state.
    """

    state: NodeState
    entry: PodEntry
    departures: frozenset[str] = frozenset()
    offers: tuple[tuple[str | None, Offer], ...] = ()
    """The hints that were merged, each with the container that they were for (None: the pod)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The pod is not placed; ``state`` has no trace of it.

    Only the split of a group's memory over its nodes may differ from before, since what was charged
    and given back again need not come from the same node.  ``leftover`` is what the kubelet keeps of
    the pod until its next collection.
    """

    state: NodeState
    reason: str
    message: str
    leftover: PodEntry
    departures: frozenset[str] = frozenset()
    offers: tuple[tuple[str | None, Offer], ...] = ()


def admit(rules: Rules, state: NodeState, pod: Pod) -> Admitted | Rejected:
    """Decide on a pod.

    A pod that is in the state keeps what it has: deciding twice gives the same answer (the
    departure ``readmit``).
    """
    held = state.pods.get(pod.uid)
    if held is not None:
        return Admitted(state=state, entry=held, departures=frozenset({READMIT}))
    return decide(rules, state, pod)


def decide(
    rules: Rules, state: NodeState, pod: Pod, former: PodEntry | None = None
) -> Admitted | Rejected:
    """Decide on a pod that is not in the state; ``former`` is what it held until now.

    Best-effort refuses nobody for his devices: where following them leads to that, nothing follows.
    """
    verdict = _decide_on(rules, state, pod, former)
    aligns = rules.policy.topology_policy == "best-effort" and pod.devices is not None
    if aligns and isinstance(verdict, Rejected):
        return _decide_on(rules, state, replace(pod, devices=None), former)
    return verdict


def _decide_on(
    rules: Rules, state: NodeState, pod: Pod, former: PodEntry | None
) -> Admitted | Rejected:
    if init_inside_app.applies(rules, pod):
        verdict = _decide(state, Draft(rules, state, pod, init_inside_app=True, has=former))
        if isinstance(verdict, Admitted):
            return verdict
    return _decide(state, Draft(rules, state, pod, has=former))


def refuse(state: NodeState, reason: str, message: str) -> Rejected:
    """Return the verdict on a pod that is not to be placed at all."""
    return Rejected(state=state, reason=reason, message=message, leftover=PodEntry())


def _decide(state: NodeState, draft: Draft) -> Admitted | Rejected:
    try:
        place(draft)
        _check_default_set(draft)
    except Refusal as refusal:
        leftover = draft.entry()
        if leftover.pool is not None and not leftover.cpus:
            draft.departures.add(LEAKED_CPUS)
        return Rejected(
            state=replace(state, memory=_released(draft.tables, charged(leftover))),
            reason=refusal.reason,
            message=refusal.message,
            leftover=leftover,
            departures=frozenset(draft.departures),
            offers=tuple(draft.offers),
        )
    entry = draft.entry()
    pods = state.pods if draft.holds_nothing else {**state.pods, draft.pod.uid: entry}
    return Admitted(
        state=NodeState(
            default=state.default.from_bits(draft.default), pods=pods, memory=draft.tables
        ),
        entry=entry,
        departures=frozenset(draft.departures),
        offers=tuple(draft.offers),
    )


def remove(state: NodeState, uid: PodUID) -> NodeState:
    """Return the state after a pod has gone: its CPUs and memory are free again."""
    entry = state.pods.get(uid)
    if entry is None:
        return state
    return NodeState(
        default=state.default | entry.held,
        pods={other: held for other, held in state.pods.items() if other != uid},
        memory=_released(state.memory, charged(entry)),
    )


def without(rules: Rules, state: NodeState, uid: PodUID) -> NodeState:
    """Return the state without a pod; of what it held, CPUs that are offline come back later."""
    state = remove(state, uid)
    return replace(state, default=state.default & rules.topology.cpus)


def remove_container(state: NodeState, uid: PodUID, name: str) -> NodeState:
    """Return the state after one container's entries are gone (``RemoveContainer``).

    CPUs of a pod pool, and memory charged to the pod, come back with the last container.
    """
    entry = state.pods.get(uid)
    if entry is None:
        return state
    state = _remove_cpus(state, uid, entry, name)
    return _without_memory(state, uid, name)


def container_starts(state: NodeState, pod: Pod, name: str) -> NodeState:
    """Return the state once a container starts: ordinary init containers before it have ended.

    Only their memory is given up (``PreStartContainer``); their CPUs stay with the pod.
    """
    for earlier in pod.init_containers:
        if earlier.name == name:
            break
        if earlier.kind is Kind.INIT:
            state = _without_memory(state, pod.uid, earlier.name)
    return state


def init_ended(state: NodeState, pod: Pod) -> NodeState:
    """Return the state once some ordinary init containers have ended: their memory is given up."""
    for c in pod.init_containers:
        if c.kind is Kind.INIT and c.name in pod.ended_init:
            state = _without_memory(state, pod.uid, c.name)
    return state


def place(draft: Draft) -> None:
    """Give a pod all that it asks for; raises `agent.core.draft.Refusal`."""
    policy, pod = draft.rules.policy, draft.pod
    memory_allocation.set_aside(draft)
    containers = init_inside_app.in_order(pod) if draft.init_inside_app else pod.containers
    if policy.topology_policy == "none":
        for c in containers:
            _allocate(draft, c, NO_AFFINITY)
    elif policy.topology_scope == "container":
        for c in containers:
            _place_alone(draft, c)
    else:
        _place_whole(draft, containers)


def _place_alone(draft: Draft, container: Container) -> None:
    if _goes_inside(draft, container):
        offers = init_inside_app.offers(draft, container)
    else:
        offers = (
            cpu_allocation.container_offer(draft, container),
            memory_allocation.container_offer(draft, container),
        )
    affinity = _merge(draft, container.name, offers)
    draft.affinity[container.name] = affinity
    _allocate(draft, container, affinity)


def _check_default_set(draft: Draft) -> None:
    left, least = draft.default.bit_count(), draft.rules.policy.min_default_cpus
    had = 0 if draft.former is None else len(draft.former.held)
    if len(draft.entry().held) > had and left < least:
        message = (
            f"the default CPU set would shrink to {left} CPUs, and minDefaultCPUs is {least}: "
            "make room, or lower minDefaultCPUs"
        )
        raise Refusal(DEFAULT_SET_TOO_SMALL, message)


def _place_whole(draft: Draft, containers: Iterable[Container]) -> None:
    offers = (cpu_allocation.pod_offer(draft), memory_allocation.pod_offer(draft))
    affinity = _merge(draft, None, offers)
    if draft.demand.by_budget:
        draft.affinity = {c.name: affinity for c in draft.pod.containers}
        cpu_allocation.allocate_pod(draft, affinity)
        memory_allocation.allocate_pod(draft, affinity)
        return
    for c in containers:
        draft.affinity[c.name] = affinity
        _allocate(draft, c, affinity)


def _goes_inside(draft: Draft, container: Container) -> bool:
    return draft.init_inside_app and container.kind is Kind.INIT


def _allocate(draft: Draft, container: Container, affinity: Affinity) -> None:
    if _goes_inside(draft, container):
        init_inside_app.allocate(draft, container, affinity)
        return
    cpu_allocation.allocate_container(draft, container, affinity)
    memory_allocation.allocate_container(draft, container, affinity)


def _merge(draft: Draft, container: str | None, offers: tuple[Offer, ...]) -> Affinity:
    """Merge hints by the policy; raises `Refusal` where it does not admit the result."""
    held = held_affinity(draft, container)
    if held is not None:
        return held
    rules = draft.rules
    offers = with_devices(rules, draft.pod, container, offers)
    draft.offers += [(container, offer) for offer in offers]
    merger = Merger(rules.node_mask, rules.distances)
    match rules.policy.topology_policy:
        case "single-numa-node":
            merged = merger.merge_single_node(offers)
        case "restricted":
            merged = merger.merge_preferred(offers)
        case _:
            merged = merger.merge(offers)
    if not merged.preferred and rules.policy.topology_policy != "best-effort":
        raise draft.misaligned()
    nodes = None if merged.mask is None else NodeSet.from_bits(merged.mask)
    return Affinity(nodes, merged.preferred)


def charged(entry: PodEntry) -> tuple[Block, ...]:
    """Return the blocks that the tables are charged with for a pod."""
    if entry.memory_pool is not None:
        return entry.memory_pool
    return tuple(block for blocks in entry.memory.values() for block in blocks)


def _released(tables: Tables, blocks: Iterable[Block]) -> Tables:
    for block in blocks:
        tables = release(tables, block)
    return tables


def _remove_cpus(state: NodeState, uid: PodUID, entry: PodEntry, name: str) -> NodeState:
    if name not in entry.cpus:
        return state
    cpus = {other: held for other, held in entry.cpus.items() if other != name}
    left = replace(entry, cpus=cpus)
    if entry.pool is None:
        freed = entry.cpus[name] - left.held
    elif cpus:
        freed = entry.pool.from_bits(0)
    else:
        freed, left = entry.pool, replace(left, pool=None)
    return replace(_with_entry(state, uid, left), default=state.default | freed)


def _without_memory(state: NodeState, uid: PodUID, name: str) -> NodeState:
    entry = state.pods.get(uid)
    if entry is None or name not in entry.memory:
        return state
    memory = {other: blocks for other, blocks in entry.memory.items() if other != name}
    left = replace(entry, memory=memory)
    if entry.memory_pool is None:
        freed: tuple[Block, ...] = entry.memory[name]
    elif memory:
        freed = ()
    else:
        freed, left = entry.memory_pool, replace(left, memory_pool=None)
    return replace(_with_entry(state, uid, left), memory=_released(state.memory, freed))


def _with_entry(state: NodeState, uid: PodUID, entry: PodEntry) -> NodeState:
    return replace(state, pods={**state.pods, uid: entry})
