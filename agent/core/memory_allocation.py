"""The memory manager's Static policy: hints and blocks of containers and of pods.

Mirrors ``pkg/kubelet/cm/memorymanager/policy_static.go`` of Kubernetes v1.36; the tables themselves
are in `agent.core.memory`.
"""

from dataclasses import replace

from agent.core.cpuset import NodeSet
from agent.core.departures import NO_PANIC, SHARED_CONTAINER_MEMORY
from agent.core.draft import Draft, Refusal, unexpected
from agent.core.hints import UNSATISFIABLE, Offer
from agent.core.memory import (
    PlacementError,
    charge,
    choose_nodes,
    free_sum,
    memory_hints,
    release,
)
from agent.core.pods import Amounts, Container, Kind
from agent.core.state import Affinity, Block


def container_offer(draft: Draft, container: Container) -> Offer:
    """Return the hints for one container (``GetTopologyHints``)."""
    if not manages(draft) or draft.demand.ignored:
        return Offer("memory")
    return _offer(draft, draft.demand.memory[container.name])


def pod_offer(draft: Draft) -> Offer:
    """Return the hints for the whole pod (``GetPodTopologyHints``)."""
    demand = draft.demand
    if not manages(draft) or demand.ignored:
        return Offer("memory")
    if demand.by_budget and demand.memory_pool_error is not None:
        return Offer("memory", tuple(sorted(demand.pod_memory)), UNSATISFIABLE)
    return _offer(draft, demand.pod_memory)


def manages(draft: Draft) -> bool:
    """Tell whether memory is placed at all for this pod."""
    return draft.rules.manages_memory and draft.demand.guaranteed


def _offer(draft: Draft, request: Amounts) -> Offer:
    _note_lacking(draft, request)
    hints = memory_hints(draft.tables, request, draft.reusable_memory)
    return Offer("memory", () if hints is None else tuple(sorted(request)), hints)


def set_aside(draft: Draft) -> None:
    """Charge what the containers of a resized pod keep, so that none grows into another's memory.

    Not while ordinary init containers are yet to end, since others have their memory after them.
    """
    former = draft.former
    if former is None or former.memory_pool is not None:
        return
    if any(c.kind is Kind.INIT and c.name in former.memory for c in draft.pod.containers):
        return
    for c in draft.pod.containers:
        kept = draft.kept_memory[c.name] = tuple(
            replace(b, size_bytes=min(b.size_bytes, draft.demand.memory[c.name].get(b.resource, 0)))
            for b in former.memory.get(c.name, ())
            if b.nodes <= draft.rules.topology.node_ids
        )
        for block in kept:
            draft.tables = charge(draft.tables, block.nodes, block.resource, block.size_bytes)


def _take_up(draft: Draft, container: Container) -> None:
    for block in draft.kept_memory.pop(container.name, ()):
        draft.tables = release(draft.tables, block)


def allocate_container(draft: Draft, container: Container, affinity: Affinity) -> None:
    """Charge a container's memory to NUMA nodes (``Allocate``); raises `Refusal`."""
    _take_up(draft, container)
    if not manages(draft) or draft.demand.ignored or draft.has_given_up_memory(container):
        return
    request = draft.demand.memory[container.name]
    if not request and draft.demand.by_budget and _leaves_sharing_alone(draft):
        return
    if not request and draft.former is not None:
        draft.memory[container.name] = ()  # who runs and shares need not be placed
        return
    nodes = choose(draft, request, affinity, container.name)
    blocks = _blocks(nodes, request)
    for block in blocks:
        reused = draft.reusable_memory.get((nodes.bits, block.resource), 0)
        amount = max(0, block.size_bytes - reused)
        draft.tables = charge(draft.tables, nodes, block.resource, amount)
    _update_reusable(draft, container, blocks)
    draft.memory[container.name] = blocks
    for block in blocks:
        _absorb(draft, container, block)


def _leaves_sharing_alone(draft: Draft) -> bool:
    return SHARED_CONTAINER_MEMORY in draft.rules.policy.departures


def allocate_pod(draft: Draft, affinity: Affinity) -> None:
    """Charge a pod's budget to NUMA nodes and divide it (``AllocatePod``); raises `Refusal`."""
    demand = draft.demand
    for c in draft.pod.containers:
        _take_up(draft, c)
    if not manages(draft):
        return
    if demand.memory_pool_error is not None:
        raise Refusal("EmptyPodSharedPoolError", demand.memory_pool_error)
    nodes = choose(draft, demand.pod_memory, affinity)
    draft.memory_pool = _blocks(nodes, demand.pod_memory)
    for block in draft.memory_pool:
        draft.tables = charge(draft.tables, nodes, block.resource, block.size_bytes)
    shares = _partition(draft)
    draft.memory = {
        c.name: _blocks(nodes, shares[c.name])
        for c in draft.pod.containers
        if not draft.has_given_up_memory(c)
    }


def choose(draft: Draft, request: Amounts, affinity: Affinity, name: str | None = None) -> NodeSet:
    """Return the NUMA nodes for the request of a container (None: the pod).

    Who runs already keeps his; where he asks for more than they have free, they are extended, or he
    is refused, as the topology policy wants it.  Raises `Refusal` where there are none.
    """
    seen = draft.seen_nodes(name)
    if seen is not None:
        if draft.former is None or _fits(draft, request, seen):
            return seen
        if draft.is_strict:
            raise draft.misaligned()
        affinity = Affinity(seen, preferred=False)
    mask = None if affinity.nodes is None else affinity.nodes.bits
    _note_lacking(draft, request)
    try:
        chosen = choose_nodes(
            draft.tables, request, draft.reusable_memory, mask, preferred=affinity.preferred
        )
    except PlacementError as error:
        raise unexpected(error) from error
    return NodeSet.from_bits(chosen)


def _fits(draft: Draft, request: Amounts, nodes: NodeSet) -> bool:
    free, reusable = draft.tables, draft.reusable_memory
    return all(
        free_sum(free, nodes.bits, name) + reusable.get((nodes.bits, name), 0) >= amount
        for name, amount in request.items()
    )


def _note_lacking(draft: Draft, request: Amounts) -> None:
    """Note the departure: over a type that some node lacks the kubelet crashes (a nil table)."""
    if any(name not in node.tables for node in draft.tables.values() for name in request):
        draft.departures.add(NO_PANIC)


def _blocks(nodes: NodeSet, amounts: Amounts) -> tuple[Block, ...]:
    return tuple(Block(nodes, name, amounts[name]) for name in sorted(amounts))


def _update_reusable(draft: Draft, container: Container, blocks: tuple[Block, ...]) -> None:
    for block in blocks:
        key = (block.nodes.bits, block.resource)
        left = draft.reusable_memory.get(key, 0)
        if container.kind is Kind.INIT:
            draft.reusable_memory[key] = max(left, block.size_bytes)
        else:
            draft.reusable_memory[key] = max(0, left - block.size_bytes)


def _absorb(draft: Draft, container: Container, new: Block) -> None:
    """Shrink the blocks of earlier init containers by what ``new`` takes over from them."""
    left = new.size_bytes
    for earlier in draft.pod.init_containers:
        if earlier.name == container.name:
            return
        if earlier.kind is not Kind.INIT or earlier.name not in draft.memory:
            continue
        shrunk = []
        for block in draft.memory[earlier.name]:
            part = 0
            if block.resource == new.resource and block.nodes == new.nodes:
                part = min(left, block.size_bytes)
                left -= part
            shrunk.append(Block(block.nodes, block.resource, block.size_bytes - part))
        draft.memory[earlier.name] = tuple(shrunk)


def _partition(draft: Draft) -> dict[str, Amounts]:
    """Divide a pod's memory: exclusive requests first, the rest for everybody else in the pod."""
    requests, pod = draft.demand.memory, draft.pod
    shares: dict[str, Amounts] = {}
    pool = draft.demand.pod_memory
    for c in pod.init_containers:
        request = _positive(requests[c.name])
        if requests[c.name]:
            shares[c.name] = request
            pool = _less(pool, request) if c.kind is Kind.SIDECAR else pool
        elif c.kind is Kind.INIT:
            shares[c.name] = _positive(pool)
    for c in pod.app_containers:
        if requests[c.name]:
            shares[c.name] = _positive(requests[c.name])
            pool = _less(pool, shares[c.name])
    return {c.name: shares.get(c.name, _positive(pool)) for c in pod.containers}


def _positive(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _less(amounts: Amounts, taken: Amounts) -> Amounts:
    return {name: amount - taken.get(name, 0) for name, amount in amounts.items()}
