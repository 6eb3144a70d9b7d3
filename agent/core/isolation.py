"""How far a container is isolated, and whose CFS quota is lifted (kubelet-semantics 4.10)."""

from enum import StrEnum

from agent.core.demand import Demand
from agent.core.departures import POD_QUOTA
from agent.core.pods import CPU, MILLI, Container
from agent.core.state import PodEntry


class Isolation(StrEnum):
    """The verdict on a container, in the words of ``numalet plan``."""

    EXCLUSIVE = "exclusive"
    POD_SHARED = "pod-shared"
    NODE_SHARED = "node-shared"
    UNSUPPORTED_RUNTIME = "unsupported-runtime"
    """Its threads run where a kernel of its own has them: on the default CPU set, as far as known."""


def isolation(demand: Demand, entry: PodEntry, container: Container) -> Isolation:
    """Return the isolation level of a container (``getContainerIsolationLevel``).

    Without a CPU manager all share the node, also who held CPUs while there was one.
    """
    if demand.pod.own_kernel:
        return Isolation.UNSUPPORTED_RUNTIME
    if not demand.rules.manages_cpus or not entry.cpus.get(container.name):
        return Isolation.NODE_SHARED
    resources = container.resources
    if demand.by_budget and not (
        resources.is_exclusive_grade() and resources.limits.get(CPU, 0) % MILLI == 0
    ):
        return Isolation.POD_SHARED
    return Isolation.EXCLUSIVE


def container_quota_lifted(demand: Demand, entry: PodEntry, container: Container) -> bool:
    """Tell whether a container runs without a CFS quota (``DisableCPUQuotaWithExclusiveCPUs``)."""
    return isolation(demand, entry, container) is Isolation.EXCLUSIVE


def pod_quota_lifted(demand: Demand, entry: PodEntry, *, departures: frozenset[str]) -> bool:
    """Tell whether the pod's own cgroup runs without a CFS quota.

    The kubelet lifts it for a pod with a budget only where every container is exclusive, and
    otherwise where any container has CPUs of its own.  With the departure ``pod_quota`` one
    exclusive container is enough: the pool's cpuset bounds the pod already.
    """
    containers = demand.pod.containers
    levels = [isolation(demand, entry, c) for c in containers]
    if demand.by_budget and POD_QUOTA not in departures:
        return all(level is Isolation.EXCLUSIVE for level in levels)
    return Isolation.EXCLUSIVE in levels
