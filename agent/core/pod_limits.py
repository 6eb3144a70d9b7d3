"""``cpu.weight`` and ``memory.max`` of pods and containers, as a kubelet and runc set them.

Mirrors ``ResourceConfigForPod`` and ``MilliCPUToShares`` (pkg/kubelet/cm/helpers_linux.go),
``calculateLinuxResources`` (pkg/kubelet/kuberuntime/kuberuntime_container_linux.go) of Kubernetes
v1.36, and ``ConvertCPUSharesToCgroupV2Value`` of runc before 1.3.2.
"""

from agent.core.cgroups import MemoryMax
from agent.core.demand import Demand
from agent.core.pods import CPU, MEMORY, MILLI, Amounts, Container, QosClass, qos_class

MIN_SHARES, MAX_SHARES = 2, 262_144
SHARES_PER_CPU = 1024
MAX_WEIGHT = 10_000


def cpu_weight(milli: int) -> int:
    """Return ``cpu.weight`` for a request in milli-CPUs: 1 for none, 39 for a whole CPU."""
    shares = min(max(milli * SHARES_PER_CPU // MILLI, MIN_SHARES), MAX_SHARES)
    return 1 + (shares - MIN_SHARES) * (MAX_WEIGHT - 1) // (MAX_SHARES - MIN_SHARES)


def container_weight(container: Container) -> int:
    """Return a container's weight; one that requests no CPU counts by its limit."""
    resources = container.resources
    return cpu_weight(resources.requests.get(CPU) or resources.limits.get(CPU, 0))


def container_memory_max(demand: Demand, container: Container) -> MemoryMax:
    """Return a container's limit; one without a limit of its own has its pod's."""
    limit = container.resources.limits.get(MEMORY) or _budget_limits(demand).get(MEMORY)
    return MemoryMax.of(limit)


def pod_weight(demand: Demand) -> int:
    """Return a pod's weight: by its budget, else by the most that its containers ask at a time."""
    pod, knows_budgets = demand.pod, demand.rules.knows_budgets
    if qos_class(pod, pod_level_resources=knows_budgets) is QosClass.BEST_EFFORT:
        return cpu_weight(0)
    budget = pod.budget.requests if knows_budgets and pod.budget is not None else {}
    if CPU in budget:
        return cpu_weight(budget[CPU])
    return cpu_weight(demand.over_life(lambda c: c.resources.requests.get(CPU, 0)))


def pod_memory_max(demand: Demand) -> MemoryMax:
    """Return a pod's limit: its budget's, else the sum where every container has one."""
    limit = _budget_limits(demand).get(MEMORY)
    if limit:
        return MemoryMax.of(limit)
    if not all(c.resources.limits.get(MEMORY) for c in demand.pod.containers):
        return MemoryMax()
    return MemoryMax.of(demand.over_life(lambda c: c.resources.limits[MEMORY]))


def _budget_limits(demand: Demand) -> Amounts:
    budget = demand.pod.budget
    return budget.limits if demand.rules.knows_budgets and budget is not None else {}
