"""Whether a remembered state still fits the machine, and what to make of it where it does not.

Nothing that a pod holds is ever taken away here: the kubelet would refuse to start, or allocate anew;
numalet keeps every assignment and computes what is left.
"""

from collections.abc import Mapping

from agent.core.cpuset import CPUSet
from agent.core.memory import charge
from agent.core.pods import PodUID
from agent.core.startup import Rules
from agent.core.state import NodeState, PodEntry


def fits(rules: Rules, state: NodeState) -> bool:
    """Tell whether a state describes exactly this machine under these rules."""
    held = CPUSet()
    for entry in state.pods.values():
        if not held.isdisjoint(entry.held):
            return False
        held |= entry.held
    return rebuild(rules, state.pods).default == state.default and _totals(
        rules.initial_state()
    ) == _totals(state)


def rebuild(rules: Rules, pods: Mapping[PodUID, PodEntry]) -> NodeState:
    """Return the state in which these pods hold what they hold, on this machine.

    The default CPU set is what remains of the online CPUs; it keeps the reserved ones unless they are
    reserved strictly.  Memory tables are charged anew.
    """
    default, tables = rules.initial_state().default, dict(rules.initial_state().memory)
    for entry in pods.values():
        default -= entry.held
        blocks = entry.memory_pool or tuple(b for held in entry.memory.values() for b in held)
        for block in blocks:
            if block.nodes <= rules.topology.node_ids and rules.manages_memory:
                tables = charge(tables, block.nodes, block.resource, block.size_bytes)
    return NodeState(default=default, pods=pods, memory=tables)


def _totals(state: NodeState) -> Mapping[int, Mapping[str, tuple[int, int]]]:
    return {
        i: {name: (t.total, t.system_reserved) for name, t in node.tables.items()}
        for i, node in state.memory.items()
    }
