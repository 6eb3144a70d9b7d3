"""What holds in every state that numalet reaches by itself, whatever the kubelet does there."""

from collections.abc import Iterable, Iterator, Mapping

from agent.core.admission import Admitted, admit
from agent.core.cpuset import CPUSet
from agent.core.pods import Pod, PodUID
from agent.core.startup import STRICT_RESERVATION, Rules
from agent.core.state import NodeState


def broken_promises(
    rules: Rules, state: NodeState, pods: Mapping[PodUID, Pod] | None = None
) -> list[str]:
    """Return a sentence for each promise that the state breaks.

    ``pods`` are those that are tried again: whoever is in the state must keep what it has.
    """
    return [
        *_cpu_owners(rules, state),
        *_memory_sums(state),
        *_decided_anew(rules, state, (pods or {}).values()),
    ]


def _cpu_owners(rules: Rules, state: NodeState) -> Iterator[str]:
    if not rules.manages_cpus:
        return
    usable, owned = rules.topology.cpus, state.default
    if STRICT_RESERVATION in rules.cpu_options:
        usable -= rules.reserved
    for uid, entry in state.pods.items():
        if entry.held & owned:
            yield f"{entry.held & owned} of pod {uid} has another owner, or is in the default set"
        if entry.held & rules.reserved:
            yield f"pod {uid} holds reserved CPUs {entry.held & rules.reserved}"
        owned |= entry.held
    if owned != usable:
        lost, foreign = usable - owned, owned - usable
        yield f"CPUs without an owner: {lost or 'none'}; CPUs not to be used: {foreign or 'none'}"
    yield from _slices_outside_pool(state)


def _slices_outside_pool(state: NodeState) -> Iterator[str]:
    for uid, entry in state.pods.items():
        inside = CPUSet() if entry.pool is None else entry.held - entry.pool
        if inside:
            yield f"a container of pod {uid} has {inside}, which is not in the pod's pool"


def _memory_sums(state: NodeState) -> Iterator[str]:
    for i, node in state.memory.items():
        for name, table in node.tables.items():
            if (
                table.reserved + table.free != table.allocatable
                or min(table.reserved, table.free) < 0
            ):
                yield f"{name} of NUMA node {i}: reserved and free do not add up to {table}"


def _decided_anew(rules: Rules, state: NodeState, pods: Iterable[Pod]) -> Iterator[str]:
    for pod in pods:
        if pod.uid in state.pods:
            again = admit(rules, state, pod)
            if not isinstance(again, Admitted) or again.state != state:
                yield f"admitting pod {pod.uid} again changes the state"
