"""The opt-in departure ``init_inside_app``: init containers inside what outlives them.

The kubelet places the init list first and lets later containers reuse what ended.  So a small init
container may strand a CPU until the pod goes, or pull the pod to a NUMA node where its app does not
fit.  Here sidecars and app containers are placed first; an ordinary init container then gets CPUs and
memory out of what everybody has who does not run beside it, and more of the node only where that is
not enough.  The topology policy judges it like any other container.  Where this order is refused, the
kubelet's is tried, so that no pod is worse off.  Pods with a budget are not concerned: their pool
holds everybody already.
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.core.cpu_allocation import check_smt, cpu_hints, take_from, take_more
from agent.core.cpuset import NodeSet
from agent.core.departures import INIT_APART, INIT_INSIDE_APP
from agent.core.draft import Draft
from agent.core.hints import Offer
from agent.core.keeping import keep, sidecars_before
from agent.core.memory import charge, free_sum
from agent.core.memory_allocation import choose, container_offer, manages
from agent.core.pods import Amounts, Container, Kind, Pod
from agent.core.startup import Rules
from agent.core.state import Affinity, Block


def applies(rules: Rules, pod: Pod) -> bool:
    """Tell whether the departure is switched on and concerns this pod.

    ``init_apart`` wins over it: who wants init containers apart does not want them inside.
    """
    return (
        INIT_INSIDE_APP in rules.policy.departures
        and INIT_APART not in rules.policy.departures
        and not pod.has_budget
        and any(c.kind is Kind.INIT for c in pod.init_containers)
    )


def in_order(pod: Pod) -> tuple[Container, ...]:
    """Return the containers in the order of placing: ordinary init containers last."""
    return tuple(sorted(pod.containers, key=lambda c: c.kind is Kind.INIT))


def offers(draft: Draft, container: Container) -> tuple[Offer, Offer]:
    """Return the hints for an init container: over what it takes over, if that is enough."""
    return _cpu_offer(draft, container), _memory_offer(draft, container)


def allocate(draft: Draft, container: Container, affinity: Affinity) -> None:
    """Give an init container CPUs and memory; raises `agent.core.draft.Refusal`."""
    _allocate_cpus(draft, container, affinity)
    _allocate_memory(draft, container, affinity)


def _cpus_inside(draft: Draft, container: Container) -> int:
    beside, inside, taken = sidecars_before(draft.pod, container), 0, 0
    for name, bits in draft.cpus.items():
        if name in beside:
            taken |= bits
        else:
            inside |= bits
    return inside & ~taken


def _memory_inside(draft: Draft, container: Container) -> dict[tuple[int, str], int]:
    """Return (node mask, type) -> bytes, as the kubelet keeps what finished containers leave."""
    beside, inside = sidecars_before(draft.pod, container), dict[tuple[int, str], int]()
    for name, blocks in draft.memory.items():
        for block in blocks if name not in beside else ():
            key = block.nodes.bits, block.resource
            inside[key] = inside.get(key, 0) + block.size_bytes
    return inside


def _cpu_offer(draft: Draft, container: Container) -> Offer:
    count = draft.demand.cpus[container.name]
    if not draft.rules.manages_cpus or count == 0:
        return Offer("cpu")
    inside = _cpus_inside(draft, container)
    if count <= inside.bit_count():
        hints = cpu_hints(draft.rules, count, inside, reusable=0)
    else:
        hints = cpu_hints(draft.rules, count, draft.available, reusable=inside)
    return Offer("cpu", ("cpu",), hints)


def _memory_offer(draft: Draft, container: Container) -> Offer:
    inside = draft.reusable_memory = _memory_inside(draft, container)
    offer = container_offer(draft, container)
    request = draft.demand.memory[container.name]
    enough = frozenset(m for m, _ in inside if not any(_missing(inside, m, request).values()))
    if offer.hints is None or not enough:
        return offer
    return replace(offer, hints=replace(offer.hints, listed=enough, loose=None))


def _missing(inside: Mapping[tuple[int, str], int], mask: int, request: Amounts) -> dict[str, int]:
    """Return what a request needs beyond the memory that a group of nodes has for it, by type."""
    return {name: max(0, need - inside.get((mask, name), 0)) for name, need in request.items()}


def _allocate_cpus(draft: Draft, container: Container, affinity: Affinity) -> None:
    count = draft.demand.cpus[container.name]
    if not draft.rules.manages_cpus or count == 0:
        return
    check_smt(draft, container, count)
    inside = _cpus_inside(draft, container)
    kept = keep(draft, container, count, inside | draft.available)
    draft.default &= ~kept
    count -= kept.bit_count()
    more = max(0, count - (inside & ~kept).bit_count())
    taken = kept | take_from(draft, inside & ~kept, count - more, affinity)
    draft.cpus[container.name] = taken | take_more(draft, draft.available, more, affinity)


def _allocate_memory(draft: Draft, container: Container, affinity: Affinity) -> None:
    """Charge only what goes beyond the memory that is taken over; the blocks say as much."""
    request = draft.demand.memory[container.name]
    if not manages(draft) or not request or draft.has_given_up_memory(container):
        return
    inside = draft.reusable_memory = _memory_inside(draft, container)
    stays = draft.former is not None and container.name in draft.former.memory
    nodes = None if stays else _nodes_inside(draft, request, affinity)
    if nodes is None:
        nodes = choose(draft, request, affinity, container.name)
    missing = _missing(inside, nodes.bits, request)
    blocks = tuple(Block(nodes, name, missing[name]) for name in sorted(missing))
    for block in blocks:
        draft.tables = charge(draft.tables, nodes, block.resource, block.size_bytes)
    draft.memory[container.name] = blocks


def _nodes_inside(draft: Draft, request: Amounts, affinity: Affinity) -> NodeSet | None:
    """Return the group of nodes that needs least beyond what is taken over, None where none fits."""
    inside = draft.reusable_memory
    allowed = draft.rules.node_mask if affinity.nodes is None else affinity.nodes.bits
    missing = {m: _missing(inside, m, request) for m, _ in inside if not m & ~allowed}
    fitting = [
        mask
        for mask, amounts in missing.items()
        if all(free_sum(draft.tables, mask, name) >= need for name, need in amounts.items())
    ]
    best = min(fitting, key=lambda m: sum(missing[m].values()), default=None)
    return None if best is None else NodeSet.from_bits(best)
