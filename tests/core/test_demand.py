import pytest

from agent.core.demand import Demand
from agent.core.departures import HUGEPAGE_POOL_RULE, INIT_APART
from agent.core.pods import MEMORY, Container, Kind, Pod
from tests.strategies import GI, HUGE, container, machine, pod, rules_for

OFF = {"PodLevelResourceManagers": False}
UNKNOWN = {**OFF, "PodLevelResources": False}
NO_DEPARTURES = frozenset[str]()


def demand(
    each: Pod,
    gates: dict[str, bool] | None = None,
    departures: frozenset[str] = NO_DEPARTURES,
) -> Demand:
    return Demand(rules_for(machine(), feature_gates=gates or {}, departures=departures), each)


def init(name: str, requests: str) -> Container:
    return container(name, requests, kind=Kind.INIT)


def sidecar(name: str, requests: str) -> Container:
    return container(name, requests, kind=Kind.SIDECAR)


@pytest.mark.parametrize(
    ("each", "cpus"),
    [
        (pod("p", container("a", "cpu=2 memory=1Gi")), 2),
        (pod("p", container("a", "cpu=2000m memory=1Gi")), 2),
        (pod("p", container("a", "cpu=1500m memory=1Gi")), 0),  # no whole number
        (pod("p", container("a", "cpu=2 memory=1Gi", "cpu=2 memory=2Gi")), 0),  # not Guaranteed
        (pod("p", container("a", "cpu=2 memory=1Gi"), container("b")), 0),
        (pod("p", container("a", "cpu=2 memory=1Gi"), budget="cpu=4 memory=4Gi"), 2),
        (pod("p", container("a", "cpu=2 memory=1Gi", "cpu=2"), budget="cpu=4 memory=4Gi"), 0),
        (pod("p", container("a", "cpu=2 memory=1Gi"), budget="cpu=4"), 0),
        (pod("p", container("a", "cpu=2 memory=1Gi"), budget="cpu=3500m memory=4Gi"), 2),
    ],
)
def test_exclusive_cpus_are_whole_requests_of_exclusive_grade_in_a_guaranteed_pod(
    each: Pod, cpus: int
) -> None:
    assert demand(each).cpus["a"] == cpus


def test_ephemeral_containers_ask_for_nothing() -> None:
    each = pod("p", container("a", "cpu=1 memory=1Gi"), container("debug", kind=Kind.EPHEMERAL))
    assert demand(each).cpus == {"a": 1}


@pytest.mark.parametrize(
    ("budget", "cpus"),
    [
        ("cpu=6 memory=9Gi", 6),
        ("cpu=5500m memory=9Gi", 0),
        ("cpu=6", 0),
        ("memory=9Gi", 0),
    ],
)
def test_a_budget_asks_for_its_own_cpus_whatever_its_containers_say(budget: str, cpus: int) -> None:
    assert demand(pod("p", container("a", "cpu=4 memory=1Gi"), budget=budget)).pod_cpus == cpus


ONE_GI = "memory=1Gi"


@pytest.mark.parametrize(
    ("containers", "cpus", "gigabytes"),
    [
        ([container("a", "cpu=2 memory=1Gi"), container("b", "cpu=1 memory=2Gi")], 3, 3),
        ([init("i", "cpu=4 memory=5Gi"), container("a", "cpu=2 memory=1Gi")], 4, 5),
        ([init("i", "cpu=1 memory=1Gi"), container("a", "cpu=2 memory=2Gi")], 2, 2),
        ([sidecar("s", "cpu=1 memory=1Gi"), container("a", "cpu=2 memory=2Gi")], 3, 3),
        (
            [
                sidecar("s", "cpu=1 memory=1Gi"),
                init("i", "cpu=3 memory=3Gi"),
                container("a", "cpu=2 memory=2Gi"),
            ],
            4,
            4,
        ),
        (
            [
                init("i", "cpu=3 memory=3Gi"),
                sidecar("s", "cpu=1 memory=1Gi"),
                container("a", "cpu=1 memory=1Gi"),
            ],
            3,
            3,
        ),
    ],
)
def test_without_a_budget_a_pod_asks_for_what_it_needs_at_a_time(
    containers: list[Container], cpus: int, gigabytes: int
) -> None:
    each = demand(pod("p", *containers))
    assert each.pod_cpus == cpus
    assert each.pod_memory == {MEMORY: gigabytes * GI}


def test_init_containers_that_stay_apart_are_asked_for_on_top() -> None:
    each = pod("p", init("i", "cpu=1 memory=1Gi"), container("a", "cpu=2 memory=2Gi"))
    assert demand(each, departures=frozenset({INIT_APART})).pod_cpus == 3


def test_only_types_that_an_app_container_names_are_asked_for_without_a_budget() -> None:
    each = pod(
        "p",
        init("i", "cpu=1 memory=1Gi hugepages-2Mi=4Mi"),
        container("a", "cpu=1 memory=1Gi hugepages-1Gi=0"),
    )
    assert demand(each).pod_memory == {MEMORY: GI, "hugepages-1Gi": 0}


def test_a_budget_asks_for_its_positive_amounts_of_memory() -> None:
    each = pod("p", container("a"), budget="cpu=1 memory=2Gi hugepages-2Mi=2Mi hugepages-1Gi=0")
    assert demand(each).pod_memory == {MEMORY: 2 * GI, HUGE: 2 << 20}


def test_containers_share_memory_in_a_pod_with_a_budget_unless_of_exclusive_grade() -> None:
    fractional = container("a", "cpu=1500m memory=1Gi")
    each = pod("p", fractional, container("b", ONE_GI, "memory=2Gi"), budget="cpu=4 memory=4Gi")
    assert demand(each).memory == {"a": {MEMORY: GI}, "b": {}}


def test_behind_the_gate_a_budget_is_left_alone() -> None:
    each = pod("p", container("a", "cpu=2 memory=1Gi"), budget="cpu=4 memory=4Gi")
    for gates in (OFF, UNKNOWN):
        hidden = demand(each, gates)
        assert hidden.ignored
        assert not hidden.by_budget
    assert not demand(each).ignored
    assert demand(each).by_budget


def test_where_budgets_are_not_known_the_containers_make_the_class() -> None:
    each = pod("p", container("a"), budget="cpu=4 memory=4Gi")
    assert demand(each, OFF).guaranteed
    assert not demand(each, UNKNOWN).guaranteed


NO_CPU_FOR_SHARED = (
    "pod rejected, sum of exclusive container cpu requests equals pod budget, "
    "leaving no cpus for shared containers"
)
NO_CPU_FOR_INIT = "pod rejected, pod has shared init containers but no cpus available for them"


@pytest.mark.parametrize(
    ("containers", "error"),
    [
        ([container("a", "cpu=4 memory=1Gi")], None),  # nobody shares
        ([container("a", "cpu=3 memory=1Gi"), container("b")], None),  # one CPU is left
        ([container("a", "cpu=4 memory=1Gi"), container("b")], NO_CPU_FOR_SHARED),
        ([container("a", "cpu=5 memory=1Gi"), container("b")], NO_CPU_FOR_SHARED),
        ([container("a", "cpu=4 memory=1Gi"), sidecar("s", "")], NO_CPU_FOR_SHARED),
        ([sidecar("s", "cpu=4 memory=1Gi"), init("i", "")], NO_CPU_FOR_INIT),
        ([init("i", ""), sidecar("s", "cpu=4 memory=1Gi")], None),  # it ends before
        ([init("i", "cpu=4 memory=1Gi"), container("b")], None),  # an init slice is no claim
    ],
)
def test_exclusive_cpus_must_leave_some_for_those_that_share(
    containers: list[Container], error: str | None
) -> None:
    assert demand(pod("p", *containers, budget="cpu=4 memory=8Gi")).cpu_pool_error == error


@pytest.mark.parametrize(
    ("containers", "error"),
    [
        ([init("i", "cpu=3 memory=1Gi"), container("b")], None),
        ([init("i", "cpu=4 memory=1Gi"), container("b")], NO_CPU_FOR_SHARED),
        ([init("i", "cpu=2 memory=1Gi"), sidecar("s", "cpu=1 memory=1Gi"), container("b")], None),
        (
            [init("i", "cpu=2 memory=1Gi"), container("a", "cpu=2 memory=1Gi"), container("b")],
            NO_CPU_FOR_SHARED,
        ),
    ],
)
def test_init_containers_that_stay_apart_leave_their_cpus_to_nobody(
    containers: list[Container], error: str | None
) -> None:
    each = pod("p", *containers, budget="cpu=4 memory=8Gi")
    assert demand(each, departures=frozenset({INIT_APART})).cpu_pool_error == error


@pytest.mark.parametrize(
    ("containers", "error"),
    [
        ([container("a", "cpu=1 memory=4Gi"), container("b", "cpu=1")], "equals pod budget"),
        ([container("a", "cpu=1 memory=3Gi"), container("b", "cpu=1")], None),
        ([sidecar("s", "cpu=1 memory=4Gi"), init("i", "")], "no memory available for them"),
        (
            [container("a", "cpu=1 memory=1Gi hugepages-2Mi=4Mi"), container("b")],
            "sum of exclusive container hugepages-2Mi requests equals pod budget",
        ),
        ([container("a", "cpu=1500m memory=4Gi"), container("b", "cpu=1")], "equals pod budget"),
    ],
)
def test_exclusive_memory_must_leave_some_of_every_type_for_those_that_share(
    containers: list[Container], error: str | None
) -> None:
    each = demand(pod("p", *containers, budget="cpu=4 memory=4Gi hugepages-2Mi=4Mi"))
    if error is None:
        assert each.memory_pool_error is None
    else:
        assert error in (each.memory_pool_error or "")


def test_those_that_ask_for_no_hugepages_need_none_on_demand() -> None:
    takes_all = container("a", "cpu=1 memory=1Gi hugepages-2Mi=4Mi")
    budget = "cpu=4 memory=4Gi hugepages-2Mi=4Mi"
    rule = frozenset({HUGEPAGE_POOL_RULE})
    assert (
        demand(
            pod("p", takes_all, container("b"), budget=budget), departures=rule
        ).memory_pool_error
        is None
    )
    wants_some = container("b", "hugepages-2Mi=2Mi")
    refused = demand(pod("p", takes_all, wants_some, budget=budget), departures=rule)
    assert "hugepages-2Mi requests equals pod budget" in (refused.memory_pool_error or "")
