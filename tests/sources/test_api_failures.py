"""What the watch does while the API server refuses, is away, or is not what it should be."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import InputError
from agent.ports import PodsListed, SourceState
from agent.sources.api_access import load_client
from agent.sources.kubernetes import PodWatch, WatchSettings

from .api_server import (
    Certificate,
    bookmark,
    half_a_list,
    killed,
    late,
    make_certificate,
    page,
    reply,
    stalled,
    status,
    stream,
)
from .rig import LAST, PATIENCE_S, WELL, FakeTime, Rig, parse, pod, raw_pod

EMPTY = PodsListed(())
TOO_MANY = reply(
    429,
    b"Too many requests, please try again later.\n",
    {"Content-Type": "text/plain; charset=utf-8", "Retry-After": "7"},
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("ca"))


# Refusals


@pytest.mark.parametrize(
    ("code", "reason", "cure"),
    [
        (401, "Unauthorized", "the credentials are not accepted"),
        (403, "Forbidden", "allow this agent's service account to list and watch pods"),
    ],
)
def test_a_refusal_says_what_to_do_and_is_over_when_the_server_says_so(
    rig: Rig, code: int, reason: str, cure: str
) -> None:
    rig.serve(status(code, reason, f"{reason}!"), page(), stalled(LAST))

    bad, *rest = rig.until_last()
    assert isinstance(bad, SourceState)
    assert not bad.healthy
    assert bad.detail.startswith(f"the API server refuses with {code}: {reason}!; {cure}")
    assert rest == [EMPTY, WELL]


def test_an_overloaded_server_is_obeyed_for_as_long_as_it_asks_with_jitter_on_top(rig: Rig) -> None:
    rig.serve(TOO_MANY, page(), stalled(LAST))

    detail = "the API server refuses with 429: Too many requests, please try again later."
    assert rig.until_last() == [SourceState(healthy=False, detail=detail), EMPTY, WELL]
    assert rig.time.waits == [7 + 3.5]


def test_a_wait_asked_for_in_the_status_object_counts_like_the_header(rig: Rig) -> None:
    rig.serve(
        status(504, "Timeout", "busy", extra={"details": {"retryAfterSeconds": 2}}),
        page(),
        stalled(LAST),
    )

    rig.until_last()
    assert rig.time.waits == [2 + 1]


def test_a_refusal_is_told_once_however_often_it_is_repeated(rig: Rig) -> None:
    rig.serve(*[status(503, "ServiceUnavailable", "starting")] * 4, page(), stalled(LAST))

    detail = "the API server refuses with 503: starting"
    assert rig.until_last() == [SourceState(healthy=False, detail=detail), EMPTY, WELL]


def test_another_reason_for_being_unwell_is_told(rig: Rig) -> None:
    rig.serve(status(503, "x", "starting"), status(500, "x", "etcd"), page(), stalled(LAST))

    details = [event.detail for event in rig.until_last() if isinstance(event, SourceState)]
    assert details == [
        "the API server refuses with 503: starting",
        "the API server refuses with 500: etcd",
        WELL.detail,
    ]


def test_a_redirect_is_a_refusal_and_the_token_is_not_carried_elsewhere(rig: Rig) -> None:
    rig.serve(reply(302, b"over there", {"Location": "/elsewhere"}), page(), stalled(LAST))

    assert rig.until_last()[-2:] == [EMPTY, WELL]
    assert {request.path for request in rig.server.requests} == {"/api/v1/pods"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>please log in</html>", "the list of pods is no JSON, it begins with b'<html>"),
        (b"[]", "no JSON object"),
        (b'{"kind": "Status", "status": "Success"}', "asked for a PodList, got a Status"),
        (b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": {}}', "PodList"),
        (b'{"kind": "PodList", "items": []}', "without metadata.resourceVersion"),
    ],
)
def test_an_answer_that_is_no_list_never_passes_for_an_empty_one(
    rig: Rig, body: bytes, reason: str
) -> None:
    rig.serve(reply(200, body), page(raw_pod("a")), stalled(LAST))

    bad, *rest = rig.until_last()
    assert isinstance(bad, SourceState)
    assert reason in bad.detail
    assert rest == [PodsListed((pod("a"),)), WELL]


def test_a_list_of_null_items_is_an_empty_one(rig: Rig) -> None:
    body = b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": null}'
    rig.serve(reply(200, body), stalled(LAST))

    assert rig.until_last() == [EMPTY, WELL]


def test_a_token_that_is_rotated_while_we_watch_is_used_without_a_restart(
    rig: Rig, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    rig.user = {"tokenFile": "token"}
    refused = status(401, "Unauthorized")
    rig.time.on_wait = lambda: token.write_text("second")

    rig.serve(page(), stream(), *[refused] * 7, page(), stalled(LAST))

    *_, listed, well = rig.until_last()
    assert (listed, well) == (EMPTY, WELL)
    assert [request.token for request in rig.server.requests[:3]] == ["first"] * 3
    assert rig.server.requests[-1].token == "second"


# Waiting


def test_the_waits_grow_to_thirty_seconds_and_start_again_after_a_good_line(rig: Rig) -> None:
    unwell = status(500, "InternalError")
    rig.serve(*[unwell] * 7, page(), killed(bookmark("5")), unwell, page(), stalled(LAST))

    rig.until_last()
    assert rig.time.waits == [1, 2, 4, 8, 16, 30, 30, 1, 2]


def test_who_may_list_but_not_watch_is_unwell_and_waits_longer_each_time(rig: Rig) -> None:
    forbidden = status(403, "Forbidden", "cannot watch")
    rig.serve(*[page(), forbidden] * 3, page(), stalled(LAST))

    states = [event for event in rig.until_last() if isinstance(event, SourceState)]
    assert [state.healthy for state in states] == [False, True]
    assert rig.time.waits == [1, 2, 4]


def test_a_version_that_is_always_too_old_is_not_asked_for_without_pause(rig: Rig) -> None:
    rig.serve(*[page(), status(410, "Expired")] * 3, page(), stalled(LAST))

    rig.until_last()
    assert rig.time.waits == [1, 2, 4]


def test_a_server_that_calls_every_list_too_old_is_a_failing_server(rig: Rig) -> None:
    rig.serve(*[status(410, "Expired", "too old")] * 2, page(), stalled(LAST))

    detail = "the API server refuses with 410: too old"
    assert rig.until_last() == [SourceState(healthy=False, detail=detail), EMPTY, WELL]


def test_watches_that_end_at_once_are_slowed_down_but_not_listed_again(rig: Rig) -> None:
    rig.serve(page(), stream(), stream(), stream(), stalled(LAST))

    rig.until_last()
    assert rig.server.kinds == ["list", "watch", "watch", "watch", "watch"]
    assert rig.time.waits == [1, 2, 4]


def test_a_watch_that_lasted_its_time_is_continued_at_once_though_nothing_happened(
    rig: Rig,
) -> None:
    rig.time.step_s = 100.0
    rig.serve(page(), stream(), stream(), stream(), stalled(LAST))

    rig.until_last()
    assert rig.time.waits == []


def test_a_watch_that_lasted_its_time_starts_the_waits_again(rig: Rig) -> None:
    rig.time.step_s = 100.0
    unwell = status(500, "InternalError")
    rig.serve(unwell, unwell, page(), stream(), unwell, page(), stalled(LAST))

    rig.until_last()
    assert rig.time.waits == [1, 2, 1]


def test_nothing_is_retried_behind_our_back(rig: Rig) -> None:
    rig.serve(TOO_MANY, killed(), page(), stalled(LAST))

    rig.until_last()
    assert rig.server.kinds == ["list", "list", "list", "watch"]
    assert len(rig.time.waits) == 2


def test_every_request_has_a_connection_of_its_own(rig: Rig) -> None:
    rig.serve(page(), stream(bookmark("5")), stalled(LAST))

    rig.until_last()
    assert len({request.client_port for request in rig.server.requests}) == 3
    assert {request.headers["connection"] for request in rig.server.requests} == {"close"}


def test_a_server_that_is_away_for_an_hour_takes_no_pod_with_it(rig: Rig) -> None:
    a = raw_pod("a")
    rig.serve(page(a), stalled(bookmark("5")))
    assert rig.take(2) == [PodsListed((pod("a"),)), WELL]
    first = rig.server
    left = rig.time.monotonic

    def come_back_after_an_hour() -> None:
        if rig.time.monotonic - left > 3600 and rig.server is first:
            rig.start_server(page(a), stalled(LAST), port=first.port)

    rig.time.on_wait = come_back_after_an_hour
    first.close()

    *states, listed, well = rig.until_last()
    assert (listed, well) == (PodsListed((pod("a"),)), WELL)
    assert {state.healthy for state in states if isinstance(state, SourceState)} == {False}
    assert len(states) <= 3  # how the stream ended, how a connection is refused
    assert len(rig.time.waits) > 3600 / 30


# HTTPS


def test_a_server_is_trusted_by_the_authority_of_the_kubeconfig(
    rig: Rig, certificate: Certificate
) -> None:
    rig.serve(page(raw_pod("a")), stalled(LAST), tls=certificate)

    assert rig.until_last() == [PodsListed((pod("a"),)), WELL]


def test_a_server_with_an_unknown_authority_is_not_talked_to(
    rig: Rig, certificate: Certificate, tmp_path: Path
) -> None:
    rig.start_server(page(), tls=certificate)

    rig.start_watch(ca=make_certificate(tmp_path).certificate)

    (bad,) = rig.take(1)
    assert isinstance(bad, SourceState)
    assert "certificate verify failed" in bad.detail
    assert rig.server.requests == []


# Ending, and what is seen from outside


@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
def test_closing_ends_a_silent_watch_within_a_second(
    rig: Rig, certificate: Certificate, *, encrypted: bool
) -> None:
    rig.serve(page(), stalled(), tls=certificate if encrypted else None)
    assert rig.take(2) == [EMPTY, WELL]

    assert seconds_to_close(rig) < 1
    assert not rig.watch._thread.is_alive()
    assert rig.events.empty()


def test_closing_ends_a_list_that_stopped_in_the_middle_within_a_second(rig: Rig) -> None:
    begun = threading.Event()
    rig.serve(half_a_list(begun))
    begun.wait(PATIENCE_S)

    assert seconds_to_close(rig) < 1
    assert not rig.watch._thread.is_alive()
    assert rig.events.empty()


def test_closing_does_not_wait_for_an_answer_that_begins_too_late_to_be_told(rig: Rig) -> None:
    begun, release = threading.Event(), threading.Event()
    rig.serve(late(page(), begun, release), settings=WatchSettings(close_s=0.1))
    begun.wait(PATIENCE_S)

    assert seconds_to_close(rig) < 1
    release.set()
    rig.server.close()
    rig.watch.close()
    assert not rig.watch._thread.is_alive()
    assert rig.events.empty()


def test_closing_ends_a_wait_within_a_second(rig: Rig) -> None:
    rig.start_server(status(500, "InternalError", headers={"Retry-After": "300"}))
    rig.start_watch(real_waits=True)
    rig.take(1)

    assert seconds_to_close(rig) < 1
    assert not rig.watch._thread.is_alive()


def test_without_a_node_name_nothing_is_watched(tmp_path: Path) -> None:
    api = load_client(Rig(tmp_path).kubeconfig("http://127.0.0.1:1"))

    with pytest.raises(InputError, match="node name"):
        PodWatch(api=api, node_name="", post=print, parse=parse, clock=FakeTime())


def seconds_to_close(rig: Rig) -> float:
    began = time.monotonic()
    rig.watch.close()
    return time.monotonic() - began
