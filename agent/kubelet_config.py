"""What numalet reads of a KubeletConfiguration (``kubelet.config.k8s.io/v1beta1``).

Keys, meaning and possible values are the kubelet's; what is absent takes numalet's defaults, since
the kubelet's own have these managers off.
"""

import re
import struct
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from agent.core import quantity
from agent.core.cpuset import MAX_ID, CPUSet
from agent.core.pods import CPU, HUGEPAGES, MEMORY, Amounts
from agent.core.policy import Policy
from agent.documents import quantity_text

KIND = "KubeletConfiguration"
API_VERSION = "kubelet.config.k8s.io/v1beta1"

MEMORY_AVAILABLE = "memory.available"
DEFAULT_EVICTION = "100Mi"
"""The kubelet's default threshold of ``evictionHard`` for ``memory.available``."""

_CGROUP_MOUNT = "/sys/fs/cgroup"
_UNMANAGED = ("ephemeral-storage", "pid")
_PERCENTAGE = re.compile(r"(\d{1,3}(?:\.\d+)?)%", re.ASCII)


def _amounts(value: object, *reservable: str) -> Amounts:
    """Return amounts by resource, without those that numalet does not manage."""
    if not isinstance(value, Mapping):
        raise ValueError("write a mapping such as {memory: 1Gi}")  # noqa: TRY004 for pydantic
    return {
        name: _amount(name, v, reservable) for name, v in value.items() if name not in _UNMANAGED
    }


def _amount(name: str, value: object, reservable: tuple[str, ...]) -> int:
    if name not in reservable and not name.startswith(HUGEPAGES):
        raise ValueError(f"{name!r} cannot be reserved here: {', '.join(reservable)} can")
    text = quantity_text(value)
    if text is None:
        raise ValueError(f'{name}: {value!r} is not a quantity: write "500m" or "1Gi", say')
    try:
        return quantity.milli_cpu(text) if name == CPU else quantity.whole_bytes(text)
    except quantity.QuantityError as error:
        raise ValueError(f"{name}: {error}") from error


def _node_amounts(value: object) -> Amounts:
    return _amounts(value, CPU, MEMORY, *_UNMANAGED)


def _memory_amounts(value: object) -> Amounts:
    return _amounts(value, MEMORY)


def _cpus(value: object) -> CPUSet:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("write a list of CPUs such as 0-3,8")  # noqa: TRY004 for pydantic
    return CPUSet.parse(str(value))


def _option_texts(value: object) -> object:
    """Let options be written without quotes: ``full-pcpus-only: true``."""
    if not isinstance(value, Mapping):
        return value
    return {k: str(v).lower() if isinstance(v, bool | int) else v for k, v in value.items()}


def _thresholds(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    texts = {signal: quantity_text(v) or v for signal, v in value.items()}
    if MEMORY_AVAILABLE in texts:
        eviction_bytes(str(texts[MEMORY_AVAILABLE]), 0)
    return texts


def _cgroup_root(value: object) -> object:
    if not isinstance(value, str):
        return value  # pydantic says so
    names = value.strip("/").split("/") if value.strip("/") else []
    mounted = value == _CGROUP_MOUNT or value.startswith(f"{_CGROUP_MOUNT}/")
    if mounted or any(not name or name in (".", "..") or "\0" in name for name in names):
        raise ValueError(
            f'{value!r} is no cgroup below the root of the hierarchy: write "/", or a path in it'
            f' such as "/kubelet", without {_CGROUP_MOUNT} before it and without "." and ".."'
        )
    return value


_Options = Annotated[dict[str, str], BeforeValidator(_option_texts)]
_Reservation = Annotated[Amounts, BeforeValidator(_node_amounts)]


class _Kubelet(BaseModel):
    model_config = ConfigDict(
        extra="ignore", strict=True, alias_generator=to_camel, arbitrary_types_allowed=True
    )


class ReservedMemory(_Kubelet):
    """What is kept for the system on one NUMA node."""

    numa_node: int = Field(ge=0, le=MAX_ID)
    limits: Annotated[Amounts, BeforeValidator(_memory_amounts)]


class KubeletConfiguration(_Kubelet):
    """The keys that numalet reads, with numalet's defaults."""

    feature_gates: dict[str, bool] = {}
    cpu_manager_policy: Literal["static", "none"] = "static"
    cpu_manager_policy_options: _Options = {}
    reserved_system_cpus: Annotated[CPUSet, BeforeValidator(_cpus)] = Field(
        default=CPUSet(), alias="reservedSystemCPUs"
    )
    kube_reserved: _Reservation = {}
    system_reserved: _Reservation = {}
    eviction_hard: Annotated[dict[str, str] | None, BeforeValidator(_thresholds)] = None
    merge_default_eviction_settings: bool = False
    memory_manager_policy: Literal["Static", "None"] = "Static"
    reserved_memory: list[ReservedMemory] = []
    topology_manager_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] = (
        "best-effort"
    )
    topology_manager_scope: Literal["pod", "container"] = "pod"
    topology_manager_policy_options: _Options = {}
    cgroup_driver: Literal["auto", "systemd", "cgroupfs"] = "auto"
    cgroup_root: Annotated[str, BeforeValidator(_cgroup_root)] = "/"

    def policy(self) -> Policy:
        """Return how to decide, without the node's reservation, which takes the machine."""
        return Policy(
            topology_policy=self.topology_manager_policy,
            topology_scope=self.topology_manager_scope,
            topology_options=self.topology_manager_policy_options,
            cpu_policy=self.cpu_manager_policy,
            cpu_options=self.cpu_manager_policy_options,
            reserved_cpus=self.reserved_system_cpus,
            memory_policy=self.memory_manager_policy,
            reserved_memory=tuple((r.numa_node, r.limits) for r in self.reserved_memory),
            feature_gates=self.feature_gates,
        )

    def eviction_threshold(self) -> str:
        """Return the hard eviction threshold of memory as written.

        Whoever writes ``evictionHard`` without ``memory.available`` has none, unless
        ``mergeDefaultEvictionSettings`` is on.
        """
        given = self.eviction_hard
        if given is None or self.merge_default_eviction_settings:
            return (given or {}).get(MEMORY_AVAILABLE, DEFAULT_EVICTION)
        return given.get(MEMORY_AVAILABLE, "0")


def eviction_bytes(threshold: str, memory_bytes: int) -> int:
    """Return a threshold such as ``100Mi`` or ``5%`` in bytes, on a machine with so much memory.

    A percentage is a 32-bit float to the kubelet, and it ignores 0% and 100%
    (``parsePercentage``, ``parseThresholdStatement``).  Raises `ValueError` for anything else.
    """
    if not threshold.endswith("%"):
        return quantity.whole_bytes(threshold)
    match = _PERCENTAGE.fullmatch(threshold)
    if match is None or (percent := float(match[1])) > 100:  # noqa: PLR2004 per cent
        raise ValueError(f'{threshold!r} is not a threshold: write "100Mi" or "5%", say')
    share = _float32(_float32(percent) / 100)
    return int(memory_bytes * share) if 0 < share < 1 else 0


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    assert isinstance(rounded, float)
    return rounded
