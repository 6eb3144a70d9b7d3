from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent import __version__
from agent.errors import KubernetesError
from agent.ports import ApiAnswer
from agent.sources.api_access import load_client
from agent.sources.api_requests import ApiRequests

from .api_server import Answer, reply, silence, status_object
from .rig import FakeTime, Rig
from .write_server import WriteServer

POD = {"kind": "Pod", "metadata": {"name": "db", "annotations": {"a": "ü"}}}
BUSY = status_object(429, "TooManyRequests", "no", details={"retryAfterSeconds": 10})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


class Served:
    """A server that always answers alike, and a client of it."""

    def __init__(self, rig: Rig, answer: Answer, *, silence_s: float = 10.0) -> None:
        self.server = WriteServer(lambda _write: answer)
        client = load_client(rig.kubeconfig(self.server.url))
        self.api = ApiRequests(client, FakeTime(), silence_s=silence_s)

    def close(self) -> None:
        self.server.close()


@pytest.mark.parametrize(
    ("method", "content_type"),
    [
        ("POST", "application/json"),
        ("PATCH", "application/merge-patch+json"),
        ("PATCH", "application/apply-patch+yaml"),
    ],
)
def test_what_is_written_arrives_as_it_is(rig: Rig, method: str, content_type: str) -> None:
    with closing(Served(rig, reply(201, POD))) as served:
        answer = served.api.ask(method, "/apis/x?fieldManager=y", POD, content_type=content_type)
        (write,) = served.server.writes
    assert answer == ApiAnswer(code=201, body=POD)
    assert (write.method, write.target) == (method, "/apis/x?fieldManager=y")
    assert (write.content_type, write.body) == (content_type, POD)
    assert write.token == "secret"
    assert write.headers["user-agent"] == f"numalet/{__version__}"
    assert write.headers["connection"] == "close"


def test_something_can_be_looked_up(rig: Rig) -> None:
    with closing(Served(rig, reply(200, POD))) as served:
        assert served.api.ask("GET", "/api/v1/nodes/n").body == POD
        (write,) = served.server.writes
    assert (write.method, write.body) == ("GET", None)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (reply(429, b"Too many requests\n", {"Retry-After": "7"}), (429, "Too many requests\n", 7)),
        (reply(429, BUSY), (429, BUSY, 10)),
        (reply(429, BUSY, {"Retry-After": "3"}), (429, BUSY, 3)),
        (reply(503, b"", {"Retry-After": "99999999"}), (503, "", 300)),
        (reply(404, b"404 page not found\n"), (404, "404 page not found\n", 0)),
        (reply(422, {"kind": "Status", "details": None}), None),
        (reply(200, b"[1, 2]"), (200, "[1, 2]", 0)),
        (reply(502, b"\xff\xfe"), (502, "\ufffd\ufffd", 0)),
    ],
)
def test_a_refusal_is_an_answer(
    rig: Rig, answer: Answer, wanted: tuple[int, str | dict[str, object], float] | None
) -> None:
    with closing(Served(rig, answer)) as served:
        got = served.api.ask("POST", "/x", POD)
    if wanted is None:
        assert (got.code, got.wait_s) == (422, 0)
    else:
        assert (got.code, got.body, got.wait_s) == wanted


def test_a_server_that_says_nothing_gave_no_answer(rig: Rig) -> None:
    with (
        closing(Served(rig, silence(), silence_s=0.05)) as served,
        pytest.raises(KubernetesError, match=r"no answer to POST /x: .*[Tt]imed? ?out"),
    ):
        served.api.ask("POST", "/x", POD)


def test_a_server_that_is_not_there_gave_no_answer(rig: Rig) -> None:
    served = Served(rig, silence())
    served.close()
    with pytest.raises(KubernetesError, match="no answer to GET /x"):
        served.api.ask("GET", "/x")
    assert served.server.writes == []
