"""What becomes of the CPUs that a process chose for itself: the simulated kernel is Linux 6.1 there.

The rules are those of section 2 of cgroup2-facts.
"""

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet

from .rig import Rig

PIN = CPUSet([1])


@pytest.fixture
def group(rig: Rig) -> CgroupPath:
    group = rig.group("a", "c1")
    rig.write(group, "cpuset.cpus", "0-3")
    return group


@pytest.fixture
def pid(rig: Rig, group: CgroupPath) -> int:
    pid = rig.machine.add_task(group)
    rig.machine.pin(pid, PIN)
    assert rig.machine.allowed(pid) == PIN
    return pid


def test_of_what_it_asks_for_a_process_gets_what_its_cgroup_has(
    rig: Rig, group: CgroupPath, pid: int
) -> None:
    rig.write(group, "cpuset.cpus", "0-2")
    rig.machine.pin(pid, CPUSet([2, 3]))
    assert rig.machine.allowed(pid) == CPUSet([2])


def test_writes_that_leave_the_effective_set_as_it_is_leave_the_pin(
    rig: Rig, group: CgroupPath, pid: int
) -> None:
    for path, file, value in [
        (group, "cpuset.cpus", "0-3"),
        (group, "cpuset.cpus", "0-1,2-3"),
        (group.parent, "cpuset.cpus", "0-3"),
        (group, "cpuset.mems", "0"),
        (group.parent, "cpu.max", "50000"),
    ]:
        rig.write(path, file, value)
        assert rig.machine.allowed(pid) == PIN, (path, file, value)


def test_a_real_change_of_the_effective_set_drops_the_pin_before_linux_6_2(
    rig: Rig, group: CgroupPath, pid: int
) -> None:
    rig.write(group, "cpuset.cpus", "0-2")
    assert rig.machine.allowed(pid) == (PIN if rig.keeps_pins else CPUSet([0, 1, 2]))
    rig.write(group, "cpuset.cpus", "0-3")
    assert rig.machine.allowed(pid) == (PIN if rig.keeps_pins else CPUSet([0, 1, 2, 3]))


def test_so_does_another_cgroup_with_the_same_cpus(rig: Rig, group: CgroupPath, pid: int) -> None:
    other = rig.group("a", "c2")
    rig.write(other, "cpuset.cpus", "0-3")
    rig.write(other, "cgroup.procs", str(pid))
    assert rig.machine.allowed(pid) == (PIN if rig.keeps_pins else rig.cpus(group))


def test_so_does_a_cpu_of_the_cgroup_that_goes_offline(
    rig: Rig, group: CgroupPath, pid: int
) -> None:
    everything = rig.cpus(rig.base)
    rig.machine.set_online(everything - CPUSet([3]))
    assert rig.machine.allowed(pid) == (PIN if rig.keeps_pins else rig.cpus(group))
