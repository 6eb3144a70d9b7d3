"""Pods and containers, their quality of service, and who may be exclusive.

Amounts are integers: milli-CPUs for ``cpu``, bytes for ``memory`` and ``hugepages-*``.  Only these
resources are kept.  A resource that the specification does not name is absent, which is not the
same as zero.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

PodUID = NewType("PodUID", str)
Amounts = Mapping[str, int]
DeviceNodes = Mapping[str, Mapping[str, tuple[tuple[int, ...], ...]]]
"""By container and resource: the NUMA nodes of each device, as far as it has a topology."""

CPU = "cpu"
MEMORY = "memory"
HUGEPAGES = "hugepages-"
MILLI = 1000


class Kind(StrEnum):
    """What a container is in its pod's life."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
    EPHEMERAL = "ephemeral"


class QosClass(StrEnum):
    """The quality of service classes of Kubernetes."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Requests and limits of a pod or a container."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)

    def is_exclusive_grade(self) -> bool:
        """Tell whether cpu and memory are each requested, not zero, and limited to the same amount.

        Such a container is Guaranteed by itself, whatever its pod says.
        """
        return all(
            self.requests.get(name, 0) != 0 and self.requests[name] == self.limits.get(name)
            for name in (CPU, MEMORY)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of a pod."""

    name: str
    kind: Kind = Kind.APP
    resources: Resources = field(default_factory=Resources)
    extended: tuple[str, ...] = ()
    """Names of the extended resources that it asks for, sorted: such as ``nvidia.com/gpu``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Where the devices are that a kubelet has given to a pod.

    ``in_time`` tells whether that was known when the pod was decided on; ``nodes`` is empty where it is
    not known yet.
    """

    nodes: DeviceNodes = field(default_factory=dict)
    in_time: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod as the kubelet would see it, after API-server defaulting.

    ``uid`` is the one by which the kubelet knows it, and names its cgroup.
    ``init_containers`` holds ordinary init containers and sidecars in their order;
    ``budget`` is ``spec.resources``, None where the pod has none.
    """

    uid: PodUID
    api_uid: PodUID | None = None
    """The API object's, where it is another one: that of a mirror pod."""
    name: str = ""
    namespace: str = "default"
    budget: Resources | None = None
    init_containers: tuple[Container, ...] = ()
    app_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    container_ids: Mapping[str, str] = field(default_factory=dict)
    """Id at the runtime -> name, as far as the pod's status tells."""
    ended_init: frozenset[str] = frozenset()
    """Names of ordinary init containers that have ended well."""
    qos: QosClass | None = None
    """The class that the API server says; None where it says none."""
    controller: str = ""
    """Kind of the object that controls it (``ownerReferences``), such as ``DaemonSet``."""
    priority: int | None = None
    """``spec.priority``; None where it is not known."""
    devices: Devices | None = None
    """None where nobody has said yet which ones it has."""
    is_terminating: bool = False
    """Whether its deletion has begun (``metadata.deletionTimestamp``)."""
    runtime_class: str = ""
    """``spec.runtimeClassName``."""
    own_kernel: str = ""
    """What runs it under a kernel of its own, a virtual machine's or gVisor's: ``runtime kata-qemu``.

    Its threads are then where that puts them, whatever the cgroups of its containers say.  Empty
    for all others.
    """

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers that the managers see: the init list, then the app list."""
        return self.init_containers + self.app_containers

    @property
    def object_uid(self) -> PodUID:
        """Return the UID of the API object."""
        return self.api_uid or self.uid

    @property
    def has_budget(self) -> bool:
        """Tell whether pod-level resources are set (``IsPodLevelResourcesSet``)."""
        return self.budget is not None and any(
            is_pod_level_resource(name) for name in (*self.budget.requests, *self.budget.limits)
        )

    @property
    def asks_for_devices(self) -> bool:
        """Tell whether a container asks for extended resources of which PodResources tells.

        It does not of ordinary init containers; later containers take over what those had.
        """
        return any(c.extended for c in self.containers if c.kind is not Kind.INIT)

    @property
    def full_name(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def is_pod_level_resource(name: str) -> bool:
    """Tell whether ``spec.resources`` may name this resource."""
    return name in (CPU, MEMORY) or name.startswith(HUGEPAGES)


def is_extended_resource(name: str) -> bool:
    """Tell whether a container gets devices by this name (``IsExtendedResourceName`` of the API)."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def qos_class(pod: Pod, *, pod_level_resources: bool = True) -> QosClass:
    """Return the class of a pod (``qos.ComputePodQOS`` of Kubernetes v1.36).

    With pod-level resources only they count; otherwise the sum over app and init containers.
    """
    if pod_level_resources and pod.has_budget:
        assert pod.budget is not None
        parts = [pod.budget]
    else:
        parts = [c.resources for c in pod.containers]
    requests = _sum(p.requests for p in parts)
    limits = _sum(p.limits for p in parts)
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    if requests == limits and all(_limits_both(p) for p in parts):
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE


def _limits_both(resources: Resources) -> bool:
    return resources.limits.get(CPU, 0) > 0 and resources.limits.get(MEMORY, 0) > 0


def _sum(maps: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for amounts in maps:
        for name in (CPU, MEMORY):
            if amounts.get(name, 0) > 0:
                total[name] = total.get(name, 0) + amounts[name]
    return total


def memory_amounts(amounts: Amounts) -> Iterator[tuple[str, int]]:
    """Yield the memory and hugepages entries of a request map."""
    for name, amount in amounts.items():
        if name == MEMORY or name.startswith(HUGEPAGES):
            yield name, amount
