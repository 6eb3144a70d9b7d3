"""The distributed pick; that it packs and refuses as the other does is in `test_take`."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet
from agent.core.departures import MORE_THAN_8_NODES
from agent.core.distribute import _combinations, _deviation, _round3, take
from agent.core.take import Pool, TakeOptions
from agent.core.topology import NodeTopology
from tests.strategies import machine

ACROSS = TakeOptions(across_numa=True)
WHOLE_CORES = TakeOptions(across_numa=True, whole_cores=True)


def counts(topology: NodeTopology, cpus: CPUSet) -> dict[int, int]:
    """Count the CPUs of each node."""
    return {n: len(topology.cpus_of(n) & cpus) for n in topology.cpu_bits_by_node}


def distributed(
    topology: NodeTopology, count: int, available: str | None = None, options: TakeOptions = ACROSS
) -> CPUSet:
    cpus = topology.cpus if available is None else CPUSet.parse(available)
    return CPUSet.from_bits(take(topology, Pool(cpus.bits, 0), count, options).bits)


@pytest.mark.parametrize(
    ("count", "available", "expected"),
    [
        (2, None, "0-1"),  # one node is enough
        (8, None, "0-7"),
        (10, None, "0-4,8-12"),  # five of each
        (9, None, "0-4,8-11"),  # four of each, the odd one from the first
        (16, None, "0-15"),
        (10, "2-15", "2-6,8-12"),  # five of each also where one node is fuller
    ],
)
def test_as_few_nodes_as_needed_give_equal_shares(
    count: int, available: str | None, expected: str
) -> None:
    two_nodes = machine(sockets=2, cores_per_node=4, threads=2)
    assert str(distributed(two_nodes, count, available)) == expected


def test_whole_cores_stay_whole_on_demand() -> None:
    two_nodes = machine(sockets=2, cores_per_node=4, threads=2)
    assert str(distributed(two_nodes, 10, options=WHOLE_CORES)) == "0-5,8-11"


def test_what_is_no_multiple_of_a_core_is_packed() -> None:
    two_nodes = machine(sockets=2, cores_per_node=4, threads=2)
    assert str(distributed(two_nodes, 9, options=WHOLE_CORES)) == "0-8"


def test_where_no_nodes_can_share_equally_it_is_packed() -> None:
    three_nodes = machine(sockets=3, cores_per_node=4, threads=2)
    assert str(distributed(three_nodes, 9, "0,8-15,16")) == "0,8-15"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_remembered_combinations_of_these_sizes_stay_as_they_were(size: int) -> None:
    remembered = list(_combinations(range(7), size))
    assert [tuple(c.values()) for c in remembered] == list(combinations(range(7), size))


def test_every_combination_is_right_while_it_is_looked_at() -> None:
    for size in range(1, 8):
        seen = [tuple(c.values()) for c in _combinations(range(7), size)]
        assert seen == list(combinations(range(7), size))


@pytest.mark.parametrize(
    ("size", "kept", "then"),
    [
        (4, (0, 1, 2, 3), (0, 1, 2, 6)),
        (4, (0, 1, 3, 4), (0, 1, 3, 6)),
        (4, (3, 4, 5, 6), (3, 4, 5, 6)),
        (6, (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 6)),
    ],
)
def test_a_remembered_combination_ends_like_the_last_one_with_the_same_beginning(
    size: int, kept: tuple[int, ...], then: tuple[int, ...]
) -> None:
    remembered = next(c for c in _remember_all(7, size) if c[0] == kept)
    assert remembered[1] == then


def _remember_all(items: int, size: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return each combination when it was found, and what became of it at the end of the walk."""
    walk = [(tuple(c.values()), c) for c in _combinations(range(items), size)]
    return [(when_found, tuple(c.values())) for when_found, c in walk]


def test_the_fourth_node_is_the_last_one_that_the_walk_wrote() -> None:
    # Five free nodes of 4 CPUs, and 16 are wanted: 4 nodes give 4 each.  All five ways leave one node
    # free and are equally good, so nodes 0, 1, 2, 3 are remembered.  Then the walk writes 0, 1, 2, 4
    # into the same array.
    five_nodes = machine(sockets=5, cores_per_node=4, threads=1)
    assert str(distributed(five_nodes, 16)) == "0-11,16-19"


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.0, 0.0), (0.0625, 0.063), (0.1875, 0.188), (1.2344, 1.234), (1.2346, 1.235), (7.0, 7.0)],
)
def test_halves_are_rounded_up(value: float, rounded: float) -> None:
    assert _round3(value) == rounded


@pytest.mark.parametrize(
    ("values", "deviation"),
    [
        ([4, 4, 4], 0.0),
        ([0, 4], 2.0),
        ([1, 2], 0.5),
        ([0, 0, 1], 0.471),
        ([0, 0, 0, 4, 0], 1.6),
        ([1, 2, 3, 4], 1.118),
    ],
)
def test_the_deviation_is_that_of_a_population_to_3_decimals(
    values: list[int], deviation: float
) -> None:
    assert _deviation(values) == deviation


def test_the_mean_is_rounded_before_the_deviation() -> None:
    # The mean of one CPU on 1,999 nodes, 0.00050025, counts as 0.001.
    values = [0] * 1998 + [1]
    exact = (1 / 1999 - 1 / 1999**2) ** 0.5
    assert _deviation(values) == pytest.approx(exact, abs=0.0006)
    assert _round3(sum(values) / len(values)) == 0.001


@pytest.mark.parametrize("options", [ACROSS, WHOLE_CORES])
@pytest.mark.parametrize("count", [2, 6, 8, 12, 30, 34, 70, 72])
@pytest.mark.parametrize("nodes", [9, 12])
def test_above_8_nodes_a_free_machine_gives_equal_shares_of_as_few_nodes_as_needed(
    nodes: int, count: int, options: TakeOptions
) -> None:
    topology = machine(sockets=nodes, cores_per_node=4, threads=2)
    pool = Pool(topology.cpus.bits, 0)
    found = take(topology, pool, count, options)
    shares = [n for n in counts(topology, CPUSet.from_bits(found.bits)).values() if n]
    group = 2 if options.whole_cores else 1
    assert sum(shares) == count
    assert max(shares) - min(shares) <= group
    assert len(shares) == -(-count // 8)
    assert found.departures == {MORE_THAN_8_NODES}


@given(st.data(), st.integers(9, 11), st.sampled_from((ACROSS, WHOLE_CORES)))
@settings(max_examples=100, deadline=None)
def test_above_8_nodes_each_node_that_gives_has_the_least_share(
    data: st.DataObject, nodes: int, options: TakeOptions
) -> None:
    topology = machine(sockets=nodes, cores_per_node=2, threads=2)
    free = CPUSet(data.draw(st.sets(st.sampled_from(sorted(topology.cpus)), min_size=1)))
    count = data.draw(st.integers(1, len(free)))
    found = take(topology, Pool(free.bits, 0), count, options)
    cpus = CPUSet.from_bits(found.bits)
    assert cpus <= free
    assert len(cpus) == count
    if found.departures:
        shares = [n for n in counts(topology, cpus).values() if n]
        group = 2 if options.whole_cores else 1
        assert min(shares) >= count // len(shares) // group * group
