"""Finds out which devices new pods have, so that CPUs and memory can follow them.

The kubelet gives devices to a pod when it admits it, a moment after the API server has told everybody of
the pod, and before it makes the pod's cgroup.  So a pod that asks for devices is decided on

* when PodResources shows a device for each resource that it asks for, unless these may be those of a
  predecessor: pods have names there and no UIDs, and one that was deleted by force may still be listed;
* or when its cgroup is there, whose appearance wakes this thread, with what PodResources says then:
  such a resource need not come from a device plugin;
* or when neither has come about within a time limit, or nobody can be asked.

Claims of dynamic resource allocation (``resourceClaims``) are not waited for: PodResources tells no NUMA
nodes of them.  A pod that was given up is asked about now and then, so that it can be said where its
devices are.  It does not move any more.

All of this has a thread of its own.  A kubelet that hangs delays only the pods that wait for it.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from agent.core.pods import DeviceNodes, Kind, Pod, PodUID
from agent.errors import EnvironmentProblem
from agent.ports import (
    CgroupsChanged,
    Clock,
    DevicesFound,
    Event,
    PodChanged,
    PodGone,
    PodsListed,
    Post,
    Stop,
)
from agent.sources.pod_resources import KubeletSilent, NoPodResources

log = structlog.get_logger(component="kubelet_devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """How long to wait, and how often to ask; all in seconds."""

    limit_s: float = 10.0
    """For as long as this a pod waits at most."""
    first_pause_s: float = 0.05
    most_pause_s: float = 0.5
    """The pause between two questions doubles, up to this."""
    late_pause_s: float = 30.0
    """It is as long as this where all who are asked about have been given up."""
    close_s: float = 2.0
    """`KubeletDevices.close` waits no longer for the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    pod: Pod
    until_s: float
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class _Former:
    """A pod that has gone; the kubelet may not have heard of that before ``until_s``."""

    pod: Pod
    until_s: float


@dataclass(kw_only=True, eq=False)
class KubeletDevices:
    """Posts `DevicesFound` for every pod of which it hears and that asks for devices.

    ``ask`` returns what the kubelet says, by full names of pods, and raises `EnvironmentProblem`;
    ``has_cgroup`` tells whether a pod's cgroup is there.
    """

    ask: Callable[[], Mapping[str, DeviceNodes]]
    has_cgroup: Callable[[Pod], bool]
    post: Post
    clock: Clock
    settings: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        self._heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wanted: dict[PodUID, _Wanted] = {}
        self._told: dict[PodUID, Pod] = {}
        self._running: set[PodUID] = set()
        """Of those that wait: whose cgroups were there at the last look."""
        self._former: dict[PodUID, _Former] = {}
        self._pause_s = self.settings.first_pause_s
        self._ask_at_s = 0.0
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="kubelet-devices", daemon=True)

    def hear(self, event: Event) -> None:
        """Take note of what a source of pods has said; returns at once."""
        self._heard.put(event)

    def start(self) -> None:
        """Begin; may be called once."""
        self._thread.start()

    def close(self) -> None:
        """End within ``settings.close_s``."""
        self._heard.put(Stop("closed"))
        self._thread.join(self.settings.close_s)

    def _run(self) -> None:
        while True:
            try:
                event = self._heard.get(timeout=self.pause_s())
            except queue.Empty:
                self.look()
                continue
            if isinstance(event, Stop):
                return
            self.take(event)

    def pause_s(self) -> float | None:
        """Return how long there is nothing to ask; None where nobody is asked about."""
        if not self._wanted:
            return None
        return max(0.0, self._ask_at_s - self.clock.monotonic_s())

    def take(self, event: Event) -> None:
        """Follow which pods there are, and which of them ask for devices."""
        match event:
            case PodsListed(pods, unreadable):
                missing = (self._wanted.keys() | self._told.keys()) - {pod.uid for pod in pods}
                for uid in () if unreadable is None else missing - unreadable:
                    self._forget(uid)
                for pod in pods:
                    self._want(pod)
            case PodChanged(pod):
                self._want(pod)
            case PodGone(uid):
                self._forget(uid)
            case CgroupsChanged() if self._has_news():
                self._ask_at_s = self.clock.monotonic_s()

    def _has_news(self) -> bool:
        """Tell whether a pod that waits has its cgroup by now, and had not when last looked for."""
        waiting = (w.pod for uid, w in self._wanted.items() if uid not in self._running)
        return any(self.has_cgroup(pod) for pod in waiting)

    def _forget(self, uid: PodUID) -> None:
        wanted, told = self._wanted.pop(uid, None), self._told.pop(uid, None)
        pod = told if wanted is None else wanted.pod
        if pod is not None:
            until_s = self.clock.monotonic_s() + self.settings.limit_s
            self._former[uid] = _Former(pod, until_s)
        self._former = {u: f for u, f in self._former.items() if self._may_be_listed(f)}

    def _may_be_listed(self, former: _Former) -> bool:
        return self.clock.monotonic_s() < former.until_s or self.has_cgroup(former.pod)

    def _has_namesake(self, pod: Pod) -> bool:
        """Tell whether what the kubelet lists under a pod's name may be another one's."""
        former = [f.pod for f in self._former.values() if self._may_be_listed(f)]
        others = (*former, *self._told.values(), *(w.pod for w in self._wanted.values()))
        return any(o.full_name == pod.full_name and o.uid != pod.uid for o in others)

    def _want(self, pod: Pod) -> None:
        if pod.uid in self._wanted:
            self._wanted[pod.uid] = replace(self._wanted[pod.uid], pod=pod)
        elif pod.asks_for_devices and pod.uid not in self._told:
            now_s = self._ask_at_s = self.clock.monotonic_s()
            self._wanted[pod.uid] = _Wanted(pod=pod, until_s=now_s + self.settings.limit_s)
            self._pause_s = self.settings.first_pause_s

    def look(self) -> None:
        """Ask the kubelet once, and tell of every pod that waits no longer."""
        # Before the question: the kubelet gives devices first, and makes the cgroup then.
        running = {uid for uid, wanted in self._wanted.items() if self.has_cgroup(wanted.pod)}
        self._running = running
        problem = None
        answer: Mapping[str, DeviceNodes] = {}
        try:
            answer = self.ask()
        except EnvironmentProblem as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - pods would wait for a thread that has gone
            problem = KubeletSilent(f"{type(error).__name__}: {error}")
        self._note(problem)
        for uid, wanted in tuple(self._wanted.items()):
            nodes = answer.get(wanted.pod.full_name, {})
            is_said = _is_complete(wanted.pod, nodes) and not self._has_namesake(wanted.pod)
            if problem is None and (uid in running or is_said):
                self._tell(uid, nodes)
            elif not wanted.given_up:
                self._give_up(uid, wanted, at_once=isinstance(problem, NoPodResources))
        self._schedule()

    def _tell(self, uid: PodUID, nodes: DeviceNodes) -> None:
        self._told[uid] = self._wanted.pop(uid).pod
        self.post(DevicesFound(uid, nodes))

    def _give_up(self, uid: PodUID, wanted: _Wanted, *, at_once: bool) -> None:
        if at_once or self.clock.monotonic_s() >= wanted.until_s:
            self._wanted[uid] = replace(wanted, given_up=True)
            log.warning("devices_not_known", pod=wanted.pod.full_name, why=self._problem)
            self.post(DevicesFound(uid, None))

    def _schedule(self) -> None:
        now_s, settings = self.clock.monotonic_s(), self.settings
        limits = [wanted.until_s for wanted in self._wanted.values() if not wanted.given_up]
        pause_s = self._pause_s if limits else settings.late_pause_s
        self._ask_at_s = min(now_s + pause_s, *limits, now_s + settings.late_pause_s)
        self._pause_s = min(2 * self._pause_s, settings.most_pause_s)

    def _note(self, problem: EnvironmentProblem | None) -> None:
        """Log each new problem once, and the end of it."""
        text = "" if problem is None else str(problem)
        if text == self._problem:
            return
        if text:
            log.warning("devices_not_told", what=text)
        else:
            log.info("devices_told_again")
        self._problem = text


def _is_complete(pod: Pod, nodes: DeviceNodes) -> bool:
    """Tell whether each container has what it asks for; of ordinary init containers nothing is told."""
    return all(
        set(c.extended) <= nodes.get(c.name, {}).keys()
        for c in pod.containers
        if c.kind is not Kind.INIT
    )
