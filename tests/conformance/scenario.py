"""A recorded scenario's inputs, as the code under test takes them.

Only inputs are read here; ids, themes, titles and tags never reach a decision.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.core.cpuset import CPUSet
from agent.core.pods import Container, Kind, Pod, PodUID, Resources
from agent.core.policy import Policy
from agent.core.quantity import milli_cpu, whole_bytes
from agent.core.topology import Core, NodeTopology, NumaNode

Json = dict[str, Any]


def read_scenarios(path: Path) -> Iterator[Json]:
    """Yield the scenarios of a ``.jsonl`` or ``.jsonl.gz`` file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def topology(machine: Json) -> NodeTopology:
    """Build the machine."""
    nodes = sorted(machine["nodes"], key=lambda node: node["id"])
    return NodeTopology(
        nodes=tuple(
            NumaNode(
                id=node["id"],
                memory_bytes=node["memory"],
                hugepages=dict(node["hugepages"]),
                distances=tuple(node.get("distances") or ()),
            )
            for node in nodes
        ),
        cores=tuple(
            Core(
                cpus=CPUSet(cpus),
                node=node["id"],
                socket=socket,
                uncore=socket if uncore is None else uncore,
            )
            for node in nodes
            for _, socket, uncore, cpus in node["cores"]
        ),
        socket_count=machine["num_sockets"],
    )


def policy(config: Json) -> Policy:
    """Build the configuration."""
    return Policy(
        topology_policy=config["topology_policy"],
        topology_scope=config["topology_scope"],
        topology_options=config["topology_options"],
        cpu_policy=config["cpu_policy"],
        cpu_options=config["cpu_options"],
        reserved_cpus=CPUSet.parse(config["reserved_cpus"]),
        node_reservation=_amounts(config["node_reservation"]),
        memory_policy=config["memory_policy"],
        reserved_memory=tuple(
            (r["numa"], _amounts(r["limits"])) for r in config["reserved_memory"]
        ),
        feature_gates=config.get("feature_gates") or {},
    )


def pod(raw: Json) -> Pod:
    """Build a pod."""
    return Pod(
        uid=PodUID(raw["uid"]),
        name=raw["uid"],
        budget=_resources(raw["resources"]) if raw.get("resources") else None,
        init_containers=tuple(
            _container(c, Kind.SIDECAR if c.get("restart") == "Always" else Kind.INIT)
            for c in raw.get("init") or ()
        ),
        app_containers=tuple(_container(c, Kind.APP) for c in raw["containers"]),
        ephemeral_containers=tuple(
            _container(c, Kind.EPHEMERAL) for c in raw.get("ephemeral") or ()
        ),
    )


def _container(raw: Json, kind: Kind) -> Container:
    return Container(name=raw["name"], kind=kind, resources=_resources(raw))


def _resources(raw: Json) -> Resources:
    return Resources(
        requests=_amounts(raw.get("requests") or {}), limits=_amounts(raw.get("limits") or {})
    )


def _amounts(raw: Mapping[str, str]) -> dict[str, int]:
    return {k: milli_cpu(v) if k == "cpu" else whole_bytes(v) for k, v in raw.items()}
