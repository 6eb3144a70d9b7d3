"""Snapshots to tell of, and clients to tell them to."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection

from agent.core.admission import admit, remove
from agent.core.pods import Pod
from agent.ports import Rejection, Snapshot, SourceState
from agent.report.http import HttpServer
from tests.reconciler.rig import two_sockets

PAUSE_S = 0.02


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds; fail where it does not in time."""
    pause = threading.Event()
    for _ in range(int(timeout_s / PAUSE_S)):
        if condition():
            return
        pause.wait(PAUSE_S)
    raise AssertionError("waited in vain")


def empty_snapshot() -> Snapshot:
    rules = two_sockets()
    return Snapshot(
        taken_at_s=1.0,
        mode="test",
        observe=False,
        rules=rules,
        state=rules.initial_state(),
        pods=(),
        rejections={},
        rejected_inputs={},
        source=SourceState(healthy=False, detail="no list of pods yet"),
        ready=False,
        cgroup_root="/cgroup",
    )


def snapshot_of(*pods: Pod) -> Snapshot:
    """Return what a reconciler would publish for these pods, some of them rejected."""
    snapshot = empty_snapshot()
    state, rejections = snapshot.state, {}
    for pod in pods:
        verdict = admit(snapshot.rules, state, pod)
        state = verdict.state
        if pod.uid not in state.pods:
            rejections[pod.uid] = Rejection("TopologyAffinityError", "does not fit")
    return replace(
        snapshot,
        state=state,
        pods=pods,
        rejections=rejections,
        ready=True,
        source=SourceState(healthy=True, detail="the list of pods is complete"),
    )


def without(snapshot: Snapshot, pod: Pod) -> Snapshot:
    return replace(
        snapshot,
        state=remove(snapshot.state, pod.uid),
        pods=tuple(other for other in snapshot.pods if other != pod),
    )


@dataclass
class Told:
    """What the agent says of itself at the moment."""

    snapshot: Snapshot

    def current(self) -> Snapshot:
        return self.snapshot


@contextmanager
def served(told: Told, metrics: Callable[[], bytes] = lambda: b"") -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", metrics, told.current)
    server.start()
    with closing(server):
        yield server


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Return status, content type and body of an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
