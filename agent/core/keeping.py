"""What a pod that runs already keeps: its NUMA nodes, and of its CPUs as many as it asks for now.

A pod whose CPUs are read back from its cgroups asks for what it has; one that is resized may ask for
more or less.  Of a pod that is new nothing is kept: every function then answers so.
"""

from collections.abc import Iterator
from itertools import takewhile

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.draft import Draft, unexpected
from agent.core.pods import Container, Kind, Pod
from agent.core.startup import ALIGN_BY_SOCKET, FULL_PCPUS_ONLY, Rules
from agent.core.state import Affinity, PodEntry
from agent.core.take import TakeError


def keep(draft: Draft, container: Container | None, count: int, within: int) -> int:
    """Return the CPU bits ``within`` that a container (None: the pod) keeps, at most ``count``.

    Of more than that those stay that it had before it grew, then those on its own NUMA nodes; among
    equals the usual pick decides, which keeps whole cores together.  A pod's pool first keeps what its
    containers keep of theirs.  Raises `agent.core.draft.Refusal` where the pick fails.
    """
    held = held_cpus(draft, container) & within
    if container is not None and container.kind is Kind.INIT:
        # One that shared the pool until now had the slices of app containers in it, too.
        for other in _apart(draft, container):
            held &= ~(_keeps(draft, other) if other.kind is not Kind.INIT else 0)
    if held.bit_count() <= count:
        return held
    ranks = _pool_ranks(draft, held) if container is None else _ranks(draft, container)
    kept = 0
    try:
        for rank in (*ranks, held):
            more = held & rank & ~kept
            kept |= draft.take(more, min(count - kept.bit_count(), more.bit_count()))
    except TakeError as error:
        raise unexpected(error) from error
    return kept


def held_cpus(draft: Draft, container: Container | None) -> int:
    """Return the CPU bits that a container (None: the pod) has until now."""
    if draft.seen is None:
        return 0
    return draft.seen.cpus.get(None if container is None else container.name, CPUSet()).bits


def off_limits(draft: Draft, container: Container | None) -> int:
    """Return the CPU bits that others of the pod keep, and that this container cannot share."""
    bits = 0
    for other in _apart(draft, container) if container is not None else ():
        bits |= _keeps(draft, other)
    return bits


def _apart(draft: Draft, container: Container) -> Iterator[Container]:
    """Yield those with CPUs of their own that a container of a pod that runs cannot share them with."""
    for other in _exclusive(draft) if draft.seen is not None else ():
        if other is not container and (
            draft.keeps_init_apart or _run_together(draft.pod, container, other)
        ):
            yield other


def _keeps(draft: Draft, container: Container) -> int:
    return keep(draft, container, draft.demand.cpus[container.name], within=-1)


def held_affinity(draft: Draft, container: str | None) -> Affinity | None:
    """Return where a container (None: the pod) is, None where it has nothing and may go anywhere.

    That is the hint that it was admitted with; where none is remembered, the nodes of what it has.
    """
    if draft.seen is None:
        return None
    if draft.former is None:
        nodes = draft.seen_nodes(container)
        return Affinity(nodes, preferred=nodes is not None)
    names = [c.name for c in draft.pod.containers if container in (None, c.name)]
    cpus = draft.seen.cpus.get(container, CPUSet())
    mems = NodeSet(n for name in (*names, container) for n in draft.seen.mems.get(name, ()))
    if not cpus and not mems:
        return None
    known = (draft.former.affinity[name] for name in names if name in draft.former.affinity)
    return next(known, Affinity(draft.rules.topology.nodes_of(cpus) | mems, preferred=False))


def near(draft: Draft, affinity: Affinity, kept: int) -> Affinity:
    """Return where more CPUs should come from: without a hint, where those are that are kept."""
    if affinity.nodes is not None or not kept:
        return affinity
    nodes = draft.rules.topology.nodes_of(CPUSet.from_bits(kept))
    return Affinity(nodes, preferred=False)


def cpus_of(rules: Rules, mask: int) -> int:
    """Return the CPUs that an affinity stands for; with ``align-by-socket`` those of whole sockets."""
    cpus = sum(bits for node, bits in rules.node_of_mask_cpus.items() if node & mask)
    if ALIGN_BY_SOCKET not in rules.cpu_options:
        return cpus
    return sum(bits for bits in rules.topology.cpu_bits_by_socket.values() if bits & cpus)


def sidecars_before(pod: Pod, container: Container) -> set[str]:
    """Return the names of those that run while an ordinary init container runs."""
    before = takewhile(lambda c: c is not container, pod.init_containers)
    return {c.name for c in before if c.kind is Kind.SIDECAR}


def _run_together(pod: Pod, one: Container, other: Container) -> bool:
    if one.kind is Kind.INIT:
        return other.name in sidecars_before(pod, one)
    return other.kind is not Kind.INIT or one.name in sidecars_before(pod, other)


def _exclusive(draft: Draft) -> Iterator[Container]:
    return (c for c in draft.pod.containers if draft.demand.cpus[c.name])


def _ranks(draft: Draft, container: Container) -> Iterator[int]:
    yield _first(draft).cpus.get(container.name, CPUSet()).bits
    yield _home(draft, container.name)


def _pool_ranks(draft: Draft, held: int) -> list[int]:
    stayers = inits = slices = 0
    for c in _exclusive(draft):
        kept = keep(draft, c, draft.demand.cpus[c.name], held)
        if c.kind is Kind.INIT:
            inits |= kept
        else:
            stayers |= kept
            slices |= held_cpus(draft, c)
    home, first = _home(draft, None), (_first(draft).pool or CPUSet()).bits
    ranks = [stayers, inits, first, home & ~slices, home]
    if FULL_PCPUS_ONLY not in draft.rules.cpu_options:
        return ranks
    cores = draft.rules.topology.core_bits.values()
    return [sum(core for core in cores if core & held & rank) for rank in ranks]


def _first(draft: Draft) -> PodEntry:
    former = draft.former
    return former.first if former is not None and former.first is not None else PodEntry()


def _home(draft: Draft, container: str | None) -> int:
    affinity = held_affinity(draft, container)
    if affinity is None or affinity.nodes is None:
        return 0
    return cpus_of(draft.rules, affinity.nodes.bits)
