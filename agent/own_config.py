"""numalet's own section of the configuration file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic.alias_generators import to_camel

from agent.core.cpuset import CPUSet, IdSetError
from agent.core.departures import OPT_IN, POD_QUOTA
from agent.core.quantity import whole_bytes

KIND = "AgentConfiguration"
API_VERSION = "numalet.io/v1alpha1"
KUBELET_FOLDER = Path("/var/lib/kubelet")
POD_RESOURCES = KUBELET_FOLDER / "pod-resources/kubelet.sock"

DEPARTURES = frozenset({*OPT_IN, POD_QUOTA})
"""What may be switched under ``departures``; only `POD_QUOTA` is on by default."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = 86_400.0
_SOCKET_PATH_BYTES = 107  # sizeof(sun_path) - 1, unix(7)
_PORTS = range(1, 1 << 16)


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a path")
    return Path(value)


def _state_path(value: object) -> Path:
    path = _path(value)
    if path.is_relative_to(KUBELET_FOLDER):
        raise ValueError(f"{path} is the kubelet's own folder: its files would be overwritten")
    return path


def _socket_path(value: object) -> Path:
    path = _path(value)
    if len(str(path).encode()) > _SOCKET_PATH_BYTES:
        raise ValueError(f"is longer than the {_SOCKET_PATH_BYTES} bytes of a socket's path")
    return path


def _address(value: object) -> str:
    host, colon, port = str(value).rpartition(":")
    is_port = port.isascii() and port.isdecimal() and int(port) in _PORTS
    if not isinstance(value, str) or not colon or not is_port or not host:
        raise ValueError(f'{value!r} is not an address: write "127.0.0.1:9402", say')
    return value


def _duration_s(value: object) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not (seconds := float(match[1]) * _SECONDS[match[2]]):
        raise ValueError(f'{value!r} is not a duration above 0: write "10s" or "500ms", say')
    if seconds > _LONGEST_S:
        raise ValueError(f"{value!r} is longer than a day")
    return seconds


def _bytes(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is not an amount of memory: write "256Mi", say')  # noqa: TRY004 - pydantic wants it
    return whole_bytes(value)


def _departures(value: object) -> object:
    unknown = value.keys() - DEPARTURES if isinstance(value, Mapping) else ()
    for name in sorted(unknown):
        raise ValueError(f"{name!r} is not a departure: known are {', '.join(sorted(DEPARTURES))}")
    return value


def _coexistence(value: object) -> CPUSet | str:
    """Return what to do beside another CPU manager; a set of CPUs is the fence to keep to."""
    if value in ("observe", "force"):
        return str(value)
    if not isinstance(value, Mapping) or value.keys() != {"fence"}:
        raise ValueError(f"{value!r} is not possible: write observe, force or {{fence: 8-15}}, say")
    try:
        fence = CPUSet.parse(str(value["fence"]))
    except IdSetError as error:
        raise ValueError(f"fence: {error}") from error
    if not fence:
        raise ValueError("fence: write a list of CPUs such as 8-15")
    return fence


def _switch(value: object) -> object:
    """Return a word as it was meant: YAML makes a boolean of ``off``."""
    return "off" if value is False else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Whether the kubelet is asked for the devices of pods, and at which socket of the node.

    ``limit_s`` is how long a pod waits for them at most.
    """

    ask: Literal["auto", "off"] = "auto"
    limit_s: float = 10.0
    socket: Path = POD_RESOURCES


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class PodSelector(_Section):
    """Which pods are managed: those with all these labels, in one of these namespaces."""

    labels: dict[str, str] = {}
    namespaces: list[str] = []


class Unbacked(_Section):
    """Where an annotated budget may exceed what the containers request."""

    namespaces: list[str] = []


class Annotations(_Section):
    """How far annotations of pods are believed on Kubernetes."""

    unbacked: Unbacked = Unbacked()


class AgentConfiguration(BaseModel):
    """numalet's own section of the file."""

    model_config = ConfigDict(extra="ignore", strict=True, alias_generator=to_camel)

    host_root: Annotated[Path, BeforeValidator(_path)] = Path("/")
    state_dir: Annotated[Path, BeforeValidator(_state_path)] = Path("/var/lib/numalet")
    status_socket: Annotated[Path, BeforeValidator(_socket_path)] = Path("/run/numalet/status.sock")
    metrics_address: Annotated[str, BeforeValidator(_address)] = "127.0.0.1:9402"
    observe: bool = False
    departures: Annotated[dict[str, bool], BeforeValidator(_departures)] = {}
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drift_interval: Annotated[float, BeforeValidator(_duration_s)] = 10.0
    mems: Literal["strict", "soft"] = "strict"
    mems_deadline: Annotated[float, BeforeValidator(_duration_s)] = 2.0
    memory_margin: Annotated[int, BeforeValidator(_bytes)] = 256 << 20
    min_default_cpus: int = Field(default=0, ge=0, alias="minDefaultCPUs")
    pod_selector: PodSelector = PodSelector()
    annotations: Annotations = Annotations()
    events: bool = True
    placement_annotation: bool = False
    node_resource_topology: bool = False
    on_rejection: Literal["keep", "evict"] = "keep"
    evictions_per_hour: int = Field(default=10, ge=1)
    devices: Annotated[Literal["auto", "off"], BeforeValidator(_switch)] = "auto"
    devices_timeout: Annotated[float, BeforeValidator(_duration_s)] = 10.0
    kubelet_pod_resources: Annotated[Path, BeforeValidator(_socket_path)] = POD_RESOURCES
    unsupported_runtime_classes: list[str] = ["kata*", "gvisor*", "runsc*"]
    coexistence: Annotated[Literal["observe", "force"] | CPUSet, PlainValidator(_coexistence)] = (
        "observe"
    )

    def asking_for_devices(self) -> Devices:
        """Return the keys about devices as one value."""
        return Devices(
            ask=self.devices,
            limit_s=self.devices_timeout,
            socket=self.kubelet_pod_resources,
        )
