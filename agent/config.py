"""The configuration: a KubeletConfiguration as it stands, and numalet's own section beside it.

One file holds either or both, as YAML documents; environment variables are not read.  `load` takes
the file, `fill_in` adds what this machine needs and the file leaves open, and `describe` tells what
holds and where each value came from.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from agent import kubelet_config
from agent.core.cpuset import CPUSet
from agent.core.departures import OPT_IN, POD_QUOTA
from agent.core.entitlement import Entitlement
from agent.core.pods import CPU, HUGEPAGES, MEMORY, MILLI, Amounts
from agent.core.policy import Policy
from agent.core.quantity import format_bytes, format_milli, parse, whole_bytes
from agent.core.topology import NodeTopology, NumaNode
from agent.documents import Document, problems_of, read_text
from agent.documents import parse as parse_documents
from agent.errors import InputError
from agent.kubelet_config import DEFAULT_EVICTION, KubeletConfiguration, eviction_bytes
from agent.own_config import API_VERSION, KIND, AgentConfiguration, Devices

SCOPE = "topologyManagerScope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What is told to the cluster, and done about pods that could not be placed."""

    events: bool = True
    placement_annotation: bool = False
    node_resource_topology: bool = False
    on_rejection: Literal["keep", "evict"] = "keep"
    evictions_per_hour: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Everything that is configured; `load` makes it, and it holds after `fill_in`.

    ``host_root`` is where this process sees the node's own files; its own paths are beside that.
    ``cgroup_driver`` is ``auto`` where the file names none.  ``pod_quota`` is the departure of
    that name.  ``min_default_cpus`` is how many CPUs exclusive assignments must leave to the
    default CPU set.  ``coexistence`` is what to do beside another CPU manager, ``entitlement`` which
    pods may have something of their own on Kubernetes, ``telling`` what the cluster hears, ``devices``
    what the kubelet is asked.
    ``origins`` maps each key of the file to where its value came from.
    """

    policy: Policy
    kube_reserved: Amounts
    system_reserved: Amounts
    eviction_threshold: str
    cgroup_driver: Literal["auto", "systemd", "cgroupfs"]
    cgroup_root: str
    pod_quota: bool
    host_root: Path
    state_dir: Path
    status_socket: Path
    metrics_address: str
    observe: bool
    log_format: Literal["auto", "console", "json"]
    log_level: Literal["debug", "info", "warning", "error"]
    drift_interval_s: float
    mems: Literal["strict", "soft"]
    mems_deadline_s: float
    memory_margin_bytes: int
    min_default_cpus: int
    coexistence: Literal["observe", "force", "fence"]
    entitlement: Entitlement
    telling: Telling
    devices: Devices
    origins: Mapping[str, str]
    filled_in: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def load(path: Path | None) -> AgentConfig:
    """Return what a file says, with numalet's defaults for the rest; all defaults without a file.

    Raises `InputError` that names file, line and key, and what is possible there.
    """
    documents = {} if path is None else _documents(path)
    kubelet_document = documents.get(kubelet_config.KIND)
    kubelet = _read(KubeletConfiguration, kubelet_document)
    own_document = documents.get(KIND)
    _refuse_unknown_keys(own_document)
    own = _read(AgentConfiguration, own_document)
    switched_on = {name for name, is_on in own.departures.items() if is_on}
    fence = own.coexistence if isinstance(own.coexistence, CPUSet) else None
    return AgentConfig(
        policy=replace(
            kubelet.policy(), departures=frozenset(switched_on & OPT_IN), fence=fence or CPUSet()
        ),
        kube_reserved=kubelet.kube_reserved,
        system_reserved=kubelet.system_reserved,
        eviction_threshold=kubelet.eviction_threshold(),
        cgroup_driver=kubelet.cgroup_driver,
        cgroup_root=kubelet.cgroup_root,
        pod_quota=own.departures.get(POD_QUOTA, True),
        host_root=own.host_root,
        state_dir=own.state_dir,
        status_socket=own.status_socket,
        metrics_address=own.metrics_address,
        observe=own.observe,
        log_format=own.log_format,
        log_level=own.log_level,
        drift_interval_s=own.drift_interval,
        mems=own.mems,
        mems_deadline_s=own.mems_deadline,
        memory_margin_bytes=own.memory_margin,
        min_default_cpus=own.min_default_cpus,
        coexistence="fence" if isinstance(own.coexistence, CPUSet) else own.coexistence,
        telling=Telling(
            events=own.events,
            placement_annotation=own.placement_annotation,
            node_resource_topology=own.node_resource_topology,
            on_rejection=own.on_rejection,
            evictions_per_hour=own.evictions_per_hour,
        ),
        devices=own.asking_for_devices(),
        entitlement=Entitlement(
            labels=own.pod_selector.labels,
            namespaces=frozenset(own.pod_selector.namespaces),
            unbacked_namespaces=frozenset(own.annotations.unbacked.namespaces),
            unsupported_classes=tuple(own.unsupported_runtime_classes),
        ),
        origins=_origins(KubeletConfiguration, kubelet_document)
        | _origins(AgentConfiguration, own_document),
        warnings=_unread_keys(kubelet_document),
    )


_Model = TypeVar("_Model", bound=BaseModel)


def _documents(path: Path) -> dict[str, Document]:
    """Return the documents of the file by their kind."""
    versions = {kubelet_config.KIND: kubelet_config.API_VERSION, KIND: API_VERSION}
    found: dict[str, Document] = {}
    for document in parse_documents(read_text(path), name=str(path)):
        members = _members(document)
        kind, version = members.get("kind"), members.get("apiVersion")
        if not isinstance(kind, str) or kind not in versions:
            message = f"kind: {kind!r} is no configuration: write {' or '.join(versions)}"
            raise InputError(message, where=document.where(("kind",)))
        if version != versions[kind]:
            message = f"apiVersion: {version!r} of a {kind} is not known: write {versions[kind]}"
            raise InputError(message, where=document.where(("apiVersion",)))
        if kind in found:
            message = f"a second {kind}; the first stands in {found[kind].where()}: join the two"
            raise InputError(message, where=document.where())
        found[kind] = document
    return found


def _members(document: Document | None) -> Mapping[str, object]:
    """Return the keys of a document that say something; null is the same as absent."""
    if document is None:
        return {}
    if not isinstance(document.data, Mapping):
        raise InputError("is not a mapping of keys to values", where=document.where())
    return {key: value for key, value in document.data.items() if value is not None}


def _read(model: type[_Model], document: Document | None) -> _Model:
    try:
        return model.model_validate(_members(document))
    except ValidationError as error:
        assert document is not None  # the defaults are valid
        problem = next(problems_of(error))
        raise InputError(str(problem), where=document.where(problem.path)) from error


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section as a file writes them."""
    return [str(member.alias) for member in model.model_fields.values()]


def _origins(model: type[BaseModel], document: Document | None) -> dict[str, str]:
    given = _members(document)
    return {
        key: document.where((key,)) if document and key in given else "default"
        for key in _keys(model)
    }


def _unknown_keys(model: type[BaseModel], document: Document | None) -> dict[str, list[str]]:
    """Return the keys that nobody reads, each with the known keys that look like it."""
    known = _keys(model)
    return {
        key: difflib.get_close_matches(key, known, n=1, cutoff=0.85)
        for key in _members(document)
        if key not in known and key not in ("apiVersion", "kind")
    }


def _refuse_unknown_keys(document: Document | None) -> None:
    for key, alike in _unknown_keys(AgentConfiguration, document).items():
        assert document is not None
        known = _listed(_keys(AgentConfiguration))
        hint = f"is {alike[0]} meant?" if alike else f"known are {known}"
        message = f"{key}: is not a key of an {KIND}; {hint}"
        raise InputError(message, where=document.where((key,)))


def _unread_keys(document: Document | None) -> tuple[str, ...]:
    """Return a sentence for each key that looks mistyped, and one for all others not read."""
    if document is None:
        return ()
    unknown = _unknown_keys(KubeletConfiguration, document)
    sentences = [
        f"{document.where((key,))}: {key} is not read; is {alike[0]} meant?"
        for key, alike in unknown.items()
        if alike
    ]
    others = [key for key, alike in unknown.items() if not alike]
    if others:
        sentences.append(f"{document.where()}: keys that are not read: {_listed(others)}")
    return tuple(sentences)


def _listed(names: frozenset[str] | list[str]) -> str:
    return ", ".join(sorted(names))


def fill_in(config: AgentConfig, topology: NodeTopology) -> AgentConfig:
    """Return the configuration with the node's reservation, and with what the file leaves open.

    Where no CPU is reserved, the first whole core is; where no memory is assigned to a NUMA node,
    the node's reservation is, to the first one with room for it.  The kubelet refuses to start in
    both cases.  Where no scope is named, that it is ``pod`` is told: the kubelet's own default is
    another.  Filling in twice is the same as once.
    """
    reasons: dict[str, str] = {}
    if config.origins[SCOPE] == "default" and config.policy.topology_policy != "none":
        reasons[SCOPE] = "none was named, and a kubelet would take container"
    policy, reservation = config.policy, _reservation(config, topology)
    if policy.cpu_policy == "static" and not reservation.get(CPU):
        first_core = CPUSet.from_bits(next(iter(topology.core_bits.values()), 0))
        policy = replace(policy, reserved_cpus=first_core)
        reasons["reservedSystemCPUs"] = "no CPU was reserved, so the first core is"
    if policy.memory_policy == "Static" and not policy.reserved_memory:
        if not reservation.get(MEMORY):
            amounts = {**config.system_reserved, MEMORY: whole_bytes(DEFAULT_EVICTION)}
            config = replace(config, system_reserved=amounts)
            reasons["systemReserved"] = "no memory was reserved"
        placed = _placed(_reservation(config, topology), topology)
        policy = replace(policy, reserved_memory=placed)
        reasons["reservedMemory"] = "no NUMA node was named for what is reserved"
    config = replace(config, policy=policy)
    policy = replace(policy, node_reservation=_reservation(config, topology))
    return _with_reasons(replace(config, policy=policy), reasons)


def _with_reasons(config: AgentConfig, reasons: Mapping[str, str]) -> AgentConfig:
    values = {key: value for key, value, _ in describe(config)}
    sentences = (f"{key} {values[key]}: {reason}" for key, reason in reasons.items())
    origins = {key: f"filled in: {reason}" for key, reason in reasons.items()}
    return replace(
        config,
        filled_in=(*config.filled_in, *sentences),
        origins={**config.origins, **origins},
    )


def _reservation(config: AgentConfig, topology: NodeTopology) -> dict[str, int]:
    """Return what the system keeps of the node (``GetNodeAllocatableReservation``).

    An explicit set of reserved CPUs replaces all other amounts of cpu, as at the kubelet's start.
    """
    machine_memory = sum(node.memory_bytes for node in topology.nodes)
    eviction = eviction_bytes(config.eviction_threshold, machine_memory)
    total = _sum(config.kube_reserved, config.system_reserved, {MEMORY: eviction})
    if config.policy.reserved_cpus:
        total[CPU] = len(config.policy.reserved_cpus) * MILLI
    return {name: amount for name, amount in total.items() if amount}


def _sum(*maps: Amounts) -> dict[str, int]:
    names = dict.fromkeys(name for amounts in maps for name in amounts)
    return {name: sum(amounts.get(name, 0) for amounts in maps) for name in names}


def _placed(reservation: Amounts, topology: NodeTopology) -> tuple[tuple[int, Amounts], ...]:
    """Assign each kind of reserved memory to the first NUMA node with room for it.

    Raises `InputError` where none has.
    """
    placed: dict[int, dict[str, int]] = {}
    with_memory = [node for node in topology.nodes if node.memory_bytes]
    for name, amount in reservation.items():
        if with_memory and (name == MEMORY or name.startswith(HUGEPAGES)):
            roomy = (node for node in with_memory if _capacity(node, name) >= amount)
            node = next(roomy, None)
            if node is None:
                raise InputError(
                    f"no NUMA node has the {format_bytes(amount)} of {name} that are reserved: "
                    "say in reservedMemory how they are spread"
                )
            placed.setdefault(node.id, {})[name] = amount
    return tuple(placed.items())


def _capacity(node: NumaNode, name: str) -> int:
    """Return how many bytes of one kind of memory a NUMA node has."""
    huge = {size * 1024: size * 1024 * count for size, count in node.hugepages.items()}
    if name == MEMORY:
        return node.memory_bytes - sum(huge.values())
    return huge.get(int(parse(name.removeprefix(HUGEPAGES))), 0)


def describe(config: AgentConfig) -> list[tuple[str, str, str]]:
    """Return every key of the file, the value that holds, and where it came from."""
    policy = config.policy
    departures = {name: name in policy.departures for name in sorted(OPT_IN)}
    values: dict[str, object] = {
        "featureGates": _pairs(policy.feature_gates),
        "cpuManagerPolicy": policy.cpu_policy,
        "cpuManagerPolicyOptions": _pairs(policy.cpu_options),
        "reservedSystemCPUs": policy.reserved_cpus,
        "kubeReserved": _amounts_text(config.kube_reserved),
        "systemReserved": _amounts_text(config.system_reserved),
        "evictionHard": f"{kubelet_config.MEMORY_AVAILABLE}={config.eviction_threshold}",
        "memoryManagerPolicy": policy.memory_policy,
        "reservedMemory": _reserved_memory_text(policy.reserved_memory),
        "topologyManagerPolicy": policy.topology_policy,
        SCOPE: policy.topology_scope,
        "topologyManagerPolicyOptions": _pairs(policy.topology_options),
        "cgroupDriver": config.cgroup_driver,
        "cgroupRoot": config.cgroup_root,
        "hostRoot": config.host_root,
        "stateDir": config.state_dir,
        "statusSocket": config.status_socket,
        "metricsAddress": config.metrics_address,
        "observe": str(config.observe).lower(),
        "departures": _pairs({POD_QUOTA: config.pod_quota, **departures}),
        "logFormat": config.log_format,
        "logLevel": config.log_level,
        "driftInterval": f"{config.drift_interval_s:g}s",
        "mems": config.mems,
        "memsDeadline": f"{config.mems_deadline_s:g}s",
        "memoryMargin": format_bytes(config.memory_margin_bytes),
        "minDefaultCPUs": config.min_default_cpus,
        "coexistence": f"fence {policy.fence} (of CPUs; memory is not divided)"
        if policy.fence
        else config.coexistence,
        "devices": config.devices.ask,
        "devicesTimeout": f"{config.devices.limit_s:g}s",
        "kubeletPodResources": config.devices.socket,
        "events": str(config.telling.events).lower(),
        "placementAnnotation": str(config.telling.placement_annotation).lower(),
        "nodeResourceTopology": str(config.telling.node_resource_topology).lower(),
        "onRejection": config.telling.on_rejection,
        "evictionsPerHour": config.telling.evictions_per_hour,
        "podSelector": _selector_text(config.entitlement),
        "annotations": _unbacked_text(config.entitlement),
        "unsupportedRuntimeClasses": ", ".join(config.entitlement.unsupported_classes),
    }
    return [(key, str(value), config.origins[key]) for key, value in values.items()]


def _pairs(values: Mapping[str, object]) -> str:
    texts = {k: str(v).lower() if isinstance(v, bool) else v for k, v in values.items()}
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def _selector_text(entitlement: Entitlement) -> str:
    labels, namespaces = _pairs(entitlement.labels), sorted(entitlement.namespaces)
    parts = [labels] if labels else []
    parts += [f"namespaces {', '.join(namespaces)}"] if namespaces else []
    return "; ".join(parts) or "all pods"


def _unbacked_text(entitlement: Entitlement) -> str:
    return (
        f"unbacked in {', '.join(sorted(entitlement.unbacked_namespaces or ())) or 'no namespace'}"
    )


def _amounts_text(amounts: Amounts) -> str:
    return _pairs({n: format_milli(a) if n == CPU else format_bytes(a) for n, a in amounts.items()})


def _reserved_memory_text(reserved: Iterable[tuple[int, Amounts]]) -> str:
    return "; ".join(f"node {node}: {_amounts_text(amounts)}" for node, amounts in reserved)
