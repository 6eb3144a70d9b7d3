"""What one decision costs, in time and memory, as a node fills with pods."""

import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from agent.core.admission import Admitted, admit
from agent.core.pods import Pod
from agent.core.startup import Rules
from agent.core.state import NodeState
from tests.bench.machines import grid, pods, rules

SIZES = (10, 30, 100, 300, 1000)
NODES, CORES_PER_NODE, CPUS_PER_POD = 8, 256, 2
_REPEATS = 101


@dataclass(frozen=True, slots=True)
class Point:
    """A node with so many pods, and what admitting one more costs."""

    pods: int
    us: float
    bytes_per_pod: float
    bytes_per_decision: int


def curve() -> Iterator[Point]:
    """Yield a point a size: the same pods on one node of 2048 CPUs."""
    node = rules(grid(NODES, CORES_PER_NODE), "best-effort")
    empty = node.initial_state()
    _filled(node, empty, 1)  # what is computed once a machine belongs to no pod
    for size in SIZES:
        tracemalloc.start()
        state, new = _filled(node, empty, size)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        admit(node, state, new)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        yield Point(size, _median_us(node, state, new), held / size, peak - held)


def _filled(node: Rules, state: NodeState, size: int) -> tuple[NodeState, Pod]:
    """Return the state with ``size`` pods, and one pod more that is not admitted yet."""
    *placed, new = islice(pods(CPUS_PER_POD, exclusive=1), size + 1)
    for pod in placed:
        decision = admit(node, state, pod)
        assert isinstance(decision, Admitted)
        state = decision.state
    return state, new


def _median_us(node: Rules, state: NodeState, new: Pod) -> float:
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter_ns()
        admit(node, state, new)
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000
