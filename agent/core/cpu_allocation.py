"""The CPU manager's static policy: hints, the slices of containers, and the pool of a pod.

Mirrors ``pkg/kubelet/cm/cpumanager/policy_static.go`` of Kubernetes v1.36.
"""

from agent.core.draft import Draft, Refusal, unexpected
from agent.core.hints import UNSATISFIABLE, HintList, Offer
from agent.core.keeping import cpus_of, held_cpus, keep, near, off_limits
from agent.core.masks import Loose, Sum
from agent.core.pods import Container, Kind
from agent.core.startup import ALIGN_BY_SOCKET, FULL_PCPUS_ONLY, Rules
from agent.core.state import Affinity
from agent.core.take import TakeError

_RESOURCES = ("cpu",)


def container_offer(draft: Draft, container: Container) -> Offer:
    """Return the hints for one container (``GetTopologyHints``)."""
    count = draft.demand.cpus[container.name]
    if not draft.rules.manages_cpus or count == 0 or draft.demand.ignored:
        return Offer("cpu")
    available = draft.available & ~off_limits(draft, container)
    hints = cpu_hints(draft.rules, count, available, draft.reusable_cpus)
    return Offer("cpu", _RESOURCES, hints)


def pod_offer(draft: Draft) -> Offer:
    """Return the hints for the whole pod (``GetPodTopologyHints``)."""
    demand = draft.demand
    if not draft.rules.manages_cpus or demand.pod_cpus == 0 or demand.ignored:
        return Offer("cpu")
    if demand.by_budget and demand.cpu_pool_error is not None:
        return Offer("cpu", _RESOURCES, UNSATISFIABLE)
    return Offer("cpu", _RESOURCES, cpu_hints(draft.rules, demand.pod_cpus, draft.available, 0))


def cpu_hints(rules: Rules, count: int, available: int, reusable: int) -> HintList:
    """Return the hints for ``count`` CPUs (``generateCPUTopologyHints``).

    A hint must contain every reusable CPU; the preferred size looks at what the machine (in a fence:
    that part of it) could give, not at what is free.
    """
    nodes = rules.node_of_mask_cpus
    free = {bit: (cpus & available).bit_count() for bit, cpus in nodes.items()}
    sizes = sorted(((cpus & rules.fence).bit_count() for cpus in nodes.values()), reverse=True)
    minimum = _fewest_nodes(sizes, count)
    nodes_per_socket = len(nodes) // max(1, rules.topology.socket_count)
    by_socket = ALIGN_BY_SOCKET in rules.cpu_options and nodes_per_socket > 0
    return HintList(
        preferred_size=minimum,
        loose=Loose(
            universe=sum(nodes),
            sums=(Sum(free, count - reusable.bit_count()),),
            must=sum(bit for bit, cpus in nodes.items() if cpus & reusable),
        ),
        preferred_sockets=-(-minimum // nodes_per_socket) if by_socket else 0,
        sockets_of_node=rules.sockets_of_node if by_socket else {},
    )


def _fewest_nodes(sizes_descending: list[int], count: int) -> int:
    total = 0
    for nodes, size in enumerate(sizes_descending, 1):
        total += size
        if total >= count:
            return nodes
    return len(sizes_descending)


def allocate_container(draft: Draft, container: Container, affinity: Affinity) -> None:
    """Give a container its exclusive slice of the node (``Allocate``); raises `Refusal`."""
    count = draft.demand.cpus[container.name]
    if not draft.rules.manages_cpus or count == 0 or draft.demand.ignored:
        return
    check_smt(draft, container, count)
    taken = take_of_node(draft, count, affinity, draft.reusable_cpus, container)
    draft.cpus[container.name] = taken
    if container.kind is Kind.INIT:
        draft.reusable_cpus |= 0 if draft.keeps_init_apart else taken
    else:
        draft.reusable_cpus &= ~taken


def allocate_pod(draft: Draft, affinity: Affinity) -> None:
    """Give a pod with a budget its pool, and divide it (``AllocatePod``); raises `Refusal`."""
    demand = draft.demand
    if not draft.rules.manages_cpus or demand.pod_cpus == 0:
        return
    if demand.cpu_pool_error is not None:
        raise Refusal("EmptyPodSharedPoolError", demand.cpu_pool_error)
    check_smt(draft, None, demand.pod_cpus)
    draft.pool = take_of_node(draft, demand.pod_cpus, affinity, reusable=0)
    draft.cpus = _partition(draft, draft.pool)


def check_smt(draft: Draft, container: Container | None, count: int) -> None:
    """With ``full-pcpus-only``, raise `Refusal` unless whole free cores can hold ``count`` CPUs.

    Who runs already, and asks for as many as he has, was checked before he did.
    """
    unchanged = draft.former is None or held_cpus(draft, container).bit_count() == count
    if FULL_PCPUS_ONLY not in draft.rules.cpu_options or (draft.seen is not None and unchanged):
        return
    threads = draft.rules.topology.cpus_per_core
    if count % threads:
        raise Refusal(
            "SMTAlignmentError",
            f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}",
        )
    free = (draft.default & ~draft.rules.withheld_physical).bit_count()
    if count > free:
        raise Refusal(
            "SMTAlignmentError",
            "SMT Alignment Error: not enough free physical CPUs: "
            f"available physical CPUs = {free}, requested CPUs = {count}, "
            f"CPUs per core = {threads}",
        )


def take_of_node(
    draft: Draft,
    count: int,
    affinity: Affinity,
    reusable: int,
    container: Container | None = None,
) -> int:
    """Choose CPUs of the node for a container (None: the pod), those of the affinity first.

    The default set loses them.  Who runs already keeps what he has.  Mirrors ``allocateCPUs``; raises
    `Refusal` where there are not enough.
    """
    free = draft.available | reusable
    kept = keep(draft, container, count, free)
    draft.default &= ~kept
    free &= ~(kept | off_limits(draft, container))
    return kept | take_more(draft, free, count - kept.bit_count(), near(draft, affinity, kept))


def take_more(draft: Draft, free: int, count: int, affinity: Affinity) -> int:
    """Choose CPUs out of ``free``; who is resized gets CPUs of his own pod first.

    Then a strict topology policy keeps him on the nodes of the affinity.  Raises `Refusal`.
    """
    if draft.former is None:
        return take_from(draft, free, count, affinity)
    home = free if affinity.nodes is None else free & cpus_of(draft.rules, affinity.nodes.bits)
    if draft.is_strict and count > home.bit_count():
        raise draft.misaligned()
    own = home & held_cpus(draft, None)
    taken = take_from(draft, own, min(count, own.bit_count()), affinity)
    return taken | take_from(draft, free & ~taken, count - taken.bit_count(), affinity)


def take_from(draft: Draft, free: int, count: int, affinity: Affinity) -> int:
    """Choose CPUs out of ``free`` like `take_of_node`."""
    taken = 0
    try:
        if affinity.nodes is not None:
            aligned = free & cpus_of(draft.rules, affinity.nodes.bits)
            taken = draft.take(aligned, min(count, aligned.bit_count()), free)
        taken |= draft.take(free & ~taken, count - taken.bit_count())
    except TakeError as error:
        raise unexpected(error) from error
    draft.default &= ~taken
    return taken


def _partition(draft: Draft, pool: int) -> dict[str, int]:
    """Divide a pod's pool: exclusive slices first, the rest for everybody else in the pod."""
    counts, pod = draft.demand.cpus, draft.pod
    slices: dict[str, int] = {}
    sidecars = 0
    try:
        for c in pod.init_containers:
            if counts[c.name]:
                slices[c.name] = _slice(draft, c, pool & ~sidecars)
                if c.kind is Kind.SIDECAR or draft.keeps_init_apart:
                    sidecars |= slices[c.name]
            elif c.kind is Kind.INIT:
                slices[c.name] = pool & ~sidecars
        shared = pool & ~sidecars
        for c in pod.app_containers:
            if counts[c.name]:
                slices[c.name] = _slice(draft, c, shared)
                shared &= ~slices[c.name]
    except TakeError as error:
        raise unexpected(error) from error
    return {c.name: slices.get(c.name, shared) for c in pod.containers}


def _slice(draft: Draft, container: Container, available: int) -> int:
    """Choose CPUs of the pod's pool; who runs already grows into what is new in it first."""
    count = draft.demand.cpus[container.name]
    kept = keep(draft, container, count, available)
    free = available & ~(kept | off_limits(draft, container))
    more = count - kept.bit_count()
    if draft.former is None:
        return kept | draft.take(free, more)
    new = free & ~held_cpus(draft, None)
    taken = draft.take(new, min(more, new.bit_count()))
    return kept | taken | draft.take(free & ~taken, more - taken.bit_count())
