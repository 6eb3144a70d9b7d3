"""Who runs short of memory on the nodes that he is bound to, and who is let out."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import NodeSet
from agent.core.memory_moves import NodeRoom
from agent.core.memory_pressure import Bound, headrooms, short_sets, widened

MARGIN = 10
PATHS = [CgroupPath(p) for p in ("a", "a/x", "a/y", "a/y/z", "b", "b/x", "c")]


def bound(path: str, nodes: str, growth: int | None, **movable: int) -> Bound:
    """``n1=5``: five bytes lie on node 1."""
    return Bound(
        path=CgroupPath(path),
        nodes=NodeSet.parse(nodes),
        growth_bytes=growth,
        movable={int(name.removeprefix("n")): size for name, size in movable.items()},
    )


def rooms(*free: int) -> dict[int, NodeRoom]:
    return {node: NodeRoom(free_bytes=size) for node, size in enumerate(free)}


def left(everything: Sequence[Bound], *free: int) -> dict[str, int]:
    return {str(h.nodes): h.left_bytes for h in headrooms(everything, rooms(*free), MARGIN)}


def test_what_pods_may_still_ask_for_is_set_against_what_their_nodes_have() -> None:
    pods = [bound("a", "0", 30), bound("b", "0", 20), bound("c", "1", 5)]
    assert left(pods, 100, 100) == {"0": 50, "1": 95}


def test_a_larger_set_must_hold_what_is_bound_inside_it_too() -> None:
    pods = [bound("a", "0", 30), bound("b", "0-1", 100)]
    assert left(pods, 40, 100) == {"0": 10, "0-1": 10}


def test_a_container_counts_within_its_pod() -> None:
    assert left([bound("a", "0", 30), bound("a/x", "0", 20)], 100) == {"0": 70}
    assert left([bound("a", "0-1", 30), bound("a/x", "0", 20)], 50, 50) == {"0": 30, "0-1": 70}


def test_a_pod_without_limit_counts_by_its_containers_and_one_without_any_by_what_it_has() -> None:
    pod = [bound("a", "0", None), bound("a/x", "0", 20), bound("a/y", "0", None, n0=7)]
    assert left(pod, 100) == {"0": 80}
    assert left([bound("a", "0", None, n0=50, n1=9)], 100) == {"0": 91}


def test_what_lies_elsewhere_is_still_to_come() -> None:
    assert left([bound("a", "0", 30, n0=50, n1=25)], 100) == {"0": 45}


def test_clean_pages_of_files_count_as_room() -> None:
    room = {0: NodeRoom(free_bytes=10, cache_bytes=30)}
    (found,) = headrooms([bound("a", "0", 15)], room, MARGIN)
    assert (found.available_bytes, found.left_bytes) == (40, 25)


def test_a_set_with_a_node_that_cannot_be_read_is_left_out() -> None:
    assert left([bound("a", "0-1", 5)], 100) == {}


def test_the_margin_is_kept_on_each_node() -> None:
    (found,) = headrooms([bound("a", "0-1", 0)], rooms(5, 5), MARGIN)
    assert found.margin_bytes == 2 * MARGIN
    assert short_sets([found]) == {NodeSet([0, 1])}


def test_a_shortage_begins_below_the_margin_and_ends_at_twice_the_margin() -> None:
    node, nobody = NodeSet([0]), frozenset[NodeSet]()

    def is_short(free: int, former: frozenset[NodeSet]) -> bool:
        return short_sets(headrooms([bound("a", "0", 0)], rooms(free), MARGIN), former) == {node}

    assert not is_short(10, nobody)
    assert is_short(9, nobody)
    assert is_short(19, frozenset([node]))
    assert not is_short(20, frozenset([node]))


def test_the_sentence_has_the_numbers() -> None:
    mib = 1 << 20
    room = {1: NodeRoom(free_bytes=300 * mib, cache_bytes=150 * mib)}
    (found,) = headrooms([bound("a", "1", 600 * mib)], room, 256 * mib)
    assert str(found).startswith(
        "NUMA nodes 1 have 450Mi free or in clean pages of files, and what is bound to them, or is to"
        " be, may ask for 600Mi more, with 256Mi to keep: "
    )


def test_all_that_share_a_shortage_are_let_out_and_what_would_still_hold_them() -> None:
    everything = [
        bound("a", "0-1", 0),
        bound("a/x", "0", 0),
        bound("a/y", "1", 0),
        bound("b", "0", 0),
        bound("c", "1", 0),
    ]
    assert {str(path) for path in widened(everything, [NodeSet([0])])} == {"/a", "/a/x", "/b"}
    assert widened(everything, []) == frozenset()


small = st.integers(0, 60)
bounds = st.dictionaries(
    st.sampled_from(PATHS),
    st.tuples(
        st.integers(1, 7).map(NodeSet.from_bits),
        st.dictionaries(st.integers(0, 2), small),
        st.none() | small,
    ),
    min_size=1,
).map(
    lambda found: [
        Bound(path=path, nodes=nodes, movable=movable, growth_bytes=growth)
        for path, (nodes, movable, growth) in found.items()
    ]
)
frees = st.lists(st.integers(0, 200), min_size=3, max_size=3)
some_sets = st.frozensets(st.integers(1, 7).map(NodeSet.from_bits))


@given(everything=bounds, free=frees, former=some_sets)
def test_the_answer_is_stable_and_no_order_matters(
    everything: list[Bound], free: list[int], former: frozenset[NodeSet]
) -> None:
    def short(found: Sequence[Bound], before: frozenset[NodeSet]) -> frozenset[NodeSet]:
        return short_sets(headrooms(found, rooms(*free), MARGIN), before)

    once = short(everything, former)
    assert short(list(reversed(everything)), former) == once
    assert short(everything, once) == once


@given(everything=bounds, free=frees, former=some_sets)
def test_pods_that_stay_bound_have_room_to_grow_to_their_limits(
    everything: list[Bound], free: list[int], former: frozenset[NodeSet]
) -> None:
    short = short_sets(headrooms(everything, rooms(*free), MARGIN), former)
    let_out = widened(everything, short)
    stay = [one for one in everything if one.path not in let_out]
    pods = [one for one in stay if not one.path.parent.relative]
    for nodes in {one.nodes for one in stay}:
        asked = sum(one.growth_bytes or 0 for one in pods if one.nodes <= nodes)
        assert sum(free[node] for node in nodes) - asked >= MARGIN * len(nodes)


@given(everything=bounds, free=frees)
def test_nobody_is_held_by_something_above_that_stays_bound(
    everything: list[Bound], free: list[int]
) -> None:
    short = short_sets(headrooms(everything, rooms(*free), MARGIN))
    let_out = widened(everything, short)
    for one in everything:
        if one.path not in let_out:
            assert not any(path.is_below(one.path) for path in let_out)


@given(everything=bounds, free=frees, node=st.integers(0, 2), more=small)
def test_more_free_memory_never_makes_a_shortage(
    everything: list[Bound], free: list[int], node: int, more: int
) -> None:
    richer = [size + more * (i == node) for i, size in enumerate(free)]
    before = short_sets(headrooms(everything, rooms(*free), MARGIN))
    assert short_sets(headrooms(everything, rooms(*richer), MARGIN)) <= before


@given(everything=bounds, free=frees, index=st.integers(0, 6), grown=small)
def test_memory_that_a_pod_takes_from_its_own_nodes_changes_nothing(
    everything: list[Bound], free: list[int], index: int, grown: int
) -> None:
    """So that no pod is let out, or bound again, by what it does within its limit."""
    tops = [one for one in everything if not one.path.parent.relative]
    if not tops:
        return
    one = tops[index % len(tops)]
    node, taken = min(one.nodes), min(grown, one.growth_bytes or 0, free[min(one.nodes)])
    movable = {**one.movable, node: one.movable.get(node, 0) + taken}
    after = replace(one, movable=movable, growth_bytes=(one.growth_bytes or 0) - taken)
    before = replace(one, growth_bytes=one.growth_bytes or 0)
    used = [size - taken * (i == node) for i, size in enumerate(free)]
    assert left([before], *free) == left([after], *used)
