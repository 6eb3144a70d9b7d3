import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet
from agent.core.departures import DOUBLE_ALLOCATION
from agent.core.distribute import take
from agent.core.take import Pool, TakeError, TakeOptions, by_size, numa_order
from agent.core.topology import Core, NodeTopology, NumaNode
from tests.strategies import GI, machine, machines, ordinary_machines

options = st.one_of(
    st.builds(TakeOptions, whole_cores=st.booleans(), across_numa=st.booleans()),
    st.builds(TakeOptions, across_cores=st.booleans()),
    st.builds(TakeOptions, whole_cores=st.booleans(), uncore_aligned=st.booleans()),
)


def taken(
    topology: NodeTopology,
    count: int,
    available: str | None = None,
    *,
    unowned: str = "",
    **on: bool,
) -> str:
    """Take CPUs as options say, of all or of those available, in the list format."""
    cpus = topology.cpus if available is None else CPUSet.parse(available)
    pool = Pool(cpus.bits, CPUSet.parse(unowned).bits)
    return str(CPUSet.from_bits(take(topology, pool, count, TakeOptions(**on)).bits))


@st.composite
def requests(
    draw: st.DrawFn, topologies: st.SearchStrategy[NodeTopology]
) -> tuple[NodeTopology, CPUSet, int, TakeOptions]:
    topology = draw(topologies)
    available = CPUSet(draw(st.sets(st.sampled_from(sorted(topology.cpus)))))
    return topology, available, draw(st.integers(0, len(topology.cpus) + 1)), draw(options)


def spans_sockets(topology: NodeTopology) -> bool:
    """Tell whether some NUMA node has CPUs of several sockets."""
    return len({(c.node, c.socket) for c in topology.cores}) > len(topology.cpu_bits_by_node)


@given(requests(machines()))
@settings(max_examples=400, deadline=None)
def test_exactly_so_many_available_cpus_are_taken_or_it_says_that_they_are_too_few(
    request: tuple[NodeTopology, CPUSet, int, TakeOptions],
) -> None:
    topology, available, count, options = request
    pool = Pool(available.bits, 0)
    if count > len(available):
        words = f"to satisfy request: requested={count}, available={len(available)}"
        with pytest.raises(TakeError, match=f"^not enough cpus available {words}$"):
            take(topology, pool, count, options)
        return
    try:
        found = take(topology, pool, count, options)
    except TakeError:
        # A node that spans sockets is counted once with each, and so runs out, as in the kubelet.
        assert options.across_numa
        assert spans_sockets(topology)
        return
    cpus = CPUSet.from_bits(found.bits)
    assert len(cpus) == count
    assert cpus <= available
    assert take(topology, pool, count, options) == found


@given(requests(machines()), st.data())
@settings(max_examples=300, deadline=None)
def test_cpus_that_somebody_owns_are_never_taken(
    request: tuple[NodeTopology, CPUSet, int, TakeOptions], data: st.DataObject
) -> None:
    topology, available, count, options = request
    others = sorted(topology.cpus - available)
    unowned = CPUSet(data.draw(st.sets(st.sampled_from(others)))) if others else CPUSet()
    try:
        found = take(topology, Pool(available.bits, unowned.bits), count, options)
    except TakeError:
        return
    assert CPUSet.from_bits(found.bits) <= available | unowned
    assert len(CPUSet.from_bits(found.bits)) == count


@given(requests(ordinary_machines()))
@settings(max_examples=200, deadline=None)
def test_even_machines_need_no_departure(
    request: tuple[NodeTopology, CPUSet, int, TakeOptions],
) -> None:
    topology, available, count, options = request
    if count <= len(available):
        assert not take(topology, Pool(available.bits, 0), count, options).departures


@pytest.mark.parametrize(
    ("count", "available", "expected"),
    [
        (0, None, ""),
        (1, None, "0"),
        (2, None, "0-1"),
        (3, None, "0-2"),
        (8, None, "0-7"),
        (10, None, "0-9"),
        (2, "1-15", "2-3"),  # a whole core rather than the odd thread
        (3, "1-15", "1-3"),  # the rest from the core with fewest free threads
        (8, "1-15", "8-15"),  # a whole node where it fits
        (2, "1,3,5,8-15", "8-9"),  # a whole core of the emptier node rather than threads
        (4, "0-5,8-15", "0-3"),  # the node with fewer free CPUs first
        (16, None, "0-15"),
    ],
)
def test_packing_takes_whole_nodes_then_whole_cores_then_threads_fullest_first(
    count: int, available: str | None, expected: str
) -> None:
    two_nodes = machine(sockets=2, cores_per_node=4, threads=2)
    assert taken(two_nodes, count, available) == expected


def test_siblings_half_a_machine_apart_are_one_core() -> None:
    apart = machine(cores_per_node=4, threads=2, siblings_apart=True)
    assert taken(apart, 2) == "0,4"
    assert taken(apart, 3) == "0-1,4"


def test_spreading_ignores_cores() -> None:
    apart = machine(cores_per_node=4, threads=2, siblings_apart=True)
    assert taken(apart, 2, across_cores=True) == "0-1"
    assert taken(apart, 3, "1-7", across_cores=True) == "1-3"


def test_a_socket_above_several_nodes_is_taken_whole() -> None:
    topology = machine(sockets=2, nodes_per_socket=2, cores_per_node=2, threads=1)
    assert taken(topology, 4, "1-7") == "4-7"
    assert taken(topology, 2, "1-7") == "2-3"


@pytest.mark.parametrize(
    ("count", "available", "expected"),
    [
        (4, "1-15", "4-7"),  # a wholly free cache
        (3, "1-15", "1-3"),  # a part of the fullest cache
        (2, "1-15", "4-5"),  # but not where its first core has too few threads
        (3, "1,3-7", "4-6"),  # whole cores but for the last thread
        (6, "2-15", "2-7"),  # a whole cache and a part of another
        (5, "1-15", "1,4-7"),
    ],
)
def test_caches_are_kept_together_on_demand(count: int, available: str, expected: str) -> None:
    topology = machine(cores_per_node=8, threads=2, uncores_per_node=4)
    assert taken(topology, count, available, uncore_aligned=True) == expected


def hybrid() -> NodeTopology:
    """Return a machine of two big cores with two threads and three small ones: average 1."""
    threads = ((0, 1), (2, 3), (4,), (5,), (6,))
    return NodeTopology(
        nodes=(NumaNode(id=0, memory_bytes=GI),),
        cores=tuple(Core(cpus=CPUSet(t), node=0, socket=0, uncore=0) for t in threads),
        socket_count=1,
    )


def test_an_uneven_core_is_passed_over_where_somebody_owns_a_part_of_it() -> None:
    # One free thread equals the average of one, so the kubelet calls core 0 whole, and takes CPU 0.
    available = CPUSet.parse("1,4-6")
    found = take(hybrid(), Pool(available.bits, 0), 3, TakeOptions())
    assert CPUSet.from_bits(found.bits) == CPUSet.parse("4-6")
    assert found.departures == {DOUBLE_ALLOCATION}


def test_an_uneven_core_is_taken_whole_where_nobody_owns_the_rest() -> None:
    assert taken(hybrid(), 3, "1,4-6", unowned="0") == "0-1,4"


def test_a_pool_without_cpus_has_lost_them_for_good() -> None:
    pool = Pool(0b1111, 0b110000).without(0b10001)
    assert pool == Pool(0b1110, 0b100000)
    assert pool & 0b0110 == Pool(0b0110, 0b100000)


def test_groups_are_ordered_by_free_cpus_and_then_by_id() -> None:
    groups = {0: 0b0011, 1: 0b1100, 2: 0b110000}
    assert by_size(0b110111, groups) == [1, 0, 2]
    assert by_size(0b000011, groups) == [0]
    assert by_size(0b110111, groups, within=0b110011) == [0, 2]


def test_nodes_of_the_fullest_socket_come_first_where_sockets_are_on_top() -> None:
    topology = machine(sockets=2, nodes_per_socket=2, cores_per_node=2, threads=1)
    assert numa_order(topology, topology.cpus.bits) == [0, 1, 2, 3]
    assert numa_order(topology, CPUSet.parse("0-3,5-7").bits) == [2, 3, 0, 1]
    assert numa_order(topology, CPUSet.parse("0,2-7").bits) == [0, 1, 2, 3]
