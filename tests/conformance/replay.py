"""Replay one recorded scenario and judge every step by the kubelet's own answer."""

import traceback
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from tests.conformance import recorded
from tests.conformance.invariants import broken_promises
from tests.conformance.node import Answer, Node
from tests.conformance.scenario import Json

_ABSENT = "(absent)"


class Difference(NamedTuple):
    """Where our answer is not the recorded one: the step, the path inside the answer, and both."""

    step: str
    path: str
    kubelet: object
    ours: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one scenario ended."""

    difference: Difference | None = None
    departures: frozenset[str] = frozenset()

    @property
    def verdict(self) -> str:
        """``failed``, ``departed`` or ``exact``."""
        if self.difference is not None:
            return "failed"
        return "departed" if self.departures else "exact"


def replay(scenario: Json, node_type: type[Node] = Node) -> Outcome:
    """Return how a scenario ends on a node of our own.

    Every answer must be the recorded one, until one that differs names a departure; if the states
    part there, later answers are not compared any more.  The invariants must hold from the first
    step to the last.  A crash is a failure.
    """
    judge = _Judge(scenario, node_type(scenario["machine"], scenario["config"]))
    try:
        judge.judge()
    except _Failed as failure:
        return Outcome(failure.difference)
    except Exception:  # noqa: BLE001 - whatever the code under test raises is its answer
        return Outcome(Difference(judge.step, "crash", None, traceback.format_exc()))
    return Outcome(departures=judge.departures)


def first_difference(kubelet: object, ours: object, path: str = "") -> tuple[str, object, object]:
    """Return the path to the first place where two answers differ, and both sides there."""
    pairs: list[tuple[str, object, object]] = []
    if isinstance(kubelet, dict) and isinstance(ours, dict):
        pairs = [(f".{k}", kubelet.get(k, _ABSENT), ours.get(k, _ABSENT)) for k in kubelet | ours]
    elif isinstance(kubelet, list) and isinstance(ours, list) and len(kubelet) == len(ours):
        both = zip(kubelet, ours, strict=True)
        pairs = [(f"[{i}]", a, b) for i, (a, b) in enumerate(both)]
    for step, a, b in pairs:
        if a != b:
            return first_difference(a, b, path + step)
    return path.removeprefix("."), kubelet, ours


class _Failed(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(difference)
        self.difference = difference


class _Judge:
    """Lets a node live through a scenario and compares its answers with the recorded ones."""

    def __init__(self, scenario: Json, node: Node) -> None:
        self.scenario = scenario
        self.node = node
        self.step = "start"
        self.departures = frozenset[str]()
        self.parted = False
        self.sound = True

    def judge(self) -> None:
        self.check(self.scenario["init"], self.node.start())
        for number, step in enumerate(self.scenario["steps"], 1):
            if self.node.rules is None:
                return
            uid = step["pod"]["uid"] if "pod" in step else step.get("uid", "")
            self.step = f"step {number} ({step['op']} {uid})"
            answer = self.node.take(step, hints="hints" in step["expect"])
            if "files" in step:
                # A state that others damaged on purpose proves nothing about ours.
                self.sound = not self.broken_promises()
            self.check(step["expect"], answer)

    def check(self, expect: Json, answer: Answer) -> None:
        kubelet, ours = self.comparable(expect, answer.ours)
        if not self.parted and kubelet != ours:
            if not answer.departures:
                raise _Failed(Difference(self.step, *first_difference(kubelet, ours)))
            self.departures |= answer.departures
            self.parted = any(kubelet.get(half) != ours.get(half) for half in ("cpu", "mem"))
        broken = self.broken_promises() if self.sound else []
        if broken:
            raise _Failed(Difference(self.step, "promises", "(kept)", broken))

    def broken_promises(self) -> list[str]:
        node = self.node
        return [] if node.rules is None else broken_promises(node.rules, node.state, node.pods)

    def comparable(self, expect: Json, ours: Json) -> tuple[Json, Json]:
        """Return both answers without what is not compared (see "How to judge")."""
        kubelet = {k: copy(v) for k, v in expect.items() if k not in ("overlap", "files")}
        for init in (kubelet, kubelet.get("init", {})):
            if "error" in init:
                init["error"] = recorded.without_parsers(init["error"])
        rules, texts = self.node.rules, expect.get("files", {})
        if rules is None or not texts:
            return kubelet, ours
        # A file that lies there as the scenario put it was not written by the kubelet.
        texts = {n: t for n, t in texts.items() if t != self.node.planted.get(n)}
        written = {n: t for n, t in self.node.files().items() if n in texts}
        return (
            kubelet | {"files": recorded.documents(rules, texts)},
            ours | {"files": recorded.documents(rules, written)},
        )
