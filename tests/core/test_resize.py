"""Pods that run ask for other amounts, again and again: promises, on random machines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from agent.core.admission import Admitted, Rejected, remove
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.departures import INIT_APART
from agent.core.desired import shared_pool
from agent.core.keeping import cpus_of
from agent.core.pods import CPU, MEMORY, Container, Kind, Pod, Resources
from agent.core.resize import resize
from agent.core.startup import FULL_PCPUS_ONLY, Rules
from agent.core.state import PodEntry
from tests.props.test_promises import Moment, assigned, managed, moments, reordered, slices, sums
from tests.strategies import GI, Step, histories, rules

promise = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Wish:
    """What a pod of the node (by position, counted modulo their number) asks for from now on.

    Each container gets one of the ``amounts`` in turn, CPUs in milli-CPUs and halves of GiB; None
    leaves it as it is.  A budget is the sum and ``more``.
    """

    position: int
    amounts: tuple[tuple[int, int] | None, ...]
    more: tuple[int, int]


_amounts = st.tuples(st.sampled_from((1000, 2000, 3000, 4000, 5000, 500)), st.integers(1, 4))
wishes = st.builds(
    Wish,
    position=st.integers(0, 3),
    amounts=st.lists(st.one_of(st.none(), _amounts), min_size=1, max_size=4).map(tuple),
    more=st.tuples(st.integers(0, 2), st.integers(1, 3)),
)


def asking(pod: Pod, wish: Wish) -> Pod:
    """Return a pod with other amounts."""
    choices = dict(zip((c.name for c in pod.containers), wish.amounts * 6, strict=False))

    def changed(containers: Sequence[Container]) -> tuple[Container, ...]:
        return tuple(
            c
            if (choice := choices[c.name]) is None
            else replace(c, resources=equal({CPU: choice[0], MEMORY: choice[1] * GI // 2}))
            for c in containers
        )

    asking = replace(
        pod,
        init_containers=changed(pod.init_containers),
        app_containers=changed(pod.app_containers),
    )
    return asking if pod.budget is None else replace(asking, budget=budget(asking, wish))


def equal(amounts: Mapping[str, int]) -> Resources:
    return Resources(requests=amounts, limits=amounts)


def budget(pod: Pod, wish: Wish) -> Resources:
    assert pod.budget is not None
    cpu = sum(c.resources.requests.get(CPU, 0) for c in pod.containers)
    memory = sum(c.resources.requests.get(MEMORY, 0) for c in pod.containers)
    cpus = -(-cpu // 1000) + wish.more[0]
    return equal({CPU: cpus * 1000, MEMORY: memory + wish.more[1] * GI // 2})


@dataclass(frozen=True)
class Resized:
    """One resize: the node before and after, and the pod as it was and as it asks to be."""

    before: Moment
    was: Pod
    asks: Pod
    verdict: Admitted | Rejected

    @property
    def former(self) -> PodEntry:
        return self.before.state.pods[self.was.uid]

    @property
    def after(self) -> Moment:
        if isinstance(self.verdict, Rejected):
            return self.before
        return Moment(self.verdict.state, self.before.pods | {self.asks.uid: self.asks})


def resizes(rules: Rules, now: Moment, wanted: Sequence[Wish]) -> Iterator[Resized]:
    """Let pods that hold something be resized, one after another."""
    for wish in wanted:
        holders = sorted(now.state.pods)
        if not holders:
            return
        was = now.pods[holders[wish.position % len(holders)]]
        asks = asking(was, wish)
        done = Resized(now, was, asks, resize(rules, now.state, asks))
        event(type(done.verdict).__name__)
        yield done
        now = done.after


def lives(rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]) -> Iterator[Resized]:
    """Yield the resizes that follow a history of pods."""
    *_, now = moments(rules, history)
    return resizes(rules, now, wanted)


several = st.lists(wishes, min_size=1, max_size=4)


@given(rules(), histories(), several)
@promise
def test_after_a_resize_every_cpu_has_exactly_one_owner(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        state = done.after.state
        owners = [state.default, *(entry.held for entry in state.pods.values())]
        assert all(a.isdisjoint(b) for a, b in combinations(owners, 2))
        assert CPUSet.from_bits(sum(o.bits for o in owners)) == managed(rules)
        assert all(entry.held.isdisjoint(rules.reserved) for entry in state.pods.values())


@given(rules(), histories(), several)
@promise
def test_a_resized_pod_has_what_it_asks_for(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        for uid, entry in done.after.state.pods.items():
            demand = Demand(rules, done.after.pods[uid])
            of_all = slices(demand, entry)
            stay = [cpus for c, cpus in of_all if c.kind is not Kind.INIT]
            apart = [cpus for _, cpus in of_all] if INIT_APART in rules.policy.departures else stay
            assert all(a.isdisjoint(b) for a, b in combinations(apart, 2))
            assert all(shared_pool(demand, entry).isdisjoint(cpus) for cpus in stay)
            assert all(len(cpus) == demand.cpus[c.name] for c, cpus in of_all)
            if entry.pool is not None:
                assert len(entry.pool) == demand.pod_cpus
                assert entry.held == entry.pool
            for sidecar, cpus in of_all:
                if sidecar.kind is Kind.SIDECAR:
                    later = demand.pod.containers[demand.pod.containers.index(sidecar) + 1 :]
                    assert all(cpus.isdisjoint(entry.cpus.get(c.name, CPUSet())) for c in later)


@given(rules(), histories(), several)
@promise
def test_after_a_resize_no_byte_is_lost_or_counted_twice(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        state = done.after.state
        for node in state.memory.values():
            for table in node.tables.values():
                assert table.free + table.reserved == table.allocatable
                assert min(table.free, table.reserved) >= 0
        held = assigned(state)
        reserved = sums(state, lambda t: t.reserved)
        assert {name: held.get(name, 0) for name in reserved} == reserved


@given(rules(), histories(), several)
@promise
def test_when_resized_pods_have_gone_the_node_is_as_good_as_new(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    state = rules.initial_state()
    for done in lives(rules, history, wanted):
        state = done.after.state
    for uid in list(state.pods):
        state = remove(state, uid)
    assert state == rules.initial_state()


@given(rules(), histories(), several)
@promise
def test_others_keep_everything_and_a_refused_resize_changes_nothing(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        others = dict(done.before.state.pods)
        others.pop(done.asks.uid)
        after = dict(done.verdict.state.pods)
        after.pop(done.asks.uid, None)
        assert after == others
        if isinstance(done.verdict, Rejected):
            assert done.verdict.state == done.before.state
            assert done.verdict.leftover == done.former
            assert done.verdict.reason
            assert done.verdict.message


@given(rules(), histories(), several)
@promise
def test_who_is_resized_keeps_all_that_he_may(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        if isinstance(done.verdict, Rejected):
            continue
        was, now = Demand(rules, done.was), Demand(rules, done.asks)
        entry = done.verdict.entry
        if done.former.pool is not None and entry.pool is not None:
            assert_keeps(done.former.pool, entry.pool)
        # The pool of whole cores goes before the slices in it; init containers go after the others.
        splits = FULL_PCPUS_ONLY in rules.cpu_options and entry.pool is not None
        for c in done.asks.containers:
            stays = was.cpus[c.name] and now.cpus[c.name] and c.name in done.former.cpus
            if stays and c.kind is not Kind.INIT and not splits:
                assert_keeps(done.former.cpus[c.name], entry.cpus[c.name])


def assert_keeps(old: CPUSet, new: CPUSet) -> None:
    assert len(old & new) == min(len(old), len(new))


@given(rules(), histories(), several)
@promise
def test_who_asks_for_what_he_has_changes_nothing(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    *_, now = moments(rules, history)
    for done in resizes(rules, now, wanted):
        now = done.after
        for uid, each in now.pods.items():
            if uid in now.state.pods:
                same = resize(rules, now.state, each)
                assert isinstance(same, Admitted)
                assert same.state == now.state
                assert same.entry == now.state.pods[uid]


@given(rules(), histories(), several)
@promise
def test_who_grew_and_shrinks_back_has_his_first_cpus_again(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        grows = done.former.first is None and grows_only(rules, done)
        if isinstance(done.verdict, Admitted) and grows:
            event("grew")
            back = resize(rules, done.after.state, done.was)
            assert isinstance(back, Admitted)
            assert back.entry.cpus == done.former.cpus
            assert back.entry.pool == done.former.pool
            assert back.entry.first is None
            assert back.state.default == done.before.state.default


def grows_only(rules: Rules, done: Resized) -> bool:
    """Tell whether nothing gets smaller, and no init container that shared gets CPUs of its own.

    Such a one may take those of another, which gives way: both have ended.
    """
    was, now = Demand(rules, done.was), Demand(rules, done.asks)
    return was.pod_cpus <= now.pod_cpus and all(
        was.cpus[c.name] <= now.cpus[c.name]
        and (c.kind is not Kind.INIT or bool(was.cpus[c.name]) == bool(now.cpus[c.name]))
        for c in done.asks.containers
    )


@given(rules(), histories(), several)
@promise
def test_a_strict_policy_lets_nobody_leave_his_numa_nodes(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    assume(rules.policy.topology_policy in ("restricted", "single-numa-node"))
    for done in lives(rules, history, wanted):
        for c in done.asks.containers:
            if not strays(rules, done.former, c):
                assert not strays(rules, done.after.state.pods.get(done.asks.uid, PodEntry()), c)


def strays(rules: Rules, entry: PodEntry, container: Container) -> bool:
    """Tell whether a container has CPUs or memory that are not on the nodes of its affinity."""
    affinity = entry.affinity.get(container.name)
    if affinity is None or affinity.nodes is None:
        return False
    cpus = entry.pool or entry.cpus.get(container.name, CPUSet())
    mems = {block.nodes for block in entry.memory.get(container.name, ())}
    return bool(cpus.bits & ~cpus_of(rules, affinity.nodes.bits)) or any(
        not nodes <= affinity.nodes for nodes in mems
    )


@given(rules(), histories(), several)
@promise
def test_the_order_in_which_things_are_remembered_does_not_matter_to_a_resize(
    rules: Rules, history: Sequence[Step], wanted: Sequence[Wish]
) -> None:
    for done in lives(rules, history, wanted):
        entries = {uid: reordered(entry) for uid, entry in done.before.state.pods.items()}
        mixed = replace(done.before.state, pods=dict(reversed(entries.items())))
        assert resize(rules, mixed, done.asks) == done.verdict
