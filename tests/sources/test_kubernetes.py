from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.pods import PodUID
from agent.ports import InputRejected, PodChanged, PodGone, PodsListed, SourceState
from agent.sources.kubernetes import WatchSettings

from .api_server import (
    Answer,
    bookmark,
    half_a_list,
    killed,
    line,
    page,
    silence,
    stalled,
    status,
    status_object,
    stream,
    unframed,
)
from .rig import LAST, WELL, Rig, pod, raw_pod

EXPIRED = b"""{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},\
"status":"Failure","message":"too old resource version: 1 (976)","reason":"Expired","code":410}}
"""
A, B = raw_pod("a"), raw_pod("b")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


# Listing


def test_a_complete_list_is_one_event_and_then_the_source_is_well(rig: Rig) -> None:
    rig.serve(page(A, B), stalled(LAST))

    assert rig.until_last() == [PodsListed((pod("a"), pod("b"))), WELL]


def test_a_node_without_pods_is_listed_as_empty(rig: Rig) -> None:
    rig.serve(page(), stalled(LAST))

    assert rig.until_last() == [PodsListed(()), WELL]


def test_every_request_asks_for_this_node_only_and_carries_a_time_limit(rig: Rig) -> None:
    rig.serve(page(version="7"), stalled(LAST))

    rig.until_last()
    listing, watching = (request.query for request in rig.server.requests)
    assert {request.path for request in rig.server.requests} == {"/api/v1/pods"}
    assert listing == {"fieldSelector": "spec.nodeName=node-a", "limit": "500"} | {
        "timeoutSeconds": "30"
    }
    assert watching == {
        "fieldSelector": "spec.nodeName=node-a",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "300",
    }


def test_a_list_in_pages_is_told_only_when_it_is_complete(rig: Rig) -> None:
    settings = WatchSettings(page_limit=1)
    rig.serve(page(A, token="more"), page(B, version="8"), stalled(LAST), settings=settings)

    assert rig.until_last() == [PodsListed((pod("a"), pod("b"))), WELL]
    first, second, watching = (request.query for request in rig.server.requests)
    assert (first["limit"], first.get("continue")) == ("1", None)
    assert (second["limit"], second["continue"]) == ("1", "more")
    assert watching["resourceVersion"] == "8"


def test_an_expired_continue_token_starts_the_list_over_in_one_piece(rig: Rig) -> None:
    fresh = {"metadata": {"continue": "inconsistent"}}
    rig.serve(
        page(A, token="old"),
        status(410, "Expired", extra=fresh),
        page(B, version="9"),
        stalled(LAST),
    )

    assert rig.until_last() == [PodsListed((pod("b"),)), WELL]
    again = rig.server.requests[2].query
    assert (again["limit"], again.get("continue")) == ("0", None)


def test_a_pod_that_has_ended_is_left_out_of_the_list(rig: Rig) -> None:
    done, failed = raw_pod("done", phase="Succeeded"), raw_pod("failed", phase="Failed")
    rig.serve(page(A, done, failed), stalled(LAST))

    assert rig.until_last() == [PodsListed((pod("a"),)), WELL]


def test_a_pod_that_cannot_be_read_is_reported_and_the_others_are_listed(rig: Rig) -> None:
    rig.serve(page(A, raw_pod("odd", broken="no quantity"), B), stalled(LAST))

    assert rig.until_last() == [
        InputRejected("pod default/odd", "spec.containers[0]: no quantity"),
        PodsListed((pod("a"), pod("b")), frozenset({PodUID("uid-odd")})),
        WELL,
    ]


# Watching


def test_changes_are_told_as_they_come(rig: Rig) -> None:
    rig.serve(
        page(A),
        stalled(
            line("ADDED", B),
            line("MODIFIED", raw_pod("a", tier="db")),
            line("DELETED", raw_pod("a", tier="db")),
            LAST,
        ),
    )

    assert rig.until_last()[2:] == [
        PodChanged(pod("b")),
        PodChanged(pod("a", tier="db")),
        PodGone(PodUID("uid-a")),
    ]


def test_a_pod_made_again_under_the_same_name_is_another_pod(rig: Rig) -> None:
    rig.serve(
        page(raw_pod("db", "one")),
        stalled(line("DELETED", raw_pod("db", "one")), line("ADDED", raw_pod("db", "two")), LAST),
    )

    assert rig.until_last() == [
        PodsListed((pod("db", "one"),)),
        WELL,
        PodGone(PodUID("one")),
        PodChanged(pod("db", "two")),
    ]


def test_a_pod_that_ends_is_gone_at_once_and_only_once(rig: Rig) -> None:
    ended = raw_pod("a", phase="Succeeded")
    rig.serve(
        page(A),
        stalled(line("MODIFIED", ended), line("MODIFIED", ended), line("DELETED", ended), LAST),
    )

    assert rig.until_last()[2:] == [PodGone(PodUID("uid-a"))]


def test_lines_that_arrive_in_pieces_and_blank_lines_are_no_trouble(rig: Rig) -> None:
    text = line("ADDED", A) + b"\n  \n" + line("ADDED", B) + LAST
    rig.serve(page(), stalled(*(text[at : at + 7] for at in range(0, len(text), 7))))

    assert rig.until_last()[2:] == [PodChanged(pod("a")), PodChanged(pod("b"))]


def test_a_stream_that_a_proxy_has_unframed_is_read_all_the_same(rig: Rig) -> None:
    rig.serve(page(), unframed(line("ADDED", A), bookmark("150")), stalled(LAST))

    assert rig.until_last()[2:] == [PodChanged(pod("a"))]
    assert rig.server.requests[-1].query["resourceVersion"] == "150"


def test_an_event_of_a_type_that_nobody_knows_is_passed_over(rig: Rig) -> None:
    rig.serve(page(), stalled(line("PAUSED", {"kind": "Pod"}), LAST))

    assert rig.until_last()[2:] == []


def test_a_bookmark_only_moves_the_version(rig: Rig) -> None:
    rig.serve(page(version="100"), stream(bookmark("1260")), stalled(LAST))

    assert rig.until_last() == [PodsListed(()), WELL]
    assert rig.server.requests[-1].query["resourceVersion"] == "1260"


def test_a_watch_that_the_server_ends_properly_goes_on_from_the_last_version(rig: Rig) -> None:
    rig.serve(
        page(A, version="100"),
        stream(line("DELETED", raw_pod("a", version="120"))),
        stalled(LAST),
    )

    assert rig.until_last()[2:] == [PodGone(PodUID("uid-a"))]
    assert rig.server.kinds == ["list", "watch", "watch"]
    assert rig.server.requests[-1].query["resourceVersion"] == "120"


# What makes it list again


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(killed(line("ADDED", A)), "IncompleteRead", id="killed"),
        pytest.param(stream(line("ADDED", A), b'{"type":"ADD'), "middle of a line", id="cut"),
        pytest.param(stalled(line("ADDED", A), b"<html>\n"), "is no JSON", id="not-json"),
        pytest.param(stalled(line("ADDED", A), b"\xff\n"), "is no JSON", id="not-text"),
        pytest.param(stalled(line("ADDED", A), b"[1]\n"), "no JSON object", id="not-an-object"),
        pytest.param(stalled(line("ADDED", A), b'{"type":"ADDED"}\n'), "no object", id="empty"),
        pytest.param(
            stalled(line("ADDED", A), line("DELETED", raw_pod("a", version=""))),
            "without metadata.resourceVersion",
            id="no-version",
        ),
    ],
)
def test_a_stream_that_breaks_is_reported_and_the_pods_are_listed_again(
    rig: Rig, answer: Answer, reason: str
) -> None:
    rig.serve(page(), answer, page(B), stalled(LAST))

    empty, well, added, *gone, bad, listed, well_again = rig.until_last()
    assert (empty, well, added) == (PodsListed(()), WELL, PodChanged(pod("a")))
    assert gone in ([], [PodGone(PodUID("uid-a"))])
    assert isinstance(bad, SourceState)
    assert not bad.healthy
    assert reason in bad.detail
    assert (listed, well_again) == (PodsListed((pod("b"),)), WELL)
    assert rig.server.kinds == ["list", "watch", "list", "watch"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(stream(EXPIRED), id="inside-a-200-stream"),
        pytest.param(status(410, "Expired"), id="as-the-status"),
    ],
)
def test_a_version_too_old_lists_again_and_is_no_failure(rig: Rig, answer: Answer) -> None:
    rig.serve(page(A), stream(bookmark("5")), answer, page(B), stalled(LAST))

    assert rig.until_last() == [PodsListed((pod("a"),)), WELL, PodsListed((pod("b"),))]
    assert rig.server.kinds == ["list", "watch", "watch", "list", "watch"]


def test_another_error_inside_a_stream_is_reported_and_its_wait_obeyed(rig: Rig) -> None:
    error = status_object(
        429, "TooManyRequests", "storage starts", details={"retryAfterSeconds": 9}
    )
    rig.serve(page(), stream(line("ERROR", error)), page(), stalled(LAST))

    bad = rig.until_last()[2]
    assert bad == SourceState(
        healthy=False, detail="the API server refuses with 429: storage starts"
    )
    assert rig.time.waits == [9 + 4.5]


def test_a_silent_watch_is_noticed_and_the_pods_are_listed_again(rig: Rig) -> None:
    settings = WatchSettings(silence_s=0.5)
    rig.serve(page(), stalled(line("ADDED", A)), page(B), stream(LAST), settings=settings)

    bad, *rest = rig.until_last()[3:]
    assert isinstance(bad, SourceState)
    assert "timed out" in bad.detail
    assert rest == [PodsListed((pod("b"),)), WELL]


def test_everything_that_comes_from_the_server_ends_its_silence(rig: Rig) -> None:
    rig.serve(status(503, "ServiceUnavailable"), page(), stalled(LAST))

    rig.until_last()
    assert rig.time.waits == [1]
    assert rig.watch.silent_s() == 0
    rig.time.monotonic += 40
    assert rig.watch.silent_s() == 40


@pytest.mark.parametrize("answer", [silence(), half_a_list()])
def test_a_silent_list_is_noticed_and_asked_for_again(rig: Rig, answer: Answer) -> None:
    rig.serve(answer, page(A), stalled(LAST), settings=WatchSettings(list_s=0.5))

    bad, *rest = rig.until_last()
    assert isinstance(bad, SourceState)
    assert "timed out" in bad.detail
    assert rest == [PodsListed((pod("a"),)), WELL]
