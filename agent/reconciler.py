"""The one writer: event → decide → checkpoint → enforce → verify → publish.

It runs in one thread.  Everybody else only puts events on its queue, or reads the snapshots that it
publishes.
"""

import queue
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from agent.core.admission import Admitted, admit, remove
from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.claims import has_annotated_budget
from agent.core.desired import PodCgroups, desired_values
from agent.core.plan import CPUS_FILE
from agent.core.pods import Pod, PodUID, QosClass, qos_class
from agent.core.restore import fits, rebuild
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.enforcer import Enforcer
from agent.errors import CgroupError, InputError, StateFileError
from agent.ports import (
    GONE,
    Cgroups,
    CheckpointStore,
    Clock,
    Event,
    HardwareChanged,
    InputRejected,
    PodChanged,
    PodGone,
    PodsListed,
    Rejection,
    Remembered,
    Snapshot,
    SourceState,
    Stop,
    Tick,
)

log = structlog.get_logger(component="reconciler")


class Layout(Protocol):
    """Where cgroups are; see `agent.node.cgroup_layout`."""

    def kubepods(self) -> CgroupPath:
        """Return the cgroup above all pods."""
        ...

    def qos_parent(self, qos: QosClass) -> CgroupPath:
        """Return the cgroup above the pods of one class."""
        ...

    def pod(self, pod: Pod, qos: QosClass) -> CgroupPath:
        """Return a pod's cgroup."""
        ...

    def container(self, pod_path: CgroupPath, name: str) -> CgroupPath:
        """Return the cgroup of a container, where the agent itself makes it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Node:
    """What the reconciler works on; ``mode`` is for people."""

    rules: Rules
    cgroups: Cgroups
    layout: Layout
    store: CheckpointStore
    clock: Clock
    mode: str
    cgroup_root: str
    observe: bool = False
    drift_interval_s: float = 10.0
    on_idle: Callable[[NodeState], None] = field(default=lambda _state: None)
    """Called with the saved state when no event is waiting: for what nobody waits for."""
    before_pass: Callable[[], object] = field(default=lambda: None)
    """Called before the cgroups are looked at; the simulation takes over hand-made edits there."""


class Reconciler:
    """Owns the state of the node."""

    def __init__(
        self, node: Node, remembered: Remembered | None, publish: Callable[[Snapshot], None]
    ) -> None:
        self._node = node
        self._publish = publish
        self._enforcer = Enforcer(node.cgroups)
        self._pods: dict[PodUID, Pod] = {}
        self._departing: dict[PodUID, Pod | None] = {}
        """Who is to go once nothing runs in him, and the pod that then takes his place."""
        self._released: set[PodUID] = set()
        """Who has gone, though the checkpoint may not say so yet."""
        self._rejections: dict[PodUID, Rejection] = {}
        self._inputs: dict[str, str] = {}
        self._complaints: dict[PodUID, tuple[str, str]] = {}
        """By pod: its name, and why it cannot be as its source wants it."""
        self._source = SourceState(healthy=False, detail="no list of pods yet")
        self._listed = False
        self._problems: tuple[str, ...] = ()
        self._writes: Counter[str] = Counter()
        self._drift: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._checkpoints = 0
        self._state = node.rules.initial_state()
        self._durable = remembered or Remembered(state=self._state)
        if remembered is not None:
            self._recall(remembered)

    def run(self, events: "queue.SimpleQueue[Event]") -> None:
        """Handle events until `Stop`; look for drift whenever none came for a while."""
        while True:
            event = self._next(events)
            if isinstance(event, Stop):
                log.info("stopping", why=event.why, cgroups="left as they are")
                return
            self.handle(event)

    def _next(self, events: "queue.SimpleQueue[Event]") -> Event:
        try:
            return events.get_nowait()
        except queue.Empty:
            if not self._node.observe:
                self._node.on_idle(self._durable.state)
        try:
            return events.get(timeout=self._node.drift_interval_s)
        except queue.Empty:
            return Tick()

    def handle(self, event: Event) -> None:
        """Do everything that follows from one event."""
        match event:
            case PodsListed(pods):
                self._take_list(pods)
            case PodChanged(pod):
                self._take_in(pod)
            case PodGone(uid):
                self._depart(uid)
            case InputRejected(where, reason):
                self._note_input(where, reason)
            case SourceState():
                self._note_source(event)
            case HardwareChanged(what):
                log.warning("hardware_changed", what=what)
            case Tick() | Stop():
                pass
        self._settle()

    def _recall(self, remembered: Remembered) -> None:
        """Take over what was remembered; nobody loses what he holds."""
        self._pods = dict(remembered.pods)
        self._rejections = dict(remembered.rejections)
        self._state = remembered.state
        if not fits(self._node.rules, self._state):
            log.warning("state_rebuilt", why="machine or configuration differ from the checkpoint")
            self._state = rebuild(self._node.rules, remembered.state.pods)

    def _take_list(self, pods: tuple[Pod, ...]) -> None:
        """Take a complete list: who is not in it has gone."""
        self._listed = True
        self._note_source(SourceState(healthy=True, detail="the list of pods is complete"))
        for uid in (self._pods.keys() | self._state.pods.keys()) - {pod.uid for pod in pods}:
            self._depart(uid)
        for pod in pods:
            self._take_in(pod)

    def _take_in(self, pod: Pod) -> None:
        """Decide on a pod that is new, or that changed."""
        self._departing.pop(pod.uid, None)
        known = self._pods.get(pod.uid)
        try:
            path = self._cgroups_of(pod).path
        except InputError as error:
            self._complain(pod, str(error))
            return
        if known is not None and self._cgroups_of(known).path != path:
            self._departing[pod.uid] = pod
        elif known is not None and _asks_the_same(known, pod):
            self._pods[pod.uid] = pod
            self._complaints.pop(pod.uid, None)
        else:
            self._decide(pod, known)

    def _decide(self, pod: Pod, known: Pod | None) -> None:
        """Admit or reject; who is in the state but was never seen, as after an import, keeps it."""
        state = self._state if known is None else remove(self._state, pod.uid)
        verdict = admit(self._node.rules, state, pod)
        if isinstance(verdict, Admitted):
            self._decisions["admitted"] += 1
            self._rejections.pop(pod.uid, None)
            self._complaints.pop(pod.uid, None)
            log.info("pod_admitted", pod=pod.full_name, uid=pod.uid)
        else:
            self._decisions[verdict.reason] += 1
            if known is not None and pod.uid not in self._rejections:
                # What runs keeps its placement: the new demand does not fit.
                self._complain(pod, f"{verdict.reason}: {verdict.message}")
                return
            self._rejections[pod.uid] = Rejection(verdict.reason, verdict.message)
            log.warning(
                "pod_rejected", pod=pod.full_name, reason=verdict.reason, message=verdict.message
            )
        self._state = verdict.state
        self._pods[pod.uid] = pod

    def _depart(self, uid: PodUID) -> None:
        self._complaints.pop(uid, None)
        if uid in self._pods:
            self._departing[uid] = None
        else:
            # Nobody knows what it was, so nobody knows where its cgroup would be.
            self._state = remove(self._state, uid)

    def _note_source(self, source: SourceState) -> None:
        if source != self._source:
            self._source = source
            tell = log.info if source.healthy else log.warning
            tell("source", healthy=source.healthy, detail=source.detail)

    def _note_problems(self, problems: tuple[str, ...]) -> None:
        former, self._problems = self._problems, problems
        for problem in problems:
            if problem not in former:
                log.error("problem", what=problem)
        for problem in former:
            if problem not in problems:
                log.info("problem_solved", what=problem)

    def _note_input(self, where: str, reason: str) -> None:
        if not reason:
            self._inputs.pop(where, None)
        elif self._inputs.get(where) != reason:
            self._inputs[where] = reason
            log.warning("input_rejected", where=where, reason=reason)

    def _complain(self, pod: Pod, reason: str) -> None:
        complaint = (pod.full_name, reason)
        if self._complaints.get(pod.uid) != complaint:
            self._complaints[pod.uid] = complaint
            log.warning("input_rejected", where=pod.full_name, reason=reason)

    def _settle(self) -> None:
        """Let go of those that have left, checkpoint, enforce, publish."""
        self._node.before_pass()
        problems: list[str] = []
        self._release_departed(problems)
        if not self._node.observe:
            self._checkpoint(problems)
            self._enforce(problems)
        self._note_problems(tuple(dict.fromkeys(problems)))
        self._publish(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Return all that is known, as an immutable value."""
        node = self._node
        return Snapshot(
            taken_at_s=node.clock.now_s(),
            mode=node.mode,
            observe=node.observe,
            rules=node.rules,
            state=self._state,
            pods=tuple(self._pods.values()),
            rejections=dict(self._rejections),
            rejected_inputs=self._inputs | dict(self._complaints.values()),
            source=self._source,
            ready=self._listed and (node.observe or self._durable.state is self._state),
            cgroup_root=node.cgroup_root,
            problems=self._problems,
            writes=dict(self._writes),
            drift=dict(self._drift),
            decisions=dict(self._decisions),
            checkpoints=self._checkpoints,
        )

    def _checkpoint(self, problems: list[str]) -> None:
        """Save the state.  Only what is on disk is enforced: `_durable` lags where the disk fails."""
        remembered = Remembered(
            state=self._state, pods=dict(self._pods), rejections=dict(self._rejections)
        )
        try:
            self._checkpoints += self._node.store.save(remembered)
        except StateFileError as error:
            problems.append(str(error))
        else:
            self._durable = remembered
            self._released.clear()

    def _enforce(self, problems: list[str]) -> None:
        pods = [
            self._cgroups_of(pod)
            for uid, pod in self._durable.pods.items()
            if uid not in self._released
        ]
        self._make_missing((*self._qos_parents(), *_paths(pods)), problems)
        done = self._enforcer.enforce(self._desired(pods))
        self._writes.update(done.writes)
        for cause, sentence in done.drift:
            self._drift[cause] += 1
            log.warning("drift", cause=cause, what=sentence)
        problems += done.problems

    def _make_missing(self, paths: Iterable[CgroupPath], problems: list[str]) -> None:
        """Make cgroups that are not there, or that somebody took the cpuset controller from."""
        for path in paths:
            try:
                if self._node.cgroups.read(path, CPUS_FILE) is GONE:
                    self._node.cgroups.make(path)
            except CgroupError as error:
                problems.append(str(error))

    def _qos_parents(self) -> tuple[CgroupPath, ...]:
        """Return the parents that are narrowed: not that of Guaranteed pods, which is above all."""
        layout = self._node.layout
        return tuple(sorted({layout.qos_parent(qos) for qos in QosClass} - {layout.kubepods()}))

    def _desired(self, pods: Iterable[PodCgroups]) -> dict[CgroupPath, CgroupValues]:
        parents = self._qos_parents()
        return desired_values(self._node.rules, self._durable.state, pods, parents)

    def _cgroups_of(self, pod: Pod) -> PodCgroups:
        layout = self._node.layout
        path = layout.pod(pod, self._qos_of_cgroup(pod))
        return PodCgroups(
            pod=pod,
            path=path,
            leaves={layout.container(path, c.name): c.name for c in pod.containers},
        )

    def _qos_of_cgroup(self, pod: Pod) -> QosClass:
        """Return the class by which the kubelet chose the parent: it reads no annotation."""
        by_budget = self._node.rules.knows_budgets and not has_annotated_budget(pod)
        return qos_class(pod, pod_level_resources=by_budget)

    def _release_departed(self, problems: list[str]) -> None:
        """Let go of pods that the source no longer knows, once nothing runs in them."""
        for uid, successor in tuple(self._departing.items()):
            try:
                has_ended = self._remove_unpopulated(self._cgroups_of(self._pods[uid]).path)
            except CgroupError as error:
                problems.append(str(error))
                continue
            if has_ended:
                self._forget(uid)
                if successor is not None:
                    self._take_in(successor)
            elif successor is not None:
                why = "its new QoS class means another cgroup: end what runs in the pod first"
                self._complain(successor, why)

    def _remove_unpopulated(self, path: CgroupPath) -> bool:
        """Remove a cgroup with all below it, unless something runs there; return whether not."""
        events = self._node.cgroups.read(path, "cgroup.events")
        if isinstance(events, str) and "populated 1" in events:
            return False
        if not self._node.observe:
            self._remove_tree(path)
        return True

    def _remove_tree(self, path: CgroupPath) -> None:
        for child in self._node.cgroups.children(path):
            self._remove_tree(child)
        self._node.cgroups.remove(path)

    def _forget(self, uid: PodUID) -> None:
        pod = self._pods.pop(uid)
        self._departing.pop(uid, None)
        self._released.add(uid)
        self._rejections.pop(uid, None)
        self._complaints.pop(uid, None)
        self._state = remove(self._state, uid)
        log.info("pod_released", pod=pod.full_name, uid=uid)


def _paths(pods: Iterable[PodCgroups]) -> Iterator[CgroupPath]:
    for cgroups in pods:
        yield cgroups.path
        yield from cgroups.leaves


def _asks_the_same(known: Pod, pod: Pod) -> bool:
    """Tell whether nothing changed that was decided on."""
    return (known.budget, known.init_containers, known.app_containers) == (
        pod.budget,
        pod.init_containers,
        pod.app_containers,
    )
