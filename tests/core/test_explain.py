from dataclasses import replace

import pytest
from hypothesis import given, settings

from agent.core.admission import Rejected, admit
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.departures import POD_QUOTA
from agent.core.explain import PodVerdict, explain
from agent.core.isolation import Isolation
from agent.core.pods import Container, Kind, Pod, QosClass
from agent.core.restore import rebuild
from agent.core.startup import Rules
from tests.props.test_promises import moments
from tests.strategies import GI, Step, container, histories, machine, pod, rules, rules_for

BUDGET = "cpu=6 memory=9Gi"
database = container("database", "cpu=4 memory=8Gi")
proxy = container("proxy", "cpu=100m memory=512Mi", "cpu=1500m memory=512Mi")


def verdict(each: Pod, **changes: object) -> PodVerdict:
    """Decide on a pod on two empty sockets of 16 CPUs each, and explain it."""
    rules = rules_for(machine(sockets=2, cores_per_node=8), **changes)
    decision = admit(rules, rules.initial_state(), each)
    rejection = (decision.reason, decision.message) if isinstance(decision, Rejected) else None
    return explain(rules, decision.state, each, rejection)


def test_a_mixed_pod_is_told_who_is_exclusive_and_who_shares_what() -> None:
    told = verdict(pod("mixed", database, proxy, budget=BUDGET), departures=frozenset({POD_QUOTA}))
    assert (told.qos, told.admitted, told.reason) == (QosClass.GUARANTEED, True, "")
    assert (told.pool, told.nodes) == (CPUSet.parse("2-7"), NodeSet([0]))
    assert str(told.cpu_max) == "max 100000"
    first, second = told.containers
    assert (first.name, first.verdict) == ("database", Isolation.EXCLUSIVE)
    assert first.reason == "requests and limits are equal, and cpu 4 is a whole number"
    assert (first.cpus, first.mems) == (CPUSet.parse("2-5"), NodeSet([0]))
    assert [b.size_bytes for b in first.memory] == [8 * GI]
    assert (second.name, second.verdict) == ("proxy", Isolation.POD_SHARED)
    assert second.reason == "its cpu request differs from its limit"
    assert (second.cpus, str(second.cpu_max)) == (CPUSet.parse("6-7"), "150000 100000")


@pytest.mark.parametrize(
    ("each", "reason"),
    [
        (container("c"), "it requests no cpu"),
        (container("c", "cpu=2"), "it requests no memory"),
        (container("c", "memory=1Gi"), "it requests no cpu"),
        (
            container("c", "cpu=2 memory=1Gi", "memory=1Gi"),
            "its cpu request differs from its limit",
        ),
        (
            container("c", "cpu=2 memory=1Gi", "cpu=2 memory=2Gi"),
            "its memory request differs from its limit",
        ),
        (container("c", "cpu=1500m memory=1Gi"), "cpu 1500m is not a whole number"),
    ],
)
def test_a_container_that_shares_its_pods_pool_is_told_why(each: Container, reason: str) -> None:
    told = verdict(pod("p", each, budget="cpu=4 memory=4Gi")).containers[0]
    assert (told.verdict, told.reason) == (Isolation.POD_SHARED, reason)


NOT_GUARANTEED = (
    "the pod is not Guaranteed: its cpu and memory limits must be set and equal requests"
)


@pytest.mark.parametrize(
    ("each", "changes", "reason"),
    [
        (pod("p", container("c")), {}, NOT_GUARANTEED),
        (pod("p", container("c", "cpu=1", "cpu=2")), {}, NOT_GUARANTEED),
        (pod("p", container("c", "cpu=1 memory=1Gi"), budget="cpu=2"), {}, NOT_GUARANTEED),
        (
            pod("p", container("c", "cpu=1500m memory=1Gi")),
            {},
            "cpu 1500m is not a whole number",
        ),
        (
            pod("p", container("c", "cpu=1 memory=1Gi")),
            {"cpu_policy": "none"},
            "cpuManagerPolicy is none",
        ),
        (
            pod("p", container("c", "cpu=1 memory=1Gi"), budget="cpu=2 memory=2Gi"),
            {"feature_gates": {"PodLevelResourceManagers": False}},
            "the pod has a budget, and the feature gate PodLevelResourceManagers is off",
        ),
        (
            pod("p", container("c", "cpu=1 memory=1Gi"), budget="cpu=2500m memory=2Gi"),
            {},
            "the pod's budget is not a whole number of CPUs",
        ),
        (
            pod("p", container("c", "cpu=1 memory=1Gi", ""), budget="cpu=2 memory=2Gi"),
            {"topology_scope": "container", "memory_policy": "None"},
            "its cpu request differs from its limit",
        ),
    ],
)
def test_a_container_that_runs_on_the_default_set_is_told_why(
    each: Pod, changes: dict[str, object], reason: str
) -> None:
    told = verdict(each, **changes)
    assert told.admitted
    assert (told.containers[0].verdict, told.containers[0].reason) == (
        Isolation.NODE_SHARED,
        reason,
    )


def test_the_containers_of_a_rejected_pod_are_told_its_reason() -> None:
    told = verdict(pod("p", container("c", "cpu=64 memory=1Gi")))
    assert (told.admitted, told.reason) == (False, "UnexpectedAdmissionError")
    assert told.message.startswith("Allocate failed due to not enough cpus available")
    assert told.pool == CPUSet()
    assert told.containers[0].reason == "the pod was rejected: UnexpectedAdmissionError"
    assert told.containers[0].verdict is Isolation.NODE_SHARED


def test_an_ephemeral_container_runs_on_the_shared_cpus_of_the_node() -> None:
    debug = container("debug", kind=Kind.EPHEMERAL)
    told = verdict(pod("mixed", database, proxy, debug, budget=BUDGET)).containers[-1]
    assert (told.kind, told.verdict) == (Kind.EPHEMERAL, Isolation.NODE_SHARED)
    assert told.reason == "ephemeral containers run on the node's shared CPUs"
    assert told.cpus == CPUSet.parse("0-1,8-31")


def test_the_nodes_of_a_pod_are_those_of_its_memory_or_else_of_its_cpus() -> None:
    each = pod("p", container("c", "cpu=20 memory=1Gi"))
    assert verdict(each, memory_policy="None").nodes == NodeSet([0, 1])
    assert verdict(pod("p", container("c", "cpu=1 memory=20Gi"))).nodes == NodeSet([0, 1])
    assert verdict(pod("p", container("c"))).nodes == NodeSet()


@pytest.mark.parametrize("now", ["cpu=1500m memory=1Gi", "cpu=4 memory=1Gi", "memory=1Gi"])
def test_who_holds_other_cpus_than_he_asks_for_now_is_told_that_he_keeps_them(now: str) -> None:
    rules = rules_for(machine(sockets=2, cores_per_node=8))
    before = admit(rules, rules.initial_state(), pod("p", container("c", "cpu=2 memory=1Gi")))
    changed = pod("p", container("c", now))

    (told,) = explain(rules, admit(rules, before.state, changed).state, changed).containers

    assert (told.verdict, told.cpus) == (Isolation.EXCLUSIVE, CPUSet([2, 3]))
    assert told.reason == "it runs, and keeps the CPUs that it was given for what it asked then"


def test_without_a_cpu_manager_nobody_is_exclusive_whatever_he_was_given_before() -> None:
    two_sockets = machine(sockets=2, cores_per_node=8)
    static, none = (rules_for(two_sockets, cpu_policy=policy) for policy in ("static", "none"))
    each = pod("mixed", database, proxy, budget=BUDGET)
    state = rebuild(none, admit(static, static.initial_state(), each).state.pods)

    told = explain(none, state, each)

    assert (told.admitted, told.pool, str(told.cpu_max)) == (True, CPUSet(), "600000 100000")
    assert [(c.verdict, c.reason) for c in told.containers] == [
        (Isolation.NODE_SHARED, "cpuManagerPolicy is none")
    ] * 2
    assert {c.cpus for c in told.containers} == {two_sockets.cpus}
    assert [str(c.cpu_max) for c in told.containers] == ["400000 100000", "150000 100000"]


@given(rules(), histories())
@settings(max_examples=60, deadline=None)
def test_everybody_is_told_something(rules: Rules, history: list[Step]) -> None:
    for moment in moments(rules, history):
        for each in moment.pods.values():
            told = explain(rules, moment.state, each)
            names = [c.name for c in (*each.containers, *each.ephemeral_containers)]
            assert [c.name for c in told.containers] == names
            assert all(c.reason for c in told.containers)
            for c in told.containers:
                if c.verdict is Isolation.EXCLUSIVE:
                    assert c.reason.startswith("requests and limits are equal")
                    assert c.cpus <= told.pool
                    assert str(c.cpu_max) == "max 100000"


def test_under_a_kernel_of_its_own_every_container_has_that_verdict_and_the_cure() -> None:
    debug = container("debug", kind=Kind.EPHEMERAL)
    own = replace(
        pod("kata", container("c"), container("d", "cpu=1")),
        ephemeral_containers=(debug,),
        own_kernel="runtime kata-qemu",
    )
    told = verdict(own)
    assert {c.verdict for c in told.containers} == {Isolation.UNSUPPORTED_RUNTIME}
    assert all("let a runtime such as runc or crun run it" in c.reason for c in told.containers)
    assert {str(c.cpus) for c in told.containers} == {"0-31"}
