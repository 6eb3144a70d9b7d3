import re
from collections.abc import Iterable

import pytest

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.kubelet_files import (
    CPU_FILE,
    MEMORY_FILE,
    CpuAssignments,
    MemoryAssignments,
)
from agent.core.kubelet_formats import KubeletFileError
from agent.core.kubelet_validation import restore, validate_cpu, validate_memory
from agent.core.pods import PodUID
from agent.core.startup import StartupRefused, start
from agent.core.state import Block, MemoryTable, NodeMemory, NodeState
from tests.conformance.scenario import Json, policy, topology
from tests.core.kubelet_vectors import Restart, restarts

RESTARTS = list(restarts())
GO_PARSER = re.compile(
    r"(json: |unexpected end of JSON input|invalid character |strconv\.Atoi: ).*?(?=, please|$)"
)


def outcome(restart: Restart) -> tuple[bool, str, str] | NodeState:
    """Return the state, or (False, stage, error) with what Go's parsers say taken out."""
    rules = start(topology(restart.machine), policy(restart.config))
    try:
        return restore(
            rules,
            restart.files[CPU_FILE],
            restart.files[MEMORY_FILE],
            container_ids=restart.container_ids,
            folder="<STATE_DIR>",
        )
    except StartupRefused as refusal:
        return False, refusal.stage, GO_PARSER.sub("GO", str(refusal))


def recorded(init: Json) -> tuple[bool, str, str]:
    return False, init["stage"], GO_PARSER.sub("GO", init["error"])


def blocks_as_recorded(blocks: Iterable[Block]) -> list[Json]:
    found = [{"type": b.resource, "numa": list(b.nodes), "size": b.size_bytes} for b in blocks]
    return sorted(found, key=lambda block: str(block["type"]))


def cpu_as_recorded(state: NodeState) -> Json:
    pods = state.pods.items()
    return {
        "default": str(state.default),
        "containers": {
            uid: {n: str(c) for n, c in entry.cpus.items()} for uid, entry in pods if entry.cpus
        },
        "pods": {uid: str(entry.pool) for uid, entry in pods if entry.pool is not None},
    }


def memory_as_recorded(state: NodeState) -> Json:
    pods = state.pods.items()
    return {
        "containers": {
            uid: {n: blocks_as_recorded(b) for n, b in entry.memory.items()}
            for uid, entry in pods
            if entry.memory
        },
        "pods": {
            uid: blocks_as_recorded(entry.memory_pool)
            for uid, entry in pods
            if entry.memory_pool is not None
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


def test_there_are_restarts_of_every_kind() -> None:
    assert len(RESTARTS) == 298
    assert sum(r.expect["init"]["ok"] for r in RESTARTS) == 178


@pytest.mark.parametrize("restart", RESTARTS, ids=lambda r: r.id)
def test_a_restart_ends_as_the_kubelets_did(restart: Restart) -> None:
    init = restart.expect["init"]

    found = outcome(restart)

    if not init["ok"]:
        assert found == recorded(init)
        return
    assert isinstance(found, NodeState)
    assert cpu_as_recorded(found) == restart.expect["cpu"]
    assert memory_as_recorded(found) == restart.expect["mem"]


POD = PodUID("p1")
EMPTY = {
    0: NodeMemory(0, NodeSet([0]), {"memory": MemoryTable(100, 0, 100, 0, 100)}),
    1: NodeMemory(0, NodeSet([1]), {"memory": MemoryTable(100, 0, 100, 0, 100)}),
}


def group(free_0: int, free_1: int) -> dict[int, NodeMemory]:
    both = NodeSet([0, 1])
    return {
        i: NodeMemory(1, both, {"memory": MemoryTable(100, 0, 100, 100 - free, free)})
        for i, free in enumerate((free_0, free_1))
    }


def assigned(machine: dict[int, NodeMemory], size: int) -> MemoryAssignments:
    block = Block(NodeSet([0, 1]), "memory", size)
    return MemoryAssignments(machine=machine, containers={POD: {"c": (block,)}})


@pytest.mark.parametrize("machine", [group(0, 50), group(25, 25)])
def test_within_a_group_only_the_sums_of_memory_must_agree(
    machine: dict[int, NodeMemory],
) -> None:
    assert validate_memory(assigned(machine, 150), EMPTY).machine == machine


def test_a_sum_that_differs_is_refused() -> None:
    with pytest.raises(KubeletFileError, match="expected machine state is different"):
        validate_memory(assigned(group(0, 49), 150), EMPTY)


def test_a_node_in_another_group_is_refused_although_all_sums_agree() -> None:
    swapped = {
        i: NodeMemory(node.assignments, NodeSet([1 - i]), node.tables) for i, node in EMPTY.items()
    }
    with pytest.raises(KubeletFileError, match="expected machine state is different"):
        validate_memory(MemoryAssignments(machine=swapped), EMPTY)


def test_a_pods_own_blocks_are_charged_instead_of_its_containers() -> None:
    state = assigned(group(0, 50), 1)
    pool = (Block(NodeSet([0, 1]), "memory", 150),)
    kept = MemoryAssignments(machine=state.machine, containers=state.containers, pods={POD: pool})
    assert validate_memory(kept, EMPTY) == kept


def test_memory_assignments_without_a_machine_are_refused_and_an_empty_file_starts_afresh() -> None:
    with pytest.raises(KubeletFileError, match="can not be empty when it has memory assignments"):
        validate_memory(assigned({}, 1), EMPTY)
    assert validate_memory(MemoryAssignments(), EMPTY).machine == EMPTY


@pytest.mark.parametrize(("strict", "default"), [(False, "0-3"), (True, "1-3")])
def test_an_empty_cpu_file_starts_afresh_without_the_strictly_reserved(
    strict: bool,  # noqa: FBT001 -- a parameter of the test, not of an interface
    default: str,
) -> None:
    found = validate_cpu(
        CpuAssignments(), cpus=CPUSet.parse("0-3"), reserved=CPUSet([0]), strict=strict
    )
    assert found == CpuAssignments(default=CPUSet.parse(default))
