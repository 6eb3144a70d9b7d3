"""What counts as too much, and as growth."""

from dataclasses import replace

import pytest

from .samples import Sample
from .verdicts import Verdict, on_costs, on_words

CALM = Sample(
    at_s=0.0,
    pods_replaced=0,
    rss_kib=70 * 1024,
    anon_kib=54 * 1024,
    cpu_s=1.0,
    threads=7,
    fds=16,
    series=("numalet_ready", 'numalet_pods{verdict="admitted"}'),
    pending=0,
)
TRAFFIC = {
    "lists": 1,
    "watches": 3,
    "events": 500,
    "repeated_events": 0,
    "most_events_of_a_pod": 2,
    "annotations": 400,
    "most_annotations_of_a_pod": 1,
    "topologies": 100,
}
TOLD = {"traffic": TRAFFIC, "seconds": 600.0, "log_lines": 10_000, "problems": [], "exit": 0}


def ten_minutes(**last_third: object) -> list[Sample]:
    """A sample every ten seconds; in the last third something is different."""
    samples = [replace(CALM, at_s=10.0 * i) for i in range(61)]
    return [
        replace(one, **last_third) if one.at_s >= 400 else one  # type: ignore[arg-type] # by its name
        for one in samples
    ]


def failed(verdicts: list[Verdict]) -> list[str]:
    return [verdict.sentence for verdict in verdicts if not verdict.passed]


def test_who_stays_as_he_is_passes() -> None:
    assert failed(list(on_costs(ten_minutes(), most_mib=80))) == []
    assert failed(list(on_words(TOLD, pods=2000))) == []


@pytest.mark.parametrize(
    ("different", "complaint"),
    [
        ({"rss_kib": 73 * 1024}, "RSS does not grow"),
        ({"series": (*CALM.series, 'numalet_pods{pod="a"}')}, "1 new in the last third"),
        ({"threads": 8}, "threads: 7 in the second third, 8 in the last"),
        ({"fds": 19}, "fds: 16 in the second third, 19 in the last"),
    ],
)
def test_what_grows_late_fails(different: dict[str, object], complaint: str) -> None:
    (sentence,) = failed(list(on_costs(ten_minutes(**different), most_mib=80)))
    assert complaint in sentence


def test_growth_in_the_first_third_is_what_is_made_once() -> None:
    grown = [replace(one, rss_kib=60 * 1024) if one.at_s < 200 else one for one in ten_minutes()]
    assert failed(list(on_costs(grown, most_mib=80))) == []


def test_too_much_at_any_moment_fails() -> None:
    once = [replace(one, rss_kib=81 * 1024) if one.at_s == 60 else one for one in ten_minutes()]
    (sentence,) = failed(list(on_costs(once, most_mib=80)))
    assert sentence == "RSS at most 81.0 MiB, to be under 80"


@pytest.mark.parametrize(
    "wrong",
    [
        {"traffic": TRAFFIC | {"most_events_of_a_pod": 3}},
        {"traffic": TRAFFIC | {"repeated_events": 1}},
        {"traffic": TRAFFIC | {"most_annotations_of_a_pod": 2}},
        {"traffic": TRAFFIC | {"topologies": 200}},
        {"traffic": TRAFFIC | {"topologies": 0}},
        {"log_lines": 100_000},
        {"problems": ["a cgroup says something else"]},
        {"exit": 1},
    ],
)
def test_too_many_words_fail(wrong: dict[str, object]) -> None:
    assert len(failed(list(on_words(TOLD | wrong, pods=2000)))) == 1


def test_a_single_host_has_nobody_to_tell() -> None:
    alone = {key: value for key, value in TOLD.items() if key != "traffic"}
    assert failed(list(on_words(alone, pods=2000))) == []
