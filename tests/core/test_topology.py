import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.topology import Core, NodeTopology, NumaNode, kubelet_view
from tests.strategies import GI, machine, machines


def core(*cpus: int, node: int = 0, socket: int = 0, uncore: int = 0) -> Core:
    return Core(cpus=CPUSet(cpus), node=node, socket=socket, uncore=uncore)


def with_rows(*ids_and_rows: tuple[int, tuple[int, ...]]) -> NodeTopology:
    """Build a machine of which only the distances matter."""
    return NodeTopology(
        nodes=tuple(NumaNode(id=i, memory_bytes=GI, distances=row) for i, row in ids_and_rows),
        cores=(core(0),),
        socket_count=1,
    )


@given(machines())
@settings(max_examples=100, deadline=None)
def test_every_level_divides_all_cpus(topology: NodeTopology) -> None:
    levels = (
        topology.core_bits,
        topology.cpu_bits_by_node,
        topology.cpu_bits_by_socket,
        topology.cpu_bits_by_uncore,
    )
    for level in levels:
        assert sum(level.values()) == topology.cpus.bits
        assert list(level) == sorted(level)
    for first, bits in topology.core_bits.items():
        assert first == min(CPUSet.from_bits(bits))


@given(machines(), st.data())
@settings(max_examples=100, deadline=None)
def test_the_nodes_of_cpus_are_those_that_own_one(
    topology: NodeTopology, data: st.DataObject
) -> None:
    some = CPUSet(data.draw(st.sets(st.sampled_from(sorted(topology.cpus)))))
    expected = {core.node for core in topology.cores if not core.cpus.isdisjoint(some)}
    assert set(topology.nodes_of(some)) == expected


@given(machines(), st.data())
@settings(max_examples=100, deadline=None)
def test_cores_inside_are_those_with_a_cpu_there(
    topology: NodeTopology, data: st.DataObject
) -> None:
    bits = CPUSet(data.draw(st.sets(st.sampled_from(sorted(topology.cpus))))).bits
    expected = [(c, b) for c, b in topology.core_bits.items() if b & bits]
    assert topology.cores_inside(bits) == expected
    assert topology.cores_inside(bits) == expected  # remembered


def test_nodes_without_cpus_or_memory_are_nodes_all_the_same() -> None:
    topology = NodeTopology(
        nodes=(NumaNode(id=0, memory_bytes=0), NumaNode(id=8, memory_bytes=GI)),
        cores=(core(0, 1),),
        socket_count=1,
    )
    assert topology.node_ids == NodeSet([0, 8])
    assert topology.memory_nodes == NodeSet([8])
    assert topology.cpu_bits_by_node == {0: 0b11}
    assert topology.cpus_of(0) == CPUSet([0, 1])
    assert topology.cpus_of(8) == CPUSet()


def test_sizes_are_averages_rounded_down() -> None:
    """An uneven machine: three cores of which one has lost its sibling, two sockets, two caches."""
    topology = NodeTopology(
        nodes=(NumaNode(id=0, memory_bytes=GI),),
        cores=(core(0, 1), core(2, 3, uncore=1), core(4, socket=1, uncore=1)),
        socket_count=2,
    )
    assert topology.cpus_per_core == 1
    assert topology.cpus_per_socket == 2
    assert topology.cpus_per_uncore == 2


def test_a_machine_without_cpus_has_no_sizes() -> None:
    empty = NodeTopology(nodes=(), cores=(), socket_count=0)
    assert (empty.cpus_per_core, empty.cpus_per_socket, empty.cpus_per_uncore) == (0, 0, 0)
    assert empty.cpus == CPUSet()


def test_distances_are_looked_up_by_id_where_the_row_is_long_enough() -> None:
    topology = with_rows((0, (10, 99, 21)), (2, (22, 99, 10)))
    assert topology.distance(0, 2) == 21
    assert topology.distance(2, 0) == 22


def test_distances_of_sparse_nodes_are_looked_up_by_position() -> None:
    topology = with_rows((0, (10, 40)), (8, (40, 10)))
    assert topology.distance(0, 8) == 40
    assert topology.distance(8, 8) == 10


def test_unknown_distances_count_as_near_to_itself_and_far_from_others() -> None:
    topology = with_rows((0, ()), (1, (20, 10)))
    assert topology.distance(0, 1) is None
    assert topology.distances_by_bit == {1: {1: 10, 2: 20}, 2: {1: 20, 2: 10}}


@pytest.mark.parametrize(
    ("uncores_per_node", "caches"),
    [(1, {0: 0xFF, 1: 0xFF00}), (2, {0: 0xF, 1: 0xF0, 2: 0xF00, 3: 0xF000})],
)
def test_a_cache_as_wide_as_its_node_is_no_uncore_cache_to_the_kubelet(
    uncores_per_node: int, caches: dict[int, int]
) -> None:
    topology = machine(sockets=2, cores_per_node=4, uncores_per_node=uncores_per_node)
    assert kubelet_view(topology).cpu_bits_by_uncore == caches


def test_the_socket_stands_in_for_a_cache_as_wide_as_its_node() -> None:
    topology = machine(sockets=1, nodes_per_socket=2, cores_per_node=2)
    assert len(topology.cpu_bits_by_uncore) == 2
    assert kubelet_view(topology).cpu_bits_by_uncore == topology.cpu_bits_by_socket
