from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.closest import closest
from agent.core.masks import (
    Distances,
    Loose,
    Search,
    Sum,
    ascending,
    lowest,
    node_bits,
    smallest_size,
    total_distance,
)

NODES = 6


@st.composite
def families(draw: st.DrawFn) -> Loose:
    bits = st.sets(st.integers(0, NODES - 1)).map(lambda nodes: sum(1 << n for n in nodes))
    universe = draw(st.one_of(st.just((1 << NODES) - 1), bits))
    amounts = st.dictionaries(
        st.sampled_from([1 << n for n in range(NODES)]), st.integers(0, 4), min_size=NODES // 2
    )
    sums = draw(st.lists(st.builds(Sum, amounts, st.integers(-1, 9)), max_size=2))
    must = draw(st.one_of(st.just(0), bits, bits.map(lambda some: some & universe)))
    return Loose(universe, tuple(sums), must, draw(st.integers(1, 3)))


def members(family: Loose, size: int) -> Sequence[int]:
    """Enumerate a family's masks of one size by its definition, ascending."""
    return sorted(
        mask
        for mask in map(sum, combinations([1 << n for n in range(NODES)], size))
        if not mask & ~family.universe
        and not family.must & ~mask
        and size >= family.least
        and all(
            sum(s.amounts.get(1 << n, 0) for n in range(NODES) if mask >> n & 1) >= s.need
            for s in family.sums
        )
    )


def nearest(
    family: Loose,
    size: int,
    distances: Distances,
    accept: Callable[[int], bool] | None = None,
) -> int | None:
    search = Search(family)
    first = search.lowest(size, accept)
    return None if first is None else closest(search, first, distances, accept)


tables = st.lists(
    st.lists(st.integers(1, 4), min_size=NODES, max_size=NODES), min_size=NODES, max_size=NODES
).map(lambda rows: {1 << a: {1 << b: d for b, d in enumerate(row)} for a, row in enumerate(rows)})


@given(families(), st.integers(1, NODES))
@settings(max_examples=300, deadline=None)
def test_the_search_finds_every_member_in_ascending_order(family: Loose, size: int) -> None:
    expected = members(family, size)
    assert list(ascending(family, size)) == expected
    assert lowest(family, size) == min(expected, default=None)
    assert all(family.admits(mask) for mask in expected)


@given(families())
@settings(max_examples=200, deadline=None)
def test_the_smallest_size_is_that_of_the_smallest_member(family: Loose) -> None:
    sizes = [size for size in range(1, NODES + 1) if members(family, size)]
    assert smallest_size(family) == min(sizes, default=None)


@given(families(), st.integers(1, NODES), tables)
@settings(max_examples=300, deadline=None)
def test_the_closest_member_has_the_smallest_distance_and_then_the_lowest_mask(
    family: Loose, size: int, distances: dict[int, dict[int, int]]
) -> None:
    expected = min(
        members(family, size), key=lambda m: (total_distance(m, distances), m), default=None
    )
    assert nearest(family, size, distances) == expected


@given(families(), st.integers(1, NODES), tables, st.sets(st.integers(0, (1 << NODES) - 1)))
@settings(max_examples=200, deadline=None)
def test_masks_that_are_not_accepted_are_passed_over(
    family: Loose, size: int, distances: dict[int, dict[int, int]], refused: set[int]
) -> None:
    accepted = [m for m in members(family, size) if m not in refused]

    def accept(mask: int) -> bool:
        return mask not in refused

    assert Search(family).lowest(size, accept) == min(accepted, default=None)
    expected = min(accepted, key=lambda m: (total_distance(m, distances), m), default=None)
    assert nearest(family, size, distances, accept) == expected


@given(families(), families())
@settings(max_examples=100, deadline=None)
def test_a_common_family_admits_what_both_admit(one: Loose, other: Loose) -> None:
    both = one & other
    for mask in range(1, 1 << NODES):
        assert both.admits(mask) == (one.admits(mask) and other.admits(mask))


@pytest.mark.parametrize(("mask", "bits"), [(0, []), (1, [1]), (0b1010_0001, [1, 32, 128])])
def test_the_bits_of_a_mask_come_in_ascending_order(mask: int, bits: list[int]) -> None:
    assert node_bits(mask) == bits


def test_a_distance_counts_both_directions_and_every_node_itself() -> None:
    distances = {1: {1: 10, 2: 21}, 2: {1: 12, 2: 11}}
    assert total_distance(0b11, distances) == 10 + 21 + 12 + 11
