"""Small machines, on which the answer to a case's pods can be had by enumeration, too."""

from collections.abc import Iterable

from agent.core.admission import Rejected, admit
from agent.core.cpuset import NodeSet
from agent.core.pods import Pod
from agent.core.policy import Policy
from agent.core.startup import Rules, start
from agent.core.state import NodeState
from tests.core import brute_force
from tests.strategies import machine

from .pods import app, pod

MIB = 1 << 20
OTHERS = tuple(
    pod(app("a", cpus, gib=gib, huge=pages * MIB), uid=f"other{i}")
    for i, (cpus, gib, pages) in enumerate(
        [
            (2, 1, 2),
            (9, 4, 64),
            (3, 18, 0),
            (5, 6, 300),
            (1, 1, 2),
            (10, 2, 0),
            (4, 9, 64),
            (2, 3, 2),
        ]
    )
)


SMALL = (
    machine(nodes_per_socket=2, cores_per_node=8, threads=1, huge_pages=256),
    machine(sockets=2, nodes_per_socket=2, cores_per_node=5, threads=1, huge_pages=256),
    machine(sockets=3, cores_per_node=6, threads=1, huge_pages=256),
)


def equals_enumeration(policy: Policy, case_pod: Pod) -> bool:
    """Tell whether a pod, and others around it, get the nodes that an enumeration of all masks says.

    The policy must be ``restricted``: whom no preferred nodes are left for is rejected.
    """
    orders = ((case_pod, *OTHERS), (*OTHERS[1:], case_pod))
    return all(_equals(start(small, policy), order) for small in SMALL for order in orders)


def _equals(rules: Rules, pods: Iterable[Pod]) -> bool:
    state = rules.initial_state()
    for each in pods:
        nodes, preferred = _enumerated(rules, state, each)
        decision = admit(rules, state, each)
        state = decision.state
        if isinstance(decision, Rejected):
            # Another reason is one that is found later: the hints were well.
            if (decision.reason == "TopologyAffinityError") is preferred:
                return False
        elif not preferred or decision.entry.affinity["a"].nodes != NodeSet(nodes or ()):
            return False
    return bool(state.pods)


def _enumerated(rules: Rules, state: NodeState, each: Pod) -> tuple[brute_force.Nodes | None, bool]:
    topology = rules.topology
    cpus_of_node = {n: set(topology.cpus_of(n)) for n in topology.node_ids}
    (container,) = each.containers
    request = dict(container.resources.requests)
    count = request.pop("cpu") // 1000
    available = set(state.default - rules.reserved)
    offers = [
        (1, brute_force.cpu_hints(count, cpus_of_node, available, set())),
        (len(request), brute_force.memory_hints(state.memory, request, {})),
    ]
    full = frozenset(topology.node_ids)
    return brute_force.merge(brute_force.lists_of(offers), full, None)
