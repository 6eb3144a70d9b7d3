"""What the service manager is told, on a real socket."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.ports import Snapshot, SourceState
from agent.report.notify import ServiceManager
from tests.reconciler.rig import exclusive_pod
from tests.report.rig import empty_snapshot, snapshot_of
from tests.scratch import scratch_folder

READY = snapshot_of(exclusive_pod("a", 2), exclusive_pod("b", 99))


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """A manager that listens, and its address as it stands in the environment."""
    with scratch_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        if request.param == "path":
            address = str(Path(folder) / "s")
            listening.bind(address)
        else:
            listening.bind("")  # the kernel chooses an abstract one, unix(7)
            address = "@" + listening.getsockname()[1:].decode()
        listening.settimeout(5)
        yield listening, address


def told(manager: tuple[socket.socket, str], snapshot: Snapshot) -> list[str]:
    listening, address = manager
    ServiceManager({"NOTIFY_SOCKET": address}).tell(snapshot)
    return listening.recv(10_000).decode().split("\n")


def test_a_settled_agent_is_ready_alive_and_says_how_it_is(
    manager: tuple[socket.socket, str],
) -> None:
    assert told(manager, READY) == [
        "WATCHDOG=1",
        "STATUS=pods: 1 admitted, 1 rejected",
        "READY=1",
    ]


def test_an_agent_without_a_list_of_pods_is_alive_but_not_ready(
    manager: tuple[socket.socket, str],
) -> None:
    assert told(manager, empty_snapshot()) == [
        "WATCHDOG=1",
        "STATUS=pods: 0 admitted, 0 rejected; no list of pods yet",
    ]


def test_an_agent_that_could_not_do_all_has_started_and_says_what_is_wrong(
    manager: tuple[socket.socket, str],
) -> None:
    snapshot = replace(READY, ready=False, problems=("the disk\nis full", "and more"))
    assert told(manager, snapshot) == [
        "WATCHDOG=1",
        "STATUS=pods: 1 admitted, 1 rejected; problems: 2, the first: the disk is full",
        "READY=1",
    ]


def test_a_source_that_fails_later_is_told_of(manager: tuple[socket.socket, str]) -> None:
    snapshot = replace(READY, source=SourceState(healthy=False, detail="cannot read pods"))
    assert "STATUS=pods: 1 admitted, 1 rejected; cannot read pods" in told(manager, snapshot)


def test_the_end_is_announced(manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    ServiceManager({"NOTIFY_SOCKET": address}).stopping()
    assert listening.recv(10_000).decode().startswith("STOPPING=1\nSTATUS=stopping")


def test_without_a_manager_nobody_is_told() -> None:
    ServiceManager({}).tell(READY)
    ServiceManager({}).stopping()


def test_a_manager_that_has_gone_disturbs_nobody(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell(READY)


def test_a_manager_that_never_reads_holds_up_nobody(manager: tuple[socket.socket, str]) -> None:
    listening, address = manager
    service_manager = ServiceManager({"NOTIFY_SOCKET": address})
    for _ in range(5000):  # more than its queue takes (net.unix.max_dgram_qlen)
        service_manager.tell(READY)
    assert listening.recv(10_000).startswith(b"WATCHDOG=1")


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, 600.0),
        ({"WATCHDOG_USEC": "180000000"}, 90.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": str(os.getpid())}, 90.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": "1"}, 600.0),  # another process's
        ({"WATCHDOG_USEC": "0"}, 600.0),
        ({"WATCHDOG_USEC": "soon"}, 600.0),
    ],
)
def test_it_is_told_at_least_twice_in_the_watchdogs_time(
    environment: dict[str, str], interval_s: float
) -> None:
    assert ServiceManager(environment).at_most_s(600.0) == interval_s
    assert ServiceManager(environment).at_most_s(1.0) == 1.0
