"""What an API server does with a pod's resources before anybody sees it: defaults, then checks.

A manifest that no API server has seen goes through the same.  Mirrors ``SetDefaults_Pod`` of
pkg/apis/core/v1/defaults.go, and ``validateContainerResourceRequirements``,
``validatePodResources`` and ``validatePodResourceConsistency`` of pkg/apis/core/validation
(Kubernetes v1.36).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from agent.core import quantity
from agent.core.claims import (
    BUDGET_ANNOTATION,
    CLAIMS_REFUSED,
    aggregate,
    has_annotated_budget,
)
from agent.core.pods import (
    CPU,
    HUGEPAGES,
    MEMORY,
    Amounts,
    Container,
    Pod,
    Resources,
    is_pod_level_resource,
)
from agent.documents import FieldError, FieldPath, Problem
from agent.sources.pod_model import parse_pod

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL, re.ASCII)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253
_CONTAINER_FIELDS = ("initContainers", "containers")


def parse_served(raw: Mapping[str, object], *, where: str) -> Pod:
    """Return a pod that an API server sent, like `pod_model.parse_pod`.

    Names become parts of paths, so they are not taken on trust: `FieldError` is raised for those
    that no API server would have let in, too.
    """
    pod = parse_pod(raw, where=where)
    for problem in _name_problems(pod):
        raise FieldError(problem, where=where)
    return pod


def apply_defaults(pod: Pod) -> Pod:
    """Return the pod with the requests and limits that an API server would fill in.

    Applied twice, it changes nothing the second time.
    """
    pod = replace(
        pod,
        init_containers=tuple(_with_requests(c) for c in pod.init_containers),
        app_containers=tuple(_with_requests(c) for c in pod.app_containers),
    )
    if pod.budget is None:
        return pod
    return replace(pod, budget=_with_pod_requests(pod, _with_hugepage_limits(pod, pod.budget)))


def _with_requests(container: Container) -> Container:
    """Return the container whose missing requests are its limits."""
    own = container.resources
    return replace(container, resources=replace(own, requests={**own.limits, **own.requests}))


def _with_hugepage_limits(pod: Pod, budget: Resources) -> Resources:
    """Bound the huge pages of the containers by the budget, too (``defaultHugePagePodLimits``)."""
    if not budget.requests and not budget.limits:
        return budget
    missing = {
        name: amount
        for name, amount in aggregate(pod, lambda r: r.limits).items()
        if name.startswith(HUGEPAGES) and name not in budget.requests
    }
    return replace(budget, limits={**missing, **budget.limits})


def _with_pod_requests(pod: Pod, budget: Resources) -> Resources:
    """Request what the containers do, or the pod's limit if none does (``defaultPodRequests``)."""
    if not budget.limits:
        return budget
    of_containers = {
        name: amount
        for name, amount in aggregate(pod, lambda r: r.requests).items()
        if not name.startswith(HUGEPAGES)
    }
    return replace(budget, requests={**budget.limits, **of_containers, **budget.requests})


def unknown_resources(spec: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the resources that a specification names and no API server knows there.

    Looks at the object itself, whose shape `pod_model.parse_pod` has checked: a `Pod` holds only
    the resources that the decisions use.
    """
    for field in _CONTAINER_FIELDS:
        containers = spec.get(field) or []
        assert isinstance(containers, list)
        for index, container in enumerate(containers):
            for path, name in _names(container, (field, index)):
                if "/" not in name and not _is_container_resource(name):
                    yield Problem(path, f"{name!r} is not a resource: write cpu or memory, say")
    for path, name in _names(spec, ()):
        if not is_pod_level_resource(name):
            yield Problem(path, f"{name!r} is not possible here: cpu, memory and hugepages-* are")
    resources = spec.get("resources")
    if isinstance(resources, Mapping) and resources.get("claims"):
        yield Problem(("spec", "resources", "claims"), CLAIMS_REFUSED)


def _names(owner: Mapping[str, object], at: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    resources = owner.get("resources") or {}
    assert isinstance(resources, Mapping)
    for kind in ("requests", "limits"):
        for name in resources.get(kind) or {}:
            yield ("spec", *at, "resources", kind, name), name


def _is_container_resource(name: str) -> bool:
    return is_pod_level_resource(name) or name == "ephemeral-storage"


def validate(pod: Pod) -> list[Problem]:
    """Return everything for which an API server would refuse the pod; empty if nothing.

    The pod is one that `apply_defaults` returned.
    """
    problems = [*_name_problems(pod)]
    if not pod.app_containers:
        problems.append(Problem(("spec", "containers"), "is missing: a pod has at least one"))
    for field, containers in zip(
        _CONTAINER_FIELDS, (pod.init_containers, pod.app_containers), strict=True
    ):
        for index, container in enumerate(containers):
            at = ("spec", field, index, "resources")
            problems.extend(_resource_problems(container.resources, at))
    if pod.budget is not None:
        problems.extend(_resource_problems(pod.budget, _budget_path(pod)))
        problems.extend(_consistency_problems(pod, pod.budget))
    return problems


def _budget_path(pod: Pod) -> FieldPath:
    if has_annotated_budget(pod):
        return ("metadata", "annotations", BUDGET_ANNOTATION)
    return ("spec", "resources")


def _name_problems(pod: Pod) -> Iterator[Problem]:
    """Yield the names that RFC 1123 forbids: a container's becomes a directory name."""
    if not _DNS_SUBDOMAIN.fullmatch(pod.name) or len(pod.name) > _SUBDOMAIN_LENGTH:
        yield Problem(("metadata", "name"), _bad_name(pod.name, _SUBDOMAIN_LENGTH, ", '.'"))
    if not _is_label(pod.namespace):
        yield Problem(("metadata", "namespace"), _bad_name(pod.namespace, _LABEL_LENGTH))
    seen: set[str] = set()
    for path, name in _container_names(pod):
        if not _is_label(name):
            yield Problem(path, _bad_name(name, _LABEL_LENGTH))
        if name in seen:
            yield Problem(path, f"{name!r} is the name of another container of this pod")
        seen.add(name)


def _container_names(pod: Pod) -> Iterator[tuple[FieldPath, str]]:
    fields = (*_CONTAINER_FIELDS, "ephemeralContainers")
    lists = (pod.init_containers, pod.app_containers, pod.ephemeral_containers)
    for field, containers in zip(fields, lists, strict=True):
        for index, container in enumerate(containers):
            yield ("spec", field, index, "name"), container.name


def _is_label(name: str) -> bool:
    return _DNS_LABEL.fullmatch(name) is not None and len(name) <= _LABEL_LENGTH


def _bad_name(name: str, length: int, more: str = "") -> str:
    return (
        f"{name!r} is not a name: use at most {length} lower case letters, digits, '-'{more}, "
        "and begin and end with a letter or digit"
    )


def _resource_problems(resources: Resources, at: FieldPath) -> Iterator[Problem]:
    """Yield requests above limits and overcommitted pages (``validateResourceRequirements``)."""
    for name, request in resources.requests.items():
        limit = resources.limits.get(name)
        path = (*at, "requests", name)
        if name.startswith(HUGEPAGES) and limit != request:
            yield Problem(path, "huge pages cannot be overcommitted: set the limit to the request")
        elif limit is not None and request > limit:
            yield Problem(
                path,
                f"must be at most the limit of {_text(name, limit)}, is {_text(name, request)}",
            )
    for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, amount in amounts.items():
            if name.startswith(HUGEPAGES) and not _is_whole_pages(name, amount):
                message = f"{amount} bytes is not a whole number of pages"
                yield Problem((*at, kind, name), message)
    names = {*resources.requests, *resources.limits}
    if names and not names & {CPU, MEMORY}:
        yield Problem(at, "huge pages need cpu or memory beside them")


def _is_whole_pages(name: str, amount: int) -> bool:
    try:
        page = quantity.parse(name.removeprefix(HUGEPAGES))
    except quantity.QuantityError:
        return False
    return page > 0 and page.denominator == 1 and amount % page == 0


def _consistency_problems(pod: Pod, budget: Resources) -> Iterator[Problem]:
    """Yield where the budget does not hold its containers (``validatePodResourceConsistency``).

    The limits of app containers are compared one by one, so that their sum may exceed the pod's;
    those of init containers are not.
    """
    at = _budget_path(pod)
    for name, total in aggregate(pod, lambda r: r.requests).items():
        yield from _too_small(name, budget.requests, total, (*at, "requests", name), "requests")
    for name, total in aggregate(pod, lambda r: r.limits).items():
        if name.startswith(HUGEPAGES):
            yield from _too_small(name, budget.limits, total, (*at, "limits", name), "limits")
    for index, container in enumerate(pod.app_containers):
        for name, limit in container.resources.limits.items():
            bound = budget.limits.get(name, limit)
            if limit > bound:
                yield Problem(
                    ("spec", "containers", index, "resources", "limits", name),
                    f"must be at most the pod's limit of {_text(name, bound)}, "
                    f"is {_text(name, limit)}",
                )


def _too_small(
    name: str, amounts: Amounts, total: int, path: FieldPath, what: str
) -> Iterator[Problem]:
    amount = amounts.get(name, total)
    if amount < total:
        yield Problem(
            path,
            f"must be at least the containers' {what} together, {_text(name, total)}, "
            f"is {_text(name, amount)}",
        )


def _text(name: str, amount: int) -> str:
    return quantity.format_milli(amount) if name == CPU else quantity.format_bytes(amount)
