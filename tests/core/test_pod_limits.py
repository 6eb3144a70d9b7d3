"""Weights and limits of memory, compared with what a kubelet and runc compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath, MemoryMax
from agent.core.demand import Demand
from agent.core.desired import PodCgroups, desired_values
from agent.core.pod_limits import (
    container_memory_max,
    container_weight,
    cpu_weight,
    pod_memory_max,
    pod_weight,
)
from agent.core.pods import Container, Kind, Pod
from tests.strategies import container, machine, pod, rules_for

RULES = rules_for(machine(sockets=2, cores_per_node=8))
MI, GI = 1 << 20, 1 << 30

database = container("database", "cpu=4 memory=8Gi")
proxy = container("proxy", "cpu=100m memory=512Mi", "cpu=1500m memory=512Mi")


@pytest.mark.parametrize(
    ("milli", "weight"),
    [
        (0, 1),
        (1, 1),
        (100, 4),
        (500, 20),
        (1000, 39),
        (2000, 79),
        (4000, 157),
        (64_000, 2500),
        (256_000, 10_000),
        (1_000_000, 10_000),
    ],
)
def test_a_request_has_the_weight_that_runc_makes_of_the_kubelets_shares(
    milli: int, weight: int
) -> None:
    assert cpu_weight(milli) == weight


@given(milli=st.integers(0, 2_000_000))
def test_a_weight_is_one_that_the_kernel_takes_and_grows_with_the_request(milli: int) -> None:
    assert 1 <= cpu_weight(milli) <= cpu_weight(milli + 1) <= 10_000


def test_a_container_without_a_request_counts_by_its_limit() -> None:
    assert container_weight(container("a", "", "cpu=2")) == cpu_weight(2000)
    assert container_weight(container("a")) == 1


@pytest.mark.parametrize(
    ("each", "weight"),
    [
        (pod("sum", database, proxy), cpu_weight(4100)),
        (pod("budget", database, proxy, budget="cpu=6 memory=9Gi"), cpu_weight(6000)),
        (pod("memory only", database, budget="memory=9Gi"), cpu_weight(4000)),
        (pod("nothing", container("a")), 1),
        (pod("init", container("i", "cpu=9 memory=1Gi", kind=Kind.INIT), proxy), cpu_weight(9000)),
    ],
    ids=lambda each: each.name if isinstance(each, Pod) else "",
)
def test_a_pods_weight_is_that_of_its_budget_or_of_all_that_runs_at_a_time(
    each: Pod, weight: int
) -> None:
    assert pod_weight(Demand(RULES, each)) == weight


@pytest.mark.parametrize(
    ("each", "limit"),
    [
        (pod("sum", database, proxy), 8 * GI + 512 * MI),
        (pod("budget", database, proxy, budget="cpu=6 memory=9Gi"), 9 * GI),
        (pod("one without", database, container("a", "cpu=1")), None),
        (pod("one without in a budget", container("a"), budget="cpu=6 memory=9Gi"), 9 * GI),
    ],
    ids=lambda each: each.name if isinstance(each, Pod) else "",
)
def test_a_pods_memory_is_limited_by_its_budget_or_where_all_of_it_is(
    each: Pod, limit: int | None
) -> None:
    assert pod_memory_max(Demand(RULES, each)) == MemoryMax(limit)


@pytest.mark.parametrize(
    ("one", "budget", "limit"),
    [
        (proxy, "cpu=6 memory=9Gi", 512 * MI),
        (container("a"), "cpu=6 memory=9Gi", 9 * GI),
        (container("a"), "", None),
    ],
)
def test_a_container_without_a_limit_has_its_pods(
    one: Container, budget: str, limit: int | None
) -> None:
    each = pod("each", one, budget=budget) if budget else pod("each", one)
    assert container_memory_max(Demand(RULES, each), one) == MemoryMax(limit)


@pytest.mark.parametrize(
    ("given_bytes", "limit"),
    [(0, None), (None, None), (1, 65_536), (GI, GI), (GI + 65_535, GI)],
)
def test_a_limit_is_a_whole_number_of_pages_so_that_the_kernel_says_the_same(
    given_bytes: int | None, limit: int | None
) -> None:
    assert MemoryMax.of(given_bytes) == MemoryMax(limit)


def test_they_are_written_where_the_agent_makes_the_cgroups_and_only_there() -> None:
    each = pod("each", database, proxy, budget="cpu=6 memory=9Gi")
    path = CgroupPath("kubepods/each")
    place = PodCgroups(
        pod=each, path=path, leaves={path / "a": "database", path / "b": "proxy", path / "?": None}
    )
    ours, theirs = (
        desired_values(RULES, RULES.initial_state(), [place], (), quota_is_ours=is_ours)
        for is_ours in (True, False)
    )
    assert {p.name: (v.cpu_weight, str(v.memory_max)) for p, v in ours.items()} == {
        "each": (cpu_weight(6000), str(9 * GI)),
        "a": (cpu_weight(4000), str(8 * GI)),
        "b": (cpu_weight(100), str(512 * MI)),
        "?": (None, "None"),
    }
    assert {(v.cpu_weight, v.memory_max) for v in theirs.values()} == {(None, None)}
