"""Where the simulated kernel has its pages; what it shares with real ones is a contract test."""

from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.memory_moves import NodeRoom
from agent.errors import CgroupError
from agent.ports import GONE
from agent.simulation.kernel import SimulatedKernel
from tests.strategies import machine

from .rig import GIB

A, B = CgroupPath("pods/a"), CgroupPath("pods/b")
MIB = 1 << 20


@pytest.fixture
def two(kernel: SimulatedKernel) -> SimulatedKernel:
    for path in (A, B):
        kernel.make(path)
    return kernel


def free_mib(kernel: SimulatedKernel) -> list[int]:
    return [room.free_bytes // MIB for room in kernel.memory.read().values()]


def test_pages_come_from_the_first_node_and_then_from_the_next(two: SimulatedKernel) -> None:
    pid = two.add_task(A)
    assert two.allocate(pid, 1025 * MIB)
    assert free_mib(two) == [0, 1023]


def test_the_end_of_a_process_gives_its_pages_back(two: SimulatedKernel) -> None:
    first, second = two.use_memory(A, 10 * MIB), two.use_memory(A, 5 * MIB)
    assert first
    assert second
    two.kill(first)
    assert free_mib(two) == [1019, 1024]
    assert two.read(A, "memory.current") == str(5 * MIB)


def test_pages_stay_charged_where_they_were_allocated(two: SimulatedKernel) -> None:
    two.write(B, "cpuset.mems", "1")
    pid = two.use_memory(A, 10 * MIB)
    assert pid
    two.move(pid, B)
    assert free_mib(two) == [1024, 1014]
    assert (two.read(A, "memory.current"), two.read(B, "memory.current")) == (str(10 * MIB), "0")
    assert str(two.read(A, "memory.numa_stat")).startswith(f"anon N0=0 N1={10 * MIB}\n")


def test_whole_pages_are_charged(two: SimulatedKernel) -> None:
    two.use_memory(A, 1)
    assert two.read(A, "memory.current") == "4096"


def test_nothing_is_told_where_memory_is_not_counted(two: SimulatedKernel) -> None:
    assert two.read(CgroupPath(), "memory.numa_stat") is GONE
    two.write(CgroupPath("pods"), "cgroup.subtree_control", "-memory")
    assert two.read(A, "memory.current") is GONE


def test_what_is_set_aside_for_huge_pages_is_not_free(tmp_path: Path) -> None:
    kernel = SimulatedKernel(machine(memory_bytes=GIB, huge_pages=64), tmp_path)
    assert kernel.memory.read() == {
        0: NodeRoom(free_bytes=GIB - 128 * MIB, huge_bytes={2048: 128 * MIB})
    }


def test_nobody_allocates_who_does_not_run(two: SimulatedKernel) -> None:
    with pytest.raises(CgroupError, match="ESRCH"):
        two.allocate(99, 1)
