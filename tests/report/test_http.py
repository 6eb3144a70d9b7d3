import socket
from contextlib import closing
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from agent.errors import EnvironmentProblem
from agent.ports import SourceState
from agent.report.http import HttpServer
from tests.report.rig import Told, empty_snapshot, get, served, snapshot_of, until


@pytest.fixture
def told() -> Told:
    return Told(empty_snapshot())


def test_ready_only_after_the_first_list(told: Told) -> None:
    with served(told) as server:
        assert get(server.port, "/readyz")[::2] == (503, "no list of pods yet\n")
        told.snapshot = snapshot_of()
        assert get(server.port, "/readyz")[::2] == (200, "ok\n")


def test_not_ready_says_which_problem_there_is(told: Told) -> None:
    source = SourceState(healthy=True, detail="the list of pods is complete")
    told.snapshot = replace(told.snapshot, source=source, problems=("cannot save x",))
    with served(told) as server:
        assert get(server.port, "/readyz")[::2] == (503, "cannot save x\n")


def test_healthy_from_the_first_moment(told: Told) -> None:
    with served(told) as server:
        assert get(server.port, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")


def test_an_agent_that_stalls_is_to_be_started_again(told: Told) -> None:
    server = HttpServer("127.0.0.1:0", lambda: b"", told.current, lambda: "the last pass is old")
    server.start()
    with closing(server):
        assert get(server.port, "/healthz")[::2] == (503, "the last pass is old\n")


def test_metrics_are_what_the_room_renders_with_any_query(told: Told) -> None:
    with served(told, lambda: b"a 1\n") as server:
        status, kind, body = get(server.port, "/metrics?name[]=a")
    assert (status, body) == (200, "a 1\n")
    assert kind.startswith("text/plain; version=")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/debug", "/..%2f..%2fetc/passwd"])
def test_nothing_else_is_there(told: Told, path: str) -> None:
    with served(told) as server:
        assert get(server.port, path)[::2] == (404, "not found\n")


def test_nothing_can_be_posted(told: Told) -> None:
    with served(told) as server:
        assert get(server.port, "/metrics", "POST")[0] == 501


def test_an_address_in_use_is_a_problem_with_a_cure(told: Told) -> None:
    with served(told) as server:
        with pytest.raises(EnvironmentProblem) as refused:
            HttpServer(f"127.0.0.1:{server.port}", lambda: b"", told.current)
        assert str(refused.value) == (
            f"cannot listen on 127.0.0.1:{server.port}: Address already in use; "
            "set metricsAddress to another address"
        )


def test_an_address_of_another_machine_is_a_problem(told: Told) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot listen on 192\.0\.2\.1:9402: .*; set"):
        HttpServer("192.0.2.1:9402", lambda: b"", told.current)


def test_the_address_is_free_again_at_once(told: Told) -> None:
    with served(told) as server:
        port = server.port
        get(port, "/healthz")
    with closing(HttpServer(f"127.0.0.1:{port}", lambda: b"", told.current)) as again:
        again.start()


def test_an_ipv6_address_may_be_given(told: Told) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    server = HttpServer("[::1]:0", lambda: b"", told.current)
    server.start()
    with closing(server), socket.create_connection(("::1", server.port), timeout=5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200 OK\r\n")


def test_a_client_that_only_connects_holds_up_neither_others_nor_the_end(told: Told) -> None:
    server = HttpServer("127.0.0.1:0", lambda: b"", told.current)
    server.start()
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server.port, "/healthz")[0] == 200
        server.close()


def test_a_client_that_goes_away_is_no_error(told: Told) -> None:
    asked: list[int] = []

    def endless() -> bytes:
        asked.append(1)
        return bytes(10_000_000)

    with capture_logs() as logs, served(told, endless) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                connection.recv(1)
        until(lambda: len(asked) == 3)
    assert logs == []


def test_a_bug_in_an_answer_is_logged_with_its_traceback(told: Told) -> None:
    def broken() -> bytes:
        raise ValueError("a bug")

    with capture_logs() as logs, served(told, broken) as server:
        with pytest.raises(ConnectionError):
            get(server.port, "/metrics")
        assert get(server.port, "/healthz")[0] == 200
        until(lambda: bool(logs))
    assert [(line["event"], line["log_level"]) for line in logs] == [("request_failed", "error")]
