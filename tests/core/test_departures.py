"""What numalet decides otherwise than the kubelet, on the node of `test_admission`."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.departures import (
    HUGEPAGE_POOL_RULE,
    INIT_APART,
    INIT_INSIDE_APP,
    LEAKED_CPUS,
    NO_PANIC,
    READMIT,
    SHARED_CONTAINER_MEMORY,
)
from agent.core.pods import MEMORY
from agent.core.startup import CLOSEST
from agent.core.topology import Core, NodeTopology, NumaNode
from tests.strategies import GI, HUGE, container, machine, pod, rules_for

from .test_admission import (
    POLICIES,
    admitted,
    cpus,
    entry_of,
    init,
    latency_critical_db,
    memory,
    node,
    rejected,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_pod_keeps_what_it_has_whatever_it_says_now(policy: str) -> None:
    rules = node(topology_policy=policy, memory_policy="None")
    first = admitted(rules, rules.initial_state(), latency_critical_db)
    changed = replace(latency_critical_db, budget=pod("p", budget="cpu=99 memory=9Gi").budget)
    again = admitted(rules, first.state, changed)
    assert again.state is first.state
    assert again.entry == first.entry
    assert again.departures == {READMIT}


def test_a_rejected_pod_leaves_no_pool_behind() -> None:
    # Slices that the API server would refuse: more than the budget.
    each = pod("p", container("a", "cpu=7 memory=1Gi"), budget="cpu=6 memory=9Gi")
    rules = node()
    decision = rejected(rules, rules.initial_state(), each)
    assert decision.departures == {LEAKED_CPUS}
    assert str(decision.leftover.pool) == "2-7"
    assert decision.state == rules.initial_state()


def test_what_a_rejected_pod_took_before_it_failed_is_told_and_given_back() -> None:
    rules = node(topology_scope="container")
    each = pod("p", container("a", "cpu=2 memory=1Gi"), container("b", "cpu=40 memory=1Gi"))
    decision = rejected(rules, rules.initial_state(), each)
    assert cpus(decision.leftover) == {"a": "2-3"}
    assert decision.state == rules.initial_state()
    assert not decision.departures


def test_a_sharing_container_needs_no_memory_of_its_own_on_demand() -> None:
    kubelets = node(topology_scope="container")
    state = kubelets.initial_state()
    decision = rejected(kubelets, state, latency_critical_db)
    assert decision.reason == "UnexpectedAdmissionError"
    assert "preferred hint violates NUMA node allocation" in decision.message
    ours = node(topology_scope="container", departures=frozenset({SHARED_CONTAINER_MEMORY}))
    entry = entry_of(latency_critical_db, ours)
    assert memory(entry) == {"database": {MEMORY: 8}}


def test_hugepages_may_be_claimed_wholly_on_demand() -> None:
    topology = machine(huge_pages=512)
    each = pod(
        "p",
        container("a", "cpu=2 memory=1Gi hugepages-2Mi=64Mi"),
        container("b", ""),
        budget="cpu=4 memory=4Gi hugepages-2Mi=64Mi",
    )
    kubelets = rules_for(topology)
    assert rejected(kubelets, kubelets.initial_state(), each).reason == ("EmptyPodSharedPoolError")
    ours = rules_for(topology, departures=frozenset({HUGEPAGE_POOL_RULE}))
    assert memory(entry_of(each, ours)) == {
        "a": {MEMORY: 1, HUGE: 64 / 1024},
        "b": {MEMORY: 3},
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", [{}, {CLOSEST: "true"}])
def test_ids_that_crash_the_kubelet_are_ids_like_any_other(
    policy: str, options: Mapping[str, str]
) -> None:
    ids = (0, 8, 252)
    topology = NodeTopology(
        nodes=tuple(NumaNode(id=i, memory_bytes=8 * GI, distances=(10, 20, 20)) for i in ids),
        cores=tuple(
            Core(cpus=CPUSet([2 * i, 2 * i + 1]), node=ids[i // 2], socket=0, uncore=0)
            for i in range(4)
        ),
        socket_count=1,
    )
    rules = rules_for(topology, topology_policy=policy, topology_options=options)
    each = pod("p", container("a", "cpu=4 memory=1Gi"))
    decision = admitted(rules, rules.initial_state(), each)
    assert str(decision.entry.held) == "4-7"
    assert NO_PANIC in decision.departures


def test_a_page_size_that_a_node_lacks_is_none_of_it() -> None:
    topology = machine(sockets=2)
    with_pages = replace(topology.nodes[1], hugepages={2048: 512})
    rules = rules_for(replace(topology, nodes=(topology.nodes[0], with_pages)))
    each = pod("p", container("a", "cpu=2 memory=1Gi hugepages-2Mi=64Mi"))
    decision = admitted(rules, rules.initial_state(), each)
    assert {block.nodes for block in decision.entry.memory["a"]} == {NodeSet([1])}
    assert decision.departures == {NO_PANIC}


def test_behind_the_gate_a_pod_with_a_budget_is_left_alone() -> None:
    for policy in POLICIES:
        rules = node(topology_policy=policy, feature_gates={"PodLevelResourceManagers": False})
        decision = admitted(rules, rules.initial_state(), latency_critical_db)
        assert decision.state == rules.initial_state()


def test_init_containers_keep_their_cpus_for_themselves_on_demand() -> None:
    each = pod("p", init("i", "cpu=2 memory=1Gi"), container("a", "cpu=2 memory=1Gi"))
    entry = entry_of(each, node(departures=frozenset({INIT_APART})))
    assert cpus(entry) == {"i": "2-3", "a": "4-5"}
    budgeted = replace(each, budget=pod("b", budget="cpu=4 memory=4Gi").budget)
    entry = entry_of(budgeted, node(departures=frozenset({INIT_APART})))
    assert cpus(entry) == {"i": "2-3", "a": "4-5"}


def test_init_containers_are_placed_inside_what_the_app_has_on_demand() -> None:
    """The kubelet strands the thread beside the reserved one: the app takes a whole core."""
    topology = machine(cores_per_node=4, siblings_apart=True)
    reserved: dict[str, object] = {
        "reserved_cpus": CPUSet([0]),
        "node_reservation": {"cpu": 1000, MEMORY: GI},
    }
    each = pod("p", init("i", "cpu=1 memory=1Gi"), container("a", "cpu=2 memory=2Gi"))
    assert cpus(entry_of(each, rules_for(topology, **reserved))) == {"i": "4", "a": "1,5"}
    inside = rules_for(topology, departures=frozenset({INIT_INSIDE_APP}), **reserved)
    entry = entry_of(each, inside)
    assert cpus(entry) == {"a": "1,5", "i": "1"}
    assert memory(entry) == {"a": {MEMORY: 2}, "i": {MEMORY: 0}}
