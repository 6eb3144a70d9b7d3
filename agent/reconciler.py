"""The one writer: event → decide → checkpoint → enforce → verify → publish.

It runs in one thread.  Everybody else only puts events on its queue, or reads the snapshots that it
publishes.
"""

import contextlib
import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import structlog

from agent.core.admission import Admitted, init_ended, refuse, remove
from agent.core.adoption import adopt, is_bare_hold
from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, PodUID
from agent.core.resize import resize
from agent.core.restore import fits, rebuild
from agent.core.state import NodeState
from agent.errors import CgroupError, InputError, InvariantBroken, NumaletError, StateFileError
from agent.managed_node import Node
from agent.ports import (
    CgroupsChanged,
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
from agent.recall import believable, take_over

log = structlog.get_logger(component="reconciler")


class Reconciler:
    """Owns the state of the node."""

    def __init__(
        self, node: Node, remembered: Remembered | None, publish: Callable[[Snapshot], None]
    ) -> None:
        self._node = node
        self._publish = publish
        self._tree = node.tree()
        self._enforcement = node.enforcement(self._tree)
        self._departing: dict[PodUID, Pod | None] = {}
        """Who is to go once nothing runs in him, and the pod that then takes his place."""
        self._look_at_all = True
        self._changed: set[CgroupPath] = set()
        """Which cgroups are to be looked at though they said what they should."""
        self._released: set[PodUID] = set()
        """Who has gone, though the checkpoint may not say so yet."""
        self._inputs: dict[str, str] = {}
        self._complaints: dict[PodUID, tuple[Pod, str]] = {}
        """Pods as their source wants them, and why they cannot be so."""
        self._source = SourceState(healthy=False, detail="no list of pods yet")
        self._listed = False
        self._has_room = False
        """Whether somebody has gone since the rejected pods were last decided on."""
        self._problems: tuple[str, ...] = ()
        self._hardware_problem: tuple[str, ...] = ()
        self._writes: Counter[str] = Counter()
        self._drift: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._checkpoints = 0
        if remembered is None:
            self._durable = Remembered(state=node.rules.initial_state())
        else:
            self._durable = believable(node.rules, remembered)
        self._state = self._durable.state
        self._pods: dict[PodUID, Pod] = dict(self._durable.pods)
        self._rejections: dict[PodUID, Rejection] = dict(self._durable.rejections)

    def run(self, events: "queue.SimpleQueue[Event]") -> None:
        """Handle events until `Stop`; look for drift whenever none came for a while.

        All events that wait are handled in one pass, and `Stop` comes before what waits with it.
        """
        while True:
            waiting = self._waiting(events)
            stop = next((event for event in waiting if isinstance(event, Stop)), None)
            if stop is not None:
                self._idle()
                log.info("stopping", why=stop.why, cgroups="left as they are")
                return
            self.handle(*waiting)

    def _waiting(self, events: "queue.SimpleQueue[Event]") -> list[Event]:
        """Return all events that wait, after waiting for one."""
        waiting: list[Event] = []
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(events.get_nowait())
        if waiting:
            return waiting
        self._idle()
        try:
            return [events.get(timeout=self._node.drift_interval_s)]
        except queue.Empty:
            return [Tick()]

    def _idle(self) -> None:
        if not self._node.observe:
            self._node.on_idle(self._durable.state)

    def handle(self, *events: Event) -> None:
        """Do everything that follows from some events: decide on each, then settle once."""
        self._node.before_pass()
        for event in events:
            self._decide_on(event)
        self._settle()

    def _decide_on(self, event: Event) -> None:
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
                self._reread(what)
            case CgroupsChanged(path) if path.relative:
                self._changed.add(path)
                return
            case CgroupsChanged() | Tick() | Stop():
                pass
        self._look_at_all |= not isinstance(event, PodChanged | PodGone)

    def _reread(self, what: str) -> None:
        """Follow CPUs and memory that came or went; nobody loses what he holds."""
        log.warning("hardware_changed", what=what)
        if self._node.reread is None:
            return
        try:
            rules = self._node.reread()
        except NumaletError as error:
            self._hardware_problem = (f"after {what} the machine no longer fits: {error}",)
            return
        self._hardware_problem = ()
        lost = self._node.rules.topology.cpus - rules.topology.cpus
        if any(entry.held & lost for entry in self._state.pods.values()):
            self._drift["cpu_offline"] += 1
        self._node = replace(self._node, rules=rules)
        self._enforcement = replace(self._enforcement, rules=rules)
        if not fits(rules, self._state):
            self._state = rebuild(rules, self._state.pods)
            self._has_room = True

    def _take_list(self, pods: tuple[Pod, ...]) -> None:
        """Take a complete list: who is not in it has gone.

        While some input cannot be read, nobody knows whether it holds him: he stays.
        """
        if not self._listed:
            self._adopt({pod.uid: pod for pod in pods})
        self._listed = True
        if not self._source.healthy:
            self._note_source(SourceState(healthy=True, detail="the list of pods is complete"))
        missing = (self._pods.keys() | self._state.pods.keys()) - {pod.uid for pod in pods}
        for uid in () if self._inputs else missing:
            self._depart(uid)
        self._release_departed([])  # who has gone makes room; what is in the way is told later
        for pod in pods:
            self._take_in(pod)

    def _adopt(self, pods: dict[PodUID, Pod]) -> None:
        """Take over what runs, before anybody else is given its CPUs."""
        taken = take_over(self._node.rules, self._tree, self._state, pods)
        self._state = taken.state
        for uid in taken.outdated:
            self._pods.pop(uid, None)

    def _take_in(self, pod: Pod) -> None:
        """Decide on a pod that is new, or that changed."""
        self._departing.pop(pod.uid, None)
        known = self._pods.get(pod.uid)
        try:
            path = self._tree.path_of(pod)
        except InputError as error:
            self._complain(pod, str(error))
            return
        if known is not None and self._tree.path_of(known) != path:
            self._departing[pod.uid] = pod
        elif known is None or self._complaints.get(pod.uid) or not self._asks_the_same(known, pod):
            self._decide(pod, known)
        else:
            self._pods[pod.uid] = pod
        self._state = init_ended(self._state, pod)

    def _asks_the_same(self, known: Pod, pod: Pod) -> bool:
        """Tell whether nothing changed that was decided on."""
        was, now = (
            (p.budget, p.init_containers, p.app_containers, self._node.entitlement.refusal(p))
            for p in (known, pod)
        )
        return was == now

    def _decide(self, pod: Pod, known: Pod | None) -> None:
        """Admit or reject; who holds something keeps of it what he asks for now."""
        state = self._named(pod) if known is None else self._state
        refusal = self._node.entitlement.refusal(pod)
        verdict = (
            resize(self._node.rules, state, pod) if refusal is None else refuse(state, *refusal)
        )
        if isinstance(verdict, Admitted):
            self._decisions["admitted"] += 1
            self._rejections.pop(pod.uid, None)
            self._complaints.pop(pod.uid, None)
            log.info("pod_admitted", pod=pod.full_name, uid=pod.uid)
        elif pod.uid in state.pods or (known is not None and pod.uid not in self._rejections):
            self._keep_placement(pod, known or pod, f"{verdict.reason}: {verdict.message}")
            return
        else:
            self._decisions[verdict.reason] += 1
            self._rejections[pod.uid] = Rejection(verdict.reason, verdict.message)
            log.warning(
                "pod_rejected", pod=pod.full_name, reason=verdict.reason, message=verdict.message
            )
        self._state = verdict.state
        self._pods[pod.uid] = pod

    def _keep_placement(self, pod: Pod, known: Pod, why: str) -> None:
        """Leave what runs where it is: its new demand does not fit; follow all else."""
        self._complain(pod, why)
        self._pods[pod.uid] = replace(
            known,
            ephemeral_containers=pod.ephemeral_containers,
            container_ids=pod.container_ids,
            ended_init=pod.ended_init,
        )

    def _named(self, pod: Pod) -> NodeState:
        """Return the state in which a pod that ran without a name holds what it asks for."""
        entry = self._state.pods.get(pod.uid)
        if entry is None or not is_bare_hold(entry):
            return self._state
        state = self._without(pod.uid)
        try:
            seen = self._tree.seen(self._tree.of(pod))
        except CgroupError as error:
            log.warning("cgroup_not_read", pod=pod.full_name, what=str(error))
            return self._state
        adopted = seen and adopt(self._node.rules, state, pod, seen, entry.held)
        return adopted or state

    def _depart(self, uid: PodUID) -> None:
        self._complaints.pop(uid, None)
        if uid in self._pods or uid in self._state.pods:
            self._departing[uid] = None

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
        if self._complaints.get(pod.uid) != (pod, reason):
            self._complaints[pod.uid] = (pod, reason)
            log.warning("input_rejected", where=pod.full_name, reason=reason)

    def _settle(self) -> None:
        """Let go of those that have left, checkpoint, enforce, publish."""
        problems = [*self._node.standing_problems, *self._hardware_problem]
        self._release_departed(problems)
        for pod, _ in tuple(self._complaints.values()):
            self._take_in(pod)  # there may be room now
        for uid in tuple(self._rejections) if self._has_room else ():
            self._decide(self._pods[uid], self._pods[uid])
        self._has_room = False
        self._check_owners()
        if self._node.observe:
            self._released.clear()
        else:
            self._checkpoint(problems)
            self._enforce(problems)
        self._look_at_all = False
        self._changed.clear()
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
            rejected_inputs=self._inputs
            | {pod.full_name: reason for pod, reason in self._complaints.values()},
            source=self._source,
            ready=self._listed and (node.observe or self._durable.state is self._state),
            cgroup_root=node.cgroup_root,
            problems=self._problems,
            writes=dict(self._writes),
            drift=dict(self._drift),
            decisions=dict(self._decisions),
            checkpoints=self._checkpoints,
            memory=self._enforcement.enforcer.memory(),
        )

    def _check_owners(self) -> None:
        """Write nothing, neither to disk nor to a cgroup, that gives a CPU to two."""
        twice = self._state.two_owners()
        if twice:
            raise InvariantBroken(
                f"CPUs {twice} have two owners; nothing was written, the cgroups stay as they are: "
                "please report this with the output of `numalet state show -o json`"
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
        changed = None if self._look_at_all else frozenset(self._changed)
        done = self._enforcement.apply(self._durable, self._released, changed)
        self._writes.update(done.writes)
        for cause, sentence in done.drift:
            self._drift[cause] += 1
            log.warning("drift", cause=cause, what=sentence)
        problems += done.problems

    def _release_departed(self, problems: list[str]) -> None:
        """Let go of pods that the source no longer knows, once nothing runs in them."""
        for uid, successor in tuple(self._departing.items()):
            try:
                pod = self._pods.get(uid)
                place = self._tree.of_unknown(uid) if pod is None else self._tree.of(pod)
                has_ended = place is None or not self._tree.is_populated(place.path)
                if place is not None and has_ended and not self._node.observe:
                    self._tree.remove(place.path)
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

    def _without(self, uid: PodUID) -> NodeState:
        """Return the state without a pod; of what it held, CPUs that are offline come back later."""
        state = remove(self._state, uid)
        return replace(state, default=state.default & self._node.rules.topology.cpus)

    def _forget(self, uid: PodUID) -> None:
        pod = self._pods.pop(uid, None)
        self._departing.pop(uid, None)
        self._released.add(uid)
        self._has_room = True
        self._rejections.pop(uid, None)
        self._complaints.pop(uid, None)
        self._state = self._without(uid)
        log.info("pod_released", pod=pod.full_name if pod is not None else "?", uid=uid)
