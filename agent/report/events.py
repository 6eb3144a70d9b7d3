"""Events on pods: a Warning for what could not be placed, and once a Normal one for what was.

A pod is placed when its cgroups say so (`Snapshot.unenforced`), not when it is decided.

On the Node there is a Warning for each other CPU manager, and for NUMA nodes short of memory.

They are core/v1 Events in the form of the kubelet's own (``source`` and ``count``, no
``eventTime``): ``kubectl describe pod`` shows them beside those, both APIs serve them, and the
right to create events in the core group is enough.  events.k8s.io/v1 would be another right, and
asks for fields (``action``, ``reportingInstance``, microseconds) that say nothing more here.

An event's name follows from the pod's uid and the reason, so the server itself refuses one that was
told already, by this agent or by the one before: 409, for as long as it keeps events (an hour,
unless told otherwise).
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Literal
from urllib.parse import quote

from agent.core.entitlement import NOT_SELECTED
from agent.core.explain import ContainerVerdict, PodVerdict
from agent.core.isolation import Isolation
from agent.core.pods import Pod, PodUID
from agent.ports import ApiAnswer, ApiServer, Rejection, Snapshot
from agent.report.outbox import Message
from agent.report.placement import PLACEMENT, has_own

KIND = "event"
PLACED = "Placed"
OTHER_CPU_MANAGER = "OtherCPUManager"
MEMORY_SHORT = "MemoryShort"
COMPONENT = "numalet"
KEPT_S = 3600.0
"""For so long the server keeps events, unless told otherwise (``--event-ttl``)."""
_MOST_MESSAGE = 1024
_MOST_NAME = 253
_DIGEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """One event: ``at_s`` is in seconds since the epoch."""

    pod: Pod
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    at_s: float


def _calls(snapshot: Snapshot) -> Iterator[tuple[Pod, str]]:
    """Yield for which events a snapshot calls, whether they are new or not: pod and reason.

    The reason counts, not the message: that of a rejected pod tells of the CPUs that are free, and
    changes whenever another pod comes or goes.
    """
    refusals = _refusals(snapshot)
    for pod in snapshot.pods:
        refusal = refusals.get(pod.uid)
        if refusal is not None and refusal.reason != NOT_SELECTED:
            yield pod, refusal.reason
        if has_own(snapshot, pod.uid) and pod.uid not in snapshot.unenforced:
            yield pod, PLACED


def _refusals(snapshot: Snapshot) -> Mapping[PodUID, Rejection]:
    """Return what was refused to whom: a place at all, or what a running pod now asks for."""
    kept = {
        uid: Rejection(why.reason, f"{why.message}; the pod keeps what it has")
        for uid, why in snapshot.complaints.items()
    }
    return kept | dict(snapshot.rejections)


def _event_on(snapshot: Snapshot, pod: Pod, reason: str) -> PodEvent:
    is_placed = reason == PLACED
    return PodEvent(
        pod=pod,
        type="Normal" if is_placed else "Warning",
        reason=reason,
        message=_placement(snapshot.verdict_on(pod))
        if is_placed
        else _refusals(snapshot)[pod.uid].message,
        at_s=snapshot.taken_at_s,
    )


def _placement(verdict: PodVerdict) -> str:
    what = f"CPUs {verdict.pool}" if verdict.pool else "memory"
    where = f"NUMA node{'s' if len(verdict.nodes) > 1 else ''} {verdict.nodes}"
    return f"{what} on {where}: {', '.join(_container(c) for c in verdict.containers)}"


def _container(verdict: ContainerVerdict) -> str:
    cpus = "" if verdict.verdict is Isolation.NODE_SHARED else f" {verdict.cpus}"
    return f"{verdict.name} {verdict.verdict.value}{cpus}"


class PodEvents:
    """A teller of events: a reason once for each pod, until it has not been true for an hour.

    ``before`` is what the agent before this one knew.  Of that, what was rejected is told again: it
    may not have been told, and if it was, the server knows (see the module), or has forgotten, and
    then nobody can read any more why the pod runs as it does.

    That a pod was placed is told by who placed it.  Where pods are ``annotated``, too, one without
    the annotation was told nothing, since the server was away, and hears of it from the next agent.
    Where they are not, nobody knows: an event that was not said before the end of an agent is lost,
    because the other way is to send one for each pod at each start, and after an hour the server
    would take them all for new.
    """

    def __init__(self, node_name: str, before: Snapshot, *, annotated: bool = True) -> None:
        self._node_name = node_name
        self._before: Snapshot | None = before
        self._annotated = annotated
        self._told: dict[tuple[PodUID, str], float] = {}
        """By pod and reason, until when it was true; of the monotonic clock."""

    def look(self, snapshot: Snapshot, now_s: float) -> list[Message]:
        """Return a message for each event that is new."""
        if self._before is not None:
            self._told = dict.fromkeys(self._said_by(self._before, snapshot), now_s)
            self._before = None
        calls = {(pod.uid, reason): pod for pod, reason in _calls(snapshot)}
        uids = {pod.uid for pod in snapshot.pods}
        told = {
            key: true_s
            for key, true_s in self._told.items()
            if key[0] in uids and now_s - true_s < KEPT_S
        }
        self._told = told | dict.fromkeys(calls, now_s)
        return [
            self._message(_event_on(snapshot, pod, reason))
            for (uid, reason), pod in calls.items()
            if (uid, reason) not in told
        ]

    def _said_by(self, before: Snapshot, now: Snapshot) -> Iterator[tuple[PodUID, str]]:
        for pod in now.pods:
            if has_own(before, pod.uid) and (PLACEMENT in pod.annotations or not self._annotated):
                yield pod.uid, PLACED

    def _message(self, event: PodEvent) -> Message:
        return Message(
            key=(KIND, event.pod.uid, event.reason),
            say=partial(_say, body=event_object(event, self._node_name)),
            fine=frozenset({HTTPStatus.CONFLICT}),  # told already
            namespace=event.pod.namespace,
        )


def _say(api: ApiServer, *, body: Mapping[str, object]) -> ApiAnswer:
    metadata = body["metadata"]
    assert isinstance(metadata, dict)
    return api.ask("POST", f"/api/v1/namespaces/{quote(metadata['namespace'])}/events", body)


def event_object(event: PodEvent, node_name: str) -> dict[str, object]:
    """Return the event as core/v1 takes it."""
    pod = event.pod
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.object_uid,
    }
    name = _name(pod.name, f"{pod.uid}/{event.reason}")
    metadata = {"name": name, "namespace": pod.namespace}
    return _event(
        metadata, involved, (event.type, event.reason, event.message), event.at_s, node_name
    )


class ShortageEvents:
    """A teller of NUMA nodes short of memory: for each set of them once an hour, while they are.

    Events are kept that long; a name for each hour bounds them, however often an agent starts.
    """

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self._told: frozenset[tuple[str, int]] = frozenset()

    def look(self, snapshot: Snapshot, now_s: float) -> list[Message]:  # noqa: ARG002 - Teller
        """Return a Warning on the Node for each shortage that is new, or was told an hour ago."""
        shortages, told, at_s = snapshot.memory.shortages, self._told, snapshot.taken_at_s
        hour = int(at_s // KEPT_S)
        self._told = frozenset((nodes, hour) for nodes in shortages)
        return [
            node_warning(MEMORY_SHORT, f"{nodes}/{hour}", sentence, at_s, self._node_name)
            for nodes, sentence in shortages.items()
            if (nodes, hour) not in told
        ]


def node_warning(reason: str, subject: str, message: str, at_s: float, node_name: str) -> Message:
    """Return a Warning on the Node, one for each reason and ``subject``.

    The Node's UID is its name, and the namespace ``default``: as in the kubelet's own events.
    """
    metadata = {
        "name": _name(node_name, f"{node_name}/{reason}/{subject}"),
        "namespace": "default",
    }
    involved = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name}
    body = _event(metadata, involved, ("Warning", reason, message), at_s, node_name)
    return Message(
        key=(KIND, node_name, f"{reason}/{subject}"),
        say=partial(_say, body=body),
        fine=frozenset({HTTPStatus.CONFLICT}),
        namespace=metadata["namespace"],
    )


def _event(
    metadata: Mapping[str, str],
    involved: Mapping[str, str],
    said: tuple[str, str, str],
    at_s: float,
    node_name: str,
) -> dict[str, object]:
    """Return an event; ``said`` is its type, reason and message."""
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kind, reason, message = said
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": dict(metadata),
        "involvedObject": dict(involved),
        "type": kind,
        "reason": reason,
        "message": message[:_MOST_MESSAGE],
        "source": {"component": COMPONENT, "host": node_name},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _name(name: str, said: str) -> str:
    """Return the object's name and a digest, as the kubelet's events have it and a time."""
    digest = hashlib.sha256(said.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _MOST_NAME - 1 - _DIGEST].rstrip('-.')}.{digest}"
