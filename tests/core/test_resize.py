"""A pod that runs asks for other amounts: it keeps what it has, as far as it still asks for it.

The node of the examples has two sockets with one NUMA node, 8 cores and 16 CPUs each; CPUs 0-1 and
1Gi of node 0 are reserved, so node 0 gives 14 CPUs and 15Gi, node 1 gives 16 CPUs and 16Gi.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from agent.core.admission import Admitted, Rejected, admit, container_starts, remove
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.departures import INIT_APART
from agent.core.desired import shared_pool
from agent.core.keeping import cpus_of
from agent.core.pods import CPU, MEMORY, Container, Kind, Pod, Resources
from agent.core.resize import resize
from agent.core.startup import FULL_PCPUS_ONLY, Rules
from agent.core.state import NodeState, PodEntry
from tests.props.test_promises import Moment, assigned, managed, moments, reordered, slices, sums
from tests.strategies import GI, Step, container, histories, machine, pod, rules, rules_for

promise = settings(max_examples=150, deadline=None)


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
        was, now = Demand(rules, done.was), Demand(rules, done.asks)
        grows = was.pod_cpus <= now.pod_cpus and all(was.cpus[n] <= now.cpus[n] for n in was.cpus)
        if isinstance(done.verdict, Admitted) and grows and done.former.first is None:
            event("grew")
            back = resize(rules, done.after.state, done.was)
            assert isinstance(back, Admitted)
            assert back.entry.cpus == done.former.cpus
            assert back.entry.pool == done.former.pool
            assert back.entry.first is None
            assert back.state.default == done.before.state.default


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


def node(policy: str = "best-effort", **changes: object) -> Rules:
    return rules_for(machine(sockets=2, cores_per_node=8), topology_policy=policy, **changes)


def database(cpus: int, *, of: int, memory: str = "9Gi") -> Pod:
    """A database with CPUs of its own beside a proxy that shares the rest of the pod's."""
    return pod(
        "db",
        container("db", f"cpu={cpus} memory=8Gi"),
        container("proxy"),
        budget=f"cpu={of} memory={memory}",
    )


def single(cpus: int, memory: str = "1Gi", uid: str = "single") -> Pod:
    return pod(uid, container("main", f"cpu={cpus} memory={memory}"))


def running(rules: Rules, *pods: Pod) -> NodeState:
    state = rules.initial_state()
    for each in pods:
        verdict = admit(rules, state, each)
        assert isinstance(verdict, Admitted), verdict
        state = verdict.state
    return state


def resized(rules: Rules, state: NodeState, each: Pod) -> PodEntry:
    verdict = resize(rules, state, each)
    assert isinstance(verdict, Admitted), verdict
    return verdict.entry


def refused(rules: Rules, state: NodeState, each: Pod) -> tuple[str, str]:
    verdict = resize(rules, state, each)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.state is state
    return verdict.reason, verdict.message


def shares(entry: PodEntry) -> tuple[str, str, str]:
    """Return the pool, the database's slice, and the proxy's share."""
    return str(entry.pool), str(entry.cpus["db"]), str(entry.cpus["proxy"])


@pytest.mark.parametrize(
    ("cpus", "of", "expected"),
    [
        (4, 6, ("2-7", "2-5", "6-7")),  # nothing new
        (4, 8, ("2-9", "2-5", "6-9")),  # a larger pool
        (5, 6, ("2-7", "2-6", "7")),  # out of the pod shared pool
        (6, 8, ("2-9", "2-5,8-9", "6-7")),  # out of what is new in the pool: the proxy stays
        (2, 6, ("2-7", "2-3", "4-7")),
        (2, 4, ("2-3,6-7", "2-3", "6-7")),  # the database gives, and the proxy stays
        (1, 3, ("2,6-7", "2", "6-7")),
        (4, 5, ("2-6", "2-5", "6")),
    ],
)
def test_pool_and_slice_grow_and_shrink_in_place(
    cpus: int, of: int, expected: tuple[str, str, str]
) -> None:
    rules = node("single-numa-node")
    state = running(rules, database(4, of=6))
    assert shares(resized(rules, state, database(cpus, of=of))) == expected


def test_a_pool_gives_up_whole_cores_where_only_whole_cores_are_given() -> None:
    rules = node(cpu_options={FULL_PCPUS_ONLY: "true"})
    state = running(rules, database(1, of=6))
    assert shares(resized(rules, state, database(1, of=4))) == ("2-5", "2", "3-5")
    assert refused(rules, state, database(1, of=3))[0] == "SMTAlignmentError"


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_strict_policies_refuse_cpus_of_another_numa_node_in_the_kubelets_words(
    policy: str,
) -> None:
    rules = node(policy)
    state = running(rules, database(4, of=6), single(3))
    assert refused(rules, state, database(4, of=12)) == (
        "TopologyAffinityError",
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
    )
    assert refused(rules, state, single(9)) == (
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )
    assert refused(rules, state, single(3, "7Gi"))[0] == "TopologyAffinityError"


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_other_policies_go_on_to_another_numa_node_and_come_back_from_there_first(
    policy: str,
) -> None:
    rules = node(policy)
    state = running(rules, single(12))
    grown = resize(rules, state, single(16))
    assert isinstance(grown, Admitted)
    assert str(grown.entry.cpus["main"]) == "2-17"
    assert str(resized(rules, grown.state, single(14)).cpus["main"]) == "2-15"
    assert str(resized(rules, grown.state, single(12)).cpus["main"]) == "2-13"


def test_a_pod_keeps_its_cpus_when_a_better_place_is_free_now() -> None:
    rules = node("best-effort")
    state = running(rules, single(12, uid="first"), single(4))
    assert str(state.pods[single(4).uid].cpus["main"]) == "16-19"
    state = remove(state, single(12, uid="first").uid)
    assert str(resized(rules, state, single(6)).cpus["main"]) == "16-21"


def test_siblings_swap_amounts_on_a_full_node() -> None:
    def both(a: int, b: int) -> Pod:
        return pod(
            "pod",
            container("a", f"cpu={a} memory={a}Gi"),
            container("b", f"cpu={b} memory={b}Gi"),
        )

    rules = node("single-numa-node")
    state = running(rules, both(3, 5), single(6, "7Gi"))
    assert state.default == CPUSet([0, 1]) | rules.topology.cpus_of(1)
    entry = resized(rules, state, both(5, 3))
    assert {name: str(cpus) for name, cpus in entry.cpus.items()} == {"a": "2-4,8-9", "b": "5-7"}


def test_memory_grows_where_it_is_and_leaves_only_when_it_must() -> None:
    rules = node("best-effort")
    state = running(rules, database(4, of=6))
    for memory, nodes in (("15Gi", [0]), ("16Gi", [0, 1])):
        entry = resized(rules, state, database(4, of=6, memory=memory))
        assert entry.memory_pool is not None
        assert [block.nodes for block in entry.memory_pool] == [NodeSet(nodes)]
        assert entry.cpus == state.pods[database(4, of=6).uid].cpus


def test_memory_that_is_nowhere_is_refused() -> None:
    rules = node("best-effort")
    reason, message = refused(
        rules, running(rules, database(4, of=6)), database(4, of=6, memory="99Gi")
    )
    assert reason == "UnexpectedAdmissionError"
    assert "failed to find NUMA nodes to extend the current topology hint" in message


def test_memory_of_an_init_container_that_has_ended_is_not_asked_for_again() -> None:
    load = container("load", "cpu=1 memory=12Gi", kind=Kind.INIT)
    rules = node("single-numa-node")
    was, asks = (pod("pod", load, container("main", f"cpu={n} memory=1Gi")) for n in (1, 2))
    state = container_starts(running(rules, was), was, "main")
    verdict = resize(rules, state, asks)
    assert isinstance(verdict, Admitted)
    assert verdict.state.memory == state.memory
    assert "load" not in verdict.entry.memory


def test_who_had_no_cpus_of_his_own_gets_them_where_his_memory_is() -> None:
    rules = node("single-numa-node")
    was = pod("pod", container("main", "cpu=1500m memory=9Gi"))
    state = running(rules, single(10, "9Gi"), was)
    assert not state.pods[was.uid].held
    entry = resized(rules, state, pod("pod", container("main", "cpu=2 memory=9Gi")))
    assert str(entry.cpus["main"]) == "16-17"


def test_a_shared_container_that_becomes_exclusive_takes_its_slice_where_it_runs() -> None:
    rules = node()
    asks = replace(
        database(2, of=6),
        app_containers=(
            container("db", "cpu=2 memory=1Gi"),
            container("proxy", "cpu=3 memory=1Gi"),
        ),
    )
    state = running(rules, database(2, of=6))
    assert shares(resized(rules, state, asks)) == ("2-7", "2-3", "4-6")


def test_ephemeral_containers_change_nothing() -> None:
    rules = node()
    state = running(rules, database(4, of=6))
    debugged = replace(
        database(4, of=6), ephemeral_containers=(container("debug", kind=Kind.EPHEMERAL),)
    )
    verdict = resize(rules, state, debugged)
    assert isinstance(verdict, Admitted)
    assert verdict.state is state


def test_who_holds_nothing_yet_is_admitted() -> None:
    rules = node()
    assert resize(rules, rules.initial_state(), single(2)) == admit(
        rules, rules.initial_state(), single(2)
    )


def test_the_default_set_is_spared_unless_it_grows() -> None:
    state = running(node(), single(12))
    rules = node(min_default_cpus=24)
    assert refused(rules, state, single(13))[0] == "DefaultSetTooSmall"
    assert len(resized(rules, state, single(11)).held) == 11


def test_a_cpu_that_went_offline_is_replaced() -> None:
    state = running(node(), single(4))
    whole = node().topology
    rest = replace(whole, cores=tuple(core for core in whole.cores if 2 not in core.cpus))
    entry = resized(rules_for(rest), state, single(5))
    assert str(entry.cpus["main"]) == "4-8"
