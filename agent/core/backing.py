"""A pod that runs on CPUs of its own, is refused what it asks for by now, and asks for less.

A resize in place lowers what its containers request, and with it what scheduler and quotas count; it
may be that an annotated budget is no longer backed then, that nothing is left for those who share its
pool, or that it is not selected any more.  It gives up what is not counted; whatever it may keep stays
where it is.
"""

from collections.abc import Iterator
from dataclasses import replace

from agent.core.admission import Admitted, without
from agent.core.demand import Demand
from agent.core.departures import SHARED_CONTAINER_MEMORY
from agent.core.pods import Pod
from agent.core.resize import resize
from agent.core.startup import Rules
from agent.core.state import NodeState


def shrunk(rules: Rules, state: NodeState, pod: Pod, counted: Pod) -> NodeState:
    """Return the state in which a pod of it holds no more than ``counted`` may.

    That is the pod as it is now or, where its budget is not backed, with what is
    (`agent.core.entitlement.Entitlement.counted`).  Where that leaves nothing in the pool for those
    that share it, there is no pool any more: exclusive containers keep what they request themselves,
    and the others run on the default CPU set.  Where that is not possible either, who is not backed
    holds nothing; others keep what they have.
    """
    most = len(state.pods[pod.uid].held)
    if Demand(rules, counted).pod_cpus > most:
        return state
    for each in _with_and_without_pool(rules):
        verdict = resize(each, state, counted)
        if isinstance(verdict, Admitted) and len(verdict.entry.held) <= most:
            return verdict.state
    return state if counted == pod else without(rules, state, pod.uid)


def _with_and_without_pool(rules: Rules) -> Iterator[Rules]:
    yield rules
    departures = rules.policy.departures | {SHARED_CONTAINER_MEMORY}
    policy = replace(rules.policy, topology_scope="container", departures=departures)
    yield replace(rules, policy=policy)
