"""A Pod object of Kubernetes, as an API server or a manifest writes it, made a `Pod`.

Only what the decisions need is looked at; everything else in the object is ignored, as it may be
newer than this program.
"""

import uuid
from collections.abc import Mapping
from typing import Any

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
    Resources,
    is_pod_level_resource,
)
from agent.documents import FieldError, FieldPath, Problem, problems_of, quantity_text

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


class _Metadata(_Object):
    name: str
    namespace: str = "default"
    uid: str = Field(default="", pattern="^[A-Za-z0-9-]*$")  # it becomes a directory name
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class _Spec(_Object):
    resources: _Resources | None = None
    init_containers: list[_Container] = []
    containers: list[_Container] = []
    ephemeral_containers: list[_Container] = []


class _Pod(_Object):
    metadata: _Metadata
    spec: _Spec


def parse_pod(raw: Mapping[str, object], *, where: str) -> Pod:
    """Return the pod that an object describes; its budget may stand in an annotation.

    Nothing is defaulted but the uid: a pod without one gets one that follows from its namespace and
    name.  Raises `FieldError`, an `InputError`, that names ``where`` and the first wrong field.
    """
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


def _pod(model: _Pod) -> Pod:
    metadata, spec = model.metadata, model.spec
    return Pod(
        uid=PodUID(metadata.uid) or stable_uid(metadata.namespace, metadata.name),
        name=metadata.name,
        namespace=metadata.namespace,
        budget=None if spec.resources is None else _resources(spec.resources, ("spec",)),
        init_containers=_containers(spec.init_containers, "initContainers", Kind.INIT),
        app_containers=_containers(spec.containers, "containers", Kind.APP),
        ephemeral_containers=_containers(
            spec.ephemeral_containers, "ephemeralContainers", Kind.EPHEMERAL
        ),
        annotations=metadata.annotations,
        labels=metadata.labels,
    )


def _containers(models: list[_Container], field: str, kind: Kind) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=model.name,
            # KEP-753: an init container that restarts for ever runs beside the app containers
            kind=Kind.SIDECAR if (kind, model.restart_policy) == (Kind.INIT, "Always") else kind,
            resources=_resources(model.resources, ("spec", field, index)),
        )
        for index, model in enumerate(models)
    )


def _resources(model: _Resources, owner: FieldPath) -> Resources:
    path = (*owner, "resources")
    return Resources(
        requests=_amounts(model.requests, (*path, "requests")),
        limits=_amounts(model.limits, (*path, "limits")),
    )


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
