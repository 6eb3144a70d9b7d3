"""The one writer: event → decide → checkpoint → enforce → verify → publish.

It runs in one thread.  Everybody else only puts events on its queue, or reads the snapshots that it
publishes.
"""

import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import structlog

from agent.awaited_devices import AwaitedDevices
from agent.conditions import Conditions, check_owners
from agent.core.admission import Admitted, Rejected, init_ended, refuse, without
from agent.core.cgroups import CgroupPath
from agent.core.pods import DeviceNodes, Pod, PodUID
from agent.core.resize import resize, with_demand_of
from agent.core.restore import fits, rebuild
from agent.core.state import NodeState
from agent.errors import CgroupError, InputError, StateFileError
from agent.event_queue import next_events
from agent.managed_node import Node
from agent.ports import (
    CgroupsChanged,
    DevicesFound,
    Event,
    HardwareChanged,
    InputRejected,
    OtherManagersFound,
    PodChanged,
    PodGone,
    PodsListed,
    Rejection,
    Remembered,
    Snapshot,
    SourceState,
    Stop,
)
from agent.recall import believable, named, take_over, told_by_slices

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
        self._looked_s = node.clock.monotonic_s()  # at all of them
        self._changed: set[CgroupPath] = set()
        """Which cgroups are to be looked at though they said what they should."""
        self._released: set[PodUID] = set()
        """Who has gone, though the checkpoint may not say so yet."""
        self._conditions = Conditions()
        self._recalled = self._listed = self._ready = False
        self._has_room = False
        """Whether somebody has gone since the rejected pods were last decided on."""
        self._enforced: frozenset[PodUID] = frozenset()
        self._writes, self._drift, self._decisions = (Counter[str]() for _ in range(3))
        self._checkpoints = 0
        if remembered is None:
            self._durable = Remembered(state=node.rules.initial_state())
        else:
            self._durable = believable(node.rules, remembered)
            if self._durable.state is not remembered.state and not node.observe:
                node.store.keep_loaded()
        self._state = self._durable.state
        self._pods: dict[PodUID, Pod] = dict(self._durable.pods)
        self._rejections: dict[PodUID, Rejection] = dict(self._durable.rejections)
        self._devices = AwaitedDevices(self._pods.values(), are_told=node.hears_of_devices)

    def run(self, events: "queue.SimpleQueue[Event]") -> None:
        """Handle events until `Stop`; look for drift every so often, however many there are.

        All events that wait are handled in one pass, and `Stop` comes before what waits with it.
        """
        while True:
            due_s = self._looked_s + self._node.drift_interval_s - self._node.clock.monotonic_s()
            waiting = next_events(events, due_s, self._idle)
            stop = next((event for event in waiting if isinstance(event, Stop)), None)
            if stop is not None:
                self._idle()
                log.info("stopping", why=stop.why, cgroups="left as they are")
                return
            self.handle(*waiting)

    def _idle(self) -> None:
        if not self._node.only_observes:
            self._node.on_idle(self._durable.state)

    def handle(self, *events: Event) -> None:
        """Do everything that follows from some events: decide on each, then settle once."""
        self._node.before_pass()
        self._follow_hardware([e.what for e in events if isinstance(e, HardwareChanged)])
        for event in events:
            self._decide_on(event)
        self._settle()

    def _decide_on(self, event: Event) -> None:
        match event:
            case PodsListed(pods, unreadable):
                self._take_list(pods, unreadable)
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
            case OtherManagersFound():
                self._note_others(event)
            case CgroupsChanged(path) if path.relative:
                self._changed.add(path)
                return
        # Of all others, a `Tick` above all, nothing follows but a look.
        self._look_at_all |= not isinstance(event, PodChanged | PodGone | DevicesFound)

    def _follow_hardware(self, told: list[str]) -> None:
        """Follow CPUs and memory that came or went; nobody loses what he holds."""
        if self._node.hardware is None:
            return
        rules = self._node.hardware.look(self._node.rules, *told)
        if rules is self._node.rules:
            return
        lost = self._node.rules.topology.cpus - rules.topology.cpus
        if any(entry.held & lost for entry in self._state.pods.values()):
            self._drift["cpu_offline"] += 1
        self._node = replace(self._node, rules=rules)
        self._enforcement = self._enforcement.under(rules)
        if not fits(rules, self._state):
            self._state = rebuild(rules, self._state.pods)
            self._has_room = True

    def _note_others(self, others: OtherManagersFound) -> None:
        """Stop writing beside another CPU manager; once it has gone, nothing counts as verified."""
        before, self._node = self._node, self._node.beside(others)
        if before.only_observes and not self._node.only_observes:
            self._enforcement = self._node.enforcement(self._tree)

    def _take_list(self, pods: tuple[Pod, ...], unreadable: frozenset[PodUID] | None) -> None:
        """Take a complete list: who is not in it, and may not be what could not be read, has gone."""
        if not self._listed:
            self._adopt({pod.uid: pod for pod in pods})
            self._has_room = True  # who was rejected by another configuration may have some
        self._listed = True
        self._conditions.note_list()
        known = self._pods.keys() | self._state.pods.keys() | self._devices.uids
        missing = known - {pod.uid for pod in pods}
        for uid in () if unreadable is None else missing - unreadable:
            self._depart(uid)
        self._release_departed([])  # who has gone makes room; what is in the way is told later
        for pod in pods:
            self._take_in(pod)

    def _adopt(self, pods: dict[PodUID, Pod]) -> None:
        """Take over what runs, before anybody else is given its CPUs, or they are shared again."""
        taken = take_over(self._node.rules, self._tree, self._state, pods)
        self._state, self._recalled = taken.state, True
        for uid in taken.adopted:
            self._rejections.pop(uid, None)
        for uid in set(taken.outdated).difference(taken.adopted):
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
        is_new = known is None and pod.uid not in self._state.pods
        if is_new and self._devices.hold_back(pod, may_be_placed=self._node.may_place(pod)):
            return
        if known is not None and self._tree.path_of(known) != path:
            self._departing[pod.uid] = pod
        elif (
            known is None
            or self._conditions.complaints.get(pod.uid)
            or not self._node.entitlement.asks_the_same(known, pod)
        ):
            self._decide(pod, known)
        else:
            self._pods[pod.uid] = pod
        self._state = init_ended(self._state, pod)

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
        if isinstance(verdict, Rejected) and pod.uid in state.pods:
            state, known = self._node.shrunk(state, pod, known)
            verdict, is_placed = replace(verdict, state=state), pod.uid in state.pods
        if isinstance(verdict, Admitted):
            self._decisions["admitted"] += 1
            self._rejections.pop(pod.uid, None)
            log.info("pod_admitted", pod=pod.full_name, uid=pod.uid)
        elif pod.uid in state.pods or is_placed:
            self._conditions.complain(pod, verdict.reason, verdict.message)
            self._go_on_with(state)
            self._pods[pod.uid] = with_demand_of(known or pod, pod)
            return
        else:
            self._reject(pod, verdict)
        self._conditions.complaints.pop(pod.uid, None)
        self._go_on_with(verdict.state)
        self._pods[pod.uid] = pod

    def _go_on_with(self, state: NodeState) -> None:
        self._has_room |= bool(state.default - self._state.default)
        self._state = state

    def _reject(self, pod: Pod, why: Rejected) -> None:
        """Remember why a pod was rejected; the same reason again is neither told nor counted."""
        is_news = pod.uid not in self._rejections or self._rejections[pod.uid].reason != why.reason
        self._rejections[pod.uid] = Rejection(why.reason, why.message)
        if is_news:
            self._decisions[why.reason] += 1
            log.warning("pod_rejected", pod=pod.full_name, reason=why.reason, message=why.message)

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
        self._conditions.complaints.pop(uid, None)
        if uid in self._pods or uid in self._state.pods:
            self._departing[uid] = None
        else:
            self._devices.forget(uid)

    def _settle(self) -> None:
        """Let go of those that have left, checkpoint, enforce, publish."""
        problems = list(self._node.others.why_not)
        problems += self._node.hardware.problems if self._node.hardware else ()
        if not (self._listed or self._recalled):
            self._adopt(self._pods)
            self._pods |= told_by_slices(self._node.rules, self._tree, self._state, self._pods)
        self._release_departed(problems)
        self._look_at_runtimes(problems)
        for pod, _ in tuple(self._conditions.complaints.values()):
            self._take_in(pod)  # there may be room now
        for uid in tuple(self._rejections) if self._has_room else ():
            if uid not in self._departing:
                self._decide(self._pods[uid], self._pods[uid])
        self._has_room = False
        check_owners(self._state)
        if self._node.only_observes:
            self._enforced, bearable = frozenset(), frozenset[str]()
            self._tree.refresh(None if self._look_at_all else self._changed)
            self._released &= self._durable.pods.keys() | self._durable.state.pods.keys()
        else:
            self._checkpoint(problems)
            bearable = self._enforce(problems)
        self._looked_s = self._node.clock.monotonic_s() if self._look_at_all else self._looked_s
        self._look_at_all = False
        self._changed.clear()
        is_enforced = self._node.only_observes or not set(problems) - bearable
        self._ready |= not self._is_tentative and is_enforced
        self._conditions.note_problems(tuple(dict.fromkeys(problems)))
        self._publish(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Return all that is known, as an immutable value."""
        node, pods = self._node, (*self._pods.values(), *self._devices.waiting.values())
        return Snapshot(
            taken_at_s=node.clock.now_s(),
            passed_s=node.clock.monotonic_s(),
            mode=node.mode,
            observe=node.only_observes,
            rules=node.rules,
            state=self._state,
            pods=pods,
            unenforced=frozenset(pod.uid for pod in pods) - self._enforced,
            waiting=frozenset(self._devices.waiting),
            rejections=dict(self._rejections),
            complaints=self._conditions.refusals(),
            rejected_inputs=dict(self._conditions.inputs),
            source=self._conditions.source,
            ready=self._ready,
            tentative=self._is_tentative,
            cgroup_root=node.cgroup_root,
            problems=self._conditions.problems,
            other_managers=node.others.names,
            warnings=node.others.unseen,
            writes=dict(self._writes),
            drift=dict(self._drift),
            decisions=dict(self._decisions),
            checkpoints=self._checkpoints,
            memory=self._enforcement.enforcer.memory(),
            confinement=self._enforcement.confinement.report(),
        )

    @property
    def _is_tentative(self) -> bool:
        is_durable = self._node.only_observes or self._durable.state is self._state
        return not (self._listed and is_durable)

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

    def _enforce(self, problems: list[str]) -> frozenset[str]:
        """Make the cgroups say so; returns problems in spite of which the agent is ready."""
        changed = None if self._look_at_all else frozenset(self._changed)
        done = self._enforcement.apply(
            self._durable, self._released, changed, names_may_be_missing=not self._listed
        )
        self._writes.update(done.writes)
        self._enforced = done.enforced
        self._drift.update(cause for cause, _ in done.drift)
        self._conditions.note_drift(done.drift)
        problems += done.problems
        return done.memory_problems

    def _release_departed(self, problems: list[str]) -> None:
        """Let go of pods that the source no longer knows, once nothing runs in them."""
        for uid, successor in tuple(self._departing.items()):
            try:
                pod = self._pods.get(uid)
                place = self._tree.of_unknown(uid) if pod is None else self._tree.of(pod)
                has_ended = place is None or not self._tree.is_populated(place.path)
                if place is not None and has_ended and not self._node.only_observes:
                    self._tree.remove(place.path)
            except CgroupError as error:
                problems.append(str(error))
                continue
            if has_ended:
                self._forget(uid)
                if successor is not None:
                    self._take_in(successor)
                else:
                    self._devices.forget(uid)
            elif successor is not None:
                why = "its new QoS class means another cgroup: end what runs in the pod first"
                self._conditions.complain(successor, "QoSClassChanged", why)

    def _look_at_runtimes(self, problems: list[str]) -> None:
        """Decide anew on pods whose runtime says by now that they have a kernel of their own."""
        for pod in self._tree.newly_unsupported(self._pods.values(), problems):
            if self._node.entitlement.asks_the_same(self._pods[pod.uid], pod):
                self._pods[pod.uid] = pod
            else:
                self._decide(pod, self._pods[pod.uid])

    def _forget(self, uid: PodUID) -> None:
        pod = self._pods.pop(uid, None)
        self._departing.pop(uid, None)
        self._released.add(uid)
        self._has_room = True
        self._rejections.pop(uid, None)
        self._conditions.complaints.pop(uid, None)
        self._state = without(self._node.rules, self._state, uid)
        log.info("pod_released", pod=pod.full_name if pod is not None else "?", uid=uid)
