"""The NodeResourceTopology of this node, for topology-aware schedulers.

The object (``topology.node.k8s.io/v1alpha2``) has a zone for each NUMA node, named as the
scheduler plugin parses it, and says capacity, allocatable and available of what numalet places:
CPUs, memory, hugepages.  Its attributes are the options of the topology manager in the kubelet's
own words, and the fingerprint of the pods that were counted (``k8stopologyawareschedwg/
podfingerprint``): a scheduler that expects other pods knows that the numbers are not up to date.

It is written by server-side apply without force, so the server itself refuses (409) to write over
what another exporter has written since; and not at all where another one's object is there before.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from math import inf
from urllib.parse import quote

from agent.core.cpuset import CPUSet
from agent.core.pods import Pod
from agent.core.quantity import format_bytes
from agent.core.startup import CLOSEST, MAX_NODES
from agent.core.topology import NumaNode
from agent.errors import EnvironmentProblem
from agent.ports import ApiAnswer, ApiServer, Snapshot
from agent.report.outbox import Message, NotNow, causes_of

KIND = "topology"
MANAGER = "numalet"
API_VERSION = "topology.node.k8s.io/v1alpha2"
PATH = f"/apis/{API_VERSION}/noderesourcetopologies"
INTERVAL_S = 5.0
REFRESH_S = 3600.0
"""An object that somebody removed comes back after so long."""
LOOK_AGAIN_S = 600.0
"""Until the definition, or a place that another exporter has, is looked for again."""

Json = dict[str, object]
Fingerprint = Callable[[Iterable[Pod]], str]


def load_fingerprint() -> Fingerprint:
    """Return `fingerprint` as a function of pods; raises `EnvironmentProblem` without xxhash."""
    try:
        import xxhash  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise EnvironmentProblem(
            "the fingerprint of a NodeResourceTopology needs the package xxhash",
            cure="pip install 'numalet[nrt]', or leave the export of the topology off",
        ) from error
    return partial(fingerprint, xxh64=xxhash.xxh64_intdigest)


def fingerprint(pods: Iterable[Pod], *, xxh64: Callable[[bytes, int], int]) -> str:
    """Return the fingerprint of a set of pods, whatever their order (podfingerprint v001).

    ``xxh64`` is the hash of that name: of bytes, with a seed.
    """
    hashes = sorted(xxh64(pod.name.encode(), xxh64(pod.namespace.encode(), 0)) for pod in pods)
    return f"pfp0v001{xxh64(struct.pack(f'<{len(hashes)}Q', *hashes), 0):016x}"


def topology_object(
    snapshot: Snapshot, node_name: str, pods_fingerprint: Fingerprint | None
) -> Json:
    """Return the object, without its owner."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeResourceTopology",
        "metadata": {"name": node_name},
        "attributes": [
            {"name": name, "value": value}
            for name, value in _attributes(snapshot, pods_fingerprint)
        ],
        "zones": [_zone(snapshot, node) for node in snapshot.rules.topology.nodes],
    }


def _attributes(
    snapshot: Snapshot, pods_fingerprint: Fingerprint | None
) -> Iterator[tuple[str, str]]:
    rules = snapshot.rules
    yield "topologyManagerPolicy", rules.policy.topology_policy
    yield "topologyManagerScope", rules.policy.topology_scope
    for name, value in sorted(rules.policy.topology_options.items()):
        camel = "".join(part.capitalize() for part in name.split("-"))
        text = str(rules.prefer_closest).lower() if name == CLOSEST else value
        yield f"topologyManagerOption{camel}", text
    if limit := rules.policy.topology_options.get(MAX_NODES):
        yield "topologyManagerMaxNUMANodes", limit  # what the scheduler plugin reads
    if pods_fingerprint is not None:
        yield "nodeTopologyPodsFingerprint", pods_fingerprint(snapshot.pods)
        yield "nodeTopologyPodsFingerprintMethod", "all"


def _zone(snapshot: Snapshot, node: NumaNode) -> Json:
    topology = snapshot.rules.topology
    costs = ((other.id, topology.distance(node.id, other.id)) for other in topology.nodes)
    return {
        "name": f"node-{node.id}",
        "type": "Node",
        "costs": [{"name": f"node-{i}", "value": cost} for i, cost in costs if cost is not None],
        "resources": [*_cpus(snapshot, node.id), *_memory(snapshot, node.id)],
    }


def _cpus(snapshot: Snapshot, node: int) -> Iterator[Json]:
    rules = snapshot.rules
    capacity = rules.topology.cpus_of(node)
    allocatable = CPUSet.from_bits(capacity.bits & ~rules.withheld)
    available = allocatable & snapshot.state.default if rules.manages_cpus else allocatable
    if capacity:
        yield _resource("cpu", *(str(len(cpus)) for cpus in (capacity, allocatable, available)))


def _memory(snapshot: Snapshot, node: int) -> Iterator[Json]:
    memory = snapshot.state.memory.get(node)
    for name, table in memory.tables.items() if memory else ():
        amounts = (table.total, table.allocatable, table.free)
        yield _resource(name, *map(format_bytes, amounts))


def _resource(name: str, capacity: str, allocatable: str, available: str) -> Json:
    return {
        "name": name,
        "capacity": capacity,
        "allocatable": allocatable,
        "available": available,
    }


class TopologyExport:
    """A teller of the node's topology: when it changes, at most every ``INTERVAL_S``."""

    def __init__(self, node_name: str, pods_fingerprint: Fingerprint | None) -> None:
        self._node_name = node_name
        self._fingerprint = pods_fingerprint
        self._told: Json = {}
        self._due_s = -inf
        self._owner: Json | None = None
        self._is_ours = False
        """Whether we have seen that no other exporter's object is there."""

    def look(self, snapshot: Snapshot, now_s: float) -> list[Message]:
        """Return the object where it is another than before."""
        wanted = topology_object(snapshot, self._node_name, self._fingerprint)
        if wanted == self._told and now_s - self._due_s < REFRESH_S:
            return []
        self._told = wanted
        if self._due_s < now_s:  # the former one was said, or is being tried
            self._due_s = max(now_s, self._due_s + INTERVAL_S)
        return [Message(key=(KIND,), say=partial(self._say, wanted=wanted), due_s=self._due_s)]

    def _say(self, api: ApiServer, *, wanted: Json) -> ApiAnswer:
        if self._owner is None:
            answer = api.ask("GET", f"/api/v1/nodes/{quote(self._node_name)}")
            if answer.code != HTTPStatus.OK:
                return answer
            self._owner = _reference(answer.body)
        path = f"{PATH}/{quote(self._node_name)}"
        if not self._is_ours:
            answer = api.ask("GET", path)
            _check_installed(answer)
            if answer.code == HTTPStatus.OK:
                _check_exporter(answer.body)
            elif answer.code != HTTPStatus.NOT_FOUND:
                return answer
        return self._apply(api, f"{path}?fieldManager={MANAGER}", wanted)

    def _apply(self, api: ApiServer, path: str, wanted: Json) -> ApiAnswer:
        metadata = {"name": self._node_name, "ownerReferences": [self._owner]}
        answer = api.ask(
            "PATCH",
            path,
            wanted | {"metadata": metadata},
            content_type="application/apply-patch+yaml",
        )
        self._is_ours = answer.code in (HTTPStatus.OK, HTTPStatus.CREATED)
        if answer.code == HTTPStatus.CONFLICT:
            raise _taken("; ".join(str(cause.get("message")) for cause in causes_of(answer)))
        _check_installed(answer)
        return answer


def _reference(node: Mapping[str, object] | str) -> Json:
    """Return an owner reference to a node: its topology object is deleted with it."""
    metadata = _metadata(node)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
    }


def _check_installed(answer: ApiAnswer) -> None:
    """Raise `NotNow` where the server knows no such kind of object.

    It then answers with 404 in plain text, and with a Status object where only the object is missing.
    """
    if answer.code == HTTPStatus.NOT_FOUND and isinstance(answer.body, str):
        why = f"the definition of {API_VERSION} NodeResourceTopology is not installed"
        raise NotNow(why, wait_s=LOOK_AGAIN_S)


def _check_exporter(found: Mapping[str, object] | str) -> None:
    """Raise `NotNow` unless we are who wrote the zones of an object, and nobody else."""
    fields = _metadata(found).get("managedFields")
    managers = {
        str(entry.get("manager"))
        for entry in (fields if isinstance(fields, list) else ())
        if "f:zones" in (entry.get("fieldsV1") or {})
    }
    if managers != {MANAGER}:
        others = sorted(managers - {MANAGER}) or ["an unknown exporter"]
        raise _taken(f"it belongs to {', '.join(others)}")


def _taken(by: str) -> NotNow:
    return NotNow(
        f"the NodeResourceTopology of this node is not written over: {by}; stop the other exporter"
        " and delete the object, or leave the export of the topology off",
        wait_s=LOOK_AGAIN_S,
    )


def _metadata(item: Mapping[str, object] | str) -> Mapping[str, object]:
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}
