"""CPUs and memory beside the devices that a pod has.

The node of the tests that a person can check has two sockets with one NUMA node, 8 cores and 16 CPUs each;
CPUs 0-1 and 1Gi of node 0 are reserved, so node 0 gives 14 CPUs and 15Gi, node 1 gives 16 CPUs and 16Gi.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core import admission
from agent.core.admission import Admitted, Rejected, admit
from agent.core.cpuset import NodeSet
from agent.core.device_hints import device_nodes, with_devices
from agent.core.explain import explain
from agent.core.hints import UNSATISFIABLE, Offer
from agent.core.pods import DeviceNodes, Devices, Kind, Pod
from agent.core.resize import resize
from agent.core.startup import SCOPES, Rules
from agent.core.state import NodeState
from tests.strategies import (
    GI,
    Add,
    container,
    histories,
    machine,
    odd_machines,
    pod,
    pods,
    rules,
    rules_for,
)

from .brute_force import mask_of, subsets

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
STRICT = ("restricted", "single-numa-node")
NODE_0, NODE_1, BOTH = NodeSet([0]), NodeSet([1]), NodeSet([0, 1])
app = container("app", "cpu=4 memory=1Gi")
WANTS_CPUS = Offer("cpu", ("cpu",), UNSATISFIABLE)


def node(**changes: object) -> Rules:
    return rules_for(machine(sockets=2, cores_per_node=8), **changes)


def having(each: Pod, nodes: DeviceNodes) -> Pod:
    return replace(each, devices=Devices(nodes=nodes))


def gpu(*nodes: int, of: str = "app") -> DeviceNodes:
    """One GPU on each of these nodes."""
    return {of: {GPU: tuple((n,) for n in nodes)}}


def placed(rules: Rules, state: NodeState, each: Pod) -> Admitted:
    decision = admit(rules, state, each)
    assert isinstance(decision, Admitted), decision
    return decision


def nodes_of(rules: Rules, each: Pod) -> NodeSet:
    """Return where a pod's CPUs and memory are that comes to an empty node."""
    entry = placed(rules, rules.initial_state(), each).entry
    blocks = [*(entry.memory_pool or ()), *(b for of in entry.memory.values() for b in of)]
    nodes = rules.topology.nodes_of(entry.held)
    assert all(block.nodes == nodes for block in blocks)
    return nodes


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("policy", ["best-effort", *STRICT])
@pytest.mark.parametrize("at", [0, 1])
def test_cpus_and_memory_follow_a_device(policy: str, scope: str, at: int) -> None:
    rules = node(topology_policy=policy, topology_scope=scope)
    assert nodes_of(rules, having(pod("p", app), gpu(at))) == NodeSet([at])


def test_the_pool_of_a_pod_with_a_budget_follows_too() -> None:
    each = having(pod("p", app, container("side"), budget="cpu=6 memory=2Gi"), gpu(1, of="side"))
    assert nodes_of(node(), each) == NODE_1


def test_under_the_policy_none_nothing_follows() -> None:
    assert nodes_of(node(topology_policy="none"), having(pod("p", app), gpu(1))) == NODE_0


def test_in_the_container_scope_each_container_is_beside_its_own_device() -> None:
    other = container("other", "cpu=2 memory=1Gi")
    each = having(pod("p", app, other), {**gpu(1), "other": {NIC: ((0,),)}})
    rules = node(topology_scope="container")
    entry = placed(rules, rules.initial_state(), each).entry
    where = {name: rules.topology.nodes_of(cpus) for name, cpus in entry.cpus.items()}
    assert where == {"app": NODE_1, "other": NODE_0}


def test_in_the_pod_scope_the_devices_of_all_containers_count() -> None:
    each = having(pod("p", app, container("other", "cpu=2 memory=1Gi")), gpu(1, of="other"))
    assert nodes_of(node(), each) == NODE_1


@pytest.mark.parametrize("policy", STRICT)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_strict_policy_refuses_who_does_not_fit_beside_his_device(
    policy: str, scope: str
) -> None:
    rules = node(topology_policy=policy, topology_scope=scope)
    first = placed(rules, rules.initial_state(), having(pod("first", app), gpu(1)))
    large = having(pod("large", container("app", "cpu=14 memory=1Gi")), gpu(1))
    decision = admit(rules, first.state, large)
    assert isinstance(decision, Rejected)
    assert decision.reason == "TopologyAffinityError"
    assert decision.message == "Resources cannot be allocated with Topology locality"
    assert isinstance(admit(rules, first.state, replace(large, devices=None)), Admitted)


def test_best_effort_keeps_together_what_does_not_fit_beside_the_device() -> None:
    rules = node()
    first = placed(rules, rules.initial_state(), having(pod("first", app), gpu(1)))
    large = having(pod("large", container("app", "cpu=14 memory=1Gi")), gpu(1))
    held = placed(rules, first.state, large).entry.held
    assert rules.topology.nodes_of(held) == NODE_0


def test_devices_on_two_nodes_call_for_both_and_no_strict_policy_splits_four_cpus() -> None:
    each = having(pod("p", app), gpu(0, 1))
    assert isinstance(admit(node(), node().initial_state(), each), Admitted)
    for policy in STRICT:
        rules = node(topology_policy=policy)
        assert isinstance(admit(rules, rules.initial_state(), each), Rejected)


def test_a_pod_that_needs_both_nodes_is_aligned_with_devices_on_both() -> None:
    rules = node(topology_policy="restricted", memory_policy="None")
    each = having(pod("p", container("app", "cpu=20 memory=1Gi")), gpu(0, 1))
    entry = placed(rules, rules.initial_state(), each).entry
    assert (rules.topology.nodes_of(entry.held), entry.affinity["app"].preferred) == (BOTH, True)


@pytest.mark.parametrize("policy", STRICT)
def test_who_gets_nothing_of_his_own_is_not_refused_for_his_devices(policy: str) -> None:
    rules = node(topology_policy=policy)
    each = having(pod("p", container("app")), gpu(0, 1))
    assert isinstance(admit(rules, rules.initial_state(), each), Admitted)


@pytest.mark.parametrize("places", [(), ((),), ((-1,),), ((7,), (1 << 40,))], ids=str)
def test_a_device_that_is_nowhere_on_this_machine_has_no_preference(
    places: tuple[tuple[int, ...], ...],
) -> None:
    each = having(pod("p", app), {"app": {GPU: places}})
    assert with_devices(node(), each, None, (WANTS_CPUS,)) == (WANTS_CPUS,)
    assert nodes_of(node(topology_policy="restricted"), each) == NODE_0


def test_a_device_at_two_nodes_is_reached_from_either() -> None:
    full = node(topology_policy="single-numa-node")
    each = having(pod("p", app), {"app": {GPU: ((0, 1),)}})
    assert nodes_of(full, each) == NODE_0


def test_a_placed_pod_does_not_move_when_its_devices_become_known() -> None:
    rules = node()
    before = placed(rules, rules.initial_state(), pod("p", app))
    late = replace(pod("p", app), devices=Devices(nodes=gpu(1), in_time=False))
    for decision in (admit(rules, before.state, late), resize(rules, before.state, late)):
        assert isinstance(decision, Admitted)
        assert decision.entry == before.entry


def test_an_ordinary_init_container_is_not_held_to_devices_that_nobody_tells_of() -> None:
    first = replace(container("first", "cpu=2 memory=1Gi", kind=Kind.INIT), extended=(GPU,))
    assert not pod("p", first, app).asks_for_devices
    assert pod("p", replace(app, extended=(GPU,))).asks_for_devices


@st.composite
def whereabouts(draw: st.DrawFn, ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the NUMA nodes of some devices; a few have none, or one that the machine lacks."""
    each = st.sets(st.sampled_from((*ids, *ids, 11)), max_size=2).map(sorted)
    return tuple(map(tuple, draw(st.lists(each, max_size=3))))


@given(st.data(), rules(odd_machines(max_nodes=5)))
def test_the_hints_are_all_masks_that_touch_every_device(data: st.DataObject, rules: Rules) -> None:
    topology = rules.topology
    places = data.draw(whereabouts(sorted(topology.node_ids)))
    known = [set(place) & set(topology.node_ids) for place in places]
    known = [place for place in known if place]
    touching = [s for s in subsets(topology.node_ids) if all(s & place for place in known)]
    fewest = min(len(nodes) for nodes in touching)

    offers = with_devices(rules, having(pod("p", app), {"app": {GPU: places}}), None, (WANTS_CPUS,))

    told = {offer.resources: offer.hints for offer in offers if offer.provider == "devices"}
    assert told.keys() == ({(GPU,)} if known else set())
    for hints in told.values():
        assert hints is not None
        assert set(hints.enumerate()) == {(mask_of(n), len(n) == fewest) for n in touching}


@given(rules(), histories(), pods("last"), st.data())
def test_best_effort_refuses_nobody_for_his_devices(
    rules: Rules, history: list[object], each: Pod, data: st.DataObject
) -> None:
    rules = replace(rules, policy=replace(rules.policy, topology_policy="best-effort"))
    state = rules.initial_state()
    for step in history:
        if isinstance(step, Add):
            state = admit(rules, state, step.pod).state
    ids = sorted(rules.topology.node_ids)
    nodes = {c.name: {GPU: data.draw(whereabouts(ids))} for c in each.containers}

    plain, beside = admit(rules, state, each), admit(rules, state, having(each, nodes))

    assert isinstance(beside, type(plain))
    if isinstance(beside, Admitted):
        assert not beside.state.two_owners()
        assert beside.entry.held.isdisjoint(rules.reserved)


def test_where_following_a_device_would_lead_to_a_refusal_best_effort_does_not_follow() -> None:
    topology = machine(sockets=2, cores_per_node=8)
    small, large = topology.nodes
    uneven = replace(topology, nodes=(replace(small, memory_bytes=5 * GI), large))
    rules = rules_for(uneven)
    # Beside the device there is room for one of them, and then no group of both nodes for the other.
    each = pod("p", container("app", "cpu=2 memory=3Gi"), container("other", "cpu=2 memory=3Gi"))

    assert nodes_of(rules, having(each, gpu(0))) == NODE_1

    refused = admission._decide_on(rules, rules.initial_state(), having(each, gpu(0)), None)
    assert isinstance(refused, Rejected)
    assert refused.reason == "UnexpectedAdmissionError"


@given(
    scope=st.sampled_from(SCOPES),
    policy=st.sampled_from(("best-effort", *STRICT)),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    data=st.data(),
)
def test_cpus_are_beside_their_device_whenever_they_fit_there(
    scope: str, policy: str, sizes: list[int], data: st.DataObject
) -> None:
    topology = machine(sockets=2, nodes_per_socket=2, cores_per_node=4)
    rules = rules_for(topology, topology_policy=policy, topology_scope=scope)
    state = rules.initial_state()
    for i, count in enumerate(sizes):
        at = data.draw(st.integers(0, 3))
        each = having(pod(f"p{i}", container("app", f"cpu={count} memory=64Mi")), gpu(at))
        free = state.default & topology.cpus_of(at)
        fits = len(free - rules.reserved) >= count
        decision = admit(rules, state, each)
        state = decision.state
        if fits:
            assert isinstance(decision, Admitted)
            assert decision.entry.held <= topology.cpus_of(at)
        elif policy in STRICT:
            assert isinstance(decision, Rejected)
            assert decision.reason == "TopologyAffinityError"


def test_the_nodes_of_devices_are_those_of_one_container_or_of_all() -> None:
    each = having(pod("p", app), {**gpu(1), "other": {NIC: ((0,),)}})
    assert device_nodes(node(), each, "app") == NODE_1
    assert device_nodes(node(), each, None) == BOTH


def told(rules: Rules, state: NodeState, each: Pod) -> list[str]:
    """Return the part of each reason that is about devices."""
    containers = explain(rules, placed(rules, state, each).state, each).containers
    return [c.reason.partition("; ")[2] for c in containers]


def test_whoever_has_cpus_of_his_own_is_told_where_his_devices_are() -> None:
    rules = node()
    state = rules.initial_state()
    each = pod("p", app, container("side"), budget="cpu=6 memory=2Gi")
    beside = "beside its devices on NUMA node 1"
    assert told(rules, state, having(each, gpu(1))) == [beside, beside]
    assert (
        told(rules, state, having(each, gpu(0, 1))) == ["beside its devices on NUMA nodes 0-1"] * 2
    )
    assert told(rules, state, having(each, {"app": {GPU: ()}})) == ["", ""]
    assert told(rules, state, having(pod("p", container("app")), gpu(1))) == [""]
    assert told(node(topology_policy="none"), state, having(pod("p", app), gpu(1))) == [""]


def test_in_the_container_scope_only_a_container_s_own_devices_are_told_of() -> None:
    rules = node(topology_scope="container")
    other = container("other", "cpu=2 memory=1Gi")
    reasons = told(rules, rules.initial_state(), having(pod("p", app, other), gpu(1)))
    assert reasons == ["beside its devices on NUMA node 1", ""]


def test_who_does_not_fit_beside_his_devices_is_told_so() -> None:
    rules = node()
    first = placed(rules, rules.initial_state(), having(pod("first", app), gpu(1)))
    large = having(pod("large", container("app", "cpu=14 memory=1Gi")), gpu(1))
    assert told(rules, first.state, large) == [
        "not all beside its devices on NUMA node 1, where too little was free"
    ]
