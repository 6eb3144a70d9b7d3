"""Whether the kubelet would go on from its state files on this machine, with this configuration.

Mirrors ``validateState`` of ``policy_static.go`` in ``pkg/kubelet/cm/cpumanager`` and
``pkg/kubelet/cm/memorymanager`` of Kubernetes v1.36 (kubelet-semantics 8.4, 8.5): the same checks
in the same order with the same words.  These are answers for ``state verify`` and ``state import``;
the daemon never refuses to start because of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from agent.core.cpuset import CPUSet
from agent.core.kubelet_files import (
    CPU_FILE,
    MEMORY_FILE,
    ContainerIds,
    CpuAssignments,
    MemoryAssignments,
    load_cpu,
    load_memory,
    node_state,
)
from agent.core.kubelet_formats import KubeletFileError
from agent.core.memory import Tables, charge
from agent.core.startup import STRICT_RESERVATION, Rules, StartupRefused
from agent.core.state import Block, MemoryTable, NodeMemory, NodeState


def restore(
    rules: Rules,
    cpu_text: str | None,
    memory_text: str | None,
    *,
    container_ids: ContainerIds | None = None,
    folder: str = "/var/lib/kubelet",
) -> NodeState:
    """Return the state that a kubelet would go on with from its two files; None is no file.

    ``container_ids`` is only needed by files from before Kubernetes 1.18; ``folder`` is what errors
    call the place of the files.  Raises `StartupRefused` with stage ``cpu_start`` or
    ``memory_start`` where the kubelet would refuse to start.
    """
    try:
        cpu = load_cpu(
            cpu_text,
            policy_name=rules.policy.cpu_policy,
            pod_level=rules.decides_by_budget,
            container_ids=container_ids,
            path=f"{folder}/{CPU_FILE}",
        )
        if rules.manages_cpus:
            cpu = validate_cpu(
                cpu,
                cpus=rules.topology.cpus,
                reserved=rules.reserved,
                strict=STRICT_RESERVATION in rules.cpu_options,
            )
    except KubeletFileError as error:
        raise StartupRefused("cpu_start", str(error)) from None
    try:
        memory = load_memory(
            memory_text,
            policy_name=rules.policy.memory_policy,
            pod_level=rules.decides_by_budget,
            path=f"{folder}/{MEMORY_FILE}",
        )
        if rules.manages_memory:
            memory = validate_memory(memory, rules.initial_state().memory)
    except KubeletFileError as error:
        raise StartupRefused("memory_start", str(error)) from None
    return node_state(cpu, memory)


def validate_cpu(
    assignments: CpuAssignments, *, cpus: CPUSet, reserved: CPUSet, strict: bool
) -> CpuAssignments:
    """Return the assignments that a kubelet goes on with: these, or the initial ones if empty.

    ``cpus`` are all online CPUs; ``strict`` is the option ``strict-cpu-reservation``.
    Raises `KubeletFileError`.
    """
    usable = cpus - reserved if strict else cpus
    default = assignments.default
    if not default:
        if assignments.containers:
            raise KubeletFileError("default cpuset cannot be empty")
        return replace(assignments, default=usable)
    _check_reserved(default, reserved, strict=strict)
    known = default
    for uid, containers in assignments.containers.items():
        for name, held in containers.items():
            if not default.isdisjoint(held):
                raise KubeletFileError(
                    f'pod: {uid}, container: {name} cpuset: "{held}" '
                    f'overlaps with default cpuset "{default}"'
                )
            known |= held
    for pool in assignments.pods.values():
        known |= pool
    if known != usable:
        raise KubeletFileError(
            f'current set of available CPUs "{usable}" doesn\'t match with CPUs in state "{known}"'
        )
    return assignments


def _check_reserved(default: CPUSet, reserved: CPUSet, *, strict: bool) -> None:
    if strict and not default.isdisjoint(reserved):
        raise KubeletFileError(
            f'some of strictly reserved cpus: "{default & reserved}" '
            f'are present in defaultCpuSet: "{default}"'
        )
    if not strict and not reserved <= default:
        raise KubeletFileError(
            f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: "{default}"'
        )


def validate_memory(assignments: MemoryAssignments, initial: Tables) -> MemoryAssignments:
    """Return the assignments that a kubelet goes on with: these, or the initial ones if empty.

    ``initial`` are the tables of this machine and configuration with nothing assigned.
    Raises `KubeletFileError`.
    """
    if not assignments.machine:
        if assignments.containers:
            raise KubeletFileError(
                "[memorymanager] machine state can not be empty when it has memory assignments"
            )
        return replace(assignments, machine=initial)
    expected = initial
    for owner, block in _charged(assignments):
        expected = _charge(expected, owner, block)
    if not _same(assignments.machine, expected):
        raise KubeletFileError(
            "[memorymanager] the expected machine state is different from the real one"
        )
    return assignments


def _charged(assignments: MemoryAssignments) -> Iterator[tuple[str, Block]]:
    """Yield every block that counts: a pod's own where it has some, else its containers'.

    Pod blocks without any container entry count for nothing, as in the kubelet.
    """
    for uid, containers in assignments.containers.items():
        pool = assignments.pods.get(uid)
        groups = containers.items() if pool is None else [("", pool)]
        for name, blocks in groups:
            for block in blocks:
                yield f"(pod: {uid}, container: {name})", block


def _charge(tables: Tables, owner: str, block: Block) -> Mapping[int, NodeMemory]:
    for node in block.nodes:
        if node not in tables:
            raise KubeletFileError(
                f"[memorymanager] {owner} the memory assignment uses the NUMA that does not exist"
            )
        if block.resource not in tables[node].tables:
            raise KubeletFileError(
                f"[memorymanager] {owner} the memory assignment uses memory resource "
                "that does not exist"
            )
    return charge(tables, block.nodes, block.resource, block.size_bytes)


def _same(real: Tables, expected: Tables) -> bool:
    """Compare as ``areMachineStatesEqual``: within a group only the sums must agree."""
    return real.keys() == expected.keys() and all(
        node.assignments == expected[i].assignments
        and node.cells == expected[i].cells
        and node.tables.keys() == expected[i].tables.keys()
        and all(
            _same_table(table, expected[i].tables[resource])
            and _group_sums(real, i, resource) == _group_sums(expected, i, resource)
            for resource, table in node.tables.items()
        )
        for i, node in real.items()
    )


def _same_table(a: MemoryTable, b: MemoryTable) -> bool:
    return (a.total, a.system_reserved, a.allocatable) == (
        b.total,
        b.system_reserved,
        b.allocatable,
    )


def _group_sums(tables: Tables, node: int, resource: str) -> tuple[int, int]:
    """Return the bytes reserved and free over the group that a node belongs to."""
    group = [
        tables[i].tables[resource]
        for i in tables[node].cells
        if i in tables and resource in tables[i].tables
    ]
    return sum(table.reserved for table in group), sum(table.free for table in group)
