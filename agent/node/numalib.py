"""A second opinion on the NUMA nodes: libnuma's, asked in a process of its own.

`agent.node.sysfs` decides; what libnuma says is only compared with it.  py-libnuma needs
libnuma.so.1 when it is imported, leaks a mask on each call and ends the interpreter when asked
about nodes that do not exist: so it runs in a child process, is asked only about nodes that sysfs
shows, and its death is an answer like any other.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.core.cpuset import CPUSet
from agent.core.topology import NodeTopology

_MODULE = "agent.node.numalib"
_ABOVE_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """What libnuma says about a topology.

    ``unavailable`` is why there is no answer, else empty; ``differences`` has a sentence for
    everything that libnuma sees in another way.
    """

    differences: tuple[str, ...] = ()
    unavailable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    max_node: int
    distances: list[list[int]]  # by position in the list of node ids that was asked for
    cpus: list[list[int]]
    allowed: list[int]  # the child's own CPUs: libnuma need not see others


def cross_check(
    topology: NodeTopology,
    *,
    command: Sequence[str] = (sys.executable, "-m", _MODULE),
    timeout_s: float = 10.0,
) -> CrossCheck:
    """Compare this machine's topology with what libnuma says in a child process.

    ``command`` is the child's; the ids of the NUMA nodes are appended to it.  Never raises for
    anything that the child does or is.
    """
    ids = [node.id for node in topology.nodes]
    try:
        child = subprocess.run(  # noqa: S603 our own interpreter and module, no shell
            [*command, *map(str, ids)],
            cwd=_ABOVE_PACKAGE,  # `-m` looks there first, and not where the caller happens to be
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return CrossCheck(unavailable=f"libnuma gave no answer within {timeout_s:g} s")
    except OSError as problem:
        return CrossCheck(unavailable=f"cannot start {command[0]}: {problem.strerror}")
    if child.returncode:
        return CrossCheck(unavailable=f"the process that asks libnuma {_end(child)}")
    try:
        answer = json.loads(child.stdout)
        if isinstance(answer, str):
            return CrossCheck(unavailable=answer)
        return CrossCheck(differences=tuple(_differences(topology, _Answer(**answer))))
    except (ValueError, TypeError) as problem:
        return CrossCheck(unavailable=f"the answer of libnuma cannot be understood: {problem}")


def _end(child: subprocess.CompletedProcess[bytes]) -> str:
    if child.returncode < 0:
        return f"was ended: {signal.strsignal(-child.returncode) or -child.returncode}"
    last_words = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"failed: {last_words[:200]}"


def _differences(topology: NodeTopology, answer: _Answer) -> Iterator[str]:
    ids = [node.id for node in topology.nodes]
    if answer.max_node != ids[-1]:
        yield f"the highest NUMA node is {answer.max_node} for libnuma, {ids[-1]} in sysfs"
    for a, row in zip(ids, answer.distances, strict=True):
        for b, theirs in zip(ids, row, strict=True):
            ours = topology.distance(a, b)
            # libnuma answers 0 for a distance that it does not know.
            if theirs not in (0, ours):
                pair = f"from NUMA node {a} to {b}"
                yield f"the distance {pair} is {theirs} for libnuma, {ours} in sysfs"
    allowed = CPUSet(answer.allowed)
    for node, ids_there in zip(ids, answer.cpus, strict=True):
        there = CPUSet(ids_there) & allowed
        here = CPUSet.from_bits(topology.cpu_bits_by_node.get(node, 0)) & allowed
        if there != here:
            both = f"{str(there) or 'none'} for libnuma, {str(here) or 'none'} in sysfs"
            yield f"the CPUs of NUMA node {node} are {both}"


def _ask(ids: Sequence[int]) -> dict[str, object] | str:
    """Return libnuma's answers about existing nodes, or why there are none."""
    try:
        from numa import info  # noqa: PLC0415 importing it loads libnuma.so.1, or fails
    except (ImportError, AttributeError, OSError) as problem:
        return f"py-libnuma cannot be used ({problem}): install libnuma1"
    if not info.numa_available():
        return "libnuma says that this kernel has no NUMA support, or forbids get_mempolicy(2)"
    return {
        "max_node": info.get_max_node(),
        "distances": [[info.numa_distance(a, b) for b in ids] for a in ids],
        "cpus": [info.node_to_cpus(node) for node in ids],
        "allowed": sorted(os.sched_getaffinity(0)),
    }


if __name__ == "__main__":
    json.dump(_ask([int(word) for word in sys.argv[1:]]), sys.stdout)
