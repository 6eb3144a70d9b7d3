"""A simulated kernel on which moves take as long as a test wants, and an enforcer with care."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet, NodeSet
from agent.enforcer import Enforced, Enforcer
from agent.memory_care import MemoryCare
from agent.memory_mover import MemoryMover
from agent.memory_watch import MemoryWatch
from agent.ports import Gone, NodeMemoryReader
from agent.simulation.kernel import SimulatedKernel
from tests.strategies import machine

MIB = 1 << 20
NODE_BYTES = 1000 * MIB
NODES = NodeSet([0, 1])
A, B, C = CgroupPath("kubepods/a"), CgroupPath("kubepods/b"), CgroupPath("kubepods/c")
PATIENCE_S = 30.0
"""Long enough for anything that happens at all."""


class SystemClock:
    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class PassClock:
    """Passes are a second apart."""

    def __init__(self) -> None:
        self.passes = 0

    def now_s(self) -> float:
        return float(self.passes)

    def monotonic_s(self) -> float:
        return float(self.passes)


class SlowKernel(SimulatedKernel):
    """Where a process moves, the write ends only when `gate` opens, and so does any other one.

    As on real kernels, what is written holds at once.
    """

    def __init__(self, root: Path) -> None:
        nodes = machine(sockets=2, cores_per_node=4, threads=1, memory_bytes=NODE_BYTES)
        super().__init__(nodes, root)
        self.gate = threading.Event()
        self.gate.set()
        self.moving = threading.Event()
        self.at_once = 0
        self.most_at_once = 0

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        answer = super().write(path, file, value)
        moves = file == "cpuset.mems" and "populated 1" in str(self.read(path, "cgroup.events"))
        if moves:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.moving.set()
        if file.startswith("cpuset.") and self.moving.is_set():
            assert self.gate.wait(PATIENCE_S), "the gate was never opened"
        if moves:
            self.at_once -= 1
            if not self.at_once:
                self.moving.clear()
        return answer


def bound(nodes: str = "", cpus: str = "") -> CgroupValues:
    return CgroupValues(
        cpus=CPUSet.parse(cpus) or None,
        mems=NodeSet.parse(nodes) or None,
    )


@dataclass
class Rig:
    folder: Path
    margin_mib: int = 0
    deadline_s: float = PATIENCE_S
    soft: bool = False
    reader: NodeMemoryReader | None = None
    is_stopping: bool = False
    moved: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.kernel = SlowKernel(self.folder / "cgroup")
        for path in (A, B, C):
            self.kernel.make(path)
        self.kernel.writes.clear()
        memory = self.reader or self.kernel.memory
        self.clock = PassClock()
        self.mover = MemoryMover(
            self.kernel,
            memory,
            SystemClock(),
            on_moved=lambda _path: self.moved.release(),
            deadline_s=self.deadline_s,
            margin_bytes=self.margin_mib * MIB,
            stopping=lambda: self.is_stopping,
        )
        watch = MemoryWatch(
            self.kernel, memory, self.clock, margin_bytes=self.margin_mib * MIB, soft=self.soft
        )
        self.enforcer = Enforcer(
            self.kernel,
            NODES,
            stopping=lambda: self.is_stopping,
            care=MemoryCare(self.mover, watch),
        )

    def run(self, path: CgroupPath, mib: int, node: int | None = None) -> int:
        """Start a process that uses so much memory, on one node or the nearest."""
        nodes = self.kernel.read(path, "cpuset.mems")
        if node is not None:
            self.kernel.foreign_write(path, "cpuset.mems", str(node))
        pid = self.kernel.add_task(path)
        assert self.kernel.allocate(pid, mib * MIB), "killed for want of memory"
        if node is not None and nodes:
            self.kernel.foreign_write(path, "cpuset.mems", str(nodes))
        return pid

    def enforce(self, **desired: CgroupValues) -> Enforced:
        """Make one pass over the cgroups A, B and C; what it left in flight has begun then."""
        self.clock.passes += 1
        done = self.enforcer.enforce({CgroupPath(f"kubepods/{n}"): v for n, v in desired.items()})
        if done.in_flight and not self.kernel.gate.is_set():
            assert self.kernel.moving.wait(PATIENCE_S), "no move has begun"
        return done

    def used_mib(self, path: CgroupPath) -> dict[int, int]:
        stat = str(self.kernel.read(path, "memory.numa_stat")).splitlines()[0]
        pairs = (word[1:].split("=") for word in stat.split()[1:])
        return {int(node): int(size) // MIB for node, size in pairs}

    def mems(self, path: CgroupPath) -> str:
        return str(self.kernel.read(path, "cpuset.mems"))

    def written(self, path: CgroupPath) -> list[str]:
        return [
            value for p, file, value in self.kernel.writes if (p, file) == (path, "cpuset.mems")
        ]

    def open_gate(self, moves: int = 1) -> None:
        """Let moves end, and wait until so many have."""
        self.kernel.gate.set()
        for _ in range(moves):
            assert self.moved.acquire(timeout=PATIENCE_S), "no move has ended"
