"""Which test runs which case from the field, and where our answer is another than the entry's."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from agent.core.departures import INIT_INSIDE_APP

from .loader import Case, read_cases

CASES = {case.id: case for case in read_cases()}


@dataclass(frozen=True)
class Answer:
    """How an entry is answered that the kubelet answers otherwise, or that we do.

    What it expects must hold under the opt-in ``departures``; without them only the promises must.
    ``unmet`` are the keys and properties that do not hold, for the reason given.
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
    "PC-32": Answer(
        "drift is counted by cause, the file is in the log: a quota that a kubelet or a reload writes"
        " again is no intruder, and must not look like one",
        unmet=frozenset({"metrics"}),
    ),
    "PC-33": Answer(
        "a pod that moves is not widened first: its containers fall back to what it had, and it never"
        " reaches onto CPUs that another pod has yet",
        unmet=frozenset({"write_order"}),
    ),
    "PC-36": Answer(
        "no condition after a minute: a pod is listed before its cgroup is made, and images and"
        " volumes may take an hour; nothing runs yet that could be on wrong CPUs",
        unmet=frozenset({"missing id -> retry, then condition after 60 s"}),
    ),
    "PC-51": Answer(
        "the first request is not delayed, since pods may be waiting for it: a server that is not ready"
        " refuses it cheaply, and only lists that it serves are counted"
    ),
}


def answers(case_id: str) -> pytest.MarkDecorator:
    """Mark the test that runs an entry; it gets the entry as ``case``, and has its id."""
    return pytest.mark.parametrize("case", [CASES[case_id]], ids=[case_id])


def compare(case: Case, /, properties: Mapping[str, bool] | None = None, **found: object) -> None:
    """Compare all that an entry expects with what was found, but for what is said to be unmet.

    A number under a key with ``at_most`` in it is a bound.
    """
    unmet = ANSWERS.get(case.id, PLAIN).unmet
    expect = dict(case.raw["expect"])
    assert properties == (
        {text: text not in unmet for text in expect.pop("properties")}
        if "properties" in expect
        else None
    )
    assert found.keys() == expect.keys()
    for key, wanted in expect.items():
        value = found[key]
        met = value <= wanted if "at_most" in key else value == wanted
        assert met is (key not in unmet), f"{key}: {value!r}, expected {wanted!r}"
