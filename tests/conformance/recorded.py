"""What the code under test decided, in the form in which the vectors record the kubelet."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import cast

from agent.core.admission import Admitted, Rejected
from agent.core.cpuset import NodeSet
from agent.core.demand import Demand
from agent.core.desired import container_mems
from agent.core.go_types import from_json
from agent.core.hints import Offer
from agent.core.isolation import (
    Isolation,
    container_quota_lifted,
    isolation,
    pod_quota_lifted,
)
from agent.core.kubelet_files import CPU_FILE, MEMORY_FILE, render_cpu, render_memory
from agent.core.kubelet_formats import CPU_V2, CPU_V3, MEMORY_V1, MEMORY_V2
from agent.core.pods import Container, Kind, Pod, qos_class
from agent.core.startup import Rules
from agent.core.state import Block, NodeState, PodEntry
from tests.conformance.scenario import Json

_LEVELS = {
    Isolation.NODE_SHARED: "host",
    Isolation.POD_SHARED: "pod",
    Isolation.EXCLUSIVE: "container",
}
_GO_PARSER = re.compile(
    r"(json: |unexpected end of JSON input|invalid character |strconv\.Atoi: ).*?(?=, please|$)"
)


def started(rules: Rules) -> Json:
    """Return how a start went well."""
    kept = rules.reserved if rules.manages_cpus else rules.topology.cpus
    return {
        "ok": True,
        "all_cpus": str(rules.topology.cpus),
        "allocatable_cpus": str(rules.topology.cpus - kept),
    }


def refused(stage: str, error: str) -> Json:
    """Return how a start failed."""
    return {"ok": False, "stage": stage, "error": without_parsers(error)}


def without_parsers(error: str) -> str:
    """Return an error without what Go's own JSON and number parsers say, which is not compared."""
    return _GO_PARSER.sub("(Go)", error)


def cpu_state(state: NodeState) -> Json:
    """Return the CPU half of a state."""
    pods = state.pods.items()
    return {
        "default": str(state.default),
        "containers": {
            uid: {name: str(cpus) for name, cpus in entry.cpus.items()}
            for uid, entry in pods
            if entry.cpus
        },
        "pods": {uid: str(entry.pool) for uid, entry in pods if entry.pool is not None},
    }


def memory_state(state: NodeState) -> Json:
    """Return the memory half of a state."""
    pods = state.pods.items()
    return {
        "containers": {
            uid: {name: _blocks(blocks) for name, blocks in entry.memory.items()}
            for uid, entry in pods
            if entry.memory
        },
        "pods": {
            uid: _blocks(entry.memory_pool) for uid, entry in pods if entry.memory_pool is not None
        },
        "nodes": {
            str(i): {
                "assignments": node.assignments,
                "cells": list(node.cells),
                "memory": {
                    name: [t.total, t.system_reserved, t.allocatable, t.reserved, t.free]
                    for name, t in node.tables.items()
                },
            }
            for i, node in state.memory.items()
        },
    }


def answer(rules: Rules, pod: Pod, decision: Admitted | Rejected, *, hints: bool) -> Json:
    """Return a decision on a pod, without the state; ``hints`` asks for every hint list."""
    qos = str(qos_class(pod, pod_level_resources=rules.knows_budgets))
    found: Json = {"admitted": isinstance(decision, Admitted), "qos": qos}
    if hints:
        found["hints"] = [_offer(container, offer) for container, offer in decision.offers]
    if isinstance(decision, Rejected):
        found |= {"reason": decision.reason, "message": decision.message}
        residual = _residual(decision.leftover)
        return found | ({"residual": residual} if residual else {})
    demand, entry = Demand(rules, pod), decision.entry
    return found | {
        "pod_quota_disabled": pod_quota_lifted(demand, entry, departures=frozenset()),
        "containers": [
            _container(demand, decision, c) for c in (*pod.containers, *pod.ephemeral_containers)
        ],
    }


def files(rules: Rules, state: NodeState) -> dict[str, str]:
    """Return both state files as a kubelet with these rules writes them."""
    policy, newest = rules.policy, rules.decides_by_budget
    return {
        CPU_FILE: render_cpu(state, policy_name=policy.cpu_policy, version=3 if newest else 2),
        MEMORY_FILE: render_memory(
            state, policy_name=policy.memory_policy, version=2 if newest else 1
        ),
    }


def documents(rules: Rules, texts: Mapping[str, str]) -> Json:
    """Return state files parsed, the blocks of each container in one order.

    Instead of the checksum stands whether it is right for the order that the file has.
    """
    newest = rules.decides_by_budget
    formats = {
        CPU_FILE: CPU_V3 if newest else CPU_V2,
        MEMORY_FILE: MEMORY_V2 if newest else MEMORY_V1,
    }
    found = {}
    for name, text in texts.items():
        _, error = formats[name].read(from_json(text))
        document = json.loads(text, object_hook=_with_sorted_blocks)
        found[name] = document | {"checksum": error or "right"}
    return found


def _with_sorted_blocks(members: Json) -> Json:
    return {
        key: sorted(value, key=_type_of)
        if isinstance(value, list) and all(isinstance(item, dict) for item in value)
        else value
        for key, value in members.items()
    }


def _type_of(block: Json) -> str:
    return str(block["type"])


def _blocks(blocks: Iterable[Block]) -> list[Json]:
    found = [{"type": b.resource, "numa": list(b.nodes), "size": b.size_bytes} for b in blocks]
    return sorted(found, key=_type_of)


def _container(demand: Demand, decision: Admitted, container: Container) -> Json:
    entry, name = decision.entry, container.name
    # Not what its cgroup says: an empty default set is never written.
    cpus = entry.cpus.get(name, decision.state.default)
    found: Json = {"name": name, "kind": str(container.kind), "cpus": str(cpus)}
    if container.kind is Kind.EPHEMERAL:
        return found | {
            "mems": [],
            "isolation": "host",
            "quota_disabled": False,
            "affinity": None,
        }
    affinity = entry.affinity.get(name)
    nodes = None if affinity is None else affinity.nodes
    return found | {
        "mems": list(container_mems(entry, name) or ()),
        "isolation": _LEVELS[isolation(demand, entry, container)],
        "quota_disabled": container_quota_lifted(demand, entry, container),
        "affinity": [
            None if nodes is None else list(nodes),
            affinity is not None and affinity.preferred,
        ],
    }


def _offer(container: str | None, offer: Offer) -> Json:
    found: Json = {"provider": offer.provider}
    if container is not None:
        found["container"] = container
    if offer.hints is None:
        return found | {"no_preference": True}
    hints = [[list(NodeSet.from_bits(m)), preferred] for m, preferred in offer.hints.enumerate()]
    return found | {"hints": dict.fromkeys(offer.resources, hints)}


def _residual(left: PodEntry) -> Json:
    parts = {
        "cpu_containers": {name: str(cpus) for name, cpus in left.cpus.items()},
        "cpu_pod": str(left.pool or ""),
        "mem_containers": {name: _blocks(blocks) for name, blocks in left.memory.items()},
        "mem_pod": _blocks(left.memory_pool or ()),
    }
    return cast("Json", {name: part for name, part in parts.items() if part})
