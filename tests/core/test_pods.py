import pytest
from hypothesis import given, settings

from agent.core.pods import CPU, Container, Kind, Pod, QosClass, memory_amounts, qos_class
from tests.strategies import container, pod, pods, resources

EQUAL = "cpu=1 memory=1Gi"


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([container("a")], QosClass.BEST_EFFORT),
        ([container("a", "cpu=0 memory=0")], QosClass.BEST_EFFORT),
        ([container("a", "hugepages-2Mi=2Mi")], QosClass.BEST_EFFORT),
        ([container("a", EQUAL)], QosClass.GUARANTEED),
        ([container("a", EQUAL), container("b", EQUAL)], QosClass.GUARANTEED),
        ([container("a", EQUAL), container("b", EQUAL, kind=Kind.INIT)], QosClass.GUARANTEED),
        ([container("a", EQUAL), container("b", "", kind=Kind.INIT)], QosClass.BURSTABLE),
        ([container("a", EQUAL), container("b")], QosClass.BURSTABLE),
        ([container("a", "cpu=1", "cpu=2")], QosClass.BURSTABLE),
        ([container("a", "cpu=1")], QosClass.BURSTABLE),
        ([container("a", "", "cpu=1 memory=1Gi")], QosClass.BURSTABLE),
        ([container("a", EQUAL, "cpu=1 memory=2Gi")], QosClass.BURSTABLE),
        ([container("a", EQUAL), container("b", kind=Kind.EPHEMERAL)], QosClass.GUARANTEED),
    ],
)
def test_the_class_of_a_pod_without_a_budget_comes_from_its_containers(
    containers: list[Container], expected: QosClass
) -> None:
    assert qos_class(pod("p", *containers)) is expected


def test_equal_sums_are_guaranteed_where_every_container_has_both_limits() -> None:
    uneven = (container("a", EQUAL, "cpu=2 memory=1Gi"), container("b", "cpu=2 memory=1Gi", EQUAL))
    assert qos_class(pod("p", *uneven)) is QosClass.GUARANTEED
    without_limit = (container("a", EQUAL, "memory=1Gi"), container("b", EQUAL, EQUAL))
    assert qos_class(pod("p", *without_limit)) is QosClass.BURSTABLE


@pytest.mark.parametrize(
    ("budget", "expected"),
    [("cpu=4 memory=4Gi", QosClass.GUARANTEED), ("cpu=4", QosClass.BURSTABLE)],
)
def test_with_a_budget_only_the_budget_counts(budget: str, expected: QosClass) -> None:
    assert qos_class(pod("p", container("a"), budget=budget)) is expected


def test_a_budget_counts_for_nothing_where_it_is_not_known() -> None:
    unlimited = pod("p", container("a"), budget="cpu=4 memory=4Gi")
    assert qos_class(unlimited, pod_level_resources=False) is QosClass.BEST_EFFORT


@pytest.mark.parametrize(
    ("budget", "has_one"),
    [
        (None, False),
        ("", False),
        ("cpu=1", True),
        ("memory=1Gi", True),
        ("hugepages-1Gi=1Gi", True),
        ("example.com/gpu=1", False),
    ],
)
def test_only_some_resources_make_a_budget(budget: str | None, *, has_one: bool) -> None:
    assert pod("p", container("a"), budget=budget).has_budget is has_one


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        (EQUAL, EQUAL, True),
        ("cpu=1500m memory=1Gi", None, True),
        ("cpu=1 memory=1Gi", "cpu=1 memory=2Gi", False),
        ("cpu=1 memory=1Gi", "cpu=2 memory=1Gi", False),
        ("cpu=1 memory=1Gi", "cpu=1", False),
        ("cpu=1", "cpu=1", False),
        ("memory=1Gi", "memory=1Gi", False),
        ("cpu=0 memory=1Gi", "cpu=0 memory=1Gi", False),
        ("", "", False),
    ],
)
def test_exclusive_grade_means_equal_requests_and_limits_of_cpu_and_memory(
    requests: str, limits: str | None, *, expected: bool
) -> None:
    assert resources(requests, limits).is_exclusive_grade() is expected


def test_the_managers_see_the_init_list_first_and_no_ephemeral_container() -> None:
    kinds = {"app": Kind.APP, "debug": Kind.EPHEMERAL, "setup": Kind.INIT, "proxy": Kind.SIDECAR}
    each = pod("p", *(container(name, kind=kind) for name, kind in kinds.items()))
    assert [c.name for c in each.containers] == ["setup", "proxy", "app"]


def test_memory_amounts_are_memory_and_hugepages() -> None:
    requests = resources("cpu=1 memory=1Gi hugepages-2Mi=2Mi example.com/nic=1").requests
    assert dict(memory_amounts(requests)) == {"memory": 1 << 30, "hugepages-2Mi": 2 << 20}


def test_a_pod_is_named_with_its_namespace() -> None:
    assert pod("db").full_name == "default/db"


@given(pods())
@settings(max_examples=200, deadline=None)
def test_guaranteed_without_a_budget_means_exclusive_grade_throughout(each: Pod) -> None:
    containers = [c.resources for c in each.containers]
    if not each.has_budget and all(r.is_exclusive_grade() for r in containers):
        assert qos_class(each) is QosClass.GUARANTEED
    if not each.has_budget and qos_class(each) is QosClass.GUARANTEED:
        assert sum(r.requests[CPU] for r in containers) == sum(r.limits[CPU] for r in containers)
