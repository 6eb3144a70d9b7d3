"""Evict what could not be placed, where ``onRejection`` is ``evict``: another node may do better.

The Eviction API is asked, so a PodDisruptionBudget holds.  Never evicted are static and mirror pods,
which would come back at once, pods of a DaemonSet, which belong on this very node, pods without a
controller, which nobody would make anew, critical ones, pods whose priority is not known, and pods that
no node would place, or that are not ours to place.
A pod that is being deleted is on its way already, and does not count.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Protocol
from urllib.parse import quote

import structlog

from agent.core.entitlement import NOT_SELECTED, UNBACKED_BUDGET, UNSUPPORTED_RUNTIME
from agent.core.pods import Pod, PodUID
from agent.errors import StateFileError
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
    if is_static or is_mirror or pod.controller in ("", "DaemonSet"):
        return False
    return pod.priority is not None and pod.priority < SYSTEM_CRITICAL


class EvictionTimes(Protocol):
    """Where it is remembered when pods of this node were evicted; see `agent.node.eviction_times`."""

    def load(self) -> tuple[float, ...]:
        """Return it in seconds since the epoch; raises `agent.errors.StateFileError`."""
        ...

    def save(self, times_s: Iterable[float]) -> None:
        """Remember these times and no others; raises `agent.errors.StateFileError`."""
        ...


class Evictions:
    """A teller of evictions: at most ``most_per_hour`` (1 or more) that succeed, on this node.

    Nobody counts those of other nodes: on a whole cluster it may be as many times that.  ``times``
    remembers them for the next agent.  Where it cannot be read, as many are taken to have been just
    now; while it cannot be written, nobody is evicted.

    A pod is left alone for ``patience_s`` after its rejection: one that was about to go may make
    room.  One that is placed after all is not evicted, though the server may have refused before.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        most_per_hour: int,
        patience_s: float = PATIENCE_S,
        times: EvictionTimes | None = None,
    ) -> None:
        self._clock = clock
        self._most_per_hour = most_per_hour
        self._patience_s = patience_s
        self._times = times
        self._next_s: dict[PodUID, float] = {}
        """When to ask for the eviction of a rejected pod; never again where that is over."""
        self._evicted_s = deque(self._remembered_s(), maxlen=most_per_hour)
        self._is_saved = times is None
        """Not before it is tried: where nothing can be written, nobody is to be evicted."""

    def _remembered_s(self) -> Iterator[float]:
        """Yield when the agents before this one evicted; of the monotonic clock."""
        now_s, monotonic_s = self._clock.now_s(), self._clock.monotonic_s()
        try:
            times_s = self._times.load() if self._times is not None else ()
        except StateFileError as error:
            log.warning("evictions_unknown", what=str(error))
            times_s = (now_s,) * self._most_per_hour
        for at_s in sorted(times_s):  # none in the future: the clock was set back since
            yield monotonic_s - max(0.0, now_s - at_s)

    def look(self, snapshot: Snapshot, now_s: float) -> Iterator[Message]:
        """Yield a message for each pod that has been rejected for long enough."""
        rejected = {
            pod.uid: pod
            for pod in snapshot.pods
            if pod.uid in snapshot.rejections
            and snapshot.rejections[pod.uid].reason not in _HOPELESS
            and may_be_evicted(pod)
            and not pod.is_terminating
        }
        first_s = now_s + self._patience_s
        self._next_s = {uid: self._next_s.get(uid, first_s) for uid in rejected}
        for uid, pod in rejected.items():
            if now_s >= self._next_s[uid]:
                self._next_s[uid] = now_s + ASK_AGAIN_S
                yield Message(
                    key=(KIND, uid),
                    say=partial(self._say, pod=pod),
                    fine=_OVER,
                    namespace=pod.namespace,
                )

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
        if answer.code == HTTPStatus.CREATED or answer.code in _OVER:
            self._next_s[pod.uid] = inf
        if answer.code == HTTPStatus.CREATED:
            log.warning("pod_evicted", pod=pod.full_name, uid=pod.uid)
            self._evicted_s.append(self._clock.monotonic_s())
            with suppress(NotNow):  # it is tried again before the next one
                self._save()
        return answer

    def _save(self) -> None:
        """Remember all evictions for the next agent; raises `NotNow` where that is not possible."""
        if self._times is None:
            return
        self._is_saved = False
        passed_s = self._clock.now_s() - self._clock.monotonic_s()
        try:
            self._times.save([passed_s + at_s for at_s in self._evicted_s])
        except StateFileError as error:
            raise NotNow(str(error), wait_s=PATIENCE_S) from error
        self._is_saved = True

    def _check_limit(self) -> None:
        if not self._is_saved:
            self._save()
        if len(self._evicted_s) < self._most_per_hour:
            return
        left_s = self._evicted_s[0] + HOUR_S - self._clock.monotonic_s()
        if left_s > 0:
            why = f"{self._most_per_hour} pods were evicted within an hour, and no more are to be"
            raise NotNow(why, wait_s=left_s)
