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
from agent.ports import Snapshot
from agent.report.verdicts import Json, plan_document

_SEND_TIMEOUT_S = 1.0
"""For as long as this one client that does not read holds up the others, or the agent's end."""

_PAUSE_S = 0.1
_MODE = 0o600


def status_document(snapshot: Snapshot) -> Json:
    """Return everything that ``numalet status -o json`` prints."""
    return {
        "version": __version__,
        "mode": snapshot.mode,
        "observe": snapshot.observe,
        "ready": snapshot.ready,
        "takenAt": snapshot.taken_at_s,
        "cgroupRoot": snapshot.cgroup_root,
        "source": {"healthy": snapshot.source.healthy, "detail": snapshot.source.detail},
        "rejectedInputs": dict(snapshot.rejected_inputs),
        "problems": list(snapshot.problems),
        "drift": dict(snapshot.drift),
        "writes": dict(snapshot.writes),
        **plan_document(snapshot.rules, snapshot.state, snapshot.verdicts),
    }


class StatusServer:
    """Answers on a unix socket that only its owner may connect to."""

    def __init__(self, path: Path, current: Callable[[], Snapshot]) -> None:
        self._path = path
        self._current = current
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
                connection.sendall(json.dumps(status_document(self._current())).encode())


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


def ask(path: Path, *, timeout_s: float = 5.0) -> Json:
    """Return the status document of the agent that listens on ``path``.

    Raises `EnvironmentProblem` where nobody does.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            with connection.makefile("rb") as answer:
                document = json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(
            f"no agent answers on {path}: {error}; is numalet running, with this statusSocket?"
        ) from error
    if not isinstance(document, dict):
        raise EnvironmentProblem(f"{path} answered with something else than a status")
    return document
