"""What a real kube-apiserver v1.36.2 sent, replayed; the days as tests/data/recordings has them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.pods import PodUID
from agent.ports import InputRejected, PodChanged, PodGone, PodsListed
from agent.sources.pod_model import parse_pod
from tests.replay.recording import API, RUNS, day

from .api_server import Answer, killed, page, reply, stalled, stream
from .rig import LAST, WELL, Rig

LIFE = PodUID("b4de2f8d-7021-4648-a8d9-a8d7d3c8618e")
LATE = PodUID("ffa0b06e-3a05-4891-b22c-bf162896bd6d")
LIFE_AGAIN = PodUID("0b5b8962-37ca-4cf2-9071-a97d0214b69b")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def exchange(name: str) -> Answer:
    """Return a recorded answer, with the headers that matter."""
    answer = json.loads((API / f"{name}.json").read_text())["response"]
    headers = {key: value for key, value in answer["headers"] if key == "Retry-After"}
    body = answer["body"]
    return reply(answer["status"], body.encode() if isinstance(body, str) else body, headers)


def lines(name: str) -> list[bytes]:
    """Return the lines of a recorded watch."""
    return (API / f"{name}.watch.jsonl").read_bytes().splitlines(keepends=True)


def test_three_recorded_pages_are_the_list_that_was_recorded_in_one_piece(rig: Rig) -> None:
    rig.parse = parse_pod
    pages = [exchange(f"list.node-a.page{number}") for number in (1, 2, 3)]
    rig.serve(*pages, stalled())
    (in_pages, _well) = rig.take(2)

    rig.serve(exchange("list.node-a"), stalled())
    (in_one_piece, _well) = rig.take(2)

    assert isinstance(in_pages, PodsListed)
    assert len(in_pages.pods) == 6
    assert in_pages == in_one_piece


def test_the_recorded_life_of_a_pod_and_its_namesake_is_told(rig: Rig) -> None:
    rig.parse = parse_pod
    rig.serve(page(), stream(*lines("life.node-a")), stalled(LAST))

    events = rig.until_last()[2:]
    told = [
        (type(event), event.pod.uid if isinstance(event, PodChanged) else event.uid)
        for event in events
        if isinstance(event, PodChanged | PodGone)
    ]
    assert len(told) == len(events)
    assert told == [
        (PodChanged, LIFE),
        (PodChanged, LATE),
        *[(PodChanged, LIFE)] * 6,
        (PodGone, LIFE),
        (PodChanged, LIFE_AGAIN),
        *[(PodChanged, LATE)] * 2,
        (PodGone, LATE),
    ]
    assert rig.server.requests[-1].query["resourceVersion"] == "1260"


@pytest.mark.parametrize("name", ["rv-too-old.cache", "410.watch.compacted", "after-restart"])
def test_a_recorded_version_too_old_lists_again(rig: Rig, name: str) -> None:
    rig.serve(page(), stream(*lines(name)), page(), stalled(LAST))

    assert rig.until_last() == [PodsListed(()), WELL, PodsListed(())]


def test_a_recorded_expired_continue_token_starts_the_list_over(rig: Rig) -> None:
    rig.parse = parse_pod
    rig.serve(
        exchange("list.node-a.page1"), exchange("410.continue"), exchange("list.node-a"), stalled()
    )

    (listed,) = rig.take(1)
    assert isinstance(listed, PodsListed)
    assert len(listed.pods) == 6


@pytest.mark.parametrize(
    ("name", "wait_s"),
    [
        ("401.bad-token", 1),
        ("403.list", 1),
        ("403.anonymous", 1),
        ("404.nrt-no-crd", 1),
        ("429.too-many-requests", 2),
        ("list.future-rv", 2),
        ("watch.bad-rv", 1),
    ],
)
def test_a_recorded_refusal_is_survived(rig: Rig, name: str, wait_s: float) -> None:
    rig.serve(exchange(name), page(), stalled(LAST))

    bad, *rest = rig.until_last()
    assert bad != WELL
    assert rest == [PodsListed(()), WELL]
    assert rig.time.waits == [wait_s]


@pytest.mark.parametrize("run", RUNS)
def test_a_recorded_day_of_a_node_ends_with_the_pods_that_still_live(rig: Rig, run: str) -> None:
    rig.parse = parse_pod
    events = [seen["event"] for seen in day(run) if seen["ev"] == "watch"]
    alive = {
        known_uid(event["object"]["metadata"]): is_alive(event)
        for event in events
        if event["type"] != "BOOKMARK"
    }
    assert alive
    sent = [f"{json.dumps(event)}\n".encode() for event in events]

    rig.serve(page(), killed(*sent), page(), stalled())

    assert rig.take(2) == [PodsListed(()), WELL]
    told: dict[str, bool] = {}
    for event in iter(lambda: rig.take(1)[0], PodsListed(())):
        assert not isinstance(event, InputRejected)
        if isinstance(event, PodChanged):
            told[event.pod.uid] = True
        if isinstance(event, PodGone):
            told[event.uid] = False
    assert told == alive


def known_uid(metadata: dict[str, Any]) -> str:
    """That of a static pod is the hash of its manifest."""
    annotations = metadata.get("annotations", {})
    return str(annotations.get("kubernetes.io/config.hash", metadata["uid"]))


def is_alive(event: dict[str, Any]) -> bool:
    ended = event["object"]["status"].get("phase") in ("Succeeded", "Failed")
    return event["type"] != "DELETED" and not ended
