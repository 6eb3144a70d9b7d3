"""What hints of several families leave together, against the enumeration and on big machines."""

from collections.abc import Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.hints import HintList, Merger, Offer
from agent.core.intersections import Intersections
from agent.core.masks import Loose, Sum

from .test_masks_spread import calls

NODES = 5
FULL = (1 << NODES) - 1

families = st.builds(
    lambda sums, must, least: Loose(FULL, tuple(sums), must, least),
    st.lists(
        st.builds(
            Sum,
            st.fixed_dictionaries({1 << n: st.integers(0, 4) for n in range(NODES)}),
            st.integers(0, 9),
        ),
        max_size=2,
    ),
    st.one_of(st.just(0), st.just(0), st.integers(0, FULL)),
    st.integers(1, 3),
).filter(lambda family: family.admits(FULL))


def enumerated(left: int, several: Sequence[Loose]) -> set[int]:
    """Return what remains of ``left`` for every choice of one mask a family."""
    members = [{m & left for m in range(1, FULL + 1) if f.admits(m)} for f in several]
    found = set()
    for masks in product(*members):
        common = left
        for mask in masks:
            common &= mask
        found.add(common)
    return found


@given(st.integers(1, FULL), st.lists(families, min_size=1, max_size=3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_intersections_are_those_of_some_choice_of_masks(
    left: int,
    several: list[Loose],
    twice: bool,  # noqa: FBT001 - a drawn value
) -> None:
    several = several + several[:1] if twice else several
    expected = enumerated(left, several)
    for size in range(1, left.bit_count() + 1):
        common = Intersections(left, several, size)
        masks = [m for m in range(1, FULL + 1) if not m & ~left and m.bit_count() == size]
        of_size = [m for m in masks if m in expected]
        assert [m for m in masks if common.admits(m)] == of_size
        assert common.lowest() == min(of_size, default=None)
        assert not common.are_all or of_size == masks


def test_scarce_amounts_on_different_nodes_meet_without_trying_all_ways() -> None:
    """The CPUs of the first third are in use, and only the second half has hugepages."""
    nodes = 64
    full = (1 << nodes) - 1
    free = Sum({1 << n: int(n >= 20) for n in range(nodes)}, 21)
    memory = Sum({1 << n: 1 for n in range(nodes)}, 2)
    pages = Sum({1 << n: int(n >= 32) for n in range(nodes)}, 30)
    offers = [
        Offer("cpu", ("cpu",), HintList(preferred_size=3, loose=Loose(full, (free,)))),
        Offer("memory", ("m", "h"), HintList(preferred_size=2, loose=Loose(full, (memory, pages)))),
    ]
    assert calls(lambda: Merger(full).merge(offers)) < 1_000_000
    merged = Merger(full).merge(offers)

    assert merged.mask is not None
    assert merged.mask.bit_count() == 30
    # Twice at most two of the 32 nodes with pages are left out for memory, the rest for CPUs.
    assert (merged.mask >> 32).bit_count() >= 32 - 2 * 2 - 23
