"""A Pod object of Kubernetes, as an API server or a manifest writes it, made a `Pod`.

Only what the decisions need is looked at; everything else in the object is ignored, as it may be
newer than this program.

Of a pod that runs the `Pod` has what the kubelet has allocated, which is not what ``spec`` says while
a resize is not seen yet, Deferred or Infeasible (KEP-1287).  The status has the allocated requests;
of allocated limits it only tells those in force.  ``status.resources`` is never asked for requests:
they are computed back from a weight, and 5 CPUs read 4995m.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from agent.core import quantity
from agent.core.claims import ClaimsError, with_annotated_budget
from agent.core.pods import (
    CPU,
    Amounts,
    Container,
    Kind,
    Pod,
    PodUID,
    QosClass,
    Resources,
    is_extended_resource,
    is_pod_level_resource,
)
from agent.documents import FieldError, FieldPath, Problem, problems_of, quantity_text

_HASH = re.compile(r"[0-9a-f]{32}")
_UID_NAMESPACE = uuid.UUID("8b0f6ae5-5d34-5c9b-9a41-3f0f1d1f2b7e")


class _Object(BaseModel):
    """An object of the Kubernetes API: unknown fields are ignored, null is the same as absent."""

    model_config = ConfigDict(extra="ignore", strict=True, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if value is not None}


class _Resources(_Object):
    requests: dict[str, object] = {}
    limits: dict[str, object] = {}


class _Container(_Object):
    name: str
    restart_policy: str = ""
    resources: _Resources = _Resources()


class _Owner(_Object):
    kind: str = ""
    controller: bool = False


class _Metadata(_Object):
    name: str
    namespace: str = "default"
    uid: str = Field(default="", pattern="^[A-Za-z0-9-]*$")  # it becomes a directory name
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    generation: int = 0
    owner_references: list[_Owner] = []
    deletion_timestamp: object = None

    @property
    def controller(self) -> str:
        """The kind of what manages the pod; empty where nothing does."""
        return next((owner.kind for owner in self.owner_references if owner.controller), "")


class _Spec(_Object):
    resources: _Resources | None = None
    init_containers: list[_Container] = []
    containers: list[_Container] = []
    ephemeral_containers: list[_Container] = []
    priority: int | None = None
    runtime_class_name: str = ""


class _Terminated(_Object):
    exit_code: int


class _State(_Object):
    terminated: _Terminated | None = None


class _ContainerStatus(_Object):
    name: str
    container_id: str = Field(default="", alias="containerID")
    state: _State = _State()
    allocated_resources: dict[str, object] = {}
    resources: _Resources = _Resources()


class _Condition(_Object):
    type: str
    status: str = ""


class _Status(_Object):
    qos_class: Annotated[QosClass, Field(strict=False)] | None = None
    observed_generation: int | None = None
    conditions: list[_Condition] = []
    allocated_resources: dict[str, object] = {}
    resources: _Resources = _Resources()
    init_container_statuses: list[_ContainerStatus] = []
    container_statuses: list[_ContainerStatus] = []
    ephemeral_container_statuses: list[_ContainerStatus] = []

    def has(self, condition: str) -> bool:
        return any((c.type, c.status) == (condition, "True") for c in self.conditions)

    def of_containers(self) -> Iterator[tuple[FieldPath, _ContainerStatus]]:
        """Yield the status of each container, and where it stands."""
        for name, statuses in (
            ("initContainerStatuses", self.init_container_statuses),
            ("containerStatuses", self.container_statuses),
            ("ephemeralContainerStatuses", self.ephemeral_container_statuses),
        ):
            for index, status in enumerate(statuses):
                yield ("status", name, index), status


class _Pod(_Object):
    metadata: _Metadata
    spec: _Spec
    status: _Status = _Status()

    @property
    def resize_is_pending(self) -> bool:
        """Tell whether ``spec`` may say other amounts than those that are allocated."""
        seen = self.status.observed_generation
        return self.status.has("PodResizePending") or (
            seen is not None and seen < self.metadata.generation
        )


def parse_pod(raw: Mapping[str, object], *, where: str) -> Pod:
    """Return the pod that an object describes; its budget may stand in an annotation.

    Nothing is defaulted but the uid: a pod without one gets one that follows from its namespace and
    name.  Raises `FieldError`, an `InputError`, that names ``where`` and the first wrong field.
    """
    try:
        json.dumps(raw, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        text = "has half of a surrogate pair in it: that is no Unicode text"
        raise FieldError(Problem((), text), where=where) from error
    try:
        return with_annotated_budget(_pod(_Pod.model_validate(raw)))
    except ValidationError as error:
        raise FieldError(next(problems_of(error)), where=where) from error
    except ClaimsError as error:
        problem = Problem(("metadata", "annotations", error.annotation), str(error))
        raise FieldError(problem, where=where) from error
    except FieldError as error:
        raise FieldError(error.problem, where=where) from error


def stable_uid(namespace: str, name: str) -> PodUID:
    """Return the uid of a pod that nobody gave one: always the same for the same pod."""
    return PodUID(str(uuid.uuid5(_UID_NAMESPACE, f"{namespace}/{name}")))


def uid_in(raw: Mapping[str, object]) -> PodUID | None:
    """Return the UID by which the kubelet knows a pod, though nothing else in its object be right.

    None where it has none.
    """
    metadata = _members(raw.get("metadata"))
    uid = metadata.get("uid")
    static = _static_uid(_members(metadata.get("annotations")))
    return static or (PodUID(uid) if isinstance(uid, str) and uid else None)


def _members(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _static_uid(annotations: Mapping[str, object]) -> PodUID | None:
    """Return the UID of a static pod, whose mirror has these; None for every other pod.

    That is the hash of its manifest: the mirror can be deleted and made again while the pod runs on.
    It never looks like the UID of a pod that came from the API.
    """
    manifest = annotations.get("kubernetes.io/config.hash")
    is_hash = isinstance(manifest, str) and _HASH.fullmatch(manifest) is not None
    is_mirror = "kubernetes.io/config.mirror" in annotations
    return PodUID(str(manifest)) if is_mirror and is_hash else None


def _pod(model: _Pod) -> Pod:
    metadata, spec, statuses = model.metadata, model.spec, list(model.status.of_containers())
    allocated = {status.name: _allocated(model, at, status) for at, status in statuses}
    init_containers = _containers(spec.init_containers, "initContainers", Kind.INIT, allocated)
    ordinary = {c.name for c in init_containers if c.kind is Kind.INIT}
    uid = PodUID(metadata.uid) or stable_uid(metadata.namespace, metadata.name)
    known_as = _static_uid(metadata.annotations) or uid
    return Pod(
        uid=known_as,
        api_uid=None if known_as == uid else uid,
        name=metadata.name,
        namespace=metadata.namespace,
        budget=_budget(model),
        init_containers=init_containers,
        app_containers=_containers(spec.containers, "containers", Kind.APP, allocated),
        ephemeral_containers=_containers(
            spec.ephemeral_containers, "ephemeralContainers", Kind.EPHEMERAL, {}
        ),
        annotations=metadata.annotations,
        labels=metadata.labels,
        container_ids={
            status.container_id.partition("://")[2]: status.name
            for _, status in statuses
            if status.container_id
        },
        ended_init=frozenset(s.name for _, s in statuses if s.name in ordinary and _ended_well(s)),
        qos=model.status.qos_class,
        controller=metadata.controller,
        priority=spec.priority,
        is_terminating=metadata.deletion_timestamp is not None,
        runtime_class=spec.runtime_class_name,
    )


def _ended_well(status: _ContainerStatus) -> bool:
    terminated = status.state.terminated
    return terminated is not None and terminated.exit_code == 0


def _containers(
    models: list[_Container], field: str, kind: Kind, allocated: Mapping[str, "_Allocated"]
) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=model.name,
            # KEP-753: an init container that restarts for ever runs beside the app containers
            kind=Kind.SIDECAR if (kind, model.restart_policy) == (Kind.INIT, "Always") else kind,
            resources=allocated.get(model.name, _UNKNOWN).instead_of(
                _resources(model.resources, ("spec", field, index))
            ),
            extended=_extended(model.resources, ("spec", field, index, "resources", "limits")),
        )
        for index, model in enumerate(models)
    )


def _budget(model: _Pod) -> Resources | None:
    """Return the pod's budget: only ``spec`` tells whether it has one, the status has a sum anyway."""
    if model.spec.resources is None:
        return None
    spec = _resources(model.spec.resources, ("spec",))
    # No resize makes a pod Guaranteed, or no longer so: where all limits are equal to the requests,
    # those that are allocated are, too.  Those in force may be numalet's own: it lifts a pod's quota.
    follows = spec.limits == spec.requests
    return _allocated(model, ("status",), model.status, ignore_limits=follows).instead_of(spec)


@dataclass(frozen=True, slots=True)
class _Allocated:
    """What the kubelet has allocated to a container or pod, as far as the status tells."""

    requests: Amounts
    limits: Amounts
    is_pending: bool = False
    """Whether ``spec`` may ask for other limits, though for the same requests."""

    def instead_of(self, spec: Resources) -> Resources:
        """Return what is allocated while ``spec`` may ask for something else.

        Where no limit is known and ``spec`` has limit and request equal, the allocated ones are
        equal, too: a resize cannot change the QoS class.
        """
        requests = {name: self.requests.get(name, amount) for name, amount in spec.requests.items()}
        if requests == spec.requests and not self.is_pending:
            return spec

        def limit(name: str, asked: int) -> int:
            follows = spec.requests.get(name) == asked
            return self.limits.get(name, requests[name] if follows else asked)

        limits = {name: limit(name, asked) for name, asked in spec.limits.items()}
        return Resources(requests=requests, limits=limits)


_UNKNOWN = _Allocated({}, {})


def _allocated(
    model: _Pod, at: FieldPath, status: _ContainerStatus | _Status, *, ignore_limits: bool = False
) -> _Allocated:
    """Return what is allocated to a container, or to the pod.

    The limits in force are the allocated ones, unless a resize is still being carried out.
    """
    ignore_limits |= model.status.has("PodResizeInProgress")
    in_force = {} if ignore_limits else status.resources.limits
    return _Allocated(
        requests=_amounts(status.allocated_resources, (*at, "allocatedResources")),
        limits=_amounts(in_force, (*at, "resources", "limits")),
        is_pending=model.resize_is_pending,
    )


def _resources(model: _Resources, owner: FieldPath) -> Resources:
    path = (*owner, "resources")
    return Resources(
        requests=_amounts(model.requests, (*path, "requests")),
        limits=_amounts(model.limits, (*path, "limits")),
    )


def _extended(model: _Resources, path: FieldPath) -> tuple[str, ...]:
    """Return the extended resources that a container gets; their requests equal their limits."""
    names = (name for name in model.limits if is_extended_resource(name))
    return tuple(sorted(n for n in names if _amount(n, model.limits[n], (*path, n))))


def _amounts(quantities: Mapping[str, object], path: FieldPath) -> Amounts:
    return {
        name: _amount(name, value, (*path, name))
        for name, value in quantities.items()
        if is_pod_level_resource(name)
    }


def _amount(name: str, value: object, path: FieldPath) -> int:
    text = quantity_text(value)
    if text is None:
        raise FieldError(Problem(path, f'{value!r} is not a quantity: write "2" or "9Gi", say'))
    try:
        return quantity.milli_cpu(text) if name == CPU else quantity.whole_bytes(text)
    except quantity.QuantityError as error:
        raise FieldError(Problem(path, str(error))) from error
