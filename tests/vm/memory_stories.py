"""What becomes of the memory of real processes: `python -m tests.vm.memory_stories RESULTS`.

Each story binds cgroups to NUMA nodes of a guest with two, of 1 GiB each.  What the kernel and the
enforcer say is written to RESULTS/observed.json, for `test_memory_moves` to judge on the host.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.plan import MEMORY_MAX_FILE
from agent.enforcer import Enforced, Enforcer
from agent.memory_accounts import NUMA_STAT_FILE, by_node
from agent.memory_care import MemoryCare
from agent.memory_mover import MemoryMover
from agent.memory_watch import FRESH_S, MemoryWatch
from agent.node.cgroupfs import CgroupFs
from agent.node.node_memory import NodeMemory
from tests.cgroups.rig import RealMachine, remove_all

CGROUPS = Path("/sys/fs/cgroup")
TOP = CgroupPath("numalet-stories")
POD, OTHER, STRANGER = TOP / "pod", TOP / "other", TOP / "stranger"
NODES = NodeSet([0, 1])
MIB = 1 << 20
MARGIN = 64 * MIB
HUGE_PAGES = 4
HUGE_STAT_FILE = "hugetlb.2MB.numa_stat"
DEADLINE_S = 0.5
PATIENCE_S = 120.0

Told = dict[str, object]


class SystemClock:
    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class PassClock(SystemClock):
    """Passes are far enough apart for a new look at the nodes."""

    def __init__(self) -> None:
        self.passes = 0

    def monotonic_s(self) -> float:
        return self.passes * FRESH_S


class Stage:
    """Three empty cgroups, and an enforcer that has just started."""

    def __init__(self, *, deadline_s: float = PATIENCE_S, soft: bool = False) -> None:
        self.cgroups = CgroupFs(CGROUPS)
        self.machine = RealMachine(self.cgroups)
        self.moved = threading.Event()
        for path in (POD, OTHER, STRANGER):
            self.cgroups.make(path)
        memory, self.clock = NodeMemory(), PassClock()
        mover = MemoryMover(
            self.cgroups,
            memory,
            SystemClock(),
            on_moved=lambda _path: self.moved.set(),
            deadline_s=deadline_s,
            margin_bytes=MARGIN,
        )
        watch = MemoryWatch(self.cgroups, memory, self.clock, margin_bytes=MARGIN, soft=soft)
        self.enforcer = Enforcer(self.cgroups, NODES, care=MemoryCare(mover, watch))

    def close(self) -> None:
        for pid in list(self.machine.running):
            self.machine.kill(pid)
        remove_all(self.cgroups, TOP)

    def use(self, path: CgroupPath, mib: int, mems: str = "") -> int | None:
        """Start a process that uses so much, and return its pid; None where it was killed."""
        if mems:
            self.cgroups.write(path, "cpuset.mems", mems)
        return self.machine.use_memory(path, mib * MIB)

    def lives(self, pid: int | None) -> bool:
        return pid is not None and self.machine.running[pid].poll() is None

    def enforce(self, pod: str, other_cpus: str = "", other: str = "") -> Told:
        """Make one pass: bind the pod, and give the other one CPUs, or bind it; tell what came of it."""
        self.clock.passes += 1
        wanted = {POD: CgroupValues(mems=NodeSet.parse(pod))}
        if other_cpus:
            wanted[OTHER] = CgroupValues(cpus=CPUSet.parse(other_cpus))
        if other:
            wanted[OTHER] = CgroupValues(mems=NodeSet.parse(other))
        began_s = time.monotonic()
        done = self.enforcer.enforce(wanted)
        return self.told(done, time.monotonic() - began_s)

    def told(self, done: Enforced, seconds: float) -> Told:
        memory = self.enforcer.memory()
        return {
            "seconds": seconds,
            "problems": done.problems,
            "drift": done.drift,
            "in_flight": [str(path) for path in done.in_flight],
            "moves": {str(path): since is not None for path, since in memory.moves.items()},
            "writes": dict(done.writes),
            "mems": self.text(POD, "cpuset.mems"),
            "effective": self.text(POD, "cpuset.mems.effective"),
            "other_cpus": self.text(OTHER, "cpuset.cpus.effective"),
            "charged": self.charged(),
            "moved_bytes": memory.moved_bytes,
            "shortages": list(memory.shortages.values()),
            "widened": [str(path) for path in memory.widened],
        }

    def text(self, path: CgroupPath, file: str) -> str:
        return str(self.cgroups.read(path, file))

    def charged(self, path: CgroupPath = POD) -> list[int]:
        """Anonymous MiB of a cgroup on each node."""
        row = self.text(path, NUMA_STAT_FILE).splitlines()[0]
        return [size // MIB for _, size in sorted(by_node(row).items())]


def mapped(pid: int | None) -> list[int]:
    """MiB that a process has mapped on each node."""
    pages = [0, 0]
    for node, count in re.findall(r" N(\d+)=(\d+)", Path(f"/proc/{pid}/numa_maps").read_text()):
        pages[int(node)] += int(count)
    return [count * 4096 // MIB for count in pages]


def on_the_wrong_node(stage: Stage) -> Told:
    pid = stage.use(POD, 100, mems="0")
    before = {"charged": stage.charged(), "mapped": mapped(pid)}
    after = stage.enforce("1")
    return {"before": before, "after": {**after, "mapped": mapped(pid)}, "next": stage.enforce("1")}


def too_small(stage: Stage) -> Told:
    stranger = stage.use(STRANGER, 600, mems="1")
    stage.use(POD, 500, mems="0")
    refused = stage.enforce("1")
    assert stranger is not None
    stage.machine.kill(stranger)
    return {"refused": refused, "later": stage.enforce("1")}


def large(stage: Stage) -> Told:
    stage.use(POD, 700, mems="0")
    first = stage.enforce("1")
    took_s: list[float] = []
    stage.cgroups.write(STRANGER, "cpu.max", "max 100000")  # loads what the thread needs

    def somebody_else() -> None:
        began_s = time.monotonic()
        stage.cgroups.write(STRANGER, "cpuset.cpus", "4")
        took_s.append(time.monotonic() - began_s)

    thread = threading.Thread(target=somebody_else)
    thread.start()
    second = stage.enforce("1", other_cpus="2-3")
    ended = stage.moved.wait(PATIENCE_S)
    thread.join()
    third = stage.enforce("1", other_cpus="2-3")
    return {"first": first, "second": second, "third": third, "ended": ended, "other": took_s}


def one_at_a_time(stage: Stage) -> Told:
    stage.use(POD, 400, mems="0")
    stage.use(OTHER, 300, mems="0")
    passes = [stage.enforce("1", other="1")]
    while passes[-1]["moves"] or passes[-1]["in_flight"]:
        passes.append(stage.enforce("1", other="1"))
    charged = {"pod": stage.charged(POD), "other": stage.charged(OTHER)}
    return {"passes": passes, "charged": charged}


def may_ask_for_too_much(stage: Stage) -> Told:
    stage.cgroups.write(POD, MEMORY_MAX_FILE, str(2000 * MIB))
    stage.use(POD, 100, mems="0")
    refused = stage.enforce("1")
    stage.cgroups.write(POD, MEMORY_MAX_FILE, str(300 * MIB))
    return {"refused": refused, "later": stage.enforce("1")}


def huge_pages(stage: Stage) -> Told:
    for above in (CgroupPath(), TOP):
        stage.cgroups.write(above, "cgroup.subtree_control", "+hugetlb")
    set_huge_pages(0, HUGE_PAGES)
    stage.cgroups.write(POD, "cpuset.mems", "0")
    pid = stage.machine.use_memory(POD, HUGE_PAGES * 2 * MIB, 2 * MIB)
    told = {"refused": stage.enforce("1"), "before": huge_mapped(pid)}
    set_huge_pages(1, HUGE_PAGES)
    later = stage.enforce("1")
    tally = stage.text(POD, HUGE_STAT_FILE)
    return {**told, "later": later, "after": huge_mapped(pid), "tally": tally}


def huge_mapped(pid: int | None) -> str:
    """Return what a process's own maps say: ``... huge anon=4 dirty=4 N0=4 kernelpagesize_kB=2048``."""
    lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    (line,) = (line for line in lines if " huge " in line)
    return line


def set_huge_pages(node: int, count: int) -> None:
    folder = Path(f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB")
    (folder / "nr_hugepages").write_text(str(count))


def outgrown(stage: Stage) -> Told:
    stage.cgroups.write(POD, MEMORY_MAX_FILE, str(700 * MIB))
    before = stage.enforce("1")
    stranger = stage.use(STRANGER, 600, mems="1")
    short = stage.enforce("1")
    pod = stage.use(POD, 600)
    lives = {"pod": stage.lives(pod), "stranger": stage.lives(stranger)}
    return {"before": before, "short": short, "lives": lives, "charged": stage.charged()}


STORIES: dict[str, tuple[Callable[[Stage], Told], Callable[[], Stage]]] = {
    "wrong node": (on_the_wrong_node, Stage),
    "too small": (too_small, Stage),
    "large": (large, lambda: Stage(deadline_s=DEADLINE_S)),
    "one at a time": (one_at_a_time, lambda: Stage(deadline_s=DEADLINE_S)),
    "asking for too much": (may_ask_for_too_much, Stage),
    "huge pages": (huge_pages, Stage),
    "outgrown, soft": (outgrown, lambda: Stage(soft=True)),
    "outgrown": (outgrown, Stage),
}


def main() -> None:
    observed: Told = {}
    try:
        for name, (tell, set_up) in STORIES.items():
            stage = set_up()
            try:
                observed[name] = tell(stage)
            finally:
                stage.close()
    finally:
        (Path(sys.argv[1]) / "observed.json").write_text(json.dumps(observed))


if __name__ == "__main__":
    main()
