"""A pod's budget carried by an annotation, for API servers without ``spec.resources``.

``numalet.io/resources: '{"cpu": "6", "memory": "9Gi"}'`` says what ``spec.resources`` would say
with requests and limits both at these amounts.  Such a pod is decided like one with pod-level
resources, but Kubernetes counts its containers only: it is usually Burstable, and so is its cgroup.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from agent.core import quantity
from agent.core.pods import CPU, Amounts, Kind, Pod, Resources, is_pod_level_resource

BUDGET_ANNOTATION = "numalet.io/resources"
CLAIMS_ANNOTATION = "numalet.io/claims"

CLAIMS_REFUSED = (
    "named claims are not supported: write the pod's total as a budget (spec.resources, or the "
    f"annotation {BUDGET_ANNOTATION}), and give the container that shall have exclusive CPUs the "
    "same requests as limits, with a whole number of CPUs; the others share the rest of the budget"
)


class ClaimsError(ValueError):
    """An annotation does not say a budget; ``annotation`` is its key."""

    def __init__(self, message: str, *, annotation: str = BUDGET_ANNOTATION) -> None:
        super().__init__(message)
        self.annotation = annotation


def with_annotated_budget(pod: Pod) -> Pod:
    """Return the pod with the budget that its annotation carries, or as it is without one.

    Raises `ClaimsError` where the annotation is wrong, where ``spec.resources`` says a budget too,
    and for claims.
    """
    if CLAIMS_ANNOTATION in pod.annotations:
        raise ClaimsError(CLAIMS_REFUSED, annotation=CLAIMS_ANNOTATION)
    if not has_annotated_budget(pod):
        return pod
    if pod.has_budget:
        raise ClaimsError("spec.resources says a budget too: keep one of the two")
    amounts = _parse(pod.annotations[BUDGET_ANNOTATION])
    return replace(pod, budget=Resources(requests=amounts, limits=amounts))


def has_annotated_budget(pod: Pod) -> bool:
    """Tell whether an annotation carries the budget: Kubernetes then knows nothing of it."""
    return BUDGET_ANNOTATION in pod.annotations


def unbacked(pod: Pod) -> dict[str, int]:
    """Return by how much a pod's budget exceeds the requests of its containers, per resource.

    That much neither the scheduler nor a quota has counted when an annotation carries the budget.
    """
    backing = aggregate(pod, lambda resources: resources.requests)
    claimed = pod.budget.requests if pod.budget else {}
    excess = {name: amount - backing.get(name, 0) for name, amount in claimed.items()}
    return {name: amount for name, amount in excess.items() if amount > 0}


def aggregate(pod: Pod, of: Callable[[Resources], Amounts]) -> dict[str, int]:
    """Return what a pod's containers need together, per resource, from requests or limits.

    The larger of app containers with sidecars, and of the init phase at its worst
    (``AggregateContainerRequests`` and ``AggregateContainerLimits``; KEP-753).
    """
    running: dict[str, int] = {}
    initialising: dict[str, int] = {}
    for container in pod.init_containers:
        amounts = of(container.resources)
        if container.kind is Kind.SIDECAR:
            running = _added(running, amounts)
            peak: Mapping[str, int] = running
        else:
            peak = _added(running, amounts)
        initialising = _largest(initialising, peak)
    for container in pod.app_containers:
        running = _added(running, of(container.resources))
    return _largest(initialising, running)


def _added(a: Amounts, b: Amounts) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in (*a, *b)}


def _largest(a: Amounts, b: Amounts) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in (*a, *b)}


def _parse(text: str) -> dict[str, int]:
    """Return the amounts of the annotation's value."""
    example = """write a JSON object such as {"cpu": "6", "memory": "9Gi"}"""
    try:
        members = json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise ClaimsError(f"{text!r} is not JSON: {example}") from error
    if not text.lstrip().startswith("{") or not members:
        raise ClaimsError(f"{text!r} names no resource: {example}")
    amounts: dict[str, int] = {}
    for name, value in members:
        if name in amounts:
            raise ClaimsError(f"{name!r} is repeated: {example}")
        amounts[name] = _amount(name, value)
    return amounts


def _amount(name: str, value: object) -> int:
    if not is_pod_level_resource(name):
        raise ClaimsError(f"{name!r} cannot be budgeted: only cpu, memory and hugepages-* can")
    if not isinstance(value, str):
        raise ClaimsError(f'{name} is not a quantity: write a text such as "2" or "9Gi"')
    try:
        return quantity.milli_cpu(value) if name == CPU else quantity.whole_bytes(value)
    except quantity.QuantityError as error:
        raise ClaimsError(f"{name}: {error}") from error
