"""The closest nodes of big machines: what is proved, how good the rest is, and how long it takes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core import closest as closest_nodes
from agent.core.ahead import Bounds
from agent.core.closest import Layers, closest
from agent.core.masks import Loose, Search, Sum, node_bits, total_distance
from agent.core.near import Apart, Near

from .test_masks_spread import calls

Table = dict[int, dict[int, int]]


def table(nodes: int, distance: Callable[[int, int], int]) -> Table:
    return {1 << a: {1 << b: distance(a, b) for b in range(nodes)} for a in range(nodes)}


def torus(width: int, height: int) -> Table:
    """Return the distances of nodes in a ring of rings: ten, and six more a hop."""

    def distance(a: int, b: int) -> int:
        across, along = abs(a % width - b % width), abs(a // width - b // width)
        return 10 + 6 * (min(across, width - across) + min(along, height - along))

    return table(width * height, distance)


def boards(*sizes: int) -> Table:
    """Return the distances of nodes in sockets, those on boards, and so on: sizes from the inside."""

    def distance(a: int, b: int) -> int:
        far = 10
        for size in sizes:
            if a == b:
                break
            far += 11
            a, b = a // size, b // size
        return far

    nodes = 1
    for size in sizes:
        nodes *= size
    return table(nodes, distance)


def uneven(nodes: int, seed: int, farthest: int = 254) -> Table:
    random = Random(seed)
    pairs = {pair: random.randint(11, farthest) for pair in combinations(range(nodes), 2)}
    return table(nodes, lambda a, b: 10 if a == b else pairs[min(a, b), max(a, b)])


def anywhere(distances: Table, amounts: Sequence[int] = (), need: int = 0) -> Loose:
    sums = (Sum({1 << n: amount for n, amount in enumerate(amounts)}, need),) if amounts else ()
    return Loose(sum(distances), sums)


def nearest(family: Loose, size: int, distances: Table) -> int:
    search = Search(family)
    first = search.lowest(size)
    assert first is not None
    return closest(search, first, distances)


def is_proof(family: Loose, size: int, distances: Table) -> bool:
    """Tell whether the layers alone, starting with the lowest mask, come to an end."""
    search = Search(family)
    first = search.lowest(size)
    assert first is not None
    near = Near(Apart(node_bits(family.universe), 0, distances))
    layers = Layers(
        near, Search(family, near.nodes), size, (total_distance(first, distances), first)
    )
    layers.search()
    return layers.is_proof


def best_of_all(family: Loose, size: int, distances: Table) -> int:
    masks = filter(family.admits, map(sum, combinations(node_bits(family.universe), size)))
    return min(masks, key=lambda m: (total_distance(m, distances), m))


def swapped(mask: int, family: Loose) -> Iterator[int]:
    inside, outside = node_bits(mask), node_bits(family.universe & ~mask)
    masks = (mask ^ out ^ into for out in inside for into in outside)
    return (m for m in masks if family.admits(m))


def grown_and_swapped(family: Loose, size: int, distances: Table) -> int:
    """Return the distance that growing from every node and swapping comes to, for even amounts."""
    found = []
    for start in node_bits(family.universe):
        mask = start
        while mask.bit_count() < size:
            outside = node_bits(family.universe & ~mask)
            mask = min((mask | bit for bit in outside), key=lambda m: total_distance(m, distances))
        best = total_distance(mask, distances)
        while (better := min((total_distance(m, distances), m) for m in swapped(mask, family))) < (
            best,
            0,
        ):
            best, mask = better
        found.append(best)
    return min(found)


# Sixteen nodes, so that the search may be narrowed, and no sums or one that binds.
some_machines = st.sampled_from(
    [torus(4, 4), boards(4, 4), boards(2, 4, 2), uneven(16, 1), uneven(16, 2, farthest=13)]
)


@given(some_machines, st.lists(st.integers(0, 4), min_size=16, max_size=16), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_proved_is_the_closest_and_lowest_of_all(
    distances: Table, amounts: list[int], data: st.DataObject
) -> None:
    size = data.draw(st.integers(2, 7))
    most = sum(sorted(amounts)[-size:])
    family = anywhere(distances, amounts, data.draw(st.integers(0, most)))
    expected = best_of_all(family, size, distances)
    found = nearest(family, size, distances)
    assert total_distance(found, distances) == total_distance(expected, distances)
    if size <= closest_nodes.PROVED_SIZE or is_proof(family, size, distances):
        assert found == expected


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sets_of_up_to_four_of_64_nodes_are_always_proved(seed: int, size: int) -> None:
    distances = uneven(64, seed)
    amounts = [n * n * 7 % 13 % 5 for n in range(64)]
    assert is_proof(anywhere(distances), size, distances)
    assert is_proof(anywhere(distances, amounts, 3 * size), size, distances)


@pytest.mark.parametrize("sizes", [(8, 8), (4, 16), (4, 4, 4), (64,), (2, 2, 2, 2, 2, 2)])
def test_sockets_and_boards_are_filled_one_after_the_other(sizes: tuple[int, ...]) -> None:
    distances = boards(*sizes)
    for size in (3, 8, 12, 21, 32, 50):
        family = anywhere(distances)
        assert nearest(family, size, distances) == (1 << size) - 1
        assert is_proof(family, size, distances)


def test_nodes_of_one_socket_are_found_among_others_that_are_half_used() -> None:
    distances = boards(8, 8)
    # Every node has four CPUs, and those of the sixth socket are free, and two of the third.
    amounts = [4 if n // 8 == 5 or n in (17, 22) else 3 for n in range(64)]
    family = anywhere(distances, amounts, 40)
    assert nearest(family, 10, distances) == 0xFF << 40 | 1 << 17 | 1 << 22


@pytest.mark.parametrize("size", range(2, 19))
def test_a_torus_is_not_left_worse_than_by_growing_and_swapping(size: int) -> None:
    distances = torus(6, 6)
    family = anywhere(distances)
    found = total_distance(nearest(family, size, distances), distances)
    assert found <= grown_and_swapped(family, size, distances)
    assert size != 16 or found == 6136


@pytest.mark.parametrize(
    "distances", [torus(8, 8), boards(4, 4, 4), uneven(64, 1), uneven(64, 2, farthest=14)]
)
def test_64_nodes_take_few_looks_whatever_their_distances_are(distances: Table) -> None:
    for size in (2, 5, 9, 16, 24, 40):
        for amounts in ([1] * 64, [2 + n % 3 for n in range(64)]):
            family = anywhere(distances, amounts, sum(sorted(amounts)[-size:]) * 9 // 10)
            assert calls(partial(nearest, family, size, distances)) < 60_000


def test_equal_questions_have_equal_answers() -> None:
    distances, amounts = uneven(40, 3), [n * 5 % 7 for n in range(40)]
    family = anywhere(distances, amounts, 60)
    assert len({nearest(family, 14, distances) for _ in range(3)}) == 1


@pytest.mark.parametrize("factor", [10**9, 10**30])
def test_no_distance_is_too_large(factor: int) -> None:
    near_and_far = uneven(16, 4)
    far = {a: {b: d * factor for b, d in row.items()} for a, row in near_and_far.items()}
    family = anywhere(near_and_far)
    assert nearest(family, 6, far) == nearest(family, 6, near_and_far)


def check_bounds(distances: Table, missing: int) -> None:
    """Compare with all sets, whatever nodes are chosen already of those that are last in order."""
    near = Near(Apart(node_bits(sum(distances)), 0, distances))
    bounds = Bounds(near, missing)
    for chosen in range(3):
        last = sum(near.nodes[len(near.nodes) - chosen :])
        apart = total_distance(last, distances)
        alone = [total_distance(last | bit, distances) - apart for bit in near.nodes]
        for end in range(missing, len(near.nodes) - chosen + 1):
            ahead = bounds.ahead(end, missing, near.pack(alone) & near.below[end])
            for nodes in combinations(range(end), missing):
                mask = last | sum(near.nodes[i] for i in nodes)
                adds = total_distance(mask, distances) - apart
                assert adds >= ahead.least
                assert all(adds >= ahead.far[i] + ahead.others for i in nodes)


rows = st.lists(st.integers(1, 9), min_size=7, max_size=7)


@given(st.lists(rows, min_size=7, max_size=7), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_no_set_adds_less_than_the_bounds_say(distances: list[list[int]], missing: int) -> None:
    check_bounds(table(7, lambda a, b: distances[a][b]), missing)


@pytest.mark.parametrize("missing", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sizes", [(2, 4), (3, 3), (2, 2, 2), (1, 2, 2, 2), (3, 2, 2)])
def test_no_set_adds_less_than_the_bounds_of_a_tree_say(
    sizes: tuple[int, ...], missing: int
) -> None:
    check_bounds(boards(*sizes), missing)


@pytest.mark.parametrize("sizes", [(4, 4), (2, 3, 4), (8,), (3, 5)])
def test_the_bound_is_exact_where_distances_are_those_of_a_tree(sizes: tuple[int, ...]) -> None:
    distances = boards(*sizes)
    near = Near(Apart(node_bits(sum(distances)), 0, distances))
    for size in range(1, len(near.nodes)):
        family = anywhere(distances)
        best = total_distance(nearest(family, size, distances), distances)
        assert Bounds(near, size).ahead(len(near.nodes), size, near.alone).least == best
