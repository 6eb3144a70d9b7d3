"""The running agent's status over a local socket: one connection, one JSON document, end."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from agent import __version__
from agent.errors import EnvironmentProblem
from agent.measures import ConfinementReport, MemoryReport
from agent.ports import Snapshot
from agent.report.outbound import OutboundNumbers
from agent.report.verdicts import CgroupsOf, Json, pod_documents, sets_document

_SEND_TIMEOUT_S = 1.0
"""For as long as this one client that does not read holds up the others, or the agent's end."""

_PAUSE_S = 0.1
_MODE = 0o600


def status_document(
    snapshot: Snapshot,
    cgroups_of: CgroupsOf | None = None,
    outbound: OutboundNumbers | None = None,
) -> Json:
    """Return everything that ``numalet status -o json`` prints; ``cgroups_of`` as in `plan_document`.

    ``outbound`` are the messages to the API server, where some are sent.
    """
    pods = pod_documents(snapshot.rules, snapshot.state, snapshot.verdicts, cgroups_of)
    return {**_head(snapshot, outbound), "pods": list(pods)}


def _text(
    snapshot: Snapshot, cgroups_of: CgroupsOf | None, outbound: OutboundNumbers | None
) -> bytearray:
    """Return the document as JSON, made pod by pod: the whole would take four times its length."""
    text = bytearray(json.dumps(_head(snapshot, outbound)).removesuffix("}").encode())
    pods = pod_documents(snapshot.rules, snapshot.state, snapshot.verdicts, cgroups_of)
    text += b', "pods": ['
    for i, pod in enumerate(pods):
        text += f"{', ' if i else ''}{json.dumps(pod)}".encode()
    text += b"]}"
    return text


def _head(snapshot: Snapshot, outbound: OutboundNumbers | None) -> Json:
    """Return all of the document but the pods."""
    return {
        "version": __version__,
        "mode": snapshot.mode,
        "observe": snapshot.observe,
        "ready": snapshot.ready,
        "takenAt": snapshot.taken_at_s,
        "cgroupRoot": snapshot.cgroup_root,
        "source": {"healthy": snapshot.source.healthy, "detail": snapshot.source.detail},
        "rejectedInputs": dict(snapshot.rejected_inputs) | _complaints(snapshot),
        "problems": list(snapshot.problems),
        "warnings": list(snapshot.warnings),
        "unenforced": [p.full_name for p in snapshot.pods if p.uid in snapshot.unenforced],
        "otherManagers": list(snapshot.other_managers),
        "drift": dict(snapshot.drift),
        "writes": dict(snapshot.writes),
        "memory": _memory(snapshot.memory),
        "confinement": _confinement(snapshot.confinement),
        **({} if outbound is None else {"outbound": _outbound(outbound)}),
        **sets_document(snapshot.rules, snapshot.state),
    }


def _complaints(snapshot: Snapshot) -> dict[str, str]:
    names = {pod.uid: pod.full_name for pod in snapshot.pods}
    return {
        names.get(uid, uid): f"{why.reason}: {why.message}"
        for uid, why in snapshot.complaints.items()
    }


def _memory(report: MemoryReport) -> Json:
    return {
        "moves": {str(path): since_s for path, since_s in report.moves.items()},
        "movedBytes": report.moved_bytes,
        "leftBehindBytes": report.left_behind_bytes,
        "headroomBytes": dict(report.headroom_bytes),
        "shortages": list(report.shortages.values()),
        "widened": [str(path) for path in report.widened],
    }


def _confinement(report: ConfinementReport) -> Json:
    return {
        kind: {
            "confined": sum(windows.counts),
            "windowSeconds": windows.sum_s,
            "found": {what: n for (of, what), n in report.found.items() if of == kind},
        }
        for kind, windows in report.windows.items()
    }


def _outbound(numbers: OutboundNumbers) -> Json:
    messages: dict[str, dict[str, int]] = {}
    for (kind, outcome), number in numbers.outcomes.items():
        messages.setdefault(kind, {})[outcome] = number
    return {
        "pending": numbers.pending,
        "messages": messages,
        "troubles": dict(numbers.troubles),
    }


class StatusServer:
    """Answers on a unix socket that only its owner may connect to."""

    def __init__(
        self,
        path: Path,
        current: Callable[[], Snapshot],
        cgroups_of: CgroupsOf | None = None,
        outbound: Callable[[], OutboundNumbers | None] = lambda: None,
    ) -> None:
        self._path = path
        self._current = current
        self._cgroups_of = cgroups_of
        self._outbound = outbound
        self._stop = threading.Event()
        self._socket = _listen(path)
        self._thread = threading.Thread(target=self._serve, name="status")

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed; or out of file descriptors, for a while
                self._stop.wait(_PAUSE_S)
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_SEND_TIMEOUT_S)
                connection.sendall(_text(self._current(), self._cgroups_of, self._outbound()))


def _listen(path: Path) -> socket.socket:
    """Bind the socket; what a dead agent left is replaced (the state folder's lock is held)."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            path.unlink()
        mask = os.umask(0o777 & ~_MODE)
        try:
            listening.bind(str(path))
        finally:
            os.umask(mask)
        listening.listen()
    except OSError as error:
        listening.close()
        raise EnvironmentProblem(
            f"cannot listen on {path}: {error.strerror or error}; set statusSocket to another path"
        ) from error
    return listening
