"""The part of a kube-apiserver that the agent writes to, as `test_api_model` compares it with one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agent.core.pods import Pod
from agent.errors import KubernetesError
from agent.ports import ApiAnswer

NODE = "node-a"
NODE_UID = "19d3b513-ee9d-4195-957e-18ce94acaaff"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
UNPROCESSABLE = 422

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    body: Body
    content_type: str

    @property
    def parts(self) -> list[str]:
        return self.path.strip("/").split("/")

    def rights(self) -> set[tuple[str, str, str]]:
        """Return the (API group, resource, verb) that RBAC wants to see for it."""
        at = 2 if self.parts[0] == "api" else 3
        group, rest = "" if at == 2 else self.parts[1], self.parts[at:]
        if rest[0] == "namespaces":
            rest = rest[2:]
        resource = "/".join([rest[0], *rest[2:]])
        verbs = {"GET": {"get"}, "POST": {"create"}, "PATCH": {"patch"}}[self.method]
        if self.content_type == APPLY:
            verbs = verbs | {"create"}
        return {(group, resource, verb) for verb in verbs}


def status(code: int, message: str = "", reason: str = "", **details: object) -> ApiAnswer:
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason}
    seconds = details.get("retryAfterSeconds", 0)
    assert isinstance(seconds, int)
    return ApiAnswer(code=code, body={**body, "code": code, "details": details}, wait_s=seconds)


NO_SUCH_PAGE = ApiAnswer(code=404, body="404 page not found\n")
OVERLOADED = ApiAnswer(code=429, body="Too many requests, please try again later.\n", wait_s=1.0)
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


def forbidden(resource: str) -> ApiAnswer:
    return status(403, f"{resource} is forbidden", "Forbidden", kind=resource)


@dataclass
class ModelPod:
    uid: str
    annotations: dict[str, str] = field(default_factory=dict)
    is_terminating: bool = False


@dataclass
class ApiModel:
    """An `agent.ports.ApiServer`; ``refuse`` may answer in place of what would be answered.

    ``disruptions`` are what a PodDisruptionBudget over all pods allows; None where there is none.
    """

    pods: dict[str, ModelPod] = field(default_factory=dict)
    has_crd: bool = True
    disruptions: int | None = None
    is_budget_known: bool = True
    budgets: int = 1
    events: dict[str, Body] = field(default_factory=dict)
    topology: dict[str, Any] | None = None
    requests: list[Asked] = field(default_factory=list)
    refuse: Callable[[Asked], ApiAnswer | None] = lambda _asked: None

    def add(self, *pods: Pod) -> None:
        for pod in pods:
            self.pods[pod.full_name] = ModelPod(pod.uid, dict(pod.annotations))

    def of(self, method: str) -> list[Asked]:
        return [asked for asked in self.requests if asked.method == method]

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> ApiAnswer:
        json.dumps(body)  # what cannot be sent must not be accepted
        parts = urlsplit(path)
        asked = Asked(method, parts.path, parse_qs(parts.query), body or {}, content_type)
        self.requests.append(asked)
        return self.refuse(asked) or self._answer(asked)

    def _answer(self, asked: Asked) -> ApiAnswer:
        match asked.method, asked.parts:
            case "GET", ["api", "v1", "nodes", name]:
                metadata = {"name": name, "uid": NODE_UID}
                return ApiAnswer(code=200, body={"kind": "Node", "metadata": metadata})
            case "POST", ["api", "v1", "namespaces", namespace, "events"]:
                return self._create_event(namespace, asked.body)
            case "PATCH", ["api", "v1", "namespaces", namespace, "pods", name]:
                assert asked.content_type == MERGE
                return self._patch_pod(f"{namespace}/{name}", asked.body)
            case "POST", ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]:
                return self._evict(f"{namespace}/{name}", asked.body)
            case method, _ if asked.path.startswith(TOPOLOGIES) and self.has_crd:
                return self._get_topology() if method == "GET" else self._apply(asked)
            case _:
                return NO_SUCH_PAGE

    def _create_event(self, namespace: str, body: Body) -> ApiAnswer:
        metadata = body["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{len(self.events):05}"
        if body["involvedObject"].get("namespace", "default") != namespace:
            return status(UNPROCESSABLE, "involvedObject.namespace: does not match", "Invalid")
        if name in self.events:
            return status(409, f'events "{name}" already exists', "AlreadyExists")
        self.events[name] = body
        return ApiAnswer(code=201, body=body)

    def _patch_pod(self, full_name: str, body: Body) -> ApiAnswer:
        pod, metadata = self.pods.get(full_name), body["metadata"]
        if pod is None:
            return status(404, f'pods "{full_name}" not found', "NotFound")
        if metadata.get("uid", pod.uid) != pod.uid:
            return status(UNPROCESSABLE, "metadata.uid: field is immutable", "Invalid")
        merged = pod.annotations | metadata["annotations"]
        pod.annotations = {key: text for key, text in merged.items() if text is not None}
        return ApiAnswer(code=200, body={"kind": "Pod"})

    def _evict(self, full_name: str, body: Body) -> ApiAnswer:
        pod = self.pods.get(full_name)
        if pod is None:
            return status(404, f'pods "{full_name}" not found', "NotFound")
        if not pod.is_terminating:
            if self.budgets > 1:
                return status(500, "This pod has more than one PodDisruptionBudget")
            if self.disruptions is not None and not self.is_budget_known:
                cause = {"reason": "DisruptionBudget", "message": "is still being processed"}
                return status(429, BUDGET, "TooManyRequests", causes=[cause], retryAfterSeconds=10)
            if self.disruptions == 0:
                cause = {"reason": "DisruptionBudget", "message": "needs 2 healthy pods"}
                return status(429, BUDGET, "TooManyRequests", causes=[cause])
            if self.disruptions is not None:
                self.disruptions -= 1  # even where the precondition then fails
        wanted = body.get("deleteOptions", {}).get("preconditions", {}).get("uid", pod.uid)
        if wanted != pod.uid:
            return status(409, "the UID in the precondition does not match", "Conflict")
        pod.is_terminating = True
        return ApiAnswer(code=201, body={"kind": "Status", "status": "Success", "code": 201})

    def _get_topology(self) -> ApiAnswer:
        if self.topology is None:
            return status(404, "noderesourcetopologies not found", "NotFound")
        return ApiAnswer(code=200, body=self.topology)

    def _apply(self, asked: Asked) -> ApiAnswer:
        """Server-side apply, where each top-level list is owned as a whole."""
        if asked.content_type != APPLY or "fieldManager" not in asked.query:
            return status(UNPROCESSABLE, "fieldManager: is required for apply patch", "Invalid")
        (manager,), current = asked.query["fieldManager"], self.topology
        owners = {} if current is None else current["owners"]
        rivals = sorted(
            f"{other} .{name}"
            for name in ("zones", "attributes")
            if current is not None and name in asked.body and current.get(name) != asked.body[name]
            for other in owners.get(name, set()) - {manager}
        )
        if rivals and asked.query.get("force") != ["true"]:
            causes = [
                {"reason": "FieldManagerConflict", "message": f"conflict with {rival}"}
                for rival in rivals
            ]
            return status(
                409, f"Apply failed with {len(rivals)} conflict", "Conflict", causes=causes
            )
        self.topology = _applied(current, asked.body, manager)
        code = HTTPStatus.CREATED if current is None else HTTPStatus.OK
        return ApiAnswer(code=code, body=self.topology)


def _applied(current: dict[str, Any] | None, body: Body, manager: str) -> dict[str, Any]:
    former = current or {}
    owners: dict[str, set[str]] = {}
    for name in ("zones", "attributes"):
        if name in body:
            same = former.get(name) == body[name]
            owners[name] = {manager} | (former["owners"].get(name, set()) if same else set())
    managers = sorted({m for names in owners.values() for m in names})
    fields = [
        {"manager": m, "fieldsV1": {f"f:{name}": {} for name in owners if m in owners[name]}}
        for m in managers
    ]
    return {**body, "metadata": {**body["metadata"], "managedFields": fields}, "owners": owners}


@dataclass
class SilentApi:
    """A server that never answers."""

    requests: int = 0

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> ApiAnswer:
        del body, content_type
        self.requests += 1
        raise KubernetesError(f"no answer to {method} {path}: ReadTimeoutError")
