"""The departure ``init_inside_app``: the kubelet's answer, ours, and what holds for any pod."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.admission import Admitted, admit, container_starts, remove
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.departures import INIT_APART, INIT_INSIDE_APP
from agent.core.pods import MEMORY, Container, Kind, Pod
from agent.core.startup import FULL_PCPUS_ONLY, Rules
from agent.core.state import NodeState, PodEntry
from tests.conformance.invariants import broken_promises
from tests.strategies import GI, Add, Step, histories, machine, pods
from tests.strategies import rules as any_rules

from .pods import admitted, app, asking, init, pod, rejected, sidecar
from .pods import rules as ruled

TWO_NODES = machine(sockets=2, cores_per_node=8, threads=1)
SMT = machine(cores_per_node=10, siblings_apart=True)
anything = settings(max_examples=100, deadline=None)


def cpus(entry: PodEntry) -> dict[str, str]:
    return {name: str(found) for name, found in entry.cpus.items()}


def charged(entry: PodEntry) -> dict[str, tuple[str, float]]:
    """Return the node and the GiB that each container is charged for."""
    blocks = {name: held[0] for name, held in entry.memory.items()}
    return {name: (str(b.nodes), b.size_bytes / GI) for name, b in blocks.items()}


@pytest.mark.parametrize(("policy", "scope"), [("none", "container"), ("best-effort", "pod")])
def test_a_small_init_container_strands_no_cpu(policy: str, scope: str) -> None:
    p = pod(init("i", 1), app("a", 2))
    kubelet = admitted(ruled(SMT, policy=policy, scope=scope), p).entry
    assert cpus(kubelet) == {"i": "10", "a": "1,11"}
    ours = admitted(ruled(SMT, INIT_INSIDE_APP, policy=policy, scope=scope), p).entry
    assert cpus(ours) == {"i": "1", "a": "1,11"}


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_an_init_container_does_not_pull_the_app_to_a_node_that_is_too_small(policy: str) -> None:
    p = pod(init("i", 1), app("a", 6))
    kubelet = rejected(ruled(TWO_NODES, policy=policy, reserved="0-2"), p)
    assert kubelet.reason == "TopologyAffinityError"
    ours = admitted(ruled(TWO_NODES, INIT_INSIDE_APP, policy=policy, reserved="0-2"), p).entry
    assert cpus(ours) == {"i": "8", "a": "8-13"}
    assert charged(ours) == {"i": ("1", 0), "a": ("1", 1)}


def test_an_init_container_larger_than_the_app_takes_the_app_and_more() -> None:
    p = pod(init("i", 6, gib=3), init("j", 5, gib=4), app("a", 2))
    ours = admitted(ruled(TWO_NODES, INIT_INSIDE_APP), p).entry
    assert cpus(ours) == {"i": "1-6", "j": "1-5", "a": "1-2"}
    # 4Gi at most at a time: 1 of the app, 2 more for the first, 1 more for the second.
    assert charged(ours) == {"i": ("0", 2), "j": ("0", 1), "a": ("0", 1)}


def test_an_init_container_that_must_be_aligned_takes_the_pod_to_where_it_fits() -> None:
    p = pod(init("i", 8), app("a", 2))  # the app alone would go to node 0, with 7 CPUs
    for scope in ("container", "pod"):
        aligned = ruled(TWO_NODES, INIT_INSIDE_APP, policy="single-numa-node", scope=scope)
        ours = admitted(aligned, p).entry
        assert cpus(ours) == {"i": "8-15", "a": "8-9"}


def test_sidecars_before_run_beside_it_and_those_after_do_not() -> None:
    p = pod(sidecar("s", 1), init("i", 3), sidecar("t", 1), app("a", 2))
    ours = admitted(ruled(TWO_NODES, INIT_INSIDE_APP), p).entry
    assert cpus(ours) == {"s": "1", "t": "2", "a": "3-4", "i": "2-4"}
    assert charged(ours) == {"s": ("0", 1), "t": ("0", 1), "a": ("0", 1), "i": ("0", 0)}


def test_an_init_container_goes_to_one_of_the_nodes_of_apps_that_are_apart() -> None:
    p = pod(init("i", 3, gib=2), app("a", 6, gib=12), app("b", 6, gib=12))
    aligned = ruled(TWO_NODES, INIT_INSIDE_APP, policy="single-numa-node")
    ours = admitted(aligned, p)
    assert cpus(ours.entry) == {"i": "1-3", "a": "1-6", "b": "8-13"}
    assert charged(ours.entry) == {"i": ("0", 0), "a": ("0", 12), "b": ("1", 12)}
    # No group of nodes is made for it: single containers go on using each node.
    assert [n.cells for n in ours.state.memory.values()] == [NodeSet([0]), NodeSet([1])]


def test_memory_alone_goes_inside_too() -> None:
    p = pod(init("i", 0.5, gib=3), app("a", 7, gib=4))
    where = ruled(TWO_NODES, INIT_INSIDE_APP, policy="best-effort", reserved="0-2")
    assert charged(admitted(where, p).entry) == {"i": ("1", 0), "a": ("1", 4)}


def test_whole_cores_stay_whole() -> None:
    full = {FULL_PCPUS_ONLY: "true"}
    ours = ruled(SMT, INIT_INSIDE_APP, cpu_options=full)
    entry = admitted(ours, pod(init("i", 4), app("a", 2))).entry
    assert cpus(entry) == {"i": "1-2,11-12", "a": "1,11"}
    odd = rejected(ours, pod(init("i", 1), app("a", 2)))
    assert odd.reason == "SMTAlignmentError"


def test_a_pod_with_a_budget_and_one_without_init_containers_are_decided_as_ever() -> None:
    for p in (
        pod(init("i", 1), app("a", 2), budget=asking(4, gib=4)),
        pod(sidecar("s", 1), app("a", 2)),
    ):
        for scope in ("container", "pod"):
            plain, ours = (
                ruled(TWO_NODES, *departures, policy="restricted", scope=scope)
                for departures in ((), (INIT_INSIDE_APP,))
            )
            assert admitted(ours, p) == admitted(plain, p)


def test_init_apart_wins() -> None:
    both = admitted(ruled(TWO_NODES, INIT_INSIDE_APP, INIT_APART), pod(init("i", 1), app("a", 2)))
    assert cpus(both.entry) == {"i": "1", "a": "2-3"}


def test_what_an_init_container_had_beyond_the_app_is_free_once_the_app_starts() -> None:
    p = pod(init("i", 1, gib=5), app("a", 2))
    state = admitted(ruled(TWO_NODES, INIT_INSIDE_APP), p).state
    reserved = [
        now.memory[0].tables[MEMORY].reserved / GI
        for now in (state, container_starts(state, p, "i"), container_starts(state, p, "a"))
    ]
    assert reserved == [5, 5, 1]


def both(drawn: Rules) -> tuple[Rules, Rules]:
    """Return the rules without the departure and with it; others stay as they are."""
    others = drawn.policy.departures - {INIT_INSIDE_APP, INIT_APART}
    without, inside = (
        replace(drawn, policy=replace(drawn.policy, departures=others | names))
        for names in (frozenset[str](), {INIT_INSIDE_APP})
    )
    return without, inside


kinds = st.lists(st.sampled_from((init, sidecar)), min_size=1, max_size=4)
counts = st.lists(st.integers(1, 5), min_size=5, max_size=5)


@given(kinds, counts)
@anything
def test_a_pod_never_holds_more_cpus_than_it_needs_at_a_time(
    makers: Sequence[Callable[[str, float], Container]], counts: Sequence[int]
) -> None:
    before = (make(f"i{n}", counts[n]) for n, make in enumerate(makers))
    p = pod(*before, app("a", counts[-1]))
    where = ruled(TWO_NODES, INIT_INSIDE_APP, memory=False)
    need = Demand(where, p).pod_cpus
    decision = admit(where, where.initial_state(), p)
    assert isinstance(decision, Admitted) is (need <= 15)
    if isinstance(decision, Admitted):
        assert len(decision.entry.held) == need


@given(any_rules(), histories(), pods("guest"))
@anything
def test_the_promises_hold_and_nobody_whom_the_kubelet_admits_is_rejected(
    drawn: Rules, history: Sequence[Step], guest: Pod
) -> None:
    plain, ours = both(drawn)
    state, known = ours.initial_state(), {}
    for p in [step.pod for step in history if isinstance(step, Add)] + [guest]:
        before, decision = state, admit(ours, state, p)
        state = decision.state
        if isinstance(decision, Admitted):
            known[p.uid] = p
            assert totals(remove(state, p.uid)) == totals(before)
            check_slices(ours, p, decision.entry)
        else:
            assert not isinstance(admit(plain, before, p), Admitted)
        assert not broken_promises(ours, state, known)
    for uid in known:
        state = remove(state, uid)
    assert state == ours.initial_state()


def totals(state: NodeState) -> tuple[CPUSet, dict[str, int]]:
    """Return what is free; in which node of a group memory is free may differ."""
    free: dict[str, int] = {}
    for node in state.memory.values():
        for name, table in node.tables.items():
            free[name] = free.get(name, 0) + table.free
    return state.default, free


def check_slices(ours: Rules, p: Pod, entry: PodEntry) -> None:
    """Everybody has as many CPUs as asked for, and none of those that run beside him."""
    demand, beside = Demand(ours, p), CPUSet()
    if demand.by_budget:
        return
    for c in p.containers:
        mine = entry.cpus.get(c.name, CPUSet())
        assert mine.isdisjoint(beside)
        if ours.policy.topology_policy == "single-numa-node":
            assert len(ours.topology.nodes_of(mine)) <= 1
        assert len(mine) == (demand.cpus[c.name] if c.name in entry.cpus else 0)
        if c.kind is not Kind.INIT:
            beside |= mine
