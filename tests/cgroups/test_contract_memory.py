"""Where memory is, on the simulated kernel and on the real one (cgroup2-facts section 3)."""

import pytest

from agent.core.cgroups import CgroupPath
from agent.memory_accounts import NUMA_STAT_FILE, by_node

from .rig import Rig

MIB = 1 << 20
SIZE = 64 * MIB
OTHERS = 16 * MIB
"""What a real process has beside the memory that it was asked to use."""

pytestmark = pytest.mark.timeout(300)


def anonymous(rig: Rig, path: CgroupPath) -> tuple[int, int]:
    """Bytes of anonymous memory on nodes 0 and 1."""
    pages = by_node(rig.text(path, NUMA_STAT_FILE).splitlines()[0])
    return pages[0], pages[1]


def bound(rig: Rig, nodes: str, *names: str) -> CgroupPath:
    path = rig.group(*names)
    rig.write(path, "cpuset.mems", nodes)
    return path


def test_memory_comes_from_the_nodes_of_the_cpuset(rig: Rig) -> None:
    for node in (0, 1):
        path = bound(rig, str(node), f"on{node}")
        assert rig.machine.use_memory(path, SIZE) is not None
        pages = anonymous(rig, path)
        assert (pages[node] >= SIZE, pages[1 - node]) == (True, 0)
        assert int(rig.text(path, "memory.current")) >= SIZE


def test_pages_have_moved_when_the_write_returns(rig: Rig) -> None:
    path = bound(rig, "0", "a")
    rig.machine.use_memory(path, SIZE)
    rig.write(path, "cpuset.mems", "1")
    assert (anonymous(rig, path)[0], anonymous(rig, path)[1] >= SIZE) == (0, True)


def test_pages_move_with_the_change_of_a_parent_too(rig: Rig) -> None:
    pod, container = bound(rig, "0", "a"), rig.group("a", "c1")
    rig.machine.use_memory(container, SIZE)
    rig.write(pod, "cpuset.mems", "1")
    assert (anonymous(rig, container)[0], anonymous(rig, pod)[1] >= SIZE) == (0, True)


def test_more_nodes_move_nothing(rig: Rig) -> None:
    path = bound(rig, "1", "a")
    rig.machine.use_memory(path, SIZE)
    rig.write(path, "cpuset.mems", "0-1")
    assert anonymous(rig, path)[1] >= SIZE


def test_what_finds_no_room_stays_and_goes_when_it_is_sent_back(rig: Rig) -> None:
    other, path = bound(rig, "1", "other"), bound(rig, "0", "a")
    assert rig.machine.use_memory(other, 700 * MIB) is not None
    pid = rig.machine.use_memory(path, 500 * MIB)
    rig.write(path, "cpuset.mems", "1")
    stayed, moved = anonymous(rig, path)
    assert stayed >= 100 * MIB
    assert moved >= 100 * MIB
    assert str(pid) in rig.text(path, "cgroup.procs")
    rig.write(path, "cpuset.mems", "0")
    assert (anonymous(rig, path)[0] >= 500 * MIB, anonymous(rig, path)[1]) == (True, 0)


def test_who_asks_for_more_than_his_nodes_have_is_killed(rig: Rig) -> None:
    path = bound(rig, "1", "a")
    assert rig.machine.use_memory(path, 1100 * MIB) is None
    assert rig.text(path, "cgroup.procs") == ""
