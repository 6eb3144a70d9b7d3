"""Where memory is, on the simulated kernel and on the real one (cgroup2-facts section 3)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import NodeSet
from agent.core.memory_moves import NodeRoom
from agent.memory_accounts import NUMA_STAT_FILE, by_node

from .rig import GIB, Rig, simulated

MIB = 1 << 20
SIZE = 64 * MIB
FILLABLE = 2 * GIB
"""A node that has more is not filled: that takes long, and pushes out what others have there."""

pytestmark = pytest.mark.timeout(300)


def anonymous(rig: Rig, path: CgroupPath, *nodes: int) -> tuple[int, ...]:
    """Bytes of anonymous memory on each of the nodes."""
    pages = by_node(rig.text(path, NUMA_STAT_FILE).splitlines()[0])
    return tuple(pages[node] for node in nodes)


def bound(rig: Rig, nodes: str, *names: str) -> CgroupPath:
    path = rig.group(*names)
    rig.write(path, "cpuset.mems", nodes)
    # Who swaps out is not killed.  The simulated kernel has no such file, and none to swap to.
    rig.cgroups.write(path, "memory.swap.max", "0")
    return path


def room(rig: Rig, node: int) -> int:
    """Return the bytes that processes can still have on a node that may be filled."""
    available = rig.memory.read()[node].available_bytes
    if available > FILLABLE:
        pytest.skip(f"node {node} has {available // MIB} MiB left: too much to fill it")
    return available


@pytest.fixture
def two(rig: Rig) -> tuple[int, int]:
    """Return two nodes with memory."""
    nodes = sorted(NodeSet.parse(rig.text(rig.base, "cpuset.mems.effective")))
    if len(nodes) < 2:
        pytest.skip("memory can be on one NUMA node only here")
    return nodes[0], nodes[1]


def test_memory_comes_from_the_nodes_of_the_cpuset(rig: Rig, two: tuple[int, int]) -> None:
    for node, other in (two, two[::-1]):
        path = bound(rig, str(node), f"on{node}")
        assert rig.machine.use_memory(path, SIZE) is not None
        here, elsewhere = anonymous(rig, path, node, other)
        assert (here >= SIZE, elsewhere) == (True, 0)
        assert int(rig.text(path, "memory.current")) >= SIZE


def test_pages_have_moved_when_the_write_returns(rig: Rig, two: tuple[int, int]) -> None:
    a, b = two
    path = bound(rig, str(a), "a")
    rig.machine.use_memory(path, SIZE)
    rig.write(path, "cpuset.mems", str(b))
    stayed, moved = anonymous(rig, path, a, b)
    assert (stayed, moved >= SIZE) == (0, True)


def test_pages_move_with_the_change_of_a_parent_too(rig: Rig, two: tuple[int, int]) -> None:
    a, b = two
    pod, container = bound(rig, str(a), "a"), rig.group("a", "c1")
    rig.machine.use_memory(container, SIZE)
    rig.write(pod, "cpuset.mems", str(b))
    assert anonymous(rig, container, a) == (0,)
    assert anonymous(rig, pod, b) >= (SIZE,)


def test_more_nodes_move_nothing(rig: Rig, two: tuple[int, int]) -> None:
    a, b = two
    path = bound(rig, str(b), "a")
    rig.machine.use_memory(path, SIZE)
    rig.write(path, "cpuset.mems", f"{a},{b}")
    assert anonymous(rig, path, b) >= (SIZE,)


def test_what_finds_no_room_stays_and_goes_when_it_is_sent_back(
    rig: Rig, two: tuple[int, int]
) -> None:
    a, b = two
    there = room(rig, b)
    if (here := room(rig, a)) < there * 6 // 10:
        pytest.skip(f"node {a} has {here // MIB} MiB left: too little beside node {b}")
    other, path = bound(rig, str(b), "other"), bound(rig, str(a), "a")
    assert rig.machine.use_memory(other, there * 7 // 10) is not None
    pid = rig.machine.use_memory(path, there // 2)
    rig.write(path, "cpuset.mems", str(b))
    stayed, moved = anonymous(rig, path, a, b)
    assert stayed >= there // 10
    assert moved >= there // 10
    assert str(pid) in rig.text(path, "cgroup.procs")
    rig.write(path, "cpuset.mems", str(a))
    back, left = anonymous(rig, path, a, b)
    assert (back >= there // 2, left) == (True, 0)


def test_who_asks_for_more_than_his_nodes_have_is_killed(rig: Rig) -> None:
    *_, node = NodeSet.parse(rig.text(rig.base, "cpuset.mems.effective"))
    size = room(rig, node) * 5 // 4
    path = bound(rig, str(node), "a")
    assert rig.machine.use_memory(path, size) is None
    assert rig.text(path, "cgroup.procs") == ""


@dataclass(frozen=True)
class Large:
    """A node of a large machine: what is not free is in use by others."""

    room: NodeRoom

    def read(self) -> Mapping[int, NodeRoom]:
        return {0: self.room}


@pytest.mark.parametrize("free_bytes", [FILLABLE + 1, MIB])
def test_a_node_of_a_large_machine_is_not_filled(free_bytes: int, tmp_path: Path) -> None:
    memory = Large(NodeRoom(free_bytes=free_bytes, cache_bytes=FILLABLE))
    with simulated(tmp_path) as small, pytest.raises(pytest.skip.Exception, match="too much"):
        room(replace(small, memory=memory), 0)
