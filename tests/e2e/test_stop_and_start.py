"""Ends and starts: fast, clean, and as if nothing had been."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.node.checkpoint import COPIES
from agent.node.state_folder import StateFolderLock
from tests.cli.rig import DB, MACHINE, PROJECT
from tests.e2e.daemon import COMMAND, Home
from tests.report.rig import until
from tests.scratch import scratch_folder


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch_folder() as folder:
        home = Home(Path(folder))
        (home.pods / "db.yaml").write_text(DB.read_text())
        yield home


def test_an_agent_ends_at_once_whoever_hangs_on_it_and_the_next_goes_on(home: Home) -> None:
    with ExitStack() as stack, home.daemon() as first:
        before = first.until_ready()
        opened = {path: stack.enter_context(path.open()) for path in first.files()}
        said = {path: file.read() for path, file in opened.items()}
        assert said
        copies = {name: (home.state / name).read_bytes() for name in COPIES}
        hanging = stack.enter_context(socket.socket(socket.AF_UNIX))
        hanging.connect(str(home.socket))
        scraper = stack.enter_context(socket.create_connection(("127.0.0.1", home.port)))
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nConnection: keep-alive\r\n\r\n")
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", home.port)))
        with home.daemon("--wait-for-lock") as second:
            until(lambda: bool(second.log.exists() and second.logged("waiting_for_lock")))

            assert first.end() == 0

            for path, file in opened.items():  # the names are gone, but not what they say
                file.seek(0)
                assert file.read() == said[path], path
            assert first.logged("stopping")[0]["why"] == "SIGTERM"

            after = second.until_ready()
            assert after["pods"] == before["pods"]
            assert {name: (home.state / name).read_bytes() for name in COPIES} == copies
            assert second.end(signal.SIGINT) == 0
        assert silent.recv(1) == b""


def test_an_agent_that_is_killed_goes_on_as_if_it_had_not_been(home: Home) -> None:
    with home.daemon() as first:
        before = first.until_ready()
        first.process.kill()
        first.process.wait()
    assert home.socket.exists()
    with home.daemon() as second:
        assert second.until_ready()["pods"] == before["pods"]
        with home.daemon() as third:
            assert third.process.wait(timeout=20) == 3
            assert "is in use by another numalet" in third.log.read_text()
        assert second.status()["ready"]


def test_an_agent_that_waits_for_another_ends_when_it_is_told_to(home: Home) -> None:
    with StateFolderLock(home.state), home.daemon("--wait-for-lock") as waiting:
        until(lambda: bool(waiting.logged("waiting_for_lock")))
        assert waiting.end() == 0


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    with subprocess.Popen(
        [*COMMAND, "plan", "-f", DB, "--simulate", MACHINE, "-o", "json"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
