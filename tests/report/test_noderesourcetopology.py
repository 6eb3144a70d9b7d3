import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet
from agent.core.pods import Pod, PodUID
from agent.core.policy import Policy
from agent.core.startup import start
from agent.errors import EnvironmentProblem
from agent.node.sysfs import read_topology
from agent.ports import Snapshot
from agent.report.noderesourcetopology import TopologyExport, load_fingerprint, topology_object
from agent.simulation.machine import read_machine
from tests.reconciler.rig import exclusive_pod
from tests.strategies import GI, HUGE_BYTES, machine

from .api_model import APPLY, NODE, NODE_UID, ApiModel, Asked, status
from .rig import empty_snapshot, snapshot_of
from .telling import Telling

fingerprint = load_fingerprint()

A, B = exclusive_pod("a", 3), exclusive_pod("b", 2)
SMALL = """
analytics controller-69dkj
kube-public subscriber-tq6v7
kube-public transformer-hfbng
kube-public validator-c6pn5
kube-system proxy-wszrd
middleware processor-jkrl4
network gateway-vsll5
network importer-kzdfr
network importer-q5vt9
staging prometheus-bwgbn
"""
TINY = "production jaeger-dpgjk\nproduction nginx-rt684\nproduction envoy-g9m22"


def named(namespace: str, name: str) -> Pod:
    return Pod(uid=PodUID(f"{namespace}/{name}"), namespace=namespace, name=name)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("namespace1 pod1", "pfp0v0019e0420efb37746c6"),
        (TINY, "pfp0v001607b76a0e9d3aeb4"),
        (SMALL, "pfp0v001567144e4a561bb5a"),
    ],
    ids=["scheduler-plugins", "podfingerprint tiny-3pods-1ns", "podfingerprint small-10pods-3ns"],
)
def test_the_fingerprint_is_as_published(listed: str, expected: str) -> None:
    assert fingerprint(named(*line.split()) for line in listed.split("\n") if line) == expected


NAMES = st.lists(st.tuples(st.text("abc", max_size=3), st.text("abc", max_size=3)), unique=True)


@given(NAMES, st.randoms(use_true_random=False))
def test_the_fingerprint_does_not_depend_on_the_order(
    names: list[tuple[str, str]], random: Any
) -> None:
    pods = [named(*name) for name in names]
    shuffled = random.sample(pods, len(pods))
    assert fingerprint(pods) == fingerprint(shuffled)
    assert fingerprint(pods) != fingerprint([*pods, named("x", "y")])


def test_without_xxhash_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'numalet\[nrt\]'"):
        load_fingerprint()


def test_a_zone_a_numa_node_says_what_there_is_and_what_is_left() -> None:
    made = topology_object(snapshot_of(A), NODE, None)
    assert made == {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": NODE},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "pod"},
        ],
        "zones": [
            {
                "name": "node-0",
                "type": "Node",
                "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 20}],
                "resources": [
                    resource("cpu", "8", "7", "4"),
                    resource("memory", "16Gi", "15872Mi", "14848Mi"),
                ],
            },
            {
                "name": "node-1",
                "type": "Node",
                "costs": [{"name": "node-0", "value": 20}, {"name": "node-1", "value": 10}],
                "resources": [
                    resource("cpu", "8", "8", "8"),
                    resource("memory", "16Gi", "16Gi", "16Gi"),
                ],
            },
        ],
    }


def resource(name: str, capacity: str, allocatable: str, available: str) -> dict[str, str]:
    return {
        "name": name,
        "capacity": capacity,
        "allocatable": allocatable,
        "available": available,
    }


def snapshot_for(policy: Policy, huge_pages: int = 0) -> Snapshot:
    rules = start(machine(sockets=2, huge_pages=huge_pages), policy)
    return replace(empty_snapshot(), rules=rules, state=rules.initial_state(), ready=True)


def test_hugepages_are_a_resource_of_their_own() -> None:
    policy = Policy(
        cpu_policy="none",
        reserved_memory=((0, {"memory": GI}),),
        node_reservation={"memory": GI},
    )
    made = zones(topology_object(snapshot_for(policy, huge_pages=512), NODE, None))
    assert made["node-0"]["hugepages-2Mi"] == ("1Gi", "1Gi", "1Gi")
    assert made["node-0"]["memory"] == ("16Gi", "14Gi", "14Gi")
    assert HUGE_BYTES * 512 == GI
    assert made["node-0"]["cpu"] == ("8", "8", "8")


def test_memory_that_nobody_manages_is_left_to_the_scheduler() -> None:
    policy = Policy(cpu_policy="none", memory_policy="None", topology_policy="none")
    made = topology_object(snapshot_for(policy), NODE, None)
    assert list(zones(made)["node-0"]) == ["cpu"]


def zones(made: dict[str, Any]) -> dict[str, dict[str, tuple[str, str, str]]]:
    return {
        zone["name"]: {
            r["name"]: (r["capacity"], r["allocatable"], r["available"]) for r in zone["resources"]
        }
        for zone in made["zones"]
    }


def test_the_options_of_the_topology_manager_are_attributes() -> None:
    policy = Policy(
        cpu_policy="none",
        memory_policy="None",
        topology_policy="restricted",
        topology_scope="container",
        topology_options={"prefer-closest-numa-nodes": "1", "max-allowable-numa-nodes": "12"},
    )
    assert attributes(topology_object(snapshot_for(policy), NODE, None)) == {
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "container",
        "topologyManagerOptionMaxAllowableNumaNodes": "12",
        "topologyManagerOptionPreferClosestNumaNodes": "true",
        "topologyManagerMaxNUMANodes": "12",
    }


def attributes(made: Any) -> dict[str, str]:
    return {attribute["name"]: attribute["value"] for attribute in made["attributes"]}


def test_the_fingerprint_is_of_all_pods_of_the_node() -> None:
    rejected = exclusive_pod("big", 64)
    made = attributes(topology_object(snapshot_of(A, rejected), NODE, fingerprint))
    assert made["nodeTopologyPodsFingerprint"] == fingerprint([rejected, A])
    assert made["nodeTopologyPodsFingerprintMethod"] == "all"


class Cluster:
    """A node whose topology is exported."""

    def __init__(self, api: ApiModel) -> None:
        self.api = api
        self.export = TopologyExport(NODE, fingerprint)
        self.telling = Telling(api, self.export)

    def show(self, *pods: Pod, seconds: float = 10.0) -> None:
        self.telling.outbound.publish(snapshot_of(*pods))
        self.telling.run(seconds)

    @property
    def trouble(self) -> str:
        return self.telling.outbound.numbers().troubles.get("topology", "")

    @property
    def written(self) -> list[Asked]:
        return self.api.of("PATCH")


def test_the_object_is_made_and_belongs_to_the_node() -> None:
    cluster = Cluster(ApiModel())
    cluster.show(A)
    (asked,) = cluster.written
    assert asked.content_type == APPLY
    assert asked.query == {"fieldManager": ["numalet"]}
    assert asked.body["metadata"] == {
        "name": NODE,
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE_UID},
        ],
    }
    assert zones(dict(asked.body))["node-0"]["cpu"] == ("8", "7", "4")


def test_it_is_written_when_it_changes_and_then_once() -> None:
    cluster = Cluster(ApiModel())
    for pods in ([A], [A], [A, B], [A, B]):
        cluster.show(*pods)
    assert len(cluster.written) == 2
    assert len(cluster.api.requests) == 4  # the node and the first look are asked for once


def test_many_changes_are_written_every_five_seconds_the_last_one_always() -> None:
    cluster = Cluster(ApiModel())
    for number in range(200):
        cluster.show(exclusive_pod(f"p{number}", 1 + number % 7), seconds=0.1)
    cluster.show(A, seconds=10)
    assert 4 <= len(cluster.written) <= 6
    assert cluster.api.topology is not None
    assert attributes(cluster.api.topology)["nodeTopologyPodsFingerprint"] == fingerprint([A])


def test_an_object_that_was_removed_comes_back_within_the_hour() -> None:
    cluster = Cluster(ApiModel())
    cluster.show(A)
    cluster.api.topology = None
    for _ in range(361):
        cluster.show(A, seconds=10)
    assert len(cluster.written) == 2


def test_the_next_agent_writes_its_own_object_on() -> None:
    api = ApiModel()
    Cluster(api).show(A)
    cluster = Cluster(api)
    cluster.show(A, B)
    assert cluster.trouble == ""
    assert len(cluster.written) == 2


@pytest.mark.parametrize("values", ["other", "the same"])
def test_an_object_of_another_exporter_is_not_written_over(values: str) -> None:
    api = ApiModel()
    theirs = topology_object(snapshot_of() if values == "other" else snapshot_of(A), NODE, None)
    api.ask("PATCH", path_for("nfd-topology-updater"), theirs, content_type=APPLY)
    cluster = Cluster(api)
    cluster.show(A, seconds=3000)
    assert len(cluster.written) == 1  # theirs
    assert "it belongs to nfd-topology-updater; stop the other exporter" in cluster.trouble
    assert len(api.requests) <= 8

    api.topology = None
    cluster.show(A, seconds=700)
    assert cluster.trouble == ""
    assert len(cluster.written) == 2


def path_for(manager: str) -> str:
    return (
        f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{NODE}"
        f"?fieldManager={manager}&force=true"
    )


def test_an_object_that_another_exporter_takes_over_is_left_to_it() -> None:
    api = ApiModel()
    cluster = Cluster(api)
    cluster.show(A)
    theirs = topology_object(snapshot_of(), NODE, None)
    api.ask("PATCH", path_for("rte"), theirs, content_type=APPLY)
    cluster.show(A, B, seconds=100)
    assert "conflict with rte .zones" in cluster.trouble
    assert api.topology is not None
    assert api.topology["zones"] == theirs["zones"]


def test_an_object_of_nobody_is_not_ours() -> None:
    api = ApiModel(topology={"kind": "NodeResourceTopology", "metadata": {"name": NODE}})
    cluster = Cluster(api)
    cluster.show(A, seconds=100)
    assert cluster.written == []
    assert "an unknown exporter" in cluster.trouble


def test_without_the_definition_it_is_asked_for_every_ten_minutes() -> None:
    api = ApiModel(has_crd=False)
    cluster = Cluster(api)
    for _ in range(60):
        cluster.show(A, seconds=60)
    assert len(api.requests) == 1 + 6
    assert "is not installed" in cluster.trouble
    assert cluster.written == []

    api.has_crd = True
    cluster.show(A, seconds=700)
    assert cluster.trouble == ""
    assert len(cluster.written) == 1


def test_a_definition_that_goes_away_is_no_refusal() -> None:
    api = ApiModel()
    cluster = Cluster(api)
    cluster.show(A)
    api.has_crd = False
    cluster.show(A, B, seconds=700)
    assert "is not installed" in cluster.trouble
    assert cluster.telling.outcomes["topology", "said"] == 1
    assert ("topology", "refused") not in cluster.telling.outcomes


@pytest.mark.parametrize("path", ["/api/v1/nodes/node-a", "/apis/topology.node.k8s.io"])
def test_a_look_that_is_refused_is_a_refusal(path: str) -> None:
    api = ApiModel()
    api.refuse = lambda asked: (
        status(403, "forbidden", "Forbidden")
        if asked.method == "GET" and asked.path.startswith(path)
        else None
    )
    cluster = Cluster(api)
    cluster.show(A, seconds=100)
    assert cluster.trouble == "403: forbidden"
    assert cluster.written == []


MACHINES = sorted((Path(__file__).parents[1] / "data/topologies").glob("[!b]*.yaml"))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_every_machine_has_zones_that_add_up(path: Path) -> None:
    topology = read_machine(path, read_topology)
    policy = Policy(cpu_policy="none", memory_policy="None", topology_policy="none")
    rules = start(topology, policy)
    snapshot = replace(empty_snapshot(), rules=rules, state=rules.initial_state())
    made: Any = topology_object(snapshot, NODE, None)
    assert [zone["name"] for zone in made["zones"]] == [f"node-{n.id}" for n in topology.nodes]
    cpus = [int(r["capacity"]) for zone in made["zones"] for r in zone["resources"]]
    assert sum(cpus) == len(topology.cpus)
    for zone in made["zones"]:
        costs = {cost["name"]: cost["value"] for cost in zone["costs"]}
        assert costs[zone["name"]] == min(costs.values())
    json.dumps(made)


def test_what_is_outside_of_the_fence_is_not_for_the_scheduler_to_count_on() -> None:
    policy = replace(empty_snapshot().rules.policy, fence=CPUSet.parse("6-9"))
    rules = start(machine(sockets=2, cores_per_node=8, threads=1), policy)
    snapshot = replace(empty_snapshot(), rules=rules, state=rules.initial_state(), ready=True)
    made = zones(topology_object(snapshot, NODE, None))
    assert [zone["cpu"] for zone in made.values()] == [("8", "2", "2"), ("8", "2", "2")]
