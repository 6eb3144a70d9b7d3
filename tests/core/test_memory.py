"""Tables, placement, charging and releasing; hints are in `test_hints`."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpuset import NodeSet
from agent.core.memory import (
    PlacementError,
    charge,
    choose_nodes,
    free_sum,
    hugepages_name,
    initial_tables,
    memory_hints,
    release,
)
from agent.core.pods import MEMORY
from agent.core.state import Block, MemoryTable, NodeMemory
from agent.core.topology import NodeTopology
from tests.strategies import GI, HUGE, HUGE_BYTES, machine, memory_tables, odd_machines

Tables = dict[int, NodeMemory]


def tables_of(*free: int, allocatable: int = 10) -> Tables:
    """Build nodes with so much memory free; what is used is assigned to each node alone."""
    return {
        i: NodeMemory(
            int(amount < allocatable),
            NodeSet([i]),
            {MEMORY: MemoryTable(allocatable, 0, allocatable, allocatable - amount, amount)},
        )
        for i, amount in enumerate(free)
    }


def free(tables: Tables) -> list[int]:
    return [node.tables[MEMORY].free for node in tables.values()]


def test_hugepages_and_reservations_leave_less_memory_to_allocate() -> None:
    topology = machine(memory_bytes=16 * GI, huge_pages=512)
    node = initial_tables(topology, {0: {MEMORY: GI, HUGE: 4 * HUGE_BYTES}})[0]
    left, huge = 14 * GI, 508 * HUGE_BYTES
    assert node.tables[MEMORY] == MemoryTable(16 * GI, GI, left, 0, left)
    assert node.tables[HUGE] == MemoryTable(GI, 4 * HUGE_BYTES, huge, 0, huge)
    assert (node.assignments, node.cells) == (0, NodeSet([0]))


def test_a_node_without_memory_has_tables_all_the_same() -> None:
    topology = machine(memory_bytes=0)
    assert initial_tables(topology, {})[0].tables[MEMORY] == MemoryTable(0, 0, 0, 0, 0)


def test_reserving_more_than_a_node_has_wraps_as_in_the_kubelet() -> None:
    node = initial_tables(machine(memory_bytes=5), {0: {MEMORY: 8}})[0]
    assert node.tables[MEMORY].allocatable == 2**64 - 3


@pytest.mark.parametrize(
    ("page_kib", "name"),
    [
        (2048, "hugepages-2Mi"),
        (1048576, "hugepages-1Gi"),
        (64, "hugepages-64Ki"),
        (16777216, "hugepages-16Gi"),
        (32768, "hugepages-32Mi"),
    ],
)
def test_page_sizes_have_the_names_of_resources(page_kib: int, name: str) -> None:
    assert hugepages_name(page_kib) == name


def test_a_type_that_a_node_lacks_counts_as_none_of_it() -> None:
    tables = tables_of(4, 5)
    tables[0] = replace(tables[0], tables={})
    assert free_sum(tables, 0b11, MEMORY) == 5
    assert choose_nodes(tables, {MEMORY: 5}, {}, None, preferred=False) == 0b10


def test_an_empty_request_and_an_impossible_one_give_no_hints() -> None:
    assert memory_hints(tables_of(4), {}, {}) is None
    assert memory_hints(tables_of(4), {MEMORY: 5}, {}) is None


@pytest.mark.parametrize(
    ("tables", "need", "mask", "preferred", "chosen"),
    [
        (tables_of(10, 10), 4, None, False, 0b01),  # the lowest of the smallest
        (tables_of(3, 8), 4, None, False, 0b10),
        (tables_of(10, 10), 14, None, True, 0b11),
        (tables_of(10, 10), 4, 0b10, True, 0b10),  # as merged
        (tables_of(10, 10), 9, 0b11, True, 0b11),
        (tables_of(10, 10), 14, 0b10, False, 0b11),  # extended
        (tables_of(10, 10, 10), 14, 0b100, False, 0b101),
    ],
)
def test_nodes_are_chosen_by_the_hint_and_extended_where_it_is_too_small(
    tables: Tables, need: int, mask: int | None, chosen: int, *, preferred: bool
) -> None:
    assert choose_nodes(tables, {MEMORY: need}, {}, mask, preferred=preferred) == chosen


@pytest.mark.parametrize(
    ("tables", "need", "mask", "preferred", "text"),
    [
        (
            tables_of(3, 3),
            4,
            None,
            False,
            "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
        ),
        (
            tables_of(3, 10, 10, 3),
            7,
            0b1001,
            False,
            "failed to find NUMA nodes to extend the current topology hint",
        ),
        (tables_of(5, 10), 4, 0b11, True, "preferred hint violates NUMA node allocation"),
    ],
)
def test_what_cannot_be_placed_says_so_in_the_words_of_the_kubelet(
    tables: Tables, need: int, mask: int | None, text: str, *, preferred: bool
) -> None:
    with pytest.raises(PlacementError) as caught:
        choose_nodes(tables, {MEMORY: need}, {}, mask, preferred=preferred)
    assert str(caught.value) == f"[memorymanager] {text}"


def untouched(*amounts: int) -> Tables:
    """Build nodes with so much memory and nothing assigned."""
    return {
        i: NodeMemory(0, NodeSet([i]), {MEMORY: MemoryTable(a, 0, a, 0, a)})
        for i, a in enumerate(amounts)
    }


def test_a_preferred_hint_is_not_given_up_for_one_that_is_not() -> None:
    # The machine could hold 12 on one node; what is free needs two.
    tables = untouched(6, 6) | {
        2: NodeMemory(1, NodeSet([2]), {MEMORY: MemoryTable(12, 0, 12, 12, 0)})
    }
    with pytest.raises(PlacementError, match="failed to find the default preferred hint"):
        choose_nodes(tables, {MEMORY: 12}, {}, None, preferred=True)
    with pytest.raises(PlacementError, match="failed to find the extended preferred hint"):
        choose_nodes(tables, {MEMORY: 12}, {}, 0b01, preferred=True)
    assert choose_nodes(tables, {MEMORY: 12}, {}, None, preferred=False) == 0b11


def test_a_single_node_is_never_refused_for_the_group_that_it_is_in() -> None:
    grouped = charge(untouched(10, 10), NodeSet([0, 1]), MEMORY, 12)
    assert choose_nodes(grouped, {MEMORY: 4}, {}, 0b10, preferred=True) == 0b10


def test_what_init_containers_leave_counts_for_hints_but_not_for_the_nodes_of_a_hint() -> None:
    used = charge(untouched(10, 10), NodeSet([0]), MEMORY, 8)
    left = {(0b01, MEMORY): 8}
    hints = memory_hints(used, {MEMORY: 9}, left)
    assert hints is not None
    assert dict(hints.enumerate()) == {0b01: True, 0b10: True}
    assert choose_nodes(used, {MEMORY: 9}, left, 0b01, preferred=True) == 0b01
    assert choose_nodes(used, {MEMORY: 9}, {}, 0b10, preferred=True) == 0b10


def test_charging_fills_nodes_in_ascending_order_and_makes_them_a_group() -> None:
    charged = charge(untouched(4, 5, 6), NodeSet([0, 1]), MEMORY, 7)
    assert free(charged) == [0, 2, 6]
    assert [n.assignments for n in charged.values()] == [1, 1, 0]
    assert [n.cells for n in charged.values()] == [NodeSet([0, 1]), NodeSet([0, 1]), NodeSet([2])]


def test_charging_nothing_is_an_assignment_too() -> None:
    charged = charge(untouched(4), NodeSet([0]), MEMORY, 0)
    assert free(charged) == [4]
    assert charged[0].assignments == 1


def test_releasing_gives_back_in_ascending_order_and_ends_a_group_with_its_last_block() -> None:
    group = NodeSet([0, 1])
    tables = charge(charge(untouched(4, 5), group, MEMORY, 7), group, MEMORY, 1)
    once = release(tables, Block(group, MEMORY, 1))
    assert free(once) == [1, 1]  # taken from node 1, given back to node 0
    assert [n.cells for n in once.values()] == [group, group]
    twice = release(once, Block(group, MEMORY, 7))
    assert twice == untouched(4, 5)


def test_a_node_that_has_gone_and_a_type_that_it_lacks_are_passed_over() -> None:
    block = Block(NodeSet([0, 5]), HUGE, 3)
    released = release(charge(untouched(4), NodeSet([0]), MEMORY, 2), block)
    assert released[0].assignments == 0
    assert free(released) == [2]


@st.composite
def used_machines(draw: st.DrawFn) -> Tables:
    topology: NodeTopology = draw(odd_machines(max_nodes=4))
    return draw(memory_tables(topology))


@given(used_machines(), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_charged_comes_back(tables: Tables, data: st.DataObject) -> None:
    nodes = NodeSet(data.draw(st.sets(st.sampled_from(sorted(tables)), min_size=1)))
    amount = data.draw(st.integers(0, free_sum(tables, nodes.bits, MEMORY)))
    charged = charge(tables, nodes, MEMORY, amount)
    assert free_sum(charged, nodes.bits, MEMORY) == free_sum(tables, nodes.bits, MEMORY) - amount
    back = release(charged, Block(nodes, MEMORY, amount))
    assert free_sum(back, nodes.bits, MEMORY) == free_sum(tables, nodes.bits, MEMORY)
    assert [n.assignments for n in back.values()] == [n.assignments for n in tables.values()]
    for node in back.values():
        for table in node.tables.values():
            assert table.free + table.reserved == table.allocatable


@given(used_machines(), st.integers(0, 12), st.data())
@settings(max_examples=300, deadline=None)
def test_chosen_nodes_have_what_is_asked_for(
    tables: Tables, need: int, data: st.DataObject
) -> None:
    masks = st.sets(st.sampled_from(sorted(tables)), min_size=1).map(lambda n: NodeSet(n).bits)
    mask = data.draw(st.one_of(st.none(), masks))
    try:
        chosen = choose_nodes(tables, {MEMORY: need}, {}, mask, preferred=False)
    except PlacementError:
        return
    assert free_sum(tables, chosen, MEMORY) >= need
    assert not (mask or 0) & ~chosen
