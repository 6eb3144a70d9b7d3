"""No pod gets more than was counted for it, and at first only those that the operator chose."""

from dataclasses import replace

import pytest

from agent.core.claims import BUDGET_ANNOTATION, with_annotated_budget
from agent.core.entitlement import (
    NOT_SELECTED,
    UNBACKED_BUDGET,
    UNSUPPORTED_RUNTIME,
    Entitlement,
)
from agent.core.pods import Pod
from tests.strategies import container, pod

BACKED = pod("p", container("db", "cpu=4 memory=4Gi"), container("side", "cpu=2 memory=1Gi"))


def claiming(budget: str, base: Pod = BACKED) -> Pod:
    return with_annotated_budget(replace(base, annotations={BUDGET_ANNOTATION: budget}))


CLUSTER = Entitlement(unbacked_namespaces=frozenset({"trusted"}))


def test_by_default_every_pod_is_entitled() -> None:
    assert Entitlement().refusal(claiming('{"cpu": "64"}')) is None


@pytest.mark.parametrize("budget", ['{"cpu": "6", "memory": "5Gi"}', '{"cpu": "1"}'])
def test_a_budget_that_the_containers_request_is_granted(budget: str) -> None:
    assert CLUSTER.refusal(claiming(budget)) is None


def test_a_budget_beyond_the_requests_is_refused_with_numbers_and_the_cure() -> None:
    refusal = CLUSTER.refusal(claiming('{"cpu": "7500m", "memory": "6Gi"}'))
    assert refusal is not None
    assert refusal[0] == UNBACKED_BUDGET
    assert "claims 1500m of cpu, 1Gi of memory more than" in refusal[1]
    assert "annotations.unbacked.namespaces" in refusal[1]


def test_init_containers_back_a_budget_as_far_as_they_are_counted() -> None:
    init = replace(BACKED, init_containers=(container("i", "cpu=9 memory=1Gi"),))
    assert CLUSTER.refusal(claiming('{"cpu": "9"}', init)) is None
    assert CLUSTER.refusal(claiming('{"cpu": "10"}', init)) is not None


def test_in_a_namespace_that_the_operator_opened_all_is_granted() -> None:
    trusted = replace(BACKED, namespace="trusted")
    assert CLUSTER.refusal(claiming('{"cpu": "64"}', trusted)) is None


def test_spec_resources_need_no_backing_of_ours() -> None:
    assert CLUSTER.refusal(pod("p", container("c"), budget="cpu=4 memory=1Gi")) is None


@pytest.mark.parametrize(
    ("labels", "namespace", "reason"),
    [
        ({"tier": "low-latency", "app": "db"}, "trading", None),
        ({"tier": "low-latency"}, "default", NOT_SELECTED),
        ({"tier": "batch"}, "trading", NOT_SELECTED),
        ({}, "trading", NOT_SELECTED),
    ],
)
def test_only_selected_pods_are_placed(
    labels: dict[str, str], namespace: str, reason: str | None
) -> None:
    chosen = Entitlement(labels={"tier": "low-latency"}, namespaces=frozenset({"trading"}))
    refusal = chosen.refusal(replace(BACKED, labels=labels, namespace=namespace))
    assert (refusal and refusal[0]) == reason


KATA = Entitlement(unsupported_classes=("kata*", "gvisor"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("kata", "RuntimeClass kata"),
        ("kata-qemu", "RuntimeClass kata-qemu"),
        ("gvisor", "RuntimeClass gvisor"),
        ("gvisor-2", ""),
        ("runc", ""),
        ("", ""),
    ],
)
def test_a_class_is_known_by_its_name_as_far_as_the_operator_says(name: str, told: str) -> None:
    assert KATA.own_kernel(replace(BACKED, runtime_class=name)) == told
    assert Entitlement().own_kernel(replace(BACKED, runtime_class=name)) == ""


def test_a_pod_with_a_kernel_of_its_own_is_refused_what_it_asks_for_with_the_cure() -> None:
    asking = pod("p", container("c", "cpu=2 memory=1Gi"))
    told = Entitlement().refusal(replace(asking, own_kernel="runtime runsc"))
    assert told is not None
    assert told[0] == UNSUPPORTED_RUNTIME
    assert "runtime runsc runs it under a kernel of its own" in told[1]
    assert "let a runtime such as runc or crun run it" in told[1]
    assert "unsupportedRuntimeClasses" not in told[1]
    named = Entitlement().refusal(replace(asking, own_kernel="RuntimeClass kata"))
    assert named is not None
    assert named[1].endswith("or take the class out of unsupportedRuntimeClasses")


def test_who_asks_for_nothing_of_its_own_is_refused_nothing() -> None:
    burstable = pod("p", container("c", "cpu=2", ""))
    assert Entitlement().refusal(replace(burstable, own_kernel="runtime runsc")) is None
