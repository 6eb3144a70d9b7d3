"""A fence: only its CPUs are given, and nothing else is counted otherwise."""

from dataclasses import replace

import pytest

from agent.core.admission import Admitted, Rejected, admit
from agent.core.checkup_cgroups import assignable
from agent.core.cpuset import CPUSet
from agent.core.pods import Pod
from agent.core.restore import fits
from agent.core.startup import FULL_PCPUS_ONLY, STRICT_RESERVATION, Rules, start
from tests.strategies import container, machine, pod, rules_for


def fenced(fence: str, **changes: object) -> Rules:
    """Two sockets of 8 cores and 16 CPUs, threads side by side; 0-1 are reserved."""
    return rules_for(machine(sockets=2, cores_per_node=8), fence=CPUSet.parse(fence), **changes)


def asking(cpus: int) -> Pod:
    return pod("p", container("c", f"cpu={cpus} memory=1Gi"))


def held(rules: Rules, cpus: int) -> str:
    decision = admit(rules, rules.initial_state(), asking(cpus))
    assert isinstance(decision, Admitted), decision
    return str(decision.entry.held)


def test_a_fence_reserves_nothing_and_takes_nothing_from_the_default_set() -> None:
    free, within = fenced(""), fenced("8-11,16-19")
    assert within.reserved == free.reserved
    assert within.initial_state() == free.initial_state()
    strict = fenced("8-11", cpu_options={STRICT_RESERVATION: "true"})
    assert strict.initial_state().default == strict.topology.cpus - strict.reserved
    assert assignable(within) == CPUSet.parse("8-11,16-19")
    assert assignable(fenced("0-3")) == CPUSet([2, 3])


def test_as_many_as_are_inside_are_given_and_no_more() -> None:
    rules = fenced("8-11")
    assert held(rules, 4) == "8-11"
    state = rules.initial_state()
    assert isinstance(admit(rules, state, asking(5)), Rejected)


def test_the_narrowest_place_is_that_of_the_fence_not_of_the_machine() -> None:
    rules = fenced("14-15,16-17", topology_policy="restricted", memory_policy="None")
    assert held(rules, 2) == "14-15"
    assert held(rules, 4) == "14-17"  # no NUMA node has four of them
    single = fenced("14-15,16-17", topology_policy="single-numa-node")
    assert isinstance(admit(single, single.initial_state(), asking(4)), Rejected)


def test_a_core_that_is_half_outside_is_no_whole_core() -> None:
    rules = fenced("9-13", cpu_options={FULL_PCPUS_ONLY: "true"})
    assert held(rules, 4) == "10-13"
    decision = admit(rules, rules.initial_state(), asking(6))
    assert isinstance(decision, Rejected)
    assert "available physical CPUs = 4" in decision.message


@pytest.mark.parametrize("fence", ["0-31", "0-31,64"])
def test_a_fence_around_everything_changes_nothing(fence: str) -> None:
    free, all_of_it = fenced(""), fenced(fence)
    for cpus in (1, 2, 7, 14, 16, 30):
        assert held(all_of_it, cpus) == held(free, cpus)


def test_who_holds_cpus_outside_of_a_new_fence_keeps_them() -> None:
    free = fenced("")
    state = admit(free, free.initial_state(), asking(4)).state
    within = start(free.topology, replace(free.policy, fence=CPUSet.parse("16-31")))
    assert fits(within, state)
    again = admit(within, state, asking(4))
    assert again.state == state
