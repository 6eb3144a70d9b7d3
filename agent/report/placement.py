"""The annotation ``numalet.io/placement``: a pod's placement as compact JSON, on the pod itself.

    {"pool":"2-5","containers":{"database":{"verdict":"exclusive","cpus":"2-3","mems":"0"},
     "envoy-proxy":{"verdict":"pod-shared","cpus":"4-5","mems":"0"}}}

The downward API hands it to the containers, so that an application learns its CPUs.  Only pods with
CPUs or memory of their own have it.  Of a container on the node's shared CPUs no ``cpus`` are told:
they change with every pod that comes or goes, and each change would be a write to every pod.

It comes once the cgroups say the same (`Snapshot.unenforced`).  One that was written stays while they
are put right again, and goes where it says something else than what is to be enforced.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

from agent.core.explain import ContainerVerdict, PodVerdict
from agent.core.isolation import Isolation
from agent.core.pods import Pod, PodUID
from agent.core.state import PodEntry
from agent.ports import ApiAnswer, ApiServer, Snapshot
from agent.report.outbox import Message

KIND = "annotation"
PLACEMENT = "numalet.io/placement"
ASK_AGAIN_S = 600.0
"""A write whose effect does not come back through the watch is tried again after so long."""


def has_own(snapshot: Snapshot, uid: PodUID) -> bool:
    """Tell whether a pod has CPUs or memory of its own, under the policies that hold now."""
    entry = snapshot.state.pods.get(uid)
    if entry is None or uid in snapshot.rejections:
        return False
    has_memory = bool(entry.memory or entry.memory_pool)
    rules = snapshot.rules
    return (rules.manages_cpus and bool(entry.held)) or (rules.manages_memory and has_memory)


def placement_text(verdict: PodVerdict) -> str:
    """Return the annotation's value; CPU and node sets are Linux lists."""
    document = {
        "pool": str(verdict.pool),
        "containers": {c.name: _container(c) for c in verdict.containers},
    }
    return json.dumps(document, separators=(",", ":"))


def _container(verdict: ContainerVerdict) -> dict[str, str]:
    members = {"verdict": verdict.verdict.value}
    if verdict.verdict is not Isolation.NODE_SHARED:
        members["cpus"] = str(verdict.cpus)
    if verdict.mems:
        members["mems"] = str(verdict.mems)
    return members


class PlacementAnnotations:
    """A teller that keeps the annotation of every pod as it should be.

    It goes by what the pods say themselves, so nothing is written again after a restart.
    """

    def __init__(self) -> None:
        self._texts: dict[PodUID, tuple[Pod, PodEntry, str]] = {}
        self._asked: dict[PodUID, tuple[str | None, float]] = {}

    def look(self, snapshot: Snapshot, now_s: float) -> Iterator[Message]:
        """Yield a message for each pod whose annotation is not what it should be."""
        wanted = dict(self._wanted(snapshot))
        wrong = {
            pod.uid: pod
            for pod in snapshot.pods
            if pod.annotations.get(PLACEMENT) != wanted.get(pod.uid)
        }
        for uid in wrong.keys() & wanted.keys() & snapshot.unenforced:
            del wanted[uid]
            if PLACEMENT not in wrong[uid].annotations:
                del wrong[uid]
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in wrong}
        for uid, pod in wrong.items():
            text, (asked, at_s) = wanted.get(uid), self._asked.get(uid, ("", -ASK_AGAIN_S))
            if text != asked or now_s - at_s >= ASK_AGAIN_S:
                self._asked[uid] = (text, now_s)
                yield _message(pod, text)

    def _wanted(self, snapshot: Snapshot) -> Mapping[PodUID, str]:
        """Return the texts that there should be, each worked out once for as long as it holds."""
        texts, former = {}, self._texts
        for pod in snapshot.pods:
            if not has_own(snapshot, pod.uid):
                continue
            entry, known = snapshot.state.pods[pod.uid], former.get(pod.uid)
            if known is None or known[0] is not pod or known[1] is not entry:
                known = (pod, entry, placement_text(snapshot.verdict_on(pod)))
            texts[pod.uid] = known
        self._texts = texts
        return {uid: text for uid, (_, _, text) in texts.items()}


def _message(pod: Pod, text: str | None) -> Message:
    return Message(
        key=(KIND, pod.uid),
        say=partial(_say, pod=pod, text=text),
        fine=frozenset({HTTPStatus.NOT_FOUND}),  # the pod has gone
        namespace=pod.namespace,
    )


def _say(api: ApiServer, *, pod: Pod, text: str | None) -> ApiAnswer:
    """Patch the pod; its uid in the patch makes the server refuse (422) where it is another one."""
    patch = {"metadata": {"uid": pod.object_uid, "annotations": {PLACEMENT: text}}}
    return api.ask(
        "PATCH",
        f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}",
        patch,
        content_type="application/merge-patch+json",
    )
