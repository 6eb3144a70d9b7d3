"""Cases from the field that concern decisions: each is run and checked by what its entry says.

There is one test an id.  What an entry expects of cgroups, files, watches or metrics has its answer
in another room, which is named here; an entry or a property that nobody names is run, and fails where
it is not understood.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent.core.departures import INIT_INSIDE_APP
from agent.core.startup import StartupRefused

from .expectations import check, has_property
from .loader import Case, Json, read_cases
from .story import Node

CASES = {case.id: case for case in read_cases()}

ELSEWHERE = {
    "PC-21": "agent.node.checkpoint",
    "PC-24": "agent.node.checkpoint",
    "PC-30": "agent.core.plan",
    "PC-32": "agent.enforcer",
    "PC-33": "agent.core.plan",
    "PC-34": "agent.node.cgroupfs",
    "PC-35": "agent.node.cgroup_layout",
    "PC-36": "agent.node.cgroup_layout",
    "PC-37": "agent.enforcer",
    "PC-38": "agent.core.desired",
    "PC-39": "agent.app",
    "PC-44": "agent.sources.kubernetes",
    "PC-45": "agent.sources.kubernetes",
    "PC-46": "agent.sources.api_access",
    "PC-47": "agent.sources.pod_model",
    "PC-48": "agent.sources.known_pods",
    "PC-49": "agent.report.metrics",
    "PC-50": "agent.app",
    "PC-51": "agent.sources.backoff",
    "PC-52": "agent.app",
}
"""Entries that no decision answers, and the room that has to."""

PROPERTIES_ELSEWHERE = {
    "bad_file_kept_aside": "agent.node.checkpoint",
    "equals_bruteforce_on_small_cases": "agent.core.hints",
}
"""The same for single properties of entries that are run."""


@dataclass(frozen=True)
class Answer:
    """How an entry is answered to which the kubelet answers otherwise, or is said to.

    What it expects must hold under the opt-in ``departures``; without them only the promises must.
    Where the kubelet's answer stays, ``unmet`` is what cannot hold with it.
    """

    why: str
    departures: frozenset[str] = frozenset()
    unmet: frozenset[str] = frozenset()


PLAIN = Answer("as it stands")
ANSWERS = {
    "PC-01": Answer("ours if switched on", frozenset({INIT_INSIDE_APP})),
    "PC-02": Answer("ours if switched on", frozenset({INIT_INSIDE_APP})),
    "PC-08": Answer("ours at all times: double_allocation spares a core that is reserved in part"),
    "PC-10": Answer(
        "the kubelet's: 12 CPUs // 7 cores is 1, so the two cores with one thread left are whole",
        unmet=frozenset({"p1/a is one whole core"}),
    ),
    "PC-12": Answer("the kubelet's: isolated CPUs count like others, which is the key `include`"),
    "PC-15": Answer("the kubelet's: v1.36.2 does take the seven from one partly used cache"),
}

every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.id,
            marks=pytest.mark.skip(f"answered by {ELSEWHERE[case.id]}")
            if case.id in ELSEWHERE
            else (),
        )
        for case in CASES.values()
    ],
)


@every_case
def test_the_answer_is_the_one_that_the_case_wants(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, ANSWERS.get(case.id, PLAIN))


@pytest.mark.parametrize("case", [CASES[i] for i in ANSWERS], ids=list(ANSWERS))
def test_the_promises_hold_whether_or_not_we_depart(case: Case, tmp_path: Path) -> None:
    for variant in case.variants(tmp_path):
        for departures in (frozenset[str](), ANSWERS[case.id].departures):
            Node(variant, departures).run()


def test_every_case_that_departs_says_how_it_is_answered() -> None:
    departing = {case.id for case in CASES.values() if case.departs}
    assert departing <= ELSEWHERE.keys() | ANSWERS.keys()


def test_every_room_and_every_case_that_is_named_exists() -> None:
    assert ELSEWHERE.keys() <= CASES.keys()
    for room in {*ELSEWHERE.values(), *PROPERTIES_ELSEWHERE.values()}:
        assert find_spec(room) is not None, room


def test_what_is_not_understood_is_not_overlooked(tmp_path: Path) -> None:
    """The reader's strictness is what makes a new entry fail until somebody has looked at it."""
    changes: tuple[dict[str, Json], ...] = (
        {"events": ["add p1", "p1 is evicted"]},
        {"config": {"reserved": "0-3", "surprise": True}},
        {"expect": {"surprise": 1}},
        {"expect": {"properties": ["surprise"]}},
        {"topology": "2 sockets"},
        {"pods": {"p1": {"qos": "G", "surprise": {}, "app": {"a": {"cpu": 1}}}}},
        {"state": {"surprise": {}}},
    )
    for change in changes:
        case = Case({**CASES["PC-05"].raw, **change})
        with pytest.raises((AssertionError, KeyError), match=r"surprise|evicted|2 sockets"):
            run(case, tmp_path / str(change), PLAIN)


def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    for expect in (
        {"assign": {"p1/a": "4,6"}},
        {"held": {"p1": 3}},
        {"verdict": {"p1": "refused"}},
        {"default": "0-7"},
        {"properties": ["disjoint(p1/a,p1)"]},
    ):
        case = Case({**CASES["PC-05"].raw, "expect": expect})
        with pytest.raises(AssertionError):
            run(case, tmp_path / str(expect), PLAIN)


def run(case: Case, workdir: Path, answer: Answer) -> None:
    for variant in case.variants(workdir):
        try:
            node = Node(variant, answer.departures).run()
        except StartupRefused as refusal:
            check_refusal(variant.expect, str(refusal))
        else:
            check_all(node, variant.expect, answer.unmet)


def check_refusal(expect: Mapping[str, Json], text: str) -> None:
    assert expect == {"startup": "refused, names the key", "default": None}, text
    assert "reserved" in text


def check_all(node: Node, expect: Mapping[str, Json], unmet: frozenset[str]) -> None:
    for key, wanted in expect.items():
        if key != "properties":
            check(node, key, wanted)
    for text in expect.get("properties", []):
        if text not in PROPERTIES_ELSEWHERE:
            assert has_property(node, text) is (text not in unmet), text
