"""Resizes that a person can check by hand.

The node has two sockets with one NUMA node, 8 cores and 16 CPUs each; CPUs 0-1 and 1Gi of node 0 are
reserved, so node 0 gives 14 CPUs and 15Gi, node 1 gives 16 CPUs and 16Gi.
"""

from dataclasses import replace

import pytest

from agent.core.admission import Admitted, Rejected, admit, container_starts, remove
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import Kind, Pod
from agent.core.resize import resize
from agent.core.startup import FULL_PCPUS_ONLY, Rules
from agent.core.state import NodeState, PodEntry
from tests.strategies import container, machine, pod, rules_for


def node(policy: str = "best-effort", **changes: object) -> Rules:
    return rules_for(machine(sockets=2, cores_per_node=8), topology_policy=policy, **changes)


def database(cpus: int, *, of: int, memory: str = "9Gi") -> Pod:
    """A database with CPUs of its own beside a proxy that shares the rest of the pod's."""
    return pod(
        "db",
        container("db", f"cpu={cpus} memory=8Gi"),
        container("proxy"),
        budget=f"cpu={of} memory={memory}",
    )


def single(cpus: int, memory: str = "1Gi", uid: str = "single") -> Pod:
    return pod(uid, container("main", f"cpu={cpus} memory={memory}"))


def running(rules: Rules, *pods: Pod) -> NodeState:
    state = rules.initial_state()
    for each in pods:
        verdict = admit(rules, state, each)
        assert isinstance(verdict, Admitted), verdict
        state = verdict.state
    return state


def resized(rules: Rules, state: NodeState, each: Pod) -> PodEntry:
    verdict = resize(rules, state, each)
    assert isinstance(verdict, Admitted), verdict
    return verdict.entry


def refused(rules: Rules, state: NodeState, each: Pod) -> tuple[str, str]:
    verdict = resize(rules, state, each)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.state is state
    return verdict.reason, verdict.message


def shares(entry: PodEntry) -> tuple[str, str, str]:
    """Return the pool, the database's slice, and the proxy's share."""
    return str(entry.pool), str(entry.cpus["db"]), str(entry.cpus["proxy"])


@pytest.mark.parametrize(
    ("cpus", "of", "expected"),
    [
        (4, 6, ("2-7", "2-5", "6-7")),  # nothing new
        (4, 8, ("2-9", "2-5", "6-9")),  # a larger pool
        (5, 6, ("2-7", "2-6", "7")),  # out of the pod shared pool
        (6, 8, ("2-9", "2-5,8-9", "6-7")),  # out of what is new in the pool: the proxy stays
        (2, 6, ("2-7", "2-3", "4-7")),
        (2, 4, ("2-3,6-7", "2-3", "6-7")),  # the database gives, and the proxy stays
        (1, 3, ("2,6-7", "2", "6-7")),
        (4, 5, ("2-6", "2-5", "6")),
    ],
)
def test_pool_and_slice_grow_and_shrink_in_place(
    cpus: int, of: int, expected: tuple[str, str, str]
) -> None:
    rules = node("single-numa-node")
    state = running(rules, database(4, of=6))
    assert shares(resized(rules, state, database(cpus, of=of))) == expected


def test_a_pool_gives_up_whole_cores_where_only_whole_cores_are_given() -> None:
    rules = node(cpu_options={FULL_PCPUS_ONLY: "true"})
    state = running(rules, database(1, of=6))
    assert shares(resized(rules, state, database(1, of=4))) == ("2-5", "2", "3-5")
    assert refused(rules, state, database(1, of=3))[0] == "SMTAlignmentError"


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_strict_policies_refuse_cpus_of_another_numa_node_in_the_kubelets_words(
    policy: str,
) -> None:
    rules = node(policy)
    state = running(rules, database(4, of=6), single(3))
    assert refused(rules, state, database(4, of=12)) == (
        "TopologyAffinityError",
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
    )
    assert refused(rules, state, single(9)) == (
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )
    assert refused(rules, state, single(3, "7Gi"))[0] == "TopologyAffinityError"


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_other_policies_go_on_to_another_numa_node_and_come_back_from_there_first(
    policy: str,
) -> None:
    rules = node(policy)
    state = running(rules, single(12))
    grown = resize(rules, state, single(16))
    assert isinstance(grown, Admitted)
    assert str(grown.entry.cpus["main"]) == "2-17"
    assert str(resized(rules, grown.state, single(14)).cpus["main"]) == "2-15"
    assert str(resized(rules, grown.state, single(12)).cpus["main"]) == "2-13"


def test_a_pod_keeps_its_cpus_when_a_better_place_is_free_now() -> None:
    rules = node("best-effort")
    state = running(rules, single(12, uid="first"), single(4))
    assert str(state.pods[single(4).uid].cpus["main"]) == "16-19"
    state = remove(state, single(12, uid="first").uid)
    assert str(resized(rules, state, single(6)).cpus["main"]) == "16-21"


def test_siblings_swap_amounts_on_a_full_node() -> None:
    def both(a: int, b: int) -> Pod:
        return pod(
            "pod",
            container("a", f"cpu={a} memory={a}Gi"),
            container("b", f"cpu={b} memory={b}Gi"),
        )

    rules = node("single-numa-node")
    state = running(rules, both(3, 5), single(6, "7Gi"))
    assert state.default == CPUSet([0, 1]) | rules.topology.cpus_of(1)
    entry = resized(rules, state, both(5, 3))
    assert {name: str(cpus) for name, cpus in entry.cpus.items()} == {"a": "2-4,8-9", "b": "5-7"}


def test_memory_grows_where_it_is_and_leaves_only_when_it_must() -> None:
    rules = node("best-effort")
    state = running(rules, database(4, of=6))
    for memory, nodes in (("15Gi", [0]), ("16Gi", [0, 1])):
        entry = resized(rules, state, database(4, of=6, memory=memory))
        assert entry.memory_pool is not None
        assert [block.nodes for block in entry.memory_pool] == [NodeSet(nodes)]
        assert entry.cpus == state.pods[database(4, of=6).uid].cpus


def test_memory_that_is_nowhere_is_refused() -> None:
    rules = node("best-effort")
    reason, message = refused(
        rules, running(rules, database(4, of=6)), database(4, of=6, memory="99Gi")
    )
    assert reason == "UnexpectedAdmissionError"
    assert "failed to find NUMA nodes to extend the current topology hint" in message


def test_memory_of_an_init_container_that_has_ended_is_not_asked_for_again() -> None:
    load = container("load", "cpu=1 memory=12Gi", kind=Kind.INIT)
    rules = node("single-numa-node")
    was, asks = (pod("pod", load, container("main", f"cpu={n} memory=1Gi")) for n in (1, 2))
    state = container_starts(running(rules, was), was, "main")
    verdict = resize(rules, state, asks)
    assert isinstance(verdict, Admitted)
    assert verdict.state.memory == state.memory
    assert "load" not in verdict.entry.memory


def test_who_had_no_cpus_of_his_own_gets_them_where_his_memory_is() -> None:
    rules = node("single-numa-node")
    was = pod("pod", container("main", "cpu=1500m memory=9Gi"))
    state = running(rules, single(10, "9Gi"), was)
    assert not state.pods[was.uid].held
    entry = resized(rules, state, pod("pod", container("main", "cpu=2 memory=9Gi")))
    assert str(entry.cpus["main"]) == "16-17"


def test_a_shared_container_that_becomes_exclusive_takes_its_slice_where_it_runs() -> None:
    rules = node()
    asks = replace(
        database(2, of=6),
        app_containers=(
            container("db", "cpu=2 memory=1Gi"),
            container("proxy", "cpu=3 memory=1Gi"),
        ),
    )
    state = running(rules, database(2, of=6))
    assert shares(resized(rules, state, asks)) == ("2-7", "2-3", "4-6")


def test_ephemeral_containers_change_nothing() -> None:
    rules = node()
    state = running(rules, database(4, of=6))
    debugged = replace(
        database(4, of=6), ephemeral_containers=(container("debug", kind=Kind.EPHEMERAL),)
    )
    verdict = resize(rules, state, debugged)
    assert isinstance(verdict, Admitted)
    assert verdict.state is state


def test_who_holds_nothing_yet_is_admitted() -> None:
    rules = node()
    assert resize(rules, rules.initial_state(), single(2)) == admit(
        rules, rules.initial_state(), single(2)
    )


def test_the_default_set_is_spared_unless_it_grows() -> None:
    state = running(node(), single(12))
    rules = node(min_default_cpus=24)
    assert refused(rules, state, single(13))[0] == "DefaultSetTooSmall"
    assert len(resized(rules, state, single(11)).held) == 11


def test_a_cpu_that_went_offline_is_replaced() -> None:
    state = running(node(), single(4))
    whole = node().topology
    rest = replace(whole, cores=tuple(core for core in whole.cores if 2 not in core.cpus))
    entry = resized(rules_for(rest), state, single(5))
    assert str(entry.cpus["main"]) == "4-8"
