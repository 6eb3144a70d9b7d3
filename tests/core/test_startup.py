"""Departures at start-up, and what rules derive; every refusal is in the recorded scenarios."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from agent.core.cpuset import CPUSet
from agent.core.departures import MORE_THAN_8_NODES, NO_PANIC
from agent.core.pods import CPU, MEMORY
from agent.core.policy import Policy
from agent.core.startup import (
    ALIGN_BY_SOCKET,
    CLOSEST,
    DISTRIBUTE_CORES,
    DISTRIBUTE_NUMA,
    FULL_PCPUS_ONLY,
    MAX_NODES,
    PREFER_UNCORE,
    STRICT_RESERVATION,
    Rules,
    StartupRefused,
    start,
)
from agent.core.take import TakeOptions
from agent.core.topology import NodeTopology
from tests.strategies import GI, machine, rules, rules_for


def nodes(count: int) -> NodeTopology:
    return machine(sockets=count, cores_per_node=1)


@pytest.mark.parametrize("count", [9, 64])
def test_more_than_8_nodes_need_no_option(count: int) -> None:
    started = rules_for(nodes(count))
    assert started.departures == {MORE_THAN_8_NODES}
    assert started.node_mask == (1 << count) - 1


def test_8_nodes_are_no_departure() -> None:
    assert rules_for(nodes(8)).departures == frozenset()


def test_a_configured_number_of_nodes_is_a_limit_and_no_departure() -> None:
    assert rules_for(nodes(9), topology_options={MAX_NODES: "9"}).departures == frozenset()
    with pytest.raises(StartupRefused, match="unsupported on machines with more than 9 NUMA Nodes"):
        rules_for(nodes(10), topology_options={MAX_NODES: "9"})


def test_without_a_topology_policy_the_number_of_nodes_does_not_matter() -> None:
    assert rules_for(nodes(12), topology_policy="none").departures == frozenset()


def sparse(second: int) -> NodeTopology:
    """Return two nodes, 0 and another one."""
    two = machine(sockets=2, cores_per_node=2)
    return NodeTopology(
        nodes=(two.nodes[0], replace(two.nodes[1], id=second)),
        cores=tuple(replace(core, node=second if core.node else 0) for core in two.cores),
        socket_count=2,
    )


@pytest.mark.parametrize(
    ("second", "changes", "departs"),
    [
        (63, {}, False),
        (64, {}, True),
        (64, {"topology_policy": "none"}, True),
        (64, {"topology_policy": "none", "memory_policy": "None"}, False),
        (8, {}, False),
        (8, {"topology_options": {CLOSEST: "true"}}, True),
        (1, {"topology_options": {CLOSEST: "true"}}, False),
    ],
)
def test_where_the_kubelet_would_crash_is_a_departure(
    second: int, changes: dict[str, object], *, departs: bool
) -> None:
    started = rules_for(sparse(second), **changes)
    assert (NO_PANIC in started.departures) is departs


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("topology_manager", {"topology_policy": "strict"}),
        ("topology_manager", {"topology_scope": "node"}),
        ("cpu_manager", {"cpu_policy": "dynamic"}),
        ("cpu_manager", {"node_reservation": {MEMORY: GI}}),
        ("memory_manager", {"memory_policy": "static"}),
        ("memory_manager", {"reserved_memory": ()}),
    ],
)
def test_a_refusal_names_the_part_of_the_kubelet_that_refuses(
    stage: str, changes: dict[str, object]
) -> None:
    with pytest.raises(StartupRefused) as caught:
        rules_for(machine(), **changes)
    assert caught.value.stage == stage


def test_the_first_of_several_reasons_is_that_of_the_topology_manager() -> None:
    with pytest.raises(StartupRefused, match='unknown scope: "node"'):
        rules_for(machine(), topology_scope="node", cpu_policy="dynamic", memory_policy="static")


@pytest.mark.parametrize(
    ("milli", "reserved"), [(1, "0"), (1000, "0"), (1001, "0-1"), (2500, "0-2"), (8000, "0-7")]
)
def test_as_many_cpus_are_reserved_as_the_reservation_needs(milli: int, reserved: str) -> None:
    started = rules_for(machine(), node_reservation={CPU: milli, MEMORY: GI})
    assert str(started.reserved) == reserved


def test_named_cpus_are_reserved_as_they_are() -> None:
    started = rules_for(machine(), reserved_cpus=CPUSet([3, 6]))
    assert started.reserved == CPUSet([3, 6])
    assert CPUSet.from_bits(started.withheld_physical) == CPUSet([2, 3, 6, 7])


def test_reserved_cpus_are_shared_unless_they_are_reserved_strictly() -> None:
    topology = machine()
    assert rules_for(topology).initial_state().default == topology.cpus
    strict = rules_for(topology, cpu_options={STRICT_RESERVATION: "true"})
    assert strict.initial_state().default == CPUSet.parse("2-7")


def test_what_is_not_managed_is_not_in_the_state() -> None:
    idle = rules_for(machine(), cpu_policy="none", memory_policy="None").initial_state()
    assert idle.default == CPUSet()
    assert idle.memory == {}
    assert idle.pods == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, TakeOptions()),
        ({FULL_PCPUS_ONLY: "true"}, TakeOptions(whole_cores=True)),
        ({FULL_PCPUS_ONLY: "false"}, TakeOptions()),
        ({DISTRIBUTE_NUMA: "1"}, TakeOptions(across_numa=True)),
        ({DISTRIBUTE_CORES: "T"}, TakeOptions(across_cores=True)),
        ({PREFER_UNCORE: "True"}, TakeOptions(uncore_aligned=True)),
        ({STRICT_RESERVATION: "true", ALIGN_BY_SOCKET: "true"}, TakeOptions()),
    ],
)
def test_options_say_how_cpus_are_picked(options: dict[str, str], expected: TakeOptions) -> None:
    assert rules_for(machine(), cpu_options=options).take_options == expected


def test_distances_count_only_on_demand() -> None:
    topology = machine(sockets=2)
    assert rules_for(topology).distances is None
    closest = rules_for(topology, topology_options={CLOSEST: "true"})
    assert closest.distances == {1: {1: 10, 2: 20}, 2: {1: 20, 2: 10}}


@pytest.mark.parametrize(
    ("gates", "knows", "decides"),
    [
        ({}, True, True),
        ({"PodLevelResourceManagers": False}, True, False),
        ({"PodLevelResources": False, "PodLevelResourceManagers": False}, False, False),
    ],
)
def test_gates_say_whether_budgets_exist_and_are_decided_on(
    gates: dict[str, bool], *, knows: bool, decides: bool
) -> None:
    started = rules_for(machine(), feature_gates=gates)
    assert (started.knows_budgets, started.decides_by_budget) == (knows, decides)


def test_gates_are_as_numalet_wants_them_where_nobody_says_otherwise() -> None:
    assert Policy().gate("PodLevelResourceManagers")
    assert not Policy(feature_gates={"PodLevelResources": False}).gate("PodLevelResources")
    assert not Policy().gate("SomethingElse")


@given(rules())
@settings(max_examples=100, deadline=None)
def test_rules_describe_their_machine(rules: Rules) -> None:
    topology = rules.topology
    assert sum(rules.node_of_mask_cpus.values()) == topology.cpus.bits
    assert rules.node_mask == sum(1 << node.id for node in topology.nodes)
    assert len(rules.reserved) == -(-rules.policy.node_reservation[CPU] // 1000)
    assert rules.reserved <= topology.cpus
    assert rules.reserved <= CPUSet.from_bits(rules.withheld_physical)
    for node, sockets in rules.sockets_of_node.items():
        cores = [core for core in topology.cores if 1 << core.node == node]
        assert sockets.bit_count() == len({core.socket for core in cores})
    assert rules == start(topology, rules.policy)
