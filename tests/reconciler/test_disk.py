"""First the disk, then the cgroups: what is not saved is not enforced."""

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.core.cpuset import CPUSet
from agent.ports import PodChanged, PodGone, Tick
from tests.node.fragile_disks import UnsyncedDisk
from tests.reconciler.rig import (
    BEST_EFFORT,
    KUBEPODS,
    Killed,
    World,
    exclusive_pod,
    shared_pod,
    two_sockets,
)

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)


class FullDisk(UnsyncedDisk):
    """Has no space left while ``full``."""

    full = False

    def write(self, fd: int, data: memoryview) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
def world(tmp_path: Path, disk: FullDisk) -> World:
    return World(two_sockets(), tmp_path, disk=disk)


def test_nothing_new_is_enforced_while_the_disk_is_full(world: World, disk: FullDisk) -> None:
    world.listed(A)
    writes = len(world.kernel.writes)
    disk.full = True
    snapshot = world.handle(PodChanged(B))
    assert len(world.kernel.writes) == writes
    assert not world.exists(KUBEPODS / "podb")
    assert snapshot.tentative
    assert snapshot.unenforced == {B.uid}
    assert len(snapshot.problems) == 1
    assert "free space on that file system" in snapshot.problems[0]


def test_what_was_decided_stays_enforced_while_the_disk_is_full(
    world: World, disk: FullDisk
) -> None:
    world.listed(A)
    disk.full = True
    world.handle(PodChanged(B))
    world.kernel.foreign_write(KUBEPODS / "poda" / "c0", "cpuset.cpus", "0-15")
    snapshot = world.handle(Tick())
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"
    assert snapshot.drift == {"foreign_write": 1}


def test_all_goes_on_when_the_disk_does(world: World, disk: FullDisk) -> None:
    world.listed(A)
    disk.full = True
    with capture_logs() as logs:
        world.handle(PodChanged(B), Tick(), Tick())
        disk.full = False
        snapshot = world.handle(Tick())
    assert not snapshot.tentative
    assert snapshot.problems == ()
    assert world.effective(KUBEPODS / "podb" / "c0") == CPUSet([3, 4, 5])
    assert [line["event"] for line in logs] == ["pod_admitted", "problem", "problem_solved"]


def test_a_pod_that_goes_while_the_disk_is_full_is_not_made_again(
    world: World, disk: FullDisk
) -> None:
    world.listed(A, shared_pod("c"))
    disk.full = True
    world.handle(PodGone(A.uid), Tick())
    assert not world.exists(KUBEPODS / "poda")
    # Nobody gets its CPUs before the disk says that they are free.
    assert world.effective(BEST_EFFORT / "podc" / "c0") == CPUSet.parse("0,3-15")
    disk.full = False
    assert world.handle(Tick()).state.pods == {}
    assert not world.exists(KUBEPODS / "poda")
    assert world.effective(BEST_EFFORT / "podc" / "c0") == CPUSet(range(16))


def test_a_restart_on_a_full_disk_goes_on_from_the_last_good_state(
    world: World, disk: FullDisk
) -> None:
    world.listed(A)
    disk.full = True
    world.handle(PodChanged(B))
    world.start()
    world.kernel.foreign_write(KUBEPODS / "poda" / "c0", "cpuset.cpus", "0-15")
    snapshot = world.listed(A, B)
    assert snapshot.state.pods[A.uid].held == CPUSet([1, 2])
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"
    assert not world.exists(KUBEPODS / "podb")


def test_the_checkpoint_is_written_before_the_first_cgroup(tmp_path: Path) -> None:
    """Killed at its first cgroup, the agent knows after its restart what it had decided."""
    world = World(two_sockets(), tmp_path)
    world.listed()
    steps_of_the_checkpoint = 2 * 4
    world.countdown.left = steps_of_the_checkpoint
    writes = len(world.kernel.writes)
    with pytest.raises(Killed):
        world.handle(PodChanged(A))
    assert len(world.kernel.writes) == writes
    assert not world.exists(KUBEPODS / "poda")
    remembered = world.remembered()
    assert remembered is not None
    assert remembered.state.pods[A.uid].held == CPUSet([1, 2])


def test_an_unchanged_state_is_not_written_again(world: World) -> None:
    world.listed(A)
    before = world.listed(A).checkpoints
    assert before == 1
    world.start()
    assert world.listed(A).checkpoints == 0
