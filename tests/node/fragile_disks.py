"""Two states, and disks that lose power or refuse while one replaces the other."""

import os
from dataclasses import replace
from pathlib import Path

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import Container, Kind, Pod, PodUID, Resources
from agent.core.state import Affinity, Block, MemoryTable, NodeMemory, NodeState, PodEntry
from agent.node.checkpoint import CheckpointStore
from agent.node.durable import Disk
from agent.ports import Rejection, Remembered


class Clock:
    """Stands still."""

    def now_s(self) -> float:
        return 1_800_000_000.5

    def monotonic_s(self) -> float:
        return 1.0


class PowerCut(BaseException):
    """The machine stops."""


class FragileDisk(Disk):
    """Stops the machine at an operation; then all that was not synced is lost.

    A file that was not synced is half there, a rename that was not synced did not happen.
    """

    def __init__(self, operations: int) -> None:
        self.left = operations
        self.unsynced: set[int] = set()
        self.renames: list[tuple[Path, Path, bytes | None]] = []

    def count(self) -> None:
        if self.left == 0:
            raise PowerCut
        self.left -= 1

    def write(self, fd: int, data: memoryview) -> int:
        self.unsynced.add(os.fstat(fd).st_ino)
        if self.left == 0:
            super().write(fd, data[: len(data) // 2])
        self.count()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self.count()
        self.unsynced.discard(os.fstat(fd).st_ino)

    def rename(self, source: Path, target: Path) -> None:
        self.count()
        replaced = target.read_bytes() if target.exists() else None
        super().rename(source, target)
        self.renames.append((source, target, replaced))

    def fsync_folder(self, fd: int) -> None:
        self.count()
        self.renames.clear()

    def cut_power(self, folder: Path) -> None:
        for path in folder.iterdir():
            if path.stat().st_ino in self.unsynced:
                os.truncate(path, path.stat().st_size // 2)
        for source, target, replaced in reversed(self.renames):
            target.rename(source)
            if replaced is not None:
                target.write_bytes(replaced)


class UnsyncedDisk(Disk):
    """Saves the time where content is the point."""

    def fsync(self, fd: int) -> None:
        pass

    def fsync_folder(self, fd: int) -> None:
        pass


class RefusingDisk(UnsyncedDisk):
    """Refuses one operation, the one with this number."""

    def __init__(self, operation: int, number: int) -> None:
        self.left = operation
        self.number = number

    def refuse(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise OSError(self.number, os.strerror(self.number))

    def write(self, fd: int, data: memoryview) -> int:
        self.refuse()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self.refuse()

    def rename(self, source: Path, target: Path) -> None:
        self.refuse()
        super().rename(source, target)

    def fsync_folder(self, fd: int) -> None:
        self.refuse()


OPERATIONS = range(2 * 4)
"""Write, sync, rename and sync of the folder, for each copy."""

UID = PodUID("11111111-2222-3333-4444-555555555555")
MEMORY = Block(NodeSet([0, 1]), "memory", 2**64 - 1)
OLD = Remembered(
    state=NodeState(
        default=CPUSet.parse("0-1,6-7"),
        pods={
            UID: PodEntry(
                pool=CPUSet.parse("2-5"),
                cpus={"db": CPUSet.parse("2-3"), "side": CPUSet.parse("4-5")},
                memory_pool=(MEMORY,),
                memory={"db": (MEMORY,), "side": ()},
                affinity={"db": Affinity(NodeSet([0]), preferred=True)},
            )
        },
        memory={0: NodeMemory(1, NodeSet([0, 1]), {"memory": MemoryTable(9, 1, 8, 3, 5)})},
    ),
    pods={
        UID: Pod(
            uid=UID,
            name="latency-critical-db",
            namespace="shop",
            budget=Resources(requests={"cpu": 4000}, limits={"cpu": 4000, "memory": 2**33}),
            init_containers=(Container(name="setup", kind=Kind.INIT),),
            app_containers=(Container(name="db", resources=Resources(requests={"cpu": 2000})),),
        )
    },
    rejections={PodUID("other"): Rejection("TopologyAffinityError", "cannot be \u2260 allocated")},
)
NEW = replace(
    OLD, state=replace(OLD.state, default=CPUSet.parse("0-7"), pods={}), pods={}, rejections={}
)


def store(folder: Path, disk: Disk | None = None) -> CheckpointStore:
    return CheckpointStore(folder, Clock(), disk=disk or UnsyncedDisk())


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
