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

from agent.awaited_devices import AwaitedDevices
from agent.conditions import Conditions
from agent.core.admission import Admitted, init_ended, refuse
from agent.core.cgroups import CgroupPath
from agent.core.pods import DeviceNodes, Pod, PodUID
from agent.core.resize import resize
from agent.core.restore import fits, rebuild
from agent.errors import CgroupError, InputError, InvariantBroken, NumaletError, StateFileError
from agent.managed_node import Node
from agent.ports import (
    CgroupsChanged,
    DevicesFound,
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
from agent.recall import believable, named, take_over, without

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
        self._conditions = Conditions()
        self._listed = False
        self._has_room = False
        """Whether somebody has gone since the rejected pods were last decided on."""
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
        self._devices = AwaitedDevices(self._pods.values(), are_told=node.hears_of_devices)

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
            case InputRejected():
                self._conditions.note_input(event)
            case SourceState():
                self._conditions.note_source(event)
            case DevicesFound(uid, nodes):
                self._note_devices(uid, nodes)
            case HardwareChanged(what):
                self._reread(what)
            case CgroupsChanged(path) if path.relative:
                self._changed.add(path)
                return
            case CgroupsChanged() | Tick() | Stop():
                pass
        self._look_at_all |= not isinstance(event, PodChanged | PodGone | DevicesFound)

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
        self._conditions.note_list()
        known = self._pods.keys() | self._state.pods.keys() | self._devices.uids
        missing = known - {pod.uid for pod in pods}
        for uid in () if self._conditions.inputs else missing:
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
            self._conditions.complain(pod, "InvalidUID", str(error))
            return
        runs = (known.own_kernel if known else "") or self._node.entitlement.own_kernel(pod)
        pod = replace(pod, own_kernel=runs) if runs else pod
        pod = self._devices.known_of(pod)
        if known is None and pod.uid not in self._state.pods and self._devices.hold_back(pod):
            return
        if known is not None and self._tree.path_of(known) != path:
            self._departing[pod.uid] = pod
        elif (
            known is None
            or self._conditions.complaints.get(pod.uid)
            or not self._asks_the_same(known, pod)
        ):
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
        """Admit or reject; who holds something keeps of it what he asks for now.

        Who turns out to have a kernel of his own gives it back: he does not run on it alone.
        """
        rules = self._node.rules
        if pod.own_kernel and pod.uid in self._state.pods:
            self._state, self._has_room = without(rules, self._state, pod.uid), True
        state = self._state if known else named(rules, self._tree, self._state, pod)
        is_placed = known is not None and pod.uid not in self._rejections and not pod.own_kernel
        refusal = self._node.entitlement.refusal(pod)
        verdict = resize(rules, state, pod) if refusal is None else refuse(state, *refusal)
        if isinstance(verdict, Admitted):
            self._decisions["admitted"] += 1
            self._rejections.pop(pod.uid, None)
            log.info("pod_admitted", pod=pod.full_name, uid=pod.uid)
        elif pod.uid in state.pods or is_placed:
            self._conditions.complain(pod, verdict.reason, verdict.message)
            self._keep_placement(pod, known or pod)
            return
        else:
            self._decisions[verdict.reason] += 1
            self._rejections[pod.uid] = Rejection(verdict.reason, verdict.message)
            log.warning(
                "pod_rejected", pod=pod.full_name, reason=verdict.reason, message=verdict.message
            )
        self._conditions.complaints.pop(pod.uid, None)
        self._state = verdict.state
        self._pods[pod.uid] = pod

    def _keep_placement(self, pod: Pod, known: Pod) -> None:
        """Leave what runs where it is: its new demand does not fit; follow all else."""
        self._pods[pod.uid] = replace(
            known,
            ephemeral_containers=pod.ephemeral_containers,
            container_ids=pod.container_ids,
            ended_init=pod.ended_init,
        )

    def _note_devices(self, uid: PodUID, nodes: DeviceNodes | None) -> None:
        """Decide on a pod that waited for its devices; who is placed stays where he is."""
        known = self._pods.get(uid)
        is_placed = known is not None and uid not in self._rejections
        waited = self._devices.note(uid, nodes, is_placed=is_placed)
        if waited is not None:
            self._take_in(waited)
        elif known is not None:
            self._pods[uid] = self._devices.known_of(known)

    def _depart(self, uid: PodUID) -> None:
        self._devices.forget(uid)
        self._conditions.complaints.pop(uid, None)
        if uid in self._pods or uid in self._state.pods:
            self._departing[uid] = None

    def _settle(self) -> None:
        """Let go of those that have left, checkpoint, enforce, publish."""
        problems = [*self._node.standing_problems, *self._hardware_problem]
        self._release_departed(problems)
        self._look_at_runtimes(problems)
        for pod, _ in tuple(self._conditions.complaints.values()):
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
        self._conditions.note_problems(tuple(dict.fromkeys(problems)))
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
            pods=(*self._pods.values(), *self._devices.waiting.values()),
            waiting=frozenset(self._devices.waiting),
            rejections=dict(self._rejections),
            complaints=self._conditions.refusals(),
            rejected_inputs=dict(self._conditions.inputs),
            source=self._conditions.source,
            ready=self._listed and (node.observe or self._durable.state is self._state),
            cgroup_root=node.cgroup_root,
            problems=self._conditions.problems,
            other_managers=node.other_managers,
            writes=dict(self._writes),
            drift=dict(self._drift),
            decisions=dict(self._decisions),
            checkpoints=self._checkpoints,
            memory=self._enforcement.enforcer.memory(),
            confinement=self._enforcement.confinement.report(),
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
                self._conditions.complain(successor, "QoSClassChanged", why)

    def _look_at_runtimes(self, problems: list[str]) -> None:
        """Decide anew on pods whose runtime says by now that they have a kernel of their own."""
        for pod in self._tree.newly_unsupported(self._pods.values(), problems):
            known = self._pods[pod.uid]
            if self._asks_the_same(known, pod):
                self._pods[pod.uid] = pod
            else:
                self._decide(pod, known)

    def _forget(self, uid: PodUID) -> None:
        pod = self._pods.pop(uid, None)
        self._departing.pop(uid, None)
        self._released.add(uid)
        self._has_room = True
        self._rejections.pop(uid, None)
        self._conditions.complaints.pop(uid, None)
        self._state = without(self._node.rules, self._state, uid)
        log.info("pod_released", pod=pod.full_name if pod is not None else "?", uid=uid)
