"""Who may have CPUs of his own at all, before anything is placed.

On a cluster a pod's author must not get more than the scheduler and the quotas counted for the pod,
whatever its annotations say, and an operator starts with a few pods.  On a single host whoever
writes the manifests owns the machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from agent.core.claims import BUDGET_ANNOTATION, has_annotated_budget, unbacked
from agent.core.pods import CPU, MILLI, Pod, QosClass, Resources, qos_class
from agent.core.quantity import format_bytes, format_milli

UNBACKED_BUDGET = "UnbackedBudget"
NOT_SELECTED = "NotSelected"
UNSUPPORTED_RUNTIME = "UnsupportedRuntime"
_RUNTIME_CLASS = "RuntimeClass "


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlement:
    """Which pods are placed; by default all.

    A pod is selected that has all of ``labels`` and is in one of ``namespaces`` (none: any).
    ``unbacked_namespaces`` are those whose pods may claim by annotation what their containers do
    not request; None means all.  ``unsupported_classes`` are patterns of RuntimeClasses that run pods
    under kernels of their own: ``kata*``, say.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    unbacked_namespaces: frozenset[str] | None = None
    unsupported_classes: tuple[str, ...] = ()

    def refusal(self, pod: Pod) -> tuple[str, str] | None:
        """Return reason and message where a pod gets nothing of its own, else None."""
        if not self._selects(pod):
            message = "podSelector does not select this pod: it runs on the default CPU set"
            return NOT_SELECTED, message
        if pod.own_kernel and qos_class(pod) is QosClass.GUARANTEED:  # others ask for nothing
            return UNSUPPORTED_RUNTIME, why_unsupported(pod)
        lacking = self._lacking(pod)
        return (UNBACKED_BUDGET, _message(lacking)) if lacking else None

    def counted(self, pod: Pod) -> Pod:
        """Return a pod with no larger a budget than is backed, and of CPUs that are not, whole ones."""
        lacking = self._lacking(pod)
        if pod.budget is None or not lacking:
            return pod
        amounts = {name: n - lacking.get(name, 0) for name, n in pod.budget.requests.items()}
        if CPU in lacking:
            amounts[CPU] -= amounts[CPU] % MILLI
        return replace(pod, budget=Resources(requests=amounts, limits=amounts))

    def _lacking(self, pod: Pod) -> dict[str, int]:
        is_open = self.unbacked_namespaces is None or pod.namespace in self.unbacked_namespaces
        return {} if is_open or not has_annotated_budget(pod) else unbacked(pod)

    def asks_the_same(self, known: Pod, pod: Pod) -> bool:
        """Tell whether nothing changed on which it was decided."""
        return asks_as_much(known, pod) and self.refusal(known) == self.refusal(pod)

    def own_kernel(self, pod: Pod) -> str:
        """Return the RuntimeClass of a pod that is not supported by its name alone, else empty.

        Which runtime a class stands for only the cluster knows; what the runtime itself says comes
        when the pod is being started.
        """
        name = pod.runtime_class
        listed = any(fnmatchcase(name, pattern) for pattern in self.unsupported_classes)
        return f"{_RUNTIME_CLASS}{name}" if name and listed else ""

    def _selects(self, pod: Pod) -> bool:
        is_inside = not self.namespaces or pod.namespace in self.namespaces
        return is_inside and self.labels.items() <= pod.labels.items()


def asks_as_much(known: Pod, pod: Pod) -> bool:
    """Tell whether a pod asks for the same amounts as before."""
    was, now = ((p.budget, p.init_containers, p.app_containers) for p in (known, pod))
    return was == now


def why_unsupported(pod: Pod) -> str:
    """Say why a pod with a kernel of its own gets nothing of its own, and what helps."""
    by_name = pod.own_kernel.startswith(_RUNTIME_CLASS)
    return (
        f"{pod.own_kernel} runs it under a kernel of its own: what the cgroups of its containers say does"
        " not place its threads, so it runs on the default CPU set without CPUs or memory of its own;"
        " let a runtime such as runc or crun run it"
        + (", or take the class out of unsupportedRuntimeClasses" if by_name else "")
    )


def _message(lacking: Mapping[str, int]) -> str:
    amounts = ", ".join(
        f"{format_milli(amount) if name == CPU else format_bytes(amount)} of {name}"
        for name, amount in sorted(lacking.items())
    )
    return (
        f"the annotation {BUDGET_ANNOTATION} claims {amounts} more than the pod's containers request,"
        " which is what the scheduler and quotas counted: let the containers request it, or let the"
        " operator name the namespace under annotations.unbacked.namespaces"
    )
