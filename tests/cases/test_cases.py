"""Cases from the field: each is run, and checked by what its entry says.

There is one test an id.  Entries about cgroups, files, watches or metrics are run by the modules beside
this one (`answers`); every other is taken for one about decisions, run here, and fails where it is not
understood.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from agent.core.startup import StartupRefused

from .answers import ANSWERS, CASES, PLAIN, Answer
from .expectations import check, has_property
from .loader import Case, Json
from .story import Node


def marks_of(module: ModuleType) -> Iterator[pytest.Mark]:
    """Yield all marks of a module's tests."""
    yield from getattr(module, "pytestmark", ())
    for name, test in vars(module).items():
        if name.startswith("test_") and getattr(test, "__module__", "") == module.__name__:
            yield from getattr(test, "pytestmark", ())


def run_by(marks: Iterator[pytest.Mark]) -> set[str]:
    """Return the ids of the entries that tests with these marks run."""
    return {
        case_id
        for mark in marks
        if mark.name == "parametrize" and mark.args[0] == "case"
        for case_id in mark.kwargs.get("ids", ())
    }


OTHERS = [
    import_module(f"{__package__}.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("test_*_cases.py"))
]
ELSEWHERE = {case_id for module in OTHERS for case_id in run_by(marks_of(module))}
DECISIONS = {case_id: case for case_id, case in CASES.items() if case_id not in ELSEWHERE}

every_decision = pytest.mark.parametrize("case", DECISIONS.values(), ids=list(DECISIONS))


@every_decision
def test_the_answer_is_the_one_that_the_case_wants(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, ANSWERS.get(case.id, PLAIN))


@pytest.mark.parametrize(
    "case",
    [DECISIONS[i] for i in ANSWERS if i in DECISIONS],
    ids=[i for i in ANSWERS if i in DECISIONS],
)
def test_the_promises_hold_whether_or_not_we_depart(case: Case, tmp_path: Path) -> None:
    for variant in case.variants(tmp_path):
        for departures in (frozenset[str](), ANSWERS[case.id].departures):
            Node(variant, departures).run()


def test_every_case_that_departs_says_how_it_is_answered() -> None:
    assert {case.id for case in CASES.values() if case.departs} <= ANSWERS.keys()
    assert CASES.keys() >= ANSWERS.keys()


def test_every_case_is_run_and_none_is_skipped() -> None:
    marks = [mark for module in (*OTHERS, import_module(__name__)) for mark in marks_of(module)]
    assert run_by(iter(marks)) == CASES.keys()
    assert {mark.name for mark in marks}.isdisjoint({"skip", "skipif", "xfail"})


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
        assert has_property(node, text) is (text not in unmet), text
