"""What is remembered is held against the machine and configuration of today."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from agent.core.admission import admit
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import CPU, MEMORY, Pod, PodUID
from agent.core.policy import Policy
from agent.core.restore import fits, rebuild
from agent.core.startup import STRICT_RESERVATION, Rules, start
from agent.core.state import Block, NodeState, PodEntry
from agent.core.topology import NodeTopology
from tests.props.test_promises import moments
from tests.reconciler.rig import exclusive_pod
from tests.strategies import GI, Step, histories, machine, rules

A, B = PodUID("a"), PodUID("b")


def rules_for(topology: NodeTopology, reserved: str = "0", **options: str) -> Rules:
    cpus = CPUSet.parse(reserved)
    return start(
        topology,
        Policy(
            reserved_cpus=cpus,
            node_reservation={CPU: 1000 * len(cpus), MEMORY: GI},
            reserved_memory=((0, {MEMORY: GI}),),
            cpu_options=options,
        ),
    )


MACHINE = machine(sockets=2, cores_per_node=8, threads=1)
RULES = rules_for(MACHINE)


def state_of(rules: Rules, *pods: Pod) -> NodeState:
    state = rules.initial_state()
    for pod in pods:
        state = admit(rules, state, pod).state
    return state


STATE = state_of(RULES, exclusive_pod("a", 2), exclusive_pod("b", 3))


def offline(topology: NodeTopology, cpu: int) -> NodeTopology:
    return replace(topology, cores=tuple(c for c in topology.cores if cpu not in c.cpus))


@given(rules(), histories())
@settings(max_examples=50, deadline=None)
def test_a_state_fits_the_rules_that_it_came_from(rules: Rules, history: list[Step]) -> None:
    for moment in moments(rules, history):
        assert fits(rules, moment.state)


@given(rules(), histories())
@settings(max_examples=50, deadline=None)
def test_a_rebuilt_state_fits_and_takes_nothing_from_anybody(
    rules: Rules, history: list[Step]
) -> None:
    *_, last = moments(rules, history)
    rebuilt = rebuild(rules, last.state.pods)
    assert fits(rules, rebuilt)
    assert (rebuilt.default, rebuilt.pods) == (last.state.default, last.state.pods)


@pytest.mark.parametrize(
    ("today", "default"),
    [
        (rules_for(MACHINE, "8-9"), "0,6-15"),
        (rules_for(MACHINE, "1"), "0,6-15"),
        (rules_for(MACHINE, "0", **{STRICT_RESERVATION: "true"}), "6-15"),
        (rules_for(offline(MACHINE, 7)), "0,6,8-15"),
        (rules_for(offline(MACHINE, 2)), "0,6-15"),
        (rules_for(machine(sockets=2, cores_per_node=10, threads=1)), "0,6-19"),
        (rules_for(machine(sockets=1, cores_per_node=8, threads=1)), "0,6-7"),
        (rules_for(machine(sockets=2, cores_per_node=8, threads=1, memory_bytes=8 * GI)), "0,6-15"),
    ],
    ids=[
        "another reservation",
        "a reserved CPU that a pod holds",
        "strict reservation",
        "a free CPU offline",
        "a pod's CPU offline",
        "more CPUs",
        "a socket less",
        "less memory",
    ],
)
def test_on_another_machine_everybody_keeps_what_he_has(today: Rules, default: str) -> None:
    rebuilt = rebuild(today, STATE.pods)
    assert str(rebuilt.default) == default
    assert rebuilt.pods == STATE.pods
    assert fits(today, rebuilt)


@pytest.mark.parametrize(
    "today",
    [
        rules_for(MACHINE, "0", **{STRICT_RESERVATION: "true"}),
        rules_for(offline(MACHINE, 7)),
        rules_for(machine(sockets=2, cores_per_node=8, threads=1, memory_bytes=8 * GI)),
    ],
)
def test_a_state_of_another_machine_does_not_fit(today: Rules) -> None:
    assert not fits(today, STATE)


def test_where_only_the_reserved_cpus_are_others_the_state_still_fits() -> None:
    assert fits(rules_for(MACHINE, "8-9"), STATE)


def test_memory_is_charged_anew_as_far_as_it_goes() -> None:
    today = rules_for(machine(sockets=2, cores_per_node=8, threads=1, memory_bytes=2 * GI))
    tables = rebuild(today, STATE.pods).memory
    memory = tables[0].tables[MEMORY]
    assert (memory.total, memory.reserved, memory.free) == (2 * GI, GI, 0)
    assert tables[0].assignments == 2


def test_memory_of_a_node_that_is_gone_is_charged_to_nobody() -> None:
    block = Block(NodeSet([0, 1]), MEMORY, GI)
    today = rules_for(machine(sockets=1, cores_per_node=8, threads=1))
    rebuilt = rebuild(today, {A: PodEntry(memory={"c0": (block,)})})
    assert rebuilt.memory == today.initial_state().memory


def test_without_a_memory_manager_no_memory_is_charged() -> None:
    policy = replace(RULES.policy, memory_policy="None", reserved_memory=())
    today = start(MACHINE, policy)
    assert rebuild(today, STATE.pods) == replace(STATE, memory={})
    assert not fits(today, STATE)


def test_a_kind_of_hugepages_that_is_gone_is_charged_to_nobody() -> None:
    block = Block(NodeSet([0]), "hugepages-1Gi", GI)
    rebuilt = rebuild(RULES, {A: PodEntry(memory={"c0": (block,)})})
    assert rebuilt.memory[0].tables == RULES.initial_state().memory[0].tables


def test_two_owners_of_one_cpu_never_fit() -> None:
    entry = PodEntry(cpus={"c0": CPUSet([3])})
    assert not fits(RULES, rebuild(RULES, {A: entry, B: entry}))


def test_a_default_set_with_a_pods_cpus_in_it_does_not_fit() -> None:
    assert not fits(RULES, replace(STATE, default=STATE.default | CPUSet([1])))
