"""The kubelet's own state files, ``cpu_manager_state`` and ``memory_manager_state``, both ways.

Written exactly as the kubelet writes them, so that it can go on from them; read with all that
v1.36.2 forgives and with the errors that it gives (kubelet-semantics 8.1 to 8.3).  The versions are
those of `agent.core.kubelet_formats`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from agent.core.cpuset import MAX_ID, CPUSet, NodeSet
from agent.core.go_types import quoted, to_json
from agent.core.kubelet_formats import (
    CPU_DATA,
    CPU_V1,
    CPU_V2,
    CPU_V3,
    MEMORY_DATA,
    MEMORY_V1,
    MEMORY_V2,
    KubeletFileError,
    Record,
    parse_cpus,
    read,
    with_data,
)
from agent.core.pods import PodUID
from agent.core.state import Block, MemoryTable, NodeMemory, NodeState, PodEntry

CPU_FILE = "cpu_manager_state"
MEMORY_FILE = "memory_manager_state"

ContainerIds = Mapping[str, tuple[PodUID, str]]
"""The runtime's container id -> pod and container name, of all that runs; CPU V1 needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAssignments:
    """What ``cpu_manager_state`` says."""

    default: CPUSet = field(default_factory=CPUSet)
    containers: Mapping[PodUID, Mapping[str, CPUSet]] = field(default_factory=dict)
    pods: Mapping[PodUID, CPUSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAssignments:
    """What ``memory_manager_state`` says."""

    machine: Mapping[int, NodeMemory] = field(default_factory=dict)
    containers: Mapping[PodUID, Mapping[str, tuple[Block, ...]]] = field(default_factory=dict)
    pods: Mapping[PodUID, tuple[Block, ...]] = field(default_factory=dict)


def node_state(cpu: CpuAssignments, memory: MemoryAssignments) -> NodeState:
    """Return both tables as one state; the affinities of admission are in neither file."""
    uids = dict.fromkeys([*cpu.containers, *cpu.pods, *memory.containers, *memory.pods])
    pods = {
        uid: PodEntry(
            pool=cpu.pods.get(uid),
            cpus=cpu.containers.get(uid, {}),
            memory_pool=memory.pods.get(uid),
            memory=memory.containers.get(uid, {}),
        )
        for uid in uids
    }
    return NodeState(default=cpu.default, pods=pods, memory=memory.machine)


def render_cpu(
    state: NodeState, *, policy_name: str = "static", version: Literal[2, 3, 4] = 3
) -> str:
    """Return ``cpu_manager_state`` as the kubelet writes it, one line.

    V2 has no place for pod pools: a kubelet that reads it gives the unused part of a pool away.
    """
    pods = state.pods.items()
    record: Record = {
        "PolicyName": policy_name,
        "DefaultCPUSet": str(state.default),
        "Entries": {
            uid: {name: str(cpus) for name, cpus in entry.cpus.items()}
            for uid, entry in pods
            if entry.cpus
        },
        "PodEntries": {uid: entry.pool for uid, entry in pods if entry.pool is not None},
    }
    if version == CPU_V3.version:
        return to_json(CPU_V3.sealed(record))
    sealed = CPU_V2.sealed(record)
    return to_json(sealed if version == CPU_V2.version else with_data(sealed, CPU_DATA, record))


def render_memory(
    state: NodeState, *, policy_name: str = "Static", version: Literal[1, 2, 3] = 2
) -> str:
    """Return ``memory_manager_state`` as the kubelet writes it, one line.

    V1 has no place for pod-level blocks, and a kubelet refuses tables that were charged by them.
    """
    pods = state.pods.items()
    record: Record = {
        "PolicyName": policy_name,
        "MachineState": {i: _node_record(node) for i, node in state.memory.items()},
        "Entries": {
            uid: {name: _block_records(blocks) for name, blocks in entry.memory.items()}
            for uid, entry in pods
            if entry.memory
        },
        "PodEntries": {
            # nil where empty: that is what the kubelet finds when it reads the file again
            uid: {"MemoryBlocks": _block_records(entry.memory_pool) or None}
            for uid, entry in pods
            if entry.memory_pool is not None
        },
    }
    if version == MEMORY_V2.version:
        return to_json(MEMORY_V2.sealed(record))
    sealed = MEMORY_V1.sealed(record)
    return to_json(
        sealed if version == MEMORY_V1.version else with_data(sealed, MEMORY_DATA, record)
    )


def load_cpu(
    text: str | None,
    *,
    policy_name: str = "static",
    pod_level: bool = True,
    container_ids: ContainerIds | None = None,
    path: str = CPU_FILE,
) -> CpuAssignments:
    """Return what ``cpu_manager_state`` says; nothing at all where there is no file (None).

    ``pod_level`` is the gate PodLevelResourceManagers, ``path`` what errors call the file.
    Mirrors ``restoreState`` of ``state_checkpoint.go``; raises `KubeletFileError`.
    """
    if text is None:
        return CpuAssignments()
    formats = (CPU_V3, CPU_V2, CPU_V1) if pod_level else (CPU_V2, CPU_V1)
    try:
        found = read(text, formats, CPU_DATA, newest="v4")
        entries = found.record["Entries"] or {}
        if found.version == CPU_V1.version:
            entries = _by_pod(cast("Mapping[str, str]", entries), container_ids or {})
        _check_policy(policy_name, found.record, "")
        return CpuAssignments(
            default=_default_set(str(found.record["DefaultCPUSet"])),
            containers=_container_sets(cast("Mapping[str, Mapping[str, str] | None]", entries)),
            pods=cast("Mapping[PodUID, CPUSet]", found.pods) if pod_level else {},
        )
    except KubeletFileError as error:
        raise _not_restored(error, f"CPU manager checkpoint file {quoted(path)}") from None


def load_memory(
    text: str | None,
    *,
    policy_name: str = "Static",
    pod_level: bool = True,
    path: str = MEMORY_FILE,
) -> MemoryAssignments:
    """Return what ``memory_manager_state`` says; like `load_cpu` in everything else."""
    if text is None:
        return MemoryAssignments()
    try:
        found = read(
            text, (MEMORY_V2, MEMORY_V1) if pod_level else (MEMORY_V1,), MEMORY_DATA, newest="v3"
        )
        _check_policy(policy_name, found.record, "[memorymanager] ")
        machine = cast("Mapping[int, Record | None]", found.record["MachineState"] or {})
        entries = cast("Mapping[str, Record | None]", found.record["Entries"] or {})
        pods = cast("Mapping[str, Record]", found.pods) if pod_level else {}
        return MemoryAssignments(
            machine={i: _node(i, node) for i, node in machine.items()},
            containers={
                PodUID(uid): {name: _blocks(blocks) for name, blocks in (of_pod or {}).items()}
                for uid, of_pod in entries.items()
            },
            pods={PodUID(uid): _blocks(pod["MemoryBlocks"]) for uid, pod in pods.items()},
        )
    except KubeletFileError as error:
        raise _not_restored(error, f"memory manager checkpoint file {quoted(path)}") from None


def _not_restored(error: KubeletFileError, file: str) -> KubeletFileError:
    return KubeletFileError(
        f"could not restore state from checkpoint: {error}, "
        f"please drain this node and delete the {file} before restarting Kubelet"
    )


def _check_policy(configured: str, record: Record, prefix: str) -> None:
    found = str(record["PolicyName"])
    if configured != found:
        raise KubeletFileError(
            f"{prefix}configured policy {quoted(configured)} "
            f"differs from state checkpoint policy {quoted(found)}"
        )


def _by_pod(
    entries: Mapping[str, str], container_ids: ContainerIds
) -> Mapping[str, Mapping[str, str]]:
    """Translate entries by container id (``migrateV1CheckpointToV2Checkpoint``)."""
    by_pod: dict[str, dict[str, str]] = {}
    for container_id, cpus in entries.items():
        if container_id not in container_ids:
            raise KubeletFileError(
                "failed to migrate checkpoint from v1 to v2: "
                f"containerID '{container_id}' not found in initial containers list"
            )
        uid, name = container_ids[container_id]
        by_pod.setdefault(uid, {})[name] = cpus
    return by_pod


def _default_set(text: str) -> CPUSet:
    try:
        return parse_cpus(text)
    except KubeletFileError as error:
        raise KubeletFileError(f"could not parse default cpu set {quoted(text)}: {error}") from None


def _container_sets(
    entries: Mapping[str, Mapping[str, str] | None],
) -> dict[PodUID, dict[str, CPUSet]]:
    sets: dict[PodUID, dict[str, CPUSet]] = {}
    for uid, containers in entries.items():
        of_pod = sets.setdefault(PodUID(uid), {})
        for name, text in (containers or {}).items():
            try:
                of_pod[name] = parse_cpus(text)
            except KubeletFileError as error:
                raise KubeletFileError(
                    f"could not parse cpuset {quoted(text)} for container {quoted(name)} "
                    f"in pod {quoted(uid)}: {error}"
                ) from None
    return sets


def _node(node_id: int, record: Record | None) -> NodeMemory:
    tables = record and cast("Mapping[str, Record | None] | None", record["MemoryMap"])
    if record is None or any(table is None for table in (tables or {}).values()):
        # the kubelet crashes on these
        raise KubeletFileError(f"machineState of NUMA node {node_id} holds null")
    return NodeMemory(
        assignments=cast("int", record["NumberOfAssignments"]),
        cells=_node_set(record["Cells"]),
        tables={
            name: MemoryTable(*cast("Iterable[int]", table.values()))
            for name, table in (tables or {}).items()
            if table is not None
        },
    )


def _blocks(records: object) -> tuple[Block, ...]:
    return tuple(
        Block(_node_set(r["NUMAAffinity"]), str(r["Type"]), cast("int", r["Size"]))
        for r in cast("Sequence[Record]", records or ())
    )


def _node_set(ids: object) -> NodeSet:
    numbers = cast("Sequence[int]", ids or ())
    for number in numbers:
        if not 0 <= number <= MAX_ID:
            raise KubeletFileError(f"{number} is not the number of a NUMA node")
    return NodeSet(numbers)


def _node_record(node: NodeMemory) -> Record:
    tables = {
        name: {
            "TotalMemSize": table.total,
            "SystemReserved": table.system_reserved,
            "Allocatable": table.allocatable,
            "Reserved": table.reserved,
            "Free": table.free,
        }
        for name, table in node.tables.items()
    }
    return {
        "NumberOfAssignments": node.assignments,
        "MemoryMap": tables,
        "Cells": list(node.cells),
    }


def _block_records(blocks: Iterable[Block]) -> list[Record]:
    return [
        {"NUMAAffinity": list(block.nodes), "Type": block.resource, "Size": block.size_bytes}
        for block in blocks
    ]
