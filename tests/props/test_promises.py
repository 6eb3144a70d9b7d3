"""The promises about who owns what, over random machines, policies and histories of pods."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import given, settings

from agent.core.admission import Admitted, Rejected, admit, container_starts, remove
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.departures import INIT_APART, READMIT
from agent.core.desired import shared_pool
from agent.core.pods import Container, Kind, Pod, PodUID
from agent.core.startup import STRICT_RESERVATION, Rules
from agent.core.state import MemoryTable, NodeState, PodEntry
from tests.strategies import Add, Start, Step, histories, pods, rules

promise = settings(max_examples=120, deadline=None)


@dataclass(frozen=True)
class Moment:
    """The node after a step: its state, and the pods that were admitted and not removed."""

    state: NodeState
    pods: dict[PodUID, Pod]


def moments(rules: Rules, history: Sequence[Step]) -> Iterator[Moment]:
    """Yield every moment of a history, the first with nothing assigned."""
    now = Moment(rules.initial_state(), {})
    yield now
    for step in history:
        now = after(rules, now, step)
        yield now


def after(rules: Rules, now: Moment, step: Step) -> Moment:
    if isinstance(step, Add):
        decision = admit(rules, now.state, step.pod)
        admitted = {step.pod.uid: step.pod} if isinstance(decision, Admitted) else {}
        return Moment(decision.state, now.pods | admitted)
    if not now.pods:
        return now
    uid = sorted(now.pods)[step.position % len(now.pods)]
    if isinstance(step, Start):
        state = now.state
        for container in now.pods[uid].containers:
            state = container_starts(state, now.pods[uid], container.name)
        return Moment(state, now.pods)
    left = {other: pod for other, pod in now.pods.items() if other != uid}
    return Moment(remove(now.state, uid), left)


def sums(state: NodeState, of: Callable[[MemoryTable], int]) -> dict[str, int]:
    """Add a column of the memory tables up over all nodes, by type."""
    total: dict[str, int] = {}
    for node in state.memory.values():
        for name, table in node.tables.items():
            total[name] = total.get(name, 0) + of(table)
    return total


def assigned(state: NodeState) -> dict[str, int]:
    """Add up the blocks that pods hold, by type."""
    total: dict[str, int] = {}
    for entry in state.pods.values():
        blocks = entry.memory_pool
        if blocks is None:
            blocks = tuple(b for held in entry.memory.values() for b in held)
        for block in blocks:
            total[block.resource] = total.get(block.resource, 0) + block.size_bytes
    return total


def managed(rules: Rules) -> CPUSet:
    """All CPUs that the default set and the pods divide among them."""
    if not rules.manages_cpus:
        return CPUSet()
    cpus = rules.topology.cpus
    return cpus - rules.reserved if STRICT_RESERVATION in rules.cpu_options else cpus


@given(rules(), histories())
@promise
def test_every_cpu_has_exactly_one_owner(rules: Rules, history: Sequence[Step]) -> None:
    for moment in moments(rules, history):
        owners = [moment.state.default, *(e.held for e in moment.state.pods.values())]
        assert all(a.isdisjoint(b) for a, b in combinations(owners, 2))
        assert CPUSet.from_bits(sum(o.bits for o in owners)) == managed(rules)


@given(rules(), histories())
@promise
def test_reserved_cpus_belong_to_nobody(rules: Rules, history: Sequence[Step]) -> None:
    for moment in moments(rules, history):
        for entry in moment.state.pods.values():
            assert entry.held.isdisjoint(rules.reserved)


def slices(demand: Demand, entry: PodEntry) -> list[tuple[Container, CPUSet]]:
    """Return the exclusive slices of a pod's containers, in their order."""
    containers = [c for c in demand.pod.containers if demand.cpus[c.name]]
    return [(c, entry.cpus[c.name]) for c in containers if c.name in entry.cpus]


@given(rules(), histories())
@promise
def test_slices_of_containers_that_run_together_are_apart(
    rules: Rules, history: Sequence[Step]
) -> None:
    # An ordinary init container ends before anything after it starts, and its CPUs are handed on.
    for moment in moments(rules, history):
        for uid, entry in moment.state.pods.items():
            demand = Demand(rules, moment.pods[uid])
            of_all = slices(demand, entry)
            stay = [cpus for c, cpus in of_all if c.kind is not Kind.INIT]
            apart = [cpus for _, cpus in of_all] if INIT_APART in rules.policy.departures else stay
            assert all(a.isdisjoint(b) for a, b in combinations(apart, 2))
            assert all(shared_pool(demand, entry).isdisjoint(cpus) for cpus in stay)
            assert all(len(cpus) == demand.cpus[c.name] for c, cpus in of_all)


@given(rules(), histories())
@promise
def test_what_starts_after_a_sidecar_keeps_off_its_slice(
    rules: Rules, history: Sequence[Step]
) -> None:
    for moment in moments(rules, history):
        for uid, entry in moment.state.pods.items():
            containers = moment.pods[uid].containers
            for sidecar, cpus in slices(Demand(rules, moment.pods[uid]), entry):
                if sidecar.kind is Kind.SIDECAR:
                    later = containers[containers.index(sidecar) + 1 :]
                    assert all(cpus.isdisjoint(entry.cpus.get(c.name, CPUSet())) for c in later)


@given(rules(), histories())
@promise
def test_deciding_twice_gives_the_same_answer(rules: Rules, history: Sequence[Step]) -> None:
    for moment in moments(rules, history):
        for uid in moment.state.pods:
            again = admit(rules, moment.state, moment.pods[uid])
            assert isinstance(again, Admitted)
            assert again.state == moment.state
            assert again.departures == {READMIT}


@given(rules(), histories(most=3), pods("guest"))
@promise
def test_a_guest_leaves_the_node_as_it_was(
    rules: Rules, history: Sequence[Step], guest: Pod
) -> None:
    *_, before = moments(rules, history)
    decision = admit(rules, before.state, guest)
    left = remove(decision.state, guest.uid)
    assert left.default == before.state.default
    assert left.pods == before.state.pods
    for column in (lambda t: t.free, lambda t: t.reserved):
        assert sums(left, column) == sums(before.state, column)
    counts = {n: node.assignments for n, node in before.state.memory.items()}
    assert {n: node.assignments for n, node in left.memory.items()} == counts
    if isinstance(decision, Rejected):
        assert decision.state == left
        assert decision.state.default == before.state.default


@given(rules(), histories())
@promise
def test_an_empty_node_is_as_good_as_new(rules: Rules, history: Sequence[Step]) -> None:
    *_, last = moments(rules, history)
    state = last.state
    for uid in list(state.pods):
        state = remove(state, uid)
    assert state == rules.initial_state()


@given(rules(), histories())
@promise
def test_no_byte_is_lost_or_counted_twice(rules: Rules, history: Sequence[Step]) -> None:
    for moment in moments(rules, history):
        for node in moment.state.memory.values():
            for table in node.tables.values():
                assert table.free + table.reserved == table.allocatable
                assert min(table.free, table.reserved) >= 0
        held = assigned(moment.state)
        reserved = sums(moment.state, lambda t: t.reserved)
        assert {name: held.get(name, 0) for name in reserved} == reserved
        assert all(size == 0 for name, size in held.items() if name not in reserved)


def reordered(entry: PodEntry) -> PodEntry:
    return replace(
        entry,
        cpus=dict(reversed([*entry.cpus.items()])),
        memory=dict(reversed([*entry.memory.items()])),
        affinity=dict(reversed([*entry.affinity.items()])),
    )


@given(rules(), histories(most=4), pods("guest"))
@promise
def test_the_order_in_which_things_are_remembered_does_not_matter(
    rules: Rules, history: Sequence[Step], guest: Pod
) -> None:
    *_, before = moments(rules, history)
    entries = {uid: reordered(entry) for uid, entry in before.state.pods.items()}
    mixed = replace(before.state, pods=dict(reversed(entries.items())))
    assert mixed == before.state
    one, other = admit(rules, before.state, guest), admit(rules, mixed, guest)
    assert one == other
    assert remove(one.state, guest.uid) == remove(other.state, guest.uid)
