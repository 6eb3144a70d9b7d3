"""Decisions on machines that the kubelet refuses, or on which it crashes."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from agent.core.admission import Admitted, Rejected, admit
from agent.core.pods import Amounts, Pod
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.core.topology import NodeTopology
from tests.bench.machines import GIB, MIB, described, grid, pods, rules

REAL = (
    "power9-2s-gpu-memory-nodes",
    "xeon-max-2s-snc4-hbm-16-nodes",
    "grace-2s-34-nodes",
)
_HUGEPAGES: Amounts = {"hugepages-2Mi": 256 * MIB, "hugepages-1Gi": GIB}
_LAST = 5


@dataclass(frozen=True, slots=True)
class Row:
    """A machine filled with equal pods until one is rejected: how many there are, and microseconds.

    ``us`` is the median over the last pods admitted, ``rejection_us`` that of rejecting the next.
    """

    machine: str
    nodes: int
    policy: str
    pod: str
    admitted: int
    us: float
    rejection_us: float


def measure() -> Iterator[Row]:
    """Yield a row for each machine, policy and size of pod."""
    machines = {name: described(name) for name in REAL}
    machines |= {f"{n} nodes of 16 CPUs": grid(n, 16) for n in (16, 36, 64)}
    for name, topology in machines.items():
        hugepages = _HUGEPAGES if topology.nodes[0].hugepages else None
        for policy, closest in (
            ("best-effort", False),
            ("best-effort", True),
            ("restricted", False),
            ("single-numa-node", False),
        ):
            node = rules(topology, policy, closest=closest)
            shown = f"{policy}, closest" if closest else policy
            yield _row(name, node, shown, 6, hugepages)
            if policy == "best-effort":
                yield _row(name, node, shown, _wide(topology), None)


def _wide(topology: NodeTopology) -> int:
    """Return as many CPUs as two and a half nodes have, or half the machine."""
    return min(
        5 * len(topology.cpus) // (2 * len(topology.cpu_bits_by_node)), len(topology.cpus) // 2
    )


def _row(name: str, node: Rules, policy: str, cpus: int, hugepages: Amounts | None) -> Row:
    state, taken = node.initial_state(), list[float]()
    for pod in pods(cpus, cpus * 2 // 3, hugepages):
        decision, us = _timed(node, state, pod)
        if not isinstance(decision, Admitted):
            break
        state = decision.state
        taken.append(us)
    kind = f"{cpus} CPUs" + (", 2 kinds of hugepages" if hugepages else "")
    last = statistics.median(taken[-_LAST:])
    rejection = statistics.median(_timed(node, state, pod)[1] for _ in range(_LAST))
    return Row(name, len(node.topology.nodes), policy, kind, len(taken), last, rejection)


def _timed(node: Rules, state: NodeState, pod: Pod) -> tuple[Admitted | Rejected, float]:
    began = time.perf_counter_ns()
    decision = admit(node, state, pod)
    return decision, (time.perf_counter_ns() - began) / 1000
