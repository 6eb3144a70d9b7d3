"""The kubelet's own word on its policies, through the API server, where that is allowed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.core.node_facts import KubeletFacts
from agent.errors import KubernetesError
from agent.ports import ApiAnswer
from agent.sources.api_access import load_client
from agent.sources.api_requests import ApiRequests
from agent.sources.configz import AGAIN_S, REFUSED_S, Configz
from tests.replay.recording import FOLDER

from .api_server import reply
from .rig import NODE, FakeTime, Rig
from .write_server import WriteServer

STATIC = {"kubeletconfig": {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}}
OFF = {"kubeletconfig": {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}}


def policies(cpu: str, memory: str) -> KubeletFacts:
    return KubeletFacts(folder="", cpu_policy=cpu, memory_policy=memory, said_by="its configz")


@dataclass
class Api:
    """An API server that answers with ``says``."""

    says: ApiAnswer | KubernetesError
    asked: list[tuple[str, str]] = field(default_factory=list)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> ApiAnswer:
        assert (body, content_type) == (None, "application/json")
        self.asked.append((method, path))
        if isinstance(self.says, KubernetesError):
            raise self.says
        return self.says


def answer(code: int, body: Mapping[str, object] | str) -> ApiAnswer:
    return ApiAnswer(code=code, body=body)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


def test_the_kubelet_is_asked_through_the_proxy_of_the_api_server(rig: Rig) -> None:
    with closing(WriteServer(lambda _request: reply(200, STATIC))) as server:
        client = load_client(rig.kubeconfig(server.url))
        configz = Configz(ApiRequests(client, FakeTime()), NODE, FakeTime())
        configz.ask()
        (request,) = server.writes

    assert (request.method, request.path) == ("GET", f"/api/v1/nodes/{NODE}/proxy/configz")
    assert configz.answer == policies("static", "Static")


@pytest.mark.parametrize(
    ("file", "cpu", "memory"),
    [("kubelet-config.none.json", "none", "None"), ("kubelet-config.json", "static", "Static")],
)
def test_a_real_kubelet_s_answer_is_understood(file: str, cpu: str, memory: str) -> None:
    told = {"kubeletconfig": json.loads((FOLDER / file).read_text())}
    configz = Configz(Api(answer(200, told)), NODE, FakeTime())
    configz.ask()

    assert configz.answer == policies(cpu, memory)


@pytest.mark.parametrize("code", [HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND])
def test_who_may_not_ask_does_not_ask_again_for_long_and_says_so_once(code: int) -> None:
    api, time = Api(answer(code, {"message": "nodes is forbidden"})), FakeTime()
    configz = Configz(api, NODE, time)
    with capture_logs() as logs:
        configz.ask()
        time.monotonic += REFUSED_S - 1
        configz.ask()
        assert len(api.asked) == 1
        time.monotonic += 1
        configz.ask()
        assert len(api.asked) == 2

    assert configz.answer is None
    assert [(line["log_level"], line["what"]) for line in logs] == [
        ("info", f"{int(code)}: nodes is forbidden")
    ]


@pytest.mark.parametrize(
    "says",
    [
        KubernetesError("no answer"),
        answer(503, "the kubelet is away"),
        answer(200, {"kubeletconfig": "?"}),
        answer(200, "no object"),
    ],
    ids=str,
)
def test_what_was_said_before_counts_no_longer_where_nothing_is_said(
    says: ApiAnswer | KubernetesError,
) -> None:
    api, time = Api(says), FakeTime()
    configz = Configz(api, NODE, time)
    answers = []
    for said in (answer(200, STATIC), says, answer(200, OFF)):
        api.says = said
        configz.ask()
        answers.append(configz.answer)
        time.monotonic += AGAIN_S

    assert answers == [policies("static", "Static"), None, policies("none", "None")]


def test_the_answer_is_kept_for_a_while() -> None:
    api, time = Api(answer(200, OFF)), FakeTime()
    configz = Configz(api, NODE, time)
    for _ in range(3):
        configz.ask()
        time.monotonic += AGAIN_S / 3

    assert len(api.asked) == 1
