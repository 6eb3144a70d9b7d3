from dataclasses import replace

import pytest

from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.departures import POD_QUOTA
from agent.core.isolation import (
    Isolation,
    container_quota_lifted,
    isolation,
    pod_quota_lifted,
)
from agent.core.pods import Container, Pod
from agent.core.state import PodEntry
from tests.strategies import container, machine, pod, rules_for

BUDGET = "cpu=4 memory=4Gi"
OFF = {"PodLevelResourceManagers": False}
KUBELET = frozenset[str]()
OURS = frozenset({POD_QUOTA})

exclusive = container("db", "cpu=2 memory=1Gi")
sharing = container("proxy", "cpu=100m", "cpu=500m")
fractional = container("proxy", "cpu=1500m memory=1Gi")


def holding(
    each: Pod, *names: str, gates: dict[str, bool] | None = None
) -> tuple[Demand, PodEntry]:
    """Give two CPUs to each of the named containers."""
    rules = rules_for(machine(), feature_gates=gates or {})
    cpus = {name: CPUSet([2 * i, 2 * i + 1]) for i, name in enumerate(names, 1)}
    return Demand(rules, each), PodEntry(cpus=cpus)


@pytest.mark.parametrize(
    ("each", "names", "expected"),
    [
        (pod("p", exclusive), (), Isolation.NODE_SHARED),
        (pod("p", exclusive), ("db",), Isolation.EXCLUSIVE),
        (pod("p", exclusive, budget=BUDGET), ("db",), Isolation.EXCLUSIVE),
        (pod("p", container("db", "cpu=2"), budget=BUDGET), ("db",), Isolation.POD_SHARED),
        (pod("p", container("db"), budget=BUDGET), ("db",), Isolation.POD_SHARED),
        (
            pod("p", container("db", "cpu=1500m memory=1Gi"), budget=BUDGET),
            ("db",),
            Isolation.POD_SHARED,
        ),
        (pod("p", exclusive, budget=BUDGET), (), Isolation.NODE_SHARED),
    ],
)
def test_the_level_is_that_of_the_cpus_held_and_of_the_grade_of_the_container(
    each: Pod, names: tuple[str, ...], expected: Isolation
) -> None:
    demand, entry = holding(each, *names)
    level = isolation(demand, entry, each.app_containers[0])
    assert level is expected
    lifted = container_quota_lifted(demand, entry, each.app_containers[0])
    assert lifted is (expected is Isolation.EXCLUSIVE)


def test_an_empty_set_is_no_isolation() -> None:
    demand, _ = holding(pod("p", exclusive))
    entry = PodEntry(cpus={"db": CPUSet()})
    assert isolation(demand, entry, exclusive) is Isolation.NODE_SHARED


def test_without_a_cpu_manager_nobody_is_isolated_nor_without_his_quota() -> None:
    demand, entry = holding(pod("p", exclusive), "db")
    off = replace(demand.rules, policy=replace(demand.rules.policy, cpu_policy="none"))
    demand = Demand(off, demand.pod)
    assert isolation(demand, entry, exclusive) is Isolation.NODE_SHARED
    assert not container_quota_lifted(demand, entry, exclusive)
    assert not pod_quota_lifted(demand, entry, departures=OURS)


def test_behind_the_gate_cpus_of_its_own_are_enough() -> None:
    demand, entry = holding(pod("p", sharing, budget=BUDGET), "proxy", gates=OFF)
    assert isolation(demand, entry, sharing) is Isolation.EXCLUSIVE


@pytest.mark.parametrize(
    ("containers", "budget", "names", "kubelet", "ours"),
    [
        ((exclusive,), None, (), False, False),
        ((exclusive,), None, ("db",), True, True),
        ((exclusive, fractional), None, ("db",), True, True),
        ((exclusive,), BUDGET, ("db",), True, True),
        ((exclusive, sharing), BUDGET, ("db", "proxy"), False, True),
        ((sharing,), BUDGET, ("proxy",), False, False),
        ((exclusive, sharing), BUDGET, (), False, False),
    ],
)
def test_the_quota_of_a_pod_is_lifted_for_any_exclusive_container_where_the_kubelet_wants_all(
    containers: tuple[Container, ...],
    budget: str | None,
    names: tuple[str, ...],
    *,
    kubelet: bool,
    ours: bool,
) -> None:
    demand, entry = holding(pod("p", *containers, budget=budget), *names)
    assert pod_quota_lifted(demand, entry, departures=KUBELET) is kubelet
    assert pod_quota_lifted(demand, entry, departures=OURS) is ours
