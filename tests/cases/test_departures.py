"""Every departure by its name: the kubelet's answer, ours, and the line between them.

Where a departure is always on, the kubelet's answer is a recorded one, or follows from its own rule.
``init_inside_app`` has a module of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.core import departures
from agent.core.admission import Admitted, admit
from agent.core.cgroups import CpuMax
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.departures import (
    DOUBLE_ALLOCATION,
    HUGEPAGE_POOL_RULE,
    INIT_APART,
    LEAKED_CPUS,
    MORE_THAN_8_NODES,
    NO_PANIC,
    POD_QUOTA,
    READMIT,
    SHARED_CONTAINER_MEMORY,
)
from agent.core.desired import container_quota, pod_quota
from agent.core.distribute import take
from agent.core.pods import MEMORY, Kind
from agent.core.policy import Policy
from agent.core.startup import CLOSEST, DISTRIBUTE_NUMA, MAX_NODES, StartupRefused, start
from agent.core.take import Pool, TakeOptions
from agent.core.topology import Core, NodeTopology, NumaNode
from tests.conformance.node import Node
from tests.conformance.scenario import pod as scenario_pod
from tests.conformance.scenario import policy as scenario_policy
from tests.conformance.scenario import read_scenarios
from tests.conformance.scenario import topology as scenario_topology
from tests.strategies import GI, HUGE, machine

from .pods import admitted, app, asking, init, pod, rejected, rules, sharing, sidecar

VECTORS = Path(__file__).parents[1] / "data/conformance"
TWO_NODES = machine(sockets=2, cores_per_node=8, threads=1, huge_pages=512)
pod_scope = partial(rules, TWO_NODES, policy="best-effort", scope="pod")


def test_nothing_that_is_opt_in_is_on_by_default() -> None:
    assert Policy().departures == frozenset()


def test_every_departure_has_a_name_and_a_paragraph() -> None:
    text = Path(departures.__file__).read_text(encoding="utf-8")
    names = re.findall(r'^[A-Z_0-9]+ = "(\w+)"\n"""', text, re.MULTILINE)
    assert set(names) >= departures.OPT_IN
    assert len(names) == len(re.findall(r'^[A-Z_0-9]+ = "', text, re.MULTILINE))


# shared_container_memory

KEP_EXAMPLE = pod(app("main", 4), sharing("log"), sharing("mon"), budget=asking(6, gib=4))


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_shared_container_memory_places_the_keps_container_scope_example(policy: str) -> None:
    kubelet = rules(TWO_NODES, policy=policy)
    assert "[memorymanager]" in rejected(kubelet, KEP_EXAMPLE).message
    ours = admitted(rules(TWO_NODES, SHARED_CONTAINER_MEMORY, policy=policy), KEP_EXAMPLE)
    assert str(ours.entry.cpus["main"]) == "1-4"
    assert ours.entry.cpus.keys() == ours.entry.memory.keys() == {"main"}
    assert ours.entry.memory["main"][0].nodes == NodeSet([0])


def test_shared_container_memory_places_what_the_kubelet_was_recorded_to_reject() -> None:
    tag = "quirk:shared_container_memory_reject"
    found = [s for s in read_scenarios(VECTORS / "kep_examples.jsonl.gz") if tag in s["tags"]]
    assert found
    for scenario in found:
        (step,) = scenario["steps"]
        plain = scenario_policy(scenario["config"])
        opted_in = replace(plain, departures=frozenset({SHARED_CONTAINER_MEMORY}))
        for policy, answer in ((plain, step["expect"]["admitted"]), (opted_in, True)):
            ruled = start(scenario_topology(scenario["machine"]), policy)
            decision = admit(ruled, ruled.initial_state(), scenario_pod(step["pod"]))
            assert isinstance(decision, Admitted) is answer, (scenario["id"], decision)


# init_apart


def test_init_apart_keeps_the_cpus_of_an_init_container_from_the_app() -> None:
    p = pod(init("i", 2), init("j", 1), sidecar("s", 1), app("a", 3))
    kubelet = admitted(rules(TWO_NODES), p).entry
    assert texts(kubelet.cpus) == {"i": "1-2", "j": "1", "s": "1", "a": "2-4"}
    ours = admitted(rules(TWO_NODES, INIT_APART), p).entry
    assert texts(ours.cpus) == {"i": "1-2", "j": "3", "s": "4", "a": "5-7"}


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_init_apart_looks_for_a_node_that_has_room_for_the_sum(scope: str) -> None:
    p = pod(init("i", 4), app("a", 4))
    aligned = partial(rules, TWO_NODES, policy="single-numa-node", scope=scope)
    assert texts(admitted(aligned(), p).entry.cpus) == {"i": "1-4", "a": "1-4"}
    apart = aligned(INIT_APART)
    if scope == "pod":
        assert texts(admitted(apart, p).entry.cpus) == {"i": "8-11", "a": "12-15"}
    else:
        # Each container is aligned by itself: two nodes, one for each, are in order.
        assert texts(admitted(apart, p).entry.cpus) == {"i": "1-4", "a": "8-11"}


def test_init_apart_divides_the_pool_of_a_budget_among_all() -> None:
    p = pod(init("i", 2), app("a", 2), sharing("log"), budget=asking(6, gib=4))
    kubelet = admitted(pod_scope(), p).entry
    assert texts(kubelet.cpus) == {"i": "1-2", "a": "1-2", "log": "3-6"}
    ours = admitted(pod_scope(INIT_APART), p).entry
    assert texts(ours.cpus) == {"i": "1-2", "a": "3-4", "log": "5-6"}


def test_init_apart_wants_a_budget_that_leaves_something_for_those_who_share() -> None:
    p = pod(init("i", 4), app("a", 2), sharing("log"), budget=asking(6, gib=4))
    assert admitted(pod_scope(), p).entry.cpus["log"]
    ours = rejected(pod_scope(INIT_APART), p)
    assert ours.reason == "EmptyPodSharedPoolError"
    too_small = pod(init("i", 4), app("a", 4), budget=asking(6, gib=4))
    message = rejected(pod_scope(INIT_APART), too_small).message
    assert "requested=4, available=2" in message


# hugepage_pool_rule


def test_hugepage_pool_rule_lets_a_sidecar_that_asks_for_no_hugepages_be() -> None:
    pages = 64 << 20
    p = pod(app("main", 4, huge=pages), sharing("log"), budget=asking(6, gib=4, huge=pages))
    kubelet = rejected(pod_scope(), p)
    assert kubelet.reason == "EmptyPodSharedPoolError"
    assert HUGE in kubelet.message
    ours = admitted(pod_scope(HUGEPAGE_POOL_RULE), p).entry
    assert {b.resource: b.size_bytes for b in ours.memory["log"]} == {MEMORY: 3 * GI}


@pytest.mark.parametrize("kind", [Kind.APP, Kind.SIDECAR, Kind.INIT])
def test_hugepage_pool_rule_still_wants_pages_for_whoever_asks_for_some(kind: Kind) -> None:
    pages = 64 << 20
    asks = sharing("log", kind, {HUGE: 2 << 20})
    p = pod(sidecar("s", 4, huge=pages), asks, app("a", 1), budget=asking(7, gib=4, huge=pages))
    ours = rules(TWO_NODES, HUGEPAGE_POOL_RULE, policy="best-effort", scope="pod")
    assert rejected(ours, p).reason == "EmptyPodSharedPoolError"


# double_allocation


def test_double_allocation_passes_over_a_core_that_is_somebodys_in_part() -> None:
    # 10 CPUs // 7 cores is 1, so the kubelet takes a core with one free thread for a whole one.
    threads = ((0, 1), (2, 3), (4, 5), (6,), (7,), (8,), (9,))
    hybrid = NodeTopology(
        nodes=(NumaNode(id=0, memory_bytes=16 * GI, distances=(10,)),),
        cores=tuple(Core(cpus=CPUSet(t), node=0, socket=0, uncore=0) for t in threads),
        socket_count=1,
    )
    ours = admitted(rules(hybrid), pod(app("a", 2)))
    assert texts(ours.entry.cpus) == {"a": "6-7"}
    assert ours.departures == {DOUBLE_ALLOCATION}
    # The kubelet's rule: whatever lies in the core counts as nobody's.
    free, everything = CPUSet.parse("1-9").bits, hybrid.cpus.bits
    kubelet = take(hybrid, Pool(free, unowned=everything), 2, TakeOptions())
    assert str(CPUSet.from_bits(kubelet.bits)) == "0-1"


# leaked_cpus


def test_leaked_cpus_a_rejected_pod_leaves_nothing_behind() -> None:
    too_small = pod(app("a", 4), budget=asking(2, gib=4))
    ruled = rules(TWO_NODES, policy="best-effort", scope="pod")
    ours = rejected(ruled, too_small)
    assert ours.departures == {LEAKED_CPUS}
    assert str(ours.leftover.pool) == "1-2"  # what the kubelet keeps
    assert ours.state == ruled.initial_state()


# readmit


def test_readmit_keeps_what_the_kubelet_was_recorded_to_refuse_or_to_place_anew() -> None:
    seen = set()
    for scenario in read_scenarios(VECTORS / "checkpoints.jsonl.gz"):
        if "quirk:readmit_reallocates" not in scenario["tags"]:
            continue
        node = Node(scenario["machine"], scenario["config"])
        node.start()
        for step in scenario["steps"]:
            before = node.state
            answer = node.take(step, hints=False)
            if step["op"] == "readmit" and READMIT in answer.departures:
                assert node.state == before
                assert answer.ours["admitted"]
                seen.add(step["expect"]["admitted"])
        if len(seen) == 2:
            break
    assert seen == {False, True}


# more_than_8_nodes


def test_more_than_8_nodes_need_no_option() -> None:
    topology = machine(sockets=3, nodes_per_socket=3, cores_per_node=2)
    with pytest.raises(StartupRefused, match="more than 8 NUMA Nodes"):
        rules(topology, policy="restricted", topology_options={MAX_NODES: "8"})
    ruled = rules(topology, policy="restricted")
    ours = admitted(ruled, pod(app("a", 4)))
    assert ours.departures == {MORE_THAN_8_NODES}
    assert len(topology.nodes_of(ours.entry.held)) == 1
    asked_for = rules(topology, policy="restricted", topology_options={MAX_NODES: "9"})
    assert admitted(asked_for, pod(app("a", 4))).departures == frozenset()


def test_more_than_8_nodes_distribute_over_as_few_as_can_hold_equal_shares() -> None:
    topology = machine(sockets=3, nodes_per_socket=3, cores_per_node=4, threads=1)
    ruled = rules(topology, cpu_options={DISTRIBUTE_NUMA: "true"})
    first = admitted(ruled, pod(app("a", 6), uid="first"))
    # Node 0 has 3 free, the others 4: two that are fuller of free CPUs give 3 each.
    assert texts(first.entry.cpus) == {"a": "4-6,8-10"}
    assert first.departures == {MORE_THAN_8_NODES}
    second = admitted(ruled, pod(app("a", 9), uid="second"), first.state)
    assert texts(second.entry.cpus) == {"a": "12-14,16-18,20-22"}


# no_panic


def test_no_panic_over_numa_node_ids_above_63() -> None:
    topology = sparse(0, 64, 200)
    for policy in ("none", "best-effort", "restricted", "single-numa-node"):
        ours = admitted(rules(topology, policy=policy), pod(app("a", 3), app("b", 4)))
        assert NO_PANIC in ours.departures
        assert topology.nodes_of(ours.entry.cpus["b"]) == NodeSet([64])
        assert ours.entry.memory["a"][0].nodes == NodeSet([0])
    # Nobody makes sets of nodes here, so the kubelet would not crash either.
    assert admitted(rules(topology, memory=False), pod(app("a", 3))).departures == frozenset()


def test_no_panic_over_sparse_ids_where_the_closest_nodes_are_preferred() -> None:
    topology = sparse(0, 8, 252, distances=((10, 40, 20), (40, 10, 40), (20, 40, 10)))
    p = pod(app("a", 6, gib=10))
    plain = admitted(rules(sparse(0, 8, 9), policy="restricted"), p)
    assert plain.departures == frozenset()
    ruled = rules(topology, policy="restricted", topology_options={CLOSEST: "true"})
    ours = admitted(ruled, p)
    assert NO_PANIC in ours.departures
    assert topology.nodes_of(ours.entry.held) == NodeSet([0, 252])


def test_no_panic_over_hugepages_of_a_size_that_a_node_lacks() -> None:
    topology = sparse(0, 1, pages={1: {2048: 512}})
    p = pod(app("a", 2, huge=64 << 20))
    for policy in ("none", "restricted", "single-numa-node"):
        ours = admitted(rules(topology, policy=policy), p)
        assert ours.departures == {NO_PANIC}
        assert {b.nodes for b in ours.entry.memory["a"]} == {NodeSet([1])}
        assert admitted(rules(topology, policy=policy), pod(app("a", 2))).departures == frozenset()
    nowhere = rejected(rules(sparse(0, 1), policy="restricted"), p)
    assert nowhere.reason == "UnexpectedAdmissionError"
    assert nowhere.departures == {NO_PANIC}


def sparse(
    *ids: int,
    distances: tuple[tuple[int, ...], ...] = (),
    pages: Mapping[int, Mapping[int, int]] | None = None,
) -> NodeTopology:
    """Return a machine with four CPUs on each NUMA node, and rows as long as there are nodes."""
    rows = distances or [[10 if a == b else 20 for b in ids] for a in ids]
    return NodeTopology(
        nodes=tuple(
            NumaNode(
                id=node,
                memory_bytes=8 * GI,
                hugepages=(pages or {}).get(node, {}),
                distances=tuple(row),
            )
            for node, row in zip(ids, rows, strict=True)
        ),
        cores=tuple(
            Core(cpus=CPUSet([4 * i + n]), node=node, socket=i, uncore=i)
            for i, node in enumerate(ids)
            for n in range(4)
        ),
        socket_count=len(ids),
    )


# pod_quota


def test_pod_quota_is_lifted_as_soon_as_one_container_is_exclusive() -> None:
    p = pod(app("main", 4), sharing("log"), budget=asking(6, gib=4))
    kubelet, ours = pod_scope(), pod_scope(POD_QUOTA)
    entry = admitted(kubelet, p).entry
    assert admitted(ours, p).entry == entry
    assert pod_quota(Demand(kubelet, p), entry) == CpuMax(600_000)
    assert pod_quota(Demand(ours, p), entry) == CpuMax(None)
    main, log = p.app_containers
    for demand in (Demand(kubelet, p), Demand(ours, p)):
        assert container_quota(demand, entry, main) == CpuMax(None)
        assert container_quota(demand, entry, log) == CpuMax(600_000)


def test_pod_quota_stays_where_everybody_shares() -> None:
    p = pod(sharing("a"), sharing("b"), budget=asking(6, gib=4))
    ours = rules(TWO_NODES, POD_QUOTA, policy="best-effort", scope="pod")
    entry = admitted(ours, p).entry
    assert str(entry.pool) == "1-6"
    assert pod_quota(Demand(ours, p), entry) == CpuMax(600_000)


def texts(cpus: Mapping[str, CPUSet]) -> dict[str, str]:
    return {name: str(found) for name, found in cpus.items()}
