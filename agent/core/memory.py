"""The memory manager's tables: hints, the choice of NUMA nodes, charging and releasing.

Mirrors ``pkg/kubelet/cm/memorymanager/policy_static.go`` of Kubernetes v1.36.  Amounts are bytes.
Nothing here is changed in place: every function returns the new tables.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from agent.core.cpuset import NodeSet
from agent.core.hints import HintList
from agent.core.masks import Loose, Sum, lowest, smallest_size
from agent.core.pods import MEMORY, Amounts
from agent.core.state import Block, MemoryTable, NodeMemory
from agent.core.topology import NodeTopology

Tables = Mapping[int, NodeMemory]
Reusable = Mapping[tuple[int, str], int]
"""(node mask, type) -> bytes that finished init containers leave to their pod."""

UINT64 = 1 << 64


class PlacementError(ValueError):
    """Memory cannot be placed; the text is the kubelet's."""


def initial_tables(
    topology: NodeTopology, reserved: Mapping[int, Amounts]
) -> dict[int, NodeMemory]:
    """Return the tables of a machine on which nothing is assigned (``getDefaultMachineState``).

    Sums wrap at 64 bits as the kubelet's unguarded arithmetic does: reserving more than a node has
    makes it look huge there, and start-up validation is what refuses it.
    """
    tables = {}
    for node in topology.nodes:
        kept = reserved.get(node.id, {})
        pages = {hugepages_name(kib): kib * 1024 * n for kib, n in node.hugepages.items()}
        amounts = {MEMORY: (node.memory_bytes, sum(pages.values()))}
        amounts |= {name: (size, 0) for name, size in sorted(pages.items())}
        tables[node.id] = NodeMemory(
            assignments=0,
            cells=NodeSet([node.id]),
            tables={
                name: _empty_table(total, kept.get(name, 0), taken)
                for name, (total, taken) in amounts.items()
            },
        )
    return tables


def hugepages_name(page_kib: int) -> str:
    """Return the resource name of a page size: ``hugepages-2Mi`` for 2048."""
    for suffix, scale in (("Gi", 1024 * 1024), ("Mi", 1024)):
        if page_kib % scale == 0:
            return f"hugepages-{page_kib // scale}{suffix}"
    return f"hugepages-{page_kib}Ki"


def _empty_table(total: int, system_reserved: int, taken: int) -> MemoryTable:
    allocatable = (total - system_reserved - taken) % UINT64
    return MemoryTable(total, system_reserved, allocatable, 0, allocatable)


def free_sum(tables: Tables, mask: int, resource: str) -> int:
    """Return the free bytes of one type over a mask's nodes; a type that a node lacks counts 0."""
    found = (tables[i].tables.get(resource) for i in NodeSet.from_bits(mask) if i in tables)
    return sum(table.free for table in found if table is not None)


def memory_hints(tables: Tables, request: Amounts, reusable: Reusable) -> HintList | None:
    """Return the hints for a request, None where there are none (``calculateHints``).

    No hints and an empty request look the same to the merger: no preference.
    """
    if not request:
        return None
    families = _Families(tables, request)
    preferred_size = smallest_size(families.allocatable) or len(tables)
    listed = {m for m in families.single_masks() if families.fits(m, reusable)}
    listed |= {m for m in families.group_masks() if families.fits(m, reusable)}
    listed |= {m for m, _ in reusable if families.may_join(m) and families.fits(m, reusable)}
    loose = families.untouched()
    hints = HintList(preferred_size=preferred_size, listed=frozenset(listed), loose=loose)
    return None if hints.is_empty else hints


@dataclass(frozen=True)
class _Families:
    """Which groups of NUMA nodes may take a request."""

    tables: Tables
    request: Amounts

    @cached_property
    def allocatable(self) -> Loose:
        return self._loose(self.tables, lambda table: table.allocatable)

    def untouched(self) -> Loose:
        """Return the groups of two or more nodes on which nothing is assigned."""
        free = {i: n for i, n in self.tables.items() if n.assignments == 0}
        return replace(self._loose(free, lambda table: table.free), least=2)

    def single_masks(self) -> Iterable[int]:
        """Nodes that are no member of a group."""
        return (1 << i for i, n in self.tables.items() if len(n.cells) == 1)

    def group_masks(self) -> set[int]:
        """Existing groups whose every used member belongs to exactly this group."""
        masks = {n.cells.bits for n in self.tables.values() if n.assignments > 0}
        return {m for m in masks if m.bit_count() > 1 and self.may_join(m)}

    def may_join(self, mask: int) -> bool:
        members = [self.tables[i] for i in NodeSet.from_bits(mask) if i in self.tables]
        if len(members) == 1:
            return len(members[0].cells) == 1
        return all(
            n.assignments == 0 or (len(n.cells) > 1 and n.cells.bits == mask) for n in members
        )

    def fits(self, mask: int, reusable: Reusable) -> bool:
        return all(s.of(mask) >= s.need for s in self.allocatable.sums) and all(
            free_sum(self.tables, mask, name) + reusable.get((mask, name), 0) >= need
            for name, need in self.request.items()
        )

    def _loose(self, nodes: Tables, amount: Callable[[MemoryTable], int]) -> Loose:
        universe = sum(1 << i for i in nodes)
        sums = tuple(
            Sum(
                {1 << i: amount(n.tables[name]) for i, n in nodes.items() if name in n.tables}, need
            )
            for name, need in self.request.items()
        )
        return Loose(universe, sums)


def choose_nodes(
    tables: Tables, request: Amounts, reusable: Reusable, mask: int | None, *, preferred: bool
) -> int:
    """Return the NUMA nodes for a request under a merged hint (``mask`` None: any).

    Mirrors the choice in ``Allocate``/``AllocatePod``: the default hint, the extension of a hint that
    is too small, and the check against existing groups.  Raises `PlacementError`.
    """
    if mask is None:
        best = _best_hint(tables, request, reusable, 0)
        if best is None:
            raise PlacementError(
                "[memorymanager] failed to get the default NUMA affinity, "
                "no NUMA nodes with enough memory is available"
            )
        mask, best_preferred = best
        if preferred and not best_preferred:
            raise PlacementError("[memorymanager] failed to find the default preferred hint")
    if any(free_sum(tables, mask, name) < need for name, need in request.items()):
        best = _best_hint(tables, request, reusable, mask)
        if best is None:
            raise PlacementError(
                "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
            )
        mask, best_preferred = best
        if preferred and not best_preferred:
            raise PlacementError("[memorymanager] failed to find the extended preferred hint")
    if mask.bit_count() > 1 and not _Families(tables, request).may_join(mask):
        raise PlacementError("[memorymanager] preferred hint violates NUMA node allocation")
    return mask


def _best_hint(
    tables: Tables, request: Amounts, reusable: Reusable, around: int
) -> tuple[int, bool] | None:
    """Return the smallest, then lowest hint that contains ``around``, and whether it is preferred.

    A hint has never fewer nodes than a preferred one, so the smallest is preferred if any is.
    """
    hints = memory_hints(tables, request, reusable)
    if hints is None:
        return None
    found = {m for m in hints.listed if not around & ~m}
    if hints.loose is not None:
        loose = replace(hints.loose, must=around)
        size = smallest_size(loose)
        mask = None if size is None else lowest(loose, size)
        found |= set() if mask is None else {mask}
    best = min(found, key=lambda m: (m.bit_count(), m), default=None)
    return None if best is None else (best, hints.prefers(best))


def charge(tables: Tables, nodes: NodeSet, resource: str, amount: int) -> dict[int, NodeMemory]:
    """Return the tables after taking ``amount`` from the nodes, ascending, each as far as it goes."""
    changed = dict(tables)
    for i in nodes:
        node = changed[i]
        changed_tables = node.tables
        if resource in changed_tables:
            table = changed_tables[resource]
            part = min(table.free, amount)
            amount -= part
            table = replace(table, reserved=table.reserved + part, free=table.free - part)
            changed_tables = {**changed_tables, resource: table}
        changed[i] = NodeMemory(node.assignments + 1, nodes, changed_tables)
    return changed


def release(tables: Tables, block: Block) -> dict[int, NodeMemory]:
    """Return the tables after giving a block back to its nodes, ascending (``releaseMemory``)."""
    changed = dict(tables)
    amount = block.size_bytes
    for i in block.nodes:
        node = changed.get(i)
        if node is None:
            continue
        changed_tables = node.tables
        if block.resource in changed_tables:
            table = changed_tables[block.resource]
            part = min(table.reserved, amount)
            amount -= part
            table = replace(table, reserved=table.reserved - part, free=table.free + part)
            changed_tables = {**changed_tables, block.resource: table}
        assignments = node.assignments - 1
        cells = node.cells if assignments > 0 else NodeSet([i])
        changed[i] = NodeMemory(assignments, cells, changed_tables)
    return changed
