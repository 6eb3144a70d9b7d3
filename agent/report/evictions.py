"""Evict what could not be placed, where ``onRejection`` is ``evict``: another node may do better.

The Eviction API is asked, so a PodDisruptionBudget holds.  Never evicted are static and mirror pods,
which would come back at once, pods of a DaemonSet, which belong on this very node, critical ones,
pods whose priority is not known, and pods that no node would place, or that are not ours to place.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from math import inf
from urllib.parse import quote

import structlog

from agent.core.entitlement import NOT_SELECTED, UNBACKED_BUDGET, UNSUPPORTED_RUNTIME
from agent.core.pods import Pod, PodUID
from agent.ports import ApiAnswer, ApiServer, Clock, Snapshot
from agent.report.outbox import Message, NotNow

log = structlog.get_logger(component="evictions")

KIND = "eviction"
CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
FROM_API = "api"
SYSTEM_CRITICAL = 2_000_000_000
"""``SystemCriticalPriority`` (pkg/apis/scheduling): the kubelet calls pods critical from here on."""
PATIENCE_S = 30.0
ASK_AGAIN_S = 600.0
"""Where the server has refused for good: somebody may have mended the disruption budgets."""
HOUR_S = 3600.0
_HOPELESS = (NOT_SELECTED, UNBACKED_BUDGET, UNSUPPORTED_RUNTIME)
_OVER = frozenset(
    {
        HTTPStatus.NOT_FOUND,  # it has gone by itself
        HTTPStatus.CONFLICT,  # and another one of its name has come
    }
)


def may_be_evicted(pod: Pod) -> bool:
    """Tell whether a pod is of a kind that may be evicted at all (``IsStaticPod``, ``IsCriticalPod``)."""
    is_static = pod.annotations.get(CONFIG_SOURCE, FROM_API) != FROM_API
    is_mirror = CONFIG_MIRROR in pod.annotations or pod.controller == "Node"
    if is_static or is_mirror or pod.controller == "DaemonSet":
        return False
    return pod.priority is not None and pod.priority < SYSTEM_CRITICAL


class Evictions:
    """A teller of evictions: at most ``most_per_hour`` (1 or more) that succeed.

    A pod is left alone for ``patience_s`` after its rejection: one that was about to go may make
    room.  One that is placed after all is not evicted, though the server may have refused before.
    """

    def __init__(self, clock: Clock, *, most_per_hour: int, patience_s: float = PATIENCE_S) -> None:
        self._clock = clock
        self._most_per_hour = most_per_hour
        self._patience_s = patience_s
        self._next_s: dict[PodUID, float] = {}
        """When to ask for the eviction of a rejected pod; never again where that is over."""
        self._evicted_s: deque[float] = deque(maxlen=most_per_hour)

    def look(self, snapshot: Snapshot, now_s: float) -> Iterator[Message]:
        """Yield a message for each pod that has been rejected for long enough."""
        rejected = {
            pod.uid: pod
            for pod in snapshot.pods
            if pod.uid in snapshot.rejections
            and snapshot.rejections[pod.uid].reason not in _HOPELESS
            and may_be_evicted(pod)
        }
        first_s = now_s + self._patience_s
        self._next_s = {uid: self._next_s.get(uid, first_s) for uid in rejected}
        for uid, pod in rejected.items():
            if now_s >= self._next_s[uid]:
                self._next_s[uid] = now_s + ASK_AGAIN_S
                yield Message(key=(KIND, uid), say=partial(self._say, pod=pod), fine=_OVER)

    def _say(self, api: ApiServer, *, pod: Pod) -> ApiAnswer | None:
        if pod.uid not in self._next_s:  # placed meanwhile, or gone
            return None
        self._check_limit()
        answer = api.ask(
            "POST",
            f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}/eviction",
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.object_uid}},
            },
        )
        if answer.code == HTTPStatus.CREATED:
            self._evicted_s.append(self._clock.monotonic_s())
            log.warning("pod_evicted", pod=pod.full_name, uid=pod.uid)
        if answer.code == HTTPStatus.CREATED or answer.code in _OVER:
            self._next_s[pod.uid] = inf
        return answer

    def _check_limit(self) -> None:
        if len(self._evicted_s) < self._most_per_hour:
            return
        left_s = self._evicted_s[0] + HOUR_S - self._clock.monotonic_s()
        if left_s > 0:
            why = f"{self._most_per_hour} pods were evicted within an hour, and no more are to be"
            raise NotNow(why, wait_s=left_s)
