"""The node that a scenario runs on: our side of a replay, step by step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from agent.core.admission import admit, container_starts, remove, remove_container
from agent.core.cpuset import CPUSet
from agent.core.departures import LEAKED_CPUS
from agent.core.kubelet_files import CPU_FILE, MEMORY_FILE
from agent.core.kubelet_validation import restore
from agent.core.pods import Pod, PodUID
from agent.core.startup import Rules, StartupRefused, start
from agent.core.state import NodeState, PodEntry
from tests.conformance import recorded
from tests.conformance.scenario import Json, pod, policy, topology

STATE_DIR = "<STATE_DIR>"
"""What the vectors write for the folder of the state files."""


class Answer(NamedTuple):
    """Our answer in the recorded form, and the departures that the code under test names."""

    ours: Json
    departures: frozenset[str] = frozenset()


class Node:
    """One machine with its configuration, state and pods; ``rules`` is None where nobody runs."""

    def __init__(self, machine: Json, config: Json) -> None:
        self.machine = machine
        self.config = config
        self.rules: Rules | None = None
        self.state = NodeState(default=CPUSet())
        self.pods: dict[PodUID, Pod] = {}
        self.planted: Mapping[str, str] = {}
        """State files as the scenario overwrote them before the last restart; empty: deleted."""

    def start(self) -> Answer:
        """Start for the first time, without any state file."""
        try:
            rules = start(topology(self.machine), policy(self.config))
        except StartupRefused as error:
            return Answer(recorded.refused(error.stage, str(error)), self._departed_before())
        self.rules, self.state = rules, rules.initial_state()
        return Answer(recorded.started(rules) | self._tables(), rules.departures)

    def take(self, step: Json, *, hints: bool) -> Answer:
        """Let one event happen; ``hints`` asks for the hint lists of a decision."""
        assert self.rules is not None
        match step["op"]:
            case "restart":
                return self._restart(step)
            case "add" | "readmit":
                new = pod(step["pod"]) if "pod" in step else self.pods[PodUID(step["uid"])]
                self.pods[new.uid] = new
                decision = admit(self.rules, self.state, new)
                self.state = decision.state
                found = recorded.answer(self.rules, new, decision, hints=hints)
                return Answer(found | self._tables(), decision.departures)
        departures = self._departures_of(step)
        self.state = follow(self.state, step, self.pods)
        return Answer(self._tables(), departures)

    def _departures_of(self, step: Json) -> frozenset[str]:
        """Return the departures of an event that nobody decides on.

        The kubelet never collects a pod's pool that has no container entries, as a damaged state
        file may have it; here it ends with its pod.
        """
        held = self.state.pods.get(PodUID(step["uid"]), PodEntry())
        if step["op"] == "remove" and held.pool is not None and not held.cpus:
            return frozenset({LEAKED_CPUS})
        return frozenset()

    def files(self) -> dict[str, str]:
        """Return the state files that this node writes for its state."""
        assert self.rules is not None
        return recorded.files(self.rules, self.state)

    def _tables(self) -> Json:
        return {"cpu": recorded.cpu_state(self.state), "mem": recorded.memory_state(self.state)}

    def _restart(self, step: Json) -> Answer:
        self.planted = step.get("files", {})
        texts = {**self.files(), **self.planted}
        self.machine = step.get("machine", self.machine)
        self.config = step.get("config", self.config)
        self.rules = None
        try:
            rules = start(topology(self.machine), policy(self.config))
            self.state = restore(
                rules,
                texts[CPU_FILE] or None,
                texts[MEMORY_FILE] or None,
                container_ids=self._container_ids(),
                folder=STATE_DIR,
            )
        except StartupRefused as error:
            refused = recorded.refused(error.stage, str(error))
            return Answer({"init": refused}, self._departed_before())
        self.rules = rules
        return Answer({"init": recorded.started(rules), **self._tables()}, rules.departures)

    def _departed_before(self) -> frozenset[str]:
        """Return the departures of the topology manager's start, which is the first of all.

        Where the kubelet has ended there already, what refuses later on is no answer of its own.
        """
        alone = replace(
            policy(self.config), cpu_policy="none", cpu_options={}, memory_policy="None"
        )
        try:
            return start(topology(self.machine), alone).departures
        except StartupRefused:
            return frozenset()

    def _container_ids(self) -> dict[str, tuple[PodUID, str]]:
        return {
            f"cid://{uid}/{c.name}": (uid, c.name)
            for uid, known in self.pods.items()
            for c in known.containers
        }


def follow(state: NodeState, step: Json, pods: Mapping[PodUID, Pod]) -> NodeState:
    """Return the state after an event that nobody decides on: a start or a removal."""
    uid = PodUID(step["uid"])
    match step["op"]:
        case "remove":
            return remove(state, uid)
        case "remove_container":
            return remove_container(state, uid, step["container"])
        case "start":
            names = [step["container"]] if "container" in step else None
            for name in names or [c.name for c in pods[uid].containers]:
                state = container_starts(state, pods[uid], name)
            return state
    raise ValueError(f"unknown operation {step['op']!r}")
