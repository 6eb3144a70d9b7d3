"""What keeps the searches short on big machines, and that it overlooks nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core import masks
from agent.core.hints import HintList, Merger
from agent.core.masks import Loose, Sum, ascending, lowest, smallest_size

NODES = 5
FULL = (1 << NODES) - 1

subsets = st.integers(0, FULL)
sums = st.builds(
    Sum,
    st.fixed_dictionaries({1 << n: st.integers(0, 4) for n in range(NODES)}),
    st.integers(0, 9),
)
families = st.builds(
    lambda universe, sums, must, least: Loose(universe, tuple(sums), must & universe, least),
    subsets,
    st.lists(sums, max_size=2),
    subsets,
    st.integers(1, 2),
)
hint_lists = st.builds(
    HintList,
    preferred_size=st.just(1),
    loose=st.none() | families,
    listed=st.frozensets(st.integers(1, FULL), max_size=3),
).filter(lambda h: not h.is_empty)


def members(family: Loose) -> set[int]:
    return {mask for mask in range(1, FULL + 1) if family.admits(mask)}


@given(families, subsets)
@settings(max_examples=300, deadline=None)
def test_what_a_family_leaves_inside_bounds_is_what_its_masks_leave(
    family: Loose, bounds: int
) -> None:
    left = {mask & bounds for mask in members(family)} - {0}
    assert members(family.inside(bounds)) == left


@given(st.lists(hint_lists, min_size=1, max_size=3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_best_of_all_intersections_is_found_whatever_the_lists_hold(
    lists: list[HintList],
    twice: bool,  # noqa: FBT001 - a drawn value
) -> None:
    copies = lists + lists[:1] if twice else lists
    left = {FULL}
    for hints in copies:
        left = {a & mask for a in left for mask, _ in hints.enumerate()}
    for size in range(1, NODES + 1):
        expected = min((m for m in left if m.bit_count() == size), default=None)
        assert Merger(FULL)._best_intersection(copies, size) == expected


def amounts_that_exclude_each_other(nodes: int) -> Loose:
    """Return a family of which a half has memory and the other half hugepages, never both."""
    half = nodes // 2
    memory = {1 << n: 10 for n in range(half)}
    hugepages = {1 << n: 10 for n in range(half, nodes)}
    return Loose((1 << nodes) - 1, (Sum(memory, 10 * half), Sum(hugepages, 10 * half - 5)))


def test_amounts_that_cannot_be_had_together_end_a_branch_at_once() -> None:
    family = amounts_that_exclude_each_other(40)
    assert smallest_size(family) == 40
    assert next(ascending(family, 39), None) is None


def test_many_ways_to_trade_one_amount_for_another_stay_few_and_hide_no_mask() -> None:
    nodes = 16
    traded = Sum({1 << n: 3**n % 101 for n in range(nodes)}, 380)
    against = Sum({1 << n: 101 - 3**n % 101 for n in range(nodes)}, 380)
    family = Loose((1 << nodes) - 1, (traded, against))
    search = masks.Search(family)

    assert len(search.most(nodes, 8)) <= masks.MOST_VECTORS
    expected = min(m for m in range(1 << nodes) if m.bit_count() == 8 and family.admits(m))
    assert lowest(family, 8) == expected
