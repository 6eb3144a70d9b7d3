"""What a pod and its containers ask the managers for: whole CPUs, and memory by type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from agent.core.departures import HUGEPAGE_POOL_RULE, INIT_APART
from agent.core.pods import (
    CPU,
    HUGEPAGES,
    MILLI,
    Amounts,
    Container,
    Kind,
    Pod,
    QosClass,
    memory_amounts,
    qos_class,
)
from agent.core.startup import Rules


@dataclass(frozen=True)
class Demand:
    """The demand of one pod under the given rules; everything is computed once."""

    rules: Rules
    pod: Pod

    @cached_property
    def guaranteed(self) -> bool:
        """Tell whether the pod is Guaranteed; nothing is exclusive in any other."""
        qos = qos_class(self.pod, pod_level_resources=self.rules.knows_budgets)
        return qos is QosClass.GUARANTEED

    @cached_property
    def by_budget(self) -> bool:
        """Tell whether the pod's own budget is decided on."""
        return self.rules.decides_by_budget and self.pod.has_budget

    @cached_property
    def ignored(self) -> bool:
        """Tell whether the pod has a budget that the gates hide: the managers leave it alone."""
        return not self.rules.decides_by_budget and self.pod.has_budget

    @property
    def is_for_own(self) -> bool:
        """Tell whether the pod asks for CPUs or memory of its own."""
        if self.ignored or not self.guaranteed:
            return False
        if self.rules.manages_memory:
            return True
        return self.rules.manages_cpus and bool(self.pod_cpus or any(self.cpus.values()))

    @cached_property
    def cpus(self) -> Mapping[str, int]:
        """Exclusive CPUs of each container; 0 means shared (``guaranteedCPUs``)."""
        return {c.name: self._exclusive_cpus(c) for c in self.pod.containers}

    def _exclusive_cpus(self, container: Container) -> int:
        if not self.guaranteed or (self.by_budget and not container.resources.is_exclusive_grade()):
            return 0
        whole, rest = divmod(container.resources.requests.get(CPU, 0), MILLI)
        return 0 if rest else whole

    @cached_property
    def pod_cpus(self) -> int:
        """CPUs of the whole pod (``podGuaranteedCPUs``)."""
        if self.by_budget:
            assert self.pod.budget is not None
            whole, rest = divmod(self.pod.budget.requests.get(CPU, 0), MILLI)
            return 0 if rest or not self.guaranteed else whole
        if INIT_APART in self.rules.policy.departures:
            return sum(self.cpus.values())
        return self.over_life(lambda c: self.cpus[c.name])

    @cached_property
    def memory(self) -> Mapping[str, Amounts]:
        """Bytes by type of each container; empty means that it shares (``getRequestedResources``)."""
        return {
            c.name: {}
            if self.by_budget and not c.resources.is_exclusive_grade()
            else dict(memory_amounts(c.resources.requests))
            for c in self.pod.containers
        }

    @cached_property
    def pod_memory(self) -> Amounts:
        """Bytes by type of the whole pod (``getPodRequestedResources``)."""
        if self.by_budget:
            assert self.pod.budget is not None
            return {k: v for k, v in memory_amounts(self.pod.budget.requests) if v > 0}
        types = {t for c in self.pod.app_containers for t in self.memory[c.name]}
        return {t: self._memory_over_life(t) for t in sorted(types)}

    def _memory_over_life(self, name: str) -> int:
        return self.over_life(lambda c: self.memory[c.name].get(name, 0))

    def over_life(self, amount: Callable[[Container], int]) -> int:
        """Return the most that is needed at a time: sidecars stay, ordinary init containers end."""
        sidecars = most = 0
        for c in self.pod.init_containers:
            if c.kind is Kind.SIDECAR:
                sidecars += amount(c)
            else:
                most = max(most, sidecars + amount(c))
        return max(most, sidecars + sum(amount(c) for c in self.pod.app_containers))

    @cached_property
    def cpu_pool_error(self) -> str | None:
        """Why the CPU pool would be empty for a container that shares, else None."""
        return self._pool_error(self.pod_cpus - self._cpus_apart, self.cpus, "cpu", "cpus")

    @property
    def _cpus_apart(self) -> int:
        """CPUs that ordinary init containers leave to nobody (opt-in departure)."""
        if INIT_APART not in self.rules.policy.departures:
            return 0
        return sum(self.cpus[c.name] for c in self.pod.init_containers if c.kind is Kind.INIT)

    @cached_property
    def memory_pool_error(self) -> str | None:
        """Why the memory pool would be empty for a container that shares, else None."""
        for name in sorted(self.pod_memory):
            amounts = {
                c.name: self.memory[c.name].get(name, 0)
                for c in self.pod.containers
                if self.memory[c.name] or self._may_lack(c, name)
            }
            error = self._pool_error(self.pod_memory[name], amounts, name, name, zero_shares=False)
            if error is not None:
                return error
        return None

    def _may_lack(self, container: Container, name: str) -> bool:
        """Tell whether a sharing container needs none of a type in the pool (opt-in departure)."""
        return (
            HUGEPAGE_POOL_RULE in self.rules.policy.departures
            and name.startswith(HUGEPAGES)
            and not container.resources.requests.get(name)
        )

    def _pool_error(
        self,
        total: int,
        amounts: Mapping[str, int],
        name: str,
        plural: str,
        *,
        zero_shares: bool = True,
    ) -> str | None:
        """Check one pool; a container shares if it has no amount (or 0 where ``zero_shares``)."""
        claimed, shared = 0, False
        for c in self.pod.containers:
            amount = amounts.get(c.name)
            shares = amount is None or (zero_shares and amount == 0)
            if c.kind is Kind.INIT:
                if shares and claimed >= total:
                    return (
                        f"pod rejected, pod has shared init containers but no {plural} "
                        "available for them"
                    )
            else:
                shared |= shares
                claimed += amount or 0
        if shared and claimed >= total:
            return (
                f"pod rejected, sum of exclusive container {name} requests equals pod budget, "
                f"leaving no {plural} for shared containers"
            )
        return None
