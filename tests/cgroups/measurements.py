"""What only hardware can tell: `python -m tests.cgroups.measurements CGROUP`, which `hack/real-test` runs.

Below CGROUP, a cgroup2 directory that has the controllers, it measures what values cost to write, how
a quota throttles, and what memory of another NUMA node costs.  It judges nothing: under emulation
the numbers mean nothing.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from agent.core.cgroups import CgroupPath
from agent.core.topology import NodeTopology
from agent.node.cgroupfs import CgroupFs
from agent.node.sysfs import read_topology

PLACE = CgroupPath("measured")
WRITES = 200
SECONDS = 2.0
COPIES = 8
SIZE_MIB = 256
BUSY = "while True: pass"
MEMORY = f"""
import sys, time
sys.stdin.readline()
memory = bytearray(b"x") * ({SIZE_MIB} << 20)
print(flush=True)
for line in sys.stdin:
    begun = time.perf_counter()
    for _ in range({COPIES}): bytes(memoryview(memory)[: {SIZE_MIB} << 19])
    print(time.perf_counter() - begun, flush=True)
"""
"""Fills memory when told to, and then copies half of it as often as it is told to."""


@contextmanager
def program(cgroups: CgroupFs, text: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a Python program in the cgroup."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", text]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    try:
        cgroups.write(PLACE, "cgroup.procs", str(process.pid))
        yield process
    finally:
        process.kill()
        process.wait()


def told(process: "subprocess.Popen[str]") -> str:
    """Tell a program to go on, and return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return process.stdout.readline()


def write_costs(cgroups: CgroupFs, file: str, *values: str) -> str:
    took_us = []
    for number in range(WRITES):
        begun = time.perf_counter()
        cgroups.write(PLACE, file, values[number % len(values)])
        took_us.append((time.perf_counter() - begun) * 1e6)
    return f"{median(took_us):.0f} µs (median), {max(took_us):.0f} µs (most)"


def throttled(cgroups: CgroupFs, quota: str) -> str:
    def numbers() -> dict[str, int]:
        lines = str(cgroups.read(PLACE, "cpu.stat")).splitlines()
        return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}

    cgroups.write(PLACE, "cpu.max", quota)
    with program(cgroups, BUSY):
        before = numbers()
        time.sleep(SECONDS)
        after = numbers()
    used_s = (after["usage_usec"] - before["usage_usec"]) / 1e6
    held_s = (after["throttled_usec"] - before["throttled_usec"]) / 1e6
    return f"of {SECONDS:g} s it ran {used_s:.2f} and was held back {held_s:.2f}"


def memory(cgroups: CgroupFs, topology: NodeTopology) -> Iterator[tuple[str, str]]:
    """Yield what copying costs from each node, for the CPUs of the first, and a move of all pages."""
    home, *others = sorted(topology.memory_nodes)
    cpus = next(iter(topology.cores)).cpus
    cgroups.write(PLACE, "cpuset.cpus", str(cpus))
    for node in (home, *others):
        cgroups.write(PLACE, "cpuset.mems", str(node))
        with program(cgroups, MEMORY) as process:
            told(process)
            speed = COPIES * SIZE_MIB / 2 / float(told(process))
            yield f"copying, CPUs {cpus}, memory of node {node}", f"{speed:.0f} MiB/s"
            if node != home:
                begun = time.perf_counter()
                cgroups.write(PLACE, "cpuset.mems", str(home))
                took_ms = (time.perf_counter() - begun) * 1e3
                yield f"moving {SIZE_MIB} MiB from node {node} to {home}", f"{took_ms:.0f} ms"


def measure(cgroups: CgroupFs, topology: NodeTopology) -> Iterator[tuple[str, str]]:
    cpus = sorted(topology.cpus)
    yield "a write to cpuset.cpus", write_costs(cgroups, "cpuset.cpus", str(cpus[0]), str(cpus[-1]))
    yield "a write to cpu.max", write_costs(cgroups, "cpu.max", "50000", "max")
    yield "a busy program with half a CPU as quota", throttled(cgroups, "50000 100000")
    yield "a busy program without quota", throttled(cgroups, "max 100000")
    yield from memory(cgroups, topology)


def main() -> None:
    cgroups = CgroupFs(Path(sys.argv[1]))
    cgroups.make(PLACE)
    try:
        for what, number in measure(cgroups, read_topology(Path("/sys"))):
            sys.stdout.write(f"{what}: {number}\n")
            sys.stdout.flush()
    finally:
        cgroups.remove(PLACE)


if __name__ == "__main__":
    main()
