import json
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent import __version__
from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, PodUID
from agent.errors import EnvironmentProblem
from agent.measures import ConfinementReport, MemoryReport, Windows
from agent.ports import Rejection
from agent.report.outbound import OutboundNumbers
from agent.report.status import StatusServer, status_document
from agent.report.status_client import ask
from tests.reconciler.rig import exclusive_pod
from tests.report.rig import Told, empty_snapshot, snapshot_of
from tests.scratch import scratch_folder

A = exclusive_pod("a", 2)


def pods_of(document: Mapping[str, object]) -> list[dict[str, object]]:
    pods = document["pods"]
    assert isinstance(pods, list)
    return pods


@pytest.fixture
def path() -> Iterator[Path]:
    with scratch_folder() as folder:  # a socket's path must be short
        yield Path(folder) / "status.sock"


@pytest.fixture
def told() -> Told:
    return Told(snapshot_of(A))


@pytest.fixture
def server(path: Path, told: Told) -> Iterator[StatusServer]:
    server = StatusServer(path, told.current)
    server.start()
    with closing(server):
        yield server


def test_the_document_says_everything_that_is_known() -> None:
    snapshot = replace(
        snapshot_of(A),
        rejected_inputs={"x.yaml:1": "is wrong"},
        complaints={A.uid: Rejection("TopologyAffinityError", "no room")},
        problems=("cannot write",),
        unenforced=frozenset({A.uid}),
        warnings=("cannot see",),
        other_managers=("koordlet",),
        drift={"foreign_write": 1},
        writes={"cpu.max": 2},
        memory=MemoryReport(
            moves={CgroupPath("a"): 93.0, CgroupPath("b"): None},
            moved_bytes=5,
            left_behind_bytes=6,
            headroom_bytes={"0-1": -7},
            shortages={"0-1": "NUMA nodes 0-1 have too little"},
            widened=(CgroupPath("c"),),
        ),
        confinement=ConfinementReport(
            windows={"pod": Windows.of((1.0,)).with_one(0.5).with_one(2.0)},
            found={("pod", "nothing"): 2, ("container", "running"): 9},
        ),
    )
    outbound = OutboundNumbers(
        pending=3,
        outcomes={("event", "said"): 4, ("event", "refused"): 1, ("annotation", "said"): 2},
        troubles={"event": "403 Forbidden"},
    )
    document = status_document(snapshot, outbound=outbound)
    pods = pods_of(document)
    del document["pods"]
    assert [pod["name"] for pod in pods] == ["a"]
    assert document == {
        "version": __version__,
        "mode": "test",
        "observe": False,
        "ready": True,
        "takenAt": 1.0,
        "cgroupRoot": "/cgroup",
        "source": {"healthy": True, "detail": "the list of pods is complete"},
        "rejectedInputs": {
            "x.yaml:1": "is wrong",
            "default/a": "TopologyAffinityError: no room",
        },
        "problems": ["cannot write"],
        "unenforced": ["default/a"],
        "warnings": ["cannot see"],
        "otherManagers": ["koordlet"],
        "drift": {"foreign_write": 1},
        "writes": {"cpu.max": 2},
        "memory": {
            "moves": {"/a": 93.0, "/b": None},
            "movedBytes": 5,
            "leftBehindBytes": 6,
            "headroomBytes": {"0-1": -7},
            "shortages": ["NUMA nodes 0-1 have too little"],
            "widened": ["/c"],
        },
        "confinement": {
            "pod": {"confined": 2, "windowSeconds": 2.5, "found": {"nothing": 2}},
        },
        "outbound": {
            "pending": 3,
            "messages": {"event": {"said": 4, "refused": 1}, "annotation": {"said": 2}},
            "troubles": {"event": "403 Forbidden"},
        },
        "defaultCpuSet": "0,3-15",
        "reservedCpuSet": "0",
    }


def test_who_asks_gets_the_latest(path: Path, server: StatusServer, told: Told) -> None:
    assert pods_of(ask(path))[0]["cpuPool"] == "1-2"
    told.snapshot = empty_snapshot()
    assert pods_of(ask(path)) == []


def test_only_its_owner_may_connect(path: Path, server: StatusServer) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_process_keeps_its_own_umask(path: Path, told: Told) -> None:
    before = os.umask(0o027)
    try:
        server = StatusServer(path, told.current)
        server.start()
        server.close()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_socket_that_a_dead_agent_left_is_replaced(path: Path, told: Told) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = StatusServer(path, told.current)
    server.start()
    with closing(server):
        assert ask(path)["ready"]


def test_the_socket_is_gone_when_the_agent_is(path: Path, told: Told) -> None:
    server = StatusServer(path, told.current)
    server.start()
    server.close()
    assert not path.exists()
    with pytest.raises(EnvironmentProblem, match=r"no agent answers on .*; is numalet running"):
        ask(path)


def test_a_file_of_somebody_else_is_not_replaced(path: Path, told: Told) -> None:
    path.write_text("precious")
    with pytest.raises(EnvironmentProblem, match="set statusSocket to another path"):
        StatusServer(path, told.current)
    assert path.read_text() == "precious"


def test_a_place_that_cannot_be_is_a_problem_with_a_cure(path: Path, told: Told) -> None:
    path.write_text("")
    with pytest.raises(EnvironmentProblem) as refused:
        StatusServer(path / "below" / "a" / "file", told.current)
    assert "Not a directory; set statusSocket to another path" in str(refused.value)


def test_who_never_reads_holds_up_neither_others_nor_the_end(path: Path) -> None:
    # More than the buffers of a socket take.
    pods = tuple(Pod(uid=PodUID(str(i)), name="x" * 200) for i in range(5000))
    server = StatusServer(path, Told(replace(empty_snapshot(), pods=pods)).current)
    server.start()
    with socket.socket(socket.AF_UNIX) as silent, closing(server):
        silent.connect(str(path))
        assert len(pods_of(ask(path))) == len(pods)
        with socket.socket(socket.AF_UNIX) as another:
            another.connect(str(path))
            ended = threading.Thread(target=server.close)
            ended.start()
            ended.join(timeout=2)
            assert not ended.is_alive()


def test_who_goes_away_while_it_is_answered_disturbs_nobody(
    path: Path, server: StatusServer
) -> None:
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as hasty:
            hasty.connect(str(path))
    assert ask(path)["ready"]


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"\xff"])
def test_an_answer_of_somebody_else_is_no_status(path: Path, answer: bytes) -> None:
    def answer_one(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=answer_one, args=(listening,))
        thread.start()
        with pytest.raises(EnvironmentProblem):
            ask(path)
        thread.join()


def test_an_agent_that_hangs_is_not_waited_for(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(EnvironmentProblem, match="timed out"):
            ask(path, timeout_s=0.05)


def test_the_document_is_json(told: Told) -> None:
    document = status_document(told.snapshot)
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize("pods", [(), (A,), (A, exclusive_pod("b", 1), exclusive_pod("c", 1))])
def test_what_is_answered_is_the_document(path: Path, pods: tuple[Pod, ...]) -> None:
    told = Told(snapshot_of(*pods))
    server = StatusServer(path, told.current)
    server.start()
    with closing(server):
        assert ask(path) == status_document(told.snapshot)
