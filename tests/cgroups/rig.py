"""A hierarchy to try things in: the simulated kernel, or a real cgroup2 directory."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.errors import CgroupError
from agent.node.cgroupfs import CgroupFs
from agent.node.node_memory import NodeMemory
from agent.ports import Cgroups, Gone, NodeMemoryReader
from agent.simulation.kernel import SimulatedKernel

BASE = CgroupPath("numalet-test.slice")
GIB = 1 << 30
MEMORY_USER = Path(__file__).with_name("memory_user.py")
CPU_FOLDER = Path("/sys/devices/system/cpu")


def two_nodes(*, memoryless: bool = False) -> NodeTopology:
    """Two sockets, two nodes, eight CPUs: the machine on which the rules were measured."""
    return NodeTopology(
        nodes=(
            NumaNode(id=0, memory_bytes=GIB),
            NumaNode(id=1, memory_bytes=0 if memoryless else GIB),
        ),
        cores=tuple(
            Core(cpus=CPUSet([cpu, cpu + 1]), node=cpu // 4, socket=cpu // 4, uncore=cpu // 4)
            for cpu in range(0, 8, 2)
        ),
        socket_count=2,
    )


class Machine(Protocol):
    """Processes and CPUs, real or not."""

    def add_task(self, path: CgroupPath) -> int: ...
    def use_memory(self, path: CgroupPath, size: int) -> int | None: ...
    def kill(self, pid: int) -> None: ...
    def allowed(self, pid: int) -> CPUSet: ...
    def pin(self, pid: int, cpus: CPUSet) -> None: ...
    def set_online(self, cpus: CPUSet) -> None: ...


@dataclass(slots=True)
class RealMachine:
    cgroups: Cgroups
    running: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def add_task(self, path: CgroupPath) -> int:
        process = subprocess.Popen(["sleep", "1000"])
        self.running[process.pid] = process
        self.cgroups.write(path, "cgroup.procs", str(process.pid))
        return process.pid

    def use_memory(self, path: CgroupPath, size: int, *page_size: int) -> int | None:
        """Start a process that uses so much, and return its pid; None where it was killed for it."""
        process = subprocess.Popen(
            [sys.executable, MEMORY_USER, *map(str, (size, *page_size))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.running[process.pid] = process
        self.cgroups.write(path, "cgroup.procs", str(process.pid))
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as go:
            go.write(b"go\n")
        with process.stdout as answer:
            if answer.readline():
                return process.pid
        self.kill(process.pid)
        return None

    def kill(self, pid: int) -> None:
        process = self.running.pop(pid)
        process.kill()
        process.wait()

    def allowed(self, pid: int) -> CPUSet:
        return CPUSet(os.sched_getaffinity(pid))

    def pin(self, pid: int, cpus: CPUSet) -> None:
        os.sched_setaffinity(pid, set(cpus))

    def set_online(self, cpus: CPUSet) -> None:
        if "NUMALET_TEST_HOTPLUG" not in os.environ:
            pytest.skip("NUMALET_TEST_HOTPLUG does not allow to take CPUs offline here")
        for switch in CPU_FOLDER.glob("cpu[0-9]*/online"):
            online = int(switch.parent.name.removeprefix("cpu")) in cpus
            switch.write_text(f"{online:d}")


@dataclass(slots=True)
class Rig:
    """``cgroups`` under test; everything happens below ``base``, which has all controllers."""

    cgroups: Cgroups
    machine: Machine
    memory: NodeMemoryReader
    base: CgroupPath = BASE
    keeps_pins: bool = False
    """Whether the kernel remembers what a process pinned itself to, as Linux does from 6.2 on."""

    def group(self, *names: str) -> CgroupPath:
        """Make a cgroup below the base, with all controllers enabled for it."""
        path = self.base
        for name in names:
            path /= name
        self.cgroups.make(path)
        return path

    def text(self, path: CgroupPath, file: str) -> str:
        answer = self.cgroups.read(path, file)
        assert not isinstance(answer, Gone), f"{path}/{file} is gone"
        return answer

    def write(self, path: CgroupPath, file: str, value: str) -> None:
        assert self.cgroups.write(path, file, value) is None, f"{path}/{file} is gone"

    def disable_all(self, path: CgroupPath, *, but: str = "") -> None:
        """Disable every controller for the children, but for one that may be named."""
        enabled = self.text(path, "cgroup.subtree_control").split()
        self.write(
            path, "cgroup.subtree_control", " ".join(f"-{name}" for name in enabled if name != but)
        )

    def errno(self, path: CgroupPath, file: str, value: str) -> int:
        with pytest.raises(CgroupError) as refused:
            self.cgroups.write(path, file, value)
        return refused.value.errno

    def cpus(self, path: CgroupPath) -> CPUSet:
        return CPUSet.parse(self.text(path, "cpuset.cpus.effective"))


@contextmanager
def simulated(root: Path) -> Iterator[Rig]:
    kernel = SimulatedKernel(two_nodes(), root)
    kernel.make(BASE / "first")
    kernel.remove(BASE / "first")
    yield Rig(kernel, kernel, kernel.memory)


@contextmanager
def real() -> Iterator[Rig]:
    place = os.environ.get("NUMALET_TEST_CGROUP")
    if not place:
        pytest.skip("NUMALET_TEST_CGROUP names no cgroup2 directory that the tests may use")
    cgroups = CgroupFs(Path(place))
    if len(CPUSet.parse(str(cgroups.read(CgroupPath(), "cpuset.cpus.effective")))) < 4:
        pytest.skip("the cgroup in NUMALET_TEST_CGROUP has fewer than 4 CPUs")
    machine = RealMachine(cgroups)
    online = CPUSet.parse((CPU_FOLDER / "online").read_text())
    cgroups.make(BASE / "first")
    try:
        release = tuple(map(int, platform.release().split(".")[:2]))
        yield Rig(cgroups, machine, NodeMemory(), keeps_pins=release >= (6, 2))
    finally:
        for pid in list(machine.running):
            machine.kill(pid)
        if "NUMALET_TEST_HOTPLUG" in os.environ:
            machine.set_online(online)
        remove_all(cgroups, BASE)


def remove_all(cgroups: Cgroups, path: CgroupPath) -> None:
    for child in cgroups.children(path):
        remove_all(cgroups, child)
    cgroups.remove(path)
