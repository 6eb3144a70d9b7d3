"""The daemon as a service of ``Type=notify``: it says when it is ready, lives, and ends."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import Home
from tests.scratch import scratch_folder


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch_folder() as folder:  # a socket's path must be short
        yield Home(Path(folder))


@pytest.fixture
def manager(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    address = str(home.folder / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "500000")
        yield listening


def next_message(manager: socket.socket) -> list[str]:
    return manager.recv(10_000).decode().split("\n")


def test_the_manager_is_told_of_the_start_the_life_and_the_end(
    home: Home, manager: socket.socket
) -> None:
    with home.daemon() as daemon:
        while "READY=1" not in next_message(manager):
            assert daemon.process.poll() is None
        # Nothing happens, but the watchdog must hear of the loop in time.
        manager.settimeout(5)
        assert [next_message(manager)[0] for _ in range(3)] == ["WATCHDOG=1"] * 3
        assert daemon.end() == 0
        while "STOPPING=1" not in next_message(manager):
            pass
