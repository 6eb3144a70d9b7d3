"""Masks that touch a number of sockets, against their enumeration and on big machines."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.closest import closest
from agent.core.masks import Loose, Search, Sum, total_distance
from agent.core.spread import Spread

NODES = 6
BITS = [1 << n for n in range(NODES)]

subsets = st.integers(0, (1 << NODES) - 1)
amounts = st.fixed_dictionaries({bit: st.integers(0, 4) for bit in BITS})
families = st.builds(
    lambda universe, sums, must: Loose(universe, tuple(sums), must & universe),
    st.one_of(st.just((1 << NODES) - 1), subsets),
    st.lists(st.builds(Sum, amounts, st.integers(-1, 12)), max_size=2),
    st.one_of(st.just(0), st.just(0), subsets),
)
# A node is in one socket, or in several where a machine is odd, or in none without CPUs.
spreads = st.builds(
    Spread,
    st.integers(1, 4),
    st.fixed_dictionaries(
        {bit: st.sampled_from((0b1, 0b10, 0b100, 0b1000, 0b11, 0)) for bit in BITS}
    ),
)
tables = st.fixed_dictionaries(
    {a: st.fixed_dictionaries({b: st.integers(1, 4) for b in BITS}) for a in BITS}
)


def members(family: Loose, spread: Spread, size: int) -> Sequence[int]:
    """Enumerate by the definition, ascending."""
    masks = sorted(map(sum, combinations(BITS, size)))
    return [m for m in masks if family.admits(m) and spread.admits(m)]


@given(families, spreads, st.integers(1, NODES))
@settings(max_examples=400, deadline=None)
def test_masks_with_a_spread_are_found_in_ascending_order(
    family: Loose, spread: Spread, size: int
) -> None:
    expected = members(family, spread, size)
    search = Search(family, spread=spread)
    assert list(search.masks(size)) == expected
    assert not expected or search.can(size)


@given(families, spreads, st.integers(1, NODES), tables)
@settings(max_examples=400, deadline=None)
def test_the_closest_mask_with_a_spread_is_found(
    family: Loose, spread: Spread, size: int, distances: Mapping[int, Mapping[int, int]]
) -> None:
    masks = members(family, spread, size)
    search = Search(family, spread=spread)
    found = None if not masks else closest(search, masks[0], distances)
    assert found == min(masks, key=lambda m: (total_distance(m, distances), m), default=None)


def calls(work: Callable[[], object]) -> int:
    """Count the calls of functions of the package, and resumptions of its generators."""
    count = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "/agent/core/" in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def of_sockets(nodes: int, sockets: Iterable[int], count: int) -> Spread:
    return Spread(
        count, {1 << n: 1 << socket for n, socket in zip(range(nodes), sockets, strict=True)}
    )


@pytest.mark.parametrize(("sockets", "count", "size"), [(32, 20, 30), (32, 3, 5), (16, 7, 25)])
def test_32_sockets_take_few_looks_however_wide_the_request_is(
    sockets: int, count: int, size: int
) -> None:
    """Combinations of 20 out of 32 sockets are 226 million."""
    spread = of_sockets(64, (n * sockets // 64 for n in range(64)), count)
    free = {1 << n: n * n * 7 % 13 % 5 for n in range(64)}
    most = sum(sorted(free.values())[-size:])
    for need in (0, most * 2 // 3, most * 9 // 10, most):
        search = Search(Loose((1 << 64) - 1, (Sum(free, need),)), spread=spread)
        assert calls(partial(list, map(search.can, range(1, 65)))) < 60_000
        assert calls(partial(search.lowest, size)) < 60_000
        found = search.lowest(size)
        assert (found is not None) == search.can(size)
        assert found is None or (search.family.admits(found) and spread.admits(found))


def test_the_lowest_mask_leaves_out_high_sockets_as_far_as_it_can() -> None:
    spread = of_sockets(64, (n // 2 for n in range(64)), 20)
    everywhere = Search(
        Loose((1 << 64) - 1, (Sum(dict.fromkeys(spread.sockets, 1), 30),)), spread=spread
    )
    # Ten sockets whole, and of ten more the first node.
    assert everywhere.lowest(30) == (1 << 20) - 1 | sum(1 << n for n in range(20, 40, 2))
