"""Who may have CPUs of his own at all, before anything is placed.

On a cluster a pod's author must not get more than the scheduler and the quotas counted for the pod,
whatever its annotations say, and an operator starts with a few pods.  On a single host whoever
writes the manifests owns the machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.claims import BUDGET_ANNOTATION, has_annotated_budget, unbacked
from agent.core.pods import CPU, Pod
from agent.core.quantity import format_bytes, format_milli

UNBACKED_BUDGET = "UnbackedBudget"
NOT_SELECTED = "NotSelected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlement:
    """Which pods are placed; by default all.

    A pod is selected that has all of ``labels`` and is in one of ``namespaces`` (none: any).
    ``unbacked_namespaces`` are those whose pods may claim by annotation what their containers do
    not request; None means all.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    unbacked_namespaces: frozenset[str] | None = None

    def refusal(self, pod: Pod) -> tuple[str, str] | None:
        """Return reason and message where a pod gets nothing of its own, else None."""
        if not self._selects(pod):
            message = "podSelector does not select this pod: it runs on the default CPU set"
            return NOT_SELECTED, message
        backed = self.unbacked_namespaces is None or pod.namespace in self.unbacked_namespaces
        if backed or not has_annotated_budget(pod):
            return None
        lacking = unbacked(pod)
        return (UNBACKED_BUDGET, _message(lacking)) if lacking else None

    def _selects(self, pod: Pod) -> bool:
        is_inside = not self.namespaces or pod.namespace in self.namespaces
        return is_inside and self.labels.items() <= pod.labels.items()


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
