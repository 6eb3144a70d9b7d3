"""Where pages go, and what does not fit."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.cpuset import NodeSet
from agent.core.memory_moves import Charge, Move, NodeRoom, arrivals, destination, mib

MIB = 1 << 20
some_nodes = st.integers(1, 2**5 - 1).map(NodeSet.from_bits)
pages = st.dictionaries(st.integers(0, 4), st.integers(1, 100), max_size=5)


def nodes(text: str) -> NodeSet:
    return NodeSet.parse(text)


def where_all_go(old: str, new: str) -> dict[int, int]:
    return {node: destination(node, nodes(old), nodes(new)) for node in range(4)}


def test_pages_go_to_the_node_in_the_same_place_of_the_new_set() -> None:
    assert where_all_go("0", "1") == {0: 1, 1: 1, 2: 2, 3: 3}
    assert where_all_go("0-1", "2-3") == {0: 2, 1: 3, 2: 2, 3: 3}
    assert where_all_go("0-1", "1-2") == {0: 1, 1: 2, 2: 2, 3: 3}
    assert where_all_go("0-2", "3") == {0: 3, 1: 3, 2: 3, 3: 3}


def test_among_sets_of_different_size_nothing_leaves_the_new_set() -> None:
    assert where_all_go("0-1", "1") == {0: 1, 1: 1, 2: 2, 3: 3}
    assert where_all_go("0", "0-1") == {0: 0, 1: 1, 2: 2, 3: 3}
    assert where_all_go("0", "1-2") == {0: 1, 1: 1, 2: 2, 3: 3}


@given(old=some_nodes, new=some_nodes)
def test_whatever_was_inside_the_old_set_is_inside_the_new_one(old: NodeSet, new: NodeSet) -> None:
    assert {destination(node, old, new) for node in old} <= set(new)
    assert all(destination(node, old, old | new) == node for node in range(5))


@given(pages=pages, old=some_nodes, new=some_nodes)
def test_only_new_nodes_receive_and_no_more_than_left_others(
    pages: dict[int, int], old: NodeSet, new: NodeSet
) -> None:
    more = arrivals(pages, old, new)
    assert set(more) <= set(new)
    leavers = [n for n in pages if destination(n, old, new) != n]
    assert sum(more.values()) <= sum(pages[n] for n in leavers)


def test_a_node_that_is_emptied_has_room_for_what_comes() -> None:
    assert arrivals({0: 5, 1: 3}, nodes("0-1"), nodes("1-2")) == {1: 2, 2: 3}


ROOMS = {
    0: NodeRoom(free_bytes=900 * MIB),
    1: NodeRoom(free_bytes=300 * MIB, cache_bytes=200 * MIB, huge_bytes={2048: 10 * MIB}),
}


def why_not(charge: Charge, margin_mib: int = 0, growth: int | None = None) -> str | None:
    move = Move(old=nodes("0"), new=nodes("1"), charge=charge, growth_bytes=growth)
    return move.obstacle(ROOMS, margin_mib * MIB)


def test_what_is_as_large_as_free_memory_and_clean_pages_of_files_fits() -> None:
    assert why_not(Charge(movable={0: 500 * MIB})) is None
    assert why_not(Charge(movable={0: 400 * MIB}), margin_mib=100) is None


def test_what_is_larger_does_not_and_the_sentence_has_the_numbers() -> None:
    assert why_not(Charge(movable={0: 450 * MIB}), margin_mib=100) == (
        "450Mi would move to NUMA node 1, which has 300Mi free and 200Mi in clean pages of files,"
        " and keeps 100Mi of that: free memory there"
    )


def test_room_must_be_there_for_all_that_memory_max_allows() -> None:
    charge = Charge(movable={0: 100 * MIB, 1: 300 * MIB})
    assert why_not(charge, margin_mib=50, growth=350 * MIB) is None
    assert why_not(charge, margin_mib=50, growth=351 * MIB) == (
        "up to its memory.max it may ask for 451Mi more on NUMA nodes 1, which have 500Mi free or"
        " in clean pages of files, and keep 50Mi each: free memory there, or lower its limit"
    )


def test_who_is_let_out_needs_no_room_to_grow() -> None:
    out = Move(
        old=nodes("0"), new=nodes("0-1"), charge=Charge(movable={0: MIB}), growth_bytes=1 << 40
    )
    assert out.obstacle(ROOMS, 0) is None


def test_what_is_on_the_target_already_needs_no_room() -> None:
    assert why_not(Charge(movable={0: MIB, 1: 2000 * MIB})) is None


def test_huge_pages_need_free_huge_pages_of_their_size() -> None:
    assert why_not(Charge(huge={2048: {0: 10 * MIB}})) is None
    assert why_not(Charge(huge={2048: {0: 12 * MIB}})) == (
        "12Mi in huge pages of 2Mi would move to NUMA node 1, which has 10Mi of them free:"
        " raise nr_hugepages there"
    )
    assert "0 of them" in str(why_not(Charge(huge={1 << 20: {0: 1 << 30}})))


def test_of_a_node_about_which_nothing_is_known_anything_is_believed() -> None:
    charge = Charge(movable={0: 1 << 40}, huge={2048: {0: 1 << 40}})
    move = Move(old=nodes("0"), new=nodes("1"), charge=charge, growth_bytes=1 << 40)
    assert move.obstacle({}, MIB) is None


def test_of_huge_pages_nobody_can_tell_what_lies_outside() -> None:
    charge = Charge(movable={0: 1, 1: 2}, huge={2048: {0: 4, 1: 8}})
    assert (charge.outside(nodes("0")), charge.outside(nodes("0-1"))) == (2, 0)


def test_huge_pages_that_were_first_used_elsewhere_have_moved_along_and_need_room_to_move_on() -> (
    None
):
    moved = Charge(huge={2048: {0: 12 * MIB, 1: 0}})
    back = Move(old=nodes("1"), new=nodes("0"), charge=moved)
    room = NodeRoom(free_bytes=0, huge_bytes={2048: 12 * MIB})
    assert back.obstacle({0: room}, 0) is None
    assert "12Mi in huge pages" in str(back.obstacle({0: replace(room, huge_bytes={})}, 0))
    assert moved.huge_within(nodes("")) == {2048: {}}


def test_amounts_are_told_in_whole_mebibytes() -> None:
    assert [mib(n) for n in (0, MIB - 1, 600 * MIB + 5, 1 << 31)] == ["0", "0", "600Mi", "2Gi"]
