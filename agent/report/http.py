"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP."""

import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from agent.errors import EnvironmentProblem
from agent.ports import Snapshot

log = structlog.get_logger(component="http")

Answer = tuple[HTTPStatus, str, bytes]
_TEXT = "text/plain; charset=utf-8"
_REQUEST_TIMEOUT_S = 10.0


class HttpServer:
    """Serves until `close`; raises `EnvironmentProblem` where the address cannot be had."""

    def __init__(
        self,
        address: str,
        metrics: Callable[[], bytes],
        current: Callable[[], Snapshot | None],
        stalled: Callable[[], str] = lambda: "",
    ) -> None:
        """Listen; ``stalled`` says why the agent should be started again, empty where it need not."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        routes: dict[str, Callable[[], Answer]] = {
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics()),
            "/healthz": lambda: _unless(stalled()),
            "/readyz": lambda: _readiness(current()),
        }
        try:
            server = _ServerV6 if ":" in host else _Server
            self._server = server((host, int(port)), _handler(routes))
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot listen on {address}: {error.strerror or error}; "
                "set metricsAddress to another address"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http"
        )

    @property
    def port(self) -> int:
        """The port listened on, also where the address said 0."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, within a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingTCPServer):
    """As `http.server.HTTPServer`, but without its look-up of the host's name in the DNS."""

    allow_reuse_address = True
    # A client that keeps its connection must not hold up the end of the agent.
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what went wrong, unless the client just went away."""
        del request
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("request_failed", client=str(client_address), exc_info=error)


class _ServerV6(_Server):
    address_family: int = socket.AF_INET6


def _handler(routes: dict[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "numalet"
        sys_version = ""

        def setup(self) -> None:
            self.request.settimeout(_REQUEST_TIMEOUT_S)
            super().setup()

        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            status, kind, body = route() if route else (HTTPStatus.NOT_FOUND, _TEXT, b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Log nothing: a scrape is no event."""

    return Handler


def _readiness(snapshot: Snapshot | None) -> Answer:
    if snapshot is None:
        return _unless("another numalet is still at work here")
    return _unless("" if snapshot.ready else "; ".join(snapshot.problems) or snapshot.source.detail)


def _unless(complaint: str) -> Answer:
    if complaint:
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{complaint}\n".encode()
    return HTTPStatus.OK, _TEXT, b"ok\n"
