"""Decisions that a person can check by hand; the recorded scenarios have the rest.

The node has two sockets with one NUMA node, 8 cores and 16 CPUs each; CPUs 0-1 and 1Gi of node 0 are
reserved, so node 0 gives 14 CPUs and 15Gi, node 1 gives 16 CPUs and 16Gi.
"""

from dataclasses import replace

import pytest

from agent.core.admission import (
    Admitted,
    Rejected,
    admit,
    container_starts,
    remove,
    remove_container,
)
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import MEMORY, Container, Kind, Pod, PodUID
from agent.core.startup import FULL_PCPUS_ONLY, Rules
from agent.core.state import Affinity, Block, NodeState, PodEntry
from tests.strategies import GI, container, machine, pod, rules_for

NODE_0, NODE_1, BOTH = NodeSet([0]), NodeSet([1]), NodeSet([0, 1])
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")

database = container("database", "cpu=4 memory=8Gi")
proxy = container("proxy", "cpu=100m memory=512Mi", "cpu=1500m memory=512Mi")
logs = container("logs", "cpu=50m memory=256Mi", "cpu=500m memory=256Mi")
latency_critical_db = pod("db", database, proxy, logs, budget="cpu=6 memory=9Gi")


def node(**changes: object) -> Rules:
    return rules_for(machine(sockets=2, cores_per_node=8), **changes)


def init(name: str, requests: str) -> Container:
    return container(name, requests, kind=Kind.INIT)


def sidecar(name: str, requests: str) -> Container:
    return container(name, requests, kind=Kind.SIDECAR)


def admitted(rules: Rules, state: NodeState, each: Pod) -> Admitted:
    decision = admit(rules, state, each)
    assert isinstance(decision, Admitted), decision
    return decision


def rejected(rules: Rules, state: NodeState, each: Pod) -> Rejected:
    decision = admit(rules, state, each)
    assert isinstance(decision, Rejected), decision
    return decision


def entry_of(each: Pod, rules: Rules) -> PodEntry:
    """Admit a pod to an empty node."""
    return admitted(rules, rules.initial_state(), each).entry


def cpus(entry: PodEntry) -> dict[str, str]:
    return {name: str(held) for name, held in entry.cpus.items()}


def memory(entry: PodEntry) -> dict[str, dict[str, float]]:
    """Return GiB by type of each container."""
    return {
        name: {block.resource: block.size_bytes / GI for block in blocks}
        for name, blocks in entry.memory.items()
    }


class TestTheExamplesOfTheKep:
    """KEP-5526: one database, two sidecars that share."""

    def test_the_database_is_alone_on_4_of_6_cpus_and_its_sidecars_share_2(self) -> None:
        entry = entry_of(latency_critical_db, node())
        assert str(entry.pool) == "2-7"
        assert cpus(entry) == {"database": "2-5", "proxy": "6-7", "logs": "6-7"}
        assert entry.memory_pool == (Block(NODE_0, MEMORY, 9 * GI),)
        assert memory(entry) == {
            "database": {MEMORY: 8},
            "proxy": {MEMORY: 1},
            "logs": {MEMORY: 1},
        }
        assert set(entry.affinity.values()) == {Affinity(NODE_0, preferred=True)}

    def test_the_same_with_a_whole_slice_for_everybody_takes_7_cpus(self) -> None:
        each = pod(
            "db",
            database,
            container("proxy", "cpu=2 memory=512Mi"),
            container("logs", "cpu=1 memory=256Mi"),
        )
        entry = entry_of(each, node())
        assert entry.pool is None
        assert cpus(entry) == {"database": "2-5", "proxy": "6-7", "logs": "8"}
        assert len(entry.held) == 7

    def test_in_container_scope_only_the_exclusive_container_holds_cpus(self) -> None:
        rules = node(topology_scope="container", memory_policy="None")
        entry = entry_of(latency_critical_db, rules)
        assert entry.pool is None
        assert cpus(entry) == {"database": "2-5"}

    def test_without_a_topology_policy_a_budget_is_decided_container_by_container(self) -> None:
        entry = entry_of(latency_critical_db, node(topology_policy="none", memory_policy="None"))
        assert entry.pool is None
        assert cpus(entry) == {"database": "2-5"}

    def test_a_budget_that_exclusive_containers_use_up_leaves_nothing_to_share(self) -> None:
        each = pod("full", container("a", "cpu=6 memory=1Gi"), proxy, budget="cpu=6 memory=9Gi")
        rules = node()
        decision = rejected(rules, rules.initial_state(), each)
        assert decision.reason == "EmptyPodSharedPoolError"
        assert "equals pod budget, leaving no cpus for shared containers" in decision.message

    @pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
    def test_stricter_policies_refuse_it_by_its_hints_before(self, policy: str) -> None:
        each = pod("full", container("a", "cpu=6 memory=1Gi"), proxy, budget="cpu=6 memory=9Gi")
        rules = node(topology_policy=policy)
        decision = rejected(rules, rules.initial_state(), each)
        assert decision.reason == "TopologyAffinityError"
        assert decision.message == (
            "Pod Scope pod with pod-level resources failed admission "
            "under pod-scope topology manager"
        )

    def test_a_budget_of_no_whole_cpus_isolates_nobodys_cpus_but_pins_the_memory(self) -> None:
        each = pod("half", database, proxy, budget="cpu=5500m memory=9Gi")
        entry = entry_of(each, node())
        assert (entry.pool, cpus(entry)) == (None, {})
        assert entry.memory_pool == (Block(NODE_0, MEMORY, 9 * GI),)

    def test_sidecars_and_init_containers_divide_a_pool_too(self) -> None:
        each = pod(
            "all",
            init("setup", "cpu=3 memory=1Gi"),
            sidecar("mesh", "cpu=1 memory=1Gi"),
            init("warm", ""),
            container("app", "cpu=2 memory=1Gi"),
            container("side", ""),
            budget="cpu=6 memory=8Gi",
        )
        entry = entry_of(each, node())
        assert str(entry.pool) == "2-7"
        assert cpus(entry) == {
            "setup": "2-4",  # ends before the others start
            "mesh": "2",
            "warm": "3-7",  # all but the sidecar
            "app": "4-5",
            "side": "3,6-7",
        }
        assert memory(entry) == {
            "setup": {MEMORY: 1},
            "mesh": {MEMORY: 1},
            "warm": {MEMORY: 7},
            "app": {MEMORY: 1},
            "side": {MEMORY: 6},
        }


class TestPlaces:
    def test_a_pod_that_does_not_fit_beside_the_others_goes_to_the_other_node(self) -> None:
        rules = node()
        state = admitted(rules, rules.initial_state(), latency_critical_db).state
        second = admitted(rules, state, replace(latency_critical_db, uid=PodUID("second")))
        assert str(second.entry.pool) == "16-21"
        assert second.entry.memory_pool == (Block(NODE_1, MEMORY, 9 * GI),)

    def test_a_pod_wider_than_a_node_spans_both(self) -> None:
        entry = entry_of(pod("wide", container("a", "cpu=20 memory=20Gi")), node())
        assert cpus(entry) == {"a": "2-5,16-31"}
        assert entry.memory["a"] == (Block(BOTH, MEMORY, 20 * GI),)

    @pytest.mark.parametrize("policy", ["restricted", "best-effort"])
    def test_restricted_takes_a_preferred_span_and_best_effort_any(self, policy: str) -> None:
        rules = node(topology_policy=policy)
        wide = pod("wide", container("a", "cpu=20 memory=20Gi"))
        assert entry_of(wide, rules).affinity["a"] == Affinity(BOTH, preferred=True)

    def test_one_numa_node_is_not_enough_for_a_span(self) -> None:
        rules = node(topology_policy="single-numa-node")
        wide = pod("wide", container("a", "cpu=20 memory=20Gi"))
        decision = rejected(rules, rules.initial_state(), wide)
        assert decision.reason == "TopologyAffinityError"
        assert decision.message == "Resources cannot be allocated with Topology locality"
        assert len(decision.offers) == 2

    def test_what_is_no_longer_free_on_one_node_is_not_preferred(self) -> None:
        rules = node()
        state = rules.initial_state()
        for name in ("a", "b"):
            state = admitted(rules, state, pod(name, container("c", "cpu=9 memory=1Gi"))).state
        third = admitted(rules, state, pod("third", container("c", "cpu=10 memory=1Gi")))
        assert not third.entry.affinity["c"].preferred
        strict = node(topology_policy="restricted")
        decision = rejected(strict, state, pod("third", container("c", "cpu=10 memory=1Gi")))
        assert decision.reason == "TopologyAffinityError"

    def test_whole_cores_are_checked_before_any_cpu_is_taken(self) -> None:
        rules = node(cpu_options={FULL_PCPUS_ONLY: "true"})
        odd = rejected(rules, rules.initial_state(), pod("p", container("a", "cpu=3 memory=1Gi")))
        assert odd.reason == "SMTAlignmentError"
        assert odd.message == (
            "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
        )
        big = rejected(rules, rules.initial_state(), pod("p", container("a", "cpu=32 memory=1Gi")))
        assert big.message.endswith(
            "available physical CPUs = 30, requested CPUs = 32, CPUs per core = 2"
        )

    @pytest.mark.parametrize("policy", POLICIES)
    def test_pods_that_are_not_guaranteed_hold_nothing(self, policy: str) -> None:
        rules = node(topology_policy=policy)
        light = pod("light", container("a", "cpu=2 memory=1Gi", "cpu=3 memory=1Gi"))
        decision = admitted(rules, rules.initial_state(), light)
        assert decision.state == rules.initial_state()
        assert decision.entry.held == CPUSet()

    def test_the_default_set_keeps_as_many_cpus_as_configured(self) -> None:
        rules = node(min_default_cpus=4)
        most = pod("most", container("a", "cpu=28 memory=1Gi"))
        assert len(admitted(rules, rules.initial_state(), most).state.default) == 4
        more = pod("more", container("a", "cpu=29 memory=1Gi"))
        decision = rejected(rules, rules.initial_state(), more)
        assert decision.reason == "DefaultSetTooSmall"
        assert "would shrink to 3 CPUs, and minDefaultCPUs is 4" in decision.message
        assert decision.state == rules.initial_state()


class TestInitContainers:
    def test_app_containers_take_over_the_cpus_and_memory_of_init_containers(self) -> None:
        each = pod(
            "p",
            init("i", "cpu=4 memory=4Gi"),
            container("a", "cpu=2 memory=2Gi"),
            container("b", "cpu=2 memory=2Gi"),
        )
        entry = entry_of(each, node())
        assert cpus(entry) == {"i": "2-5", "a": "2-3", "b": "4-5"}
        assert memory(entry) == {"i": {MEMORY: 0}, "a": {MEMORY: 2}, "b": {MEMORY: 2}}

    def test_nobody_takes_over_the_cpus_of_a_sidecar(self) -> None:
        each = pod("p", sidecar("s", "cpu=2 memory=1Gi"), container("a", "cpu=2 memory=1Gi"))
        assert cpus(entry_of(each, node())) == {"s": "2-3", "a": "4-5"}

    def test_init_containers_share_cpus_among_themselves(self) -> None:
        each = pod(
            "p",
            init("i", "cpu=2 memory=1Gi"),
            init("j", "cpu=4 memory=1Gi"),
            container("a", "cpu=1 memory=1Gi"),
        )
        assert cpus(entry_of(each, node())) == {"i": "2-3", "j": "2-5", "a": "2"}

    def test_a_start_gives_back_the_memory_of_those_that_ended_but_not_their_cpus(self) -> None:
        rules = node()
        each = pod(
            "p",
            init("i", "cpu=4 memory=4Gi"),
            sidecar("s", "cpu=1 memory=1Gi"),
            container("a", "cpu=1 memory=1Gi"),
        )
        state = admitted(rules, rules.initial_state(), each).state
        assert memory(state.pods[each.uid])["i"] == {MEMORY: 2}
        started = container_starts(state, each, "s")
        assert "i" not in started.pods[each.uid].memory
        assert started.default == state.default
        assert started.pods[each.uid].cpus == state.pods[each.uid].cpus
        assert container_starts(started, each, "a") == started
        assert container_starts(state, each, "i") == state


class TestEnds:
    def test_a_removed_pod_gives_back_everything(self) -> None:
        rules = node()
        state = admitted(rules, rules.initial_state(), latency_critical_db).state
        assert remove(state, latency_critical_db.uid) == rules.initial_state()

    def test_a_pod_that_nobody_knows_is_no_loss(self) -> None:
        state = node().initial_state()
        assert remove(state, PodUID("ghost")) is state
        assert remove_container(state, PodUID("ghost"), "c") is state

    def test_a_pool_comes_back_with_the_last_container(self) -> None:
        rules = node()
        uid = latency_critical_db.uid
        state = admitted(rules, rules.initial_state(), latency_critical_db).state
        for name in ("database", "proxy"):
            state = remove_container(state, uid, name)
            assert str(state.default) == "0-1,8-31"
            assert str(state.pods[uid].pool) == "2-7"
        state = remove_container(state, uid, "logs")
        assert state.default == rules.initial_state().default
        assert state.memory == rules.initial_state().memory
        assert state.pods[uid].pool is None
        assert state.pods[uid].memory_pool is None

    def test_a_slice_comes_back_without_what_the_pods_other_containers_hold(self) -> None:
        rules = node()
        each = pod("p", init("i", "cpu=4 memory=4Gi"), container("a", "cpu=2 memory=2Gi"))
        state = admitted(rules, rules.initial_state(), each).state
        assert str(remove_container(state, each.uid, "i").default) == "0-1,4-31"
        assert str(remove_container(state, each.uid, "a").default) == "0-1,6-31"
        assert remove_container(state, each.uid, "ghost") == state
