"""A scripted API server: real HTTP(S) on loopback that answers each request as its test says."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Json = Mapping[str, object]


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    client_port: int

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").partition(" ")[2]


class Handler(BaseHTTPRequestHandler):
    """One connection; the next answer of the script writes to it."""

    protocol_version = "HTTP/1.1"

    @property
    def scripted(self) -> "ScriptedApiServer":
        assert isinstance(self.server, ScriptedApiServer)
        return self.server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(parts.path, dict(parse_qsl(parts.query)), headers, self.client_address[1])
        self.scripted.next_answer(request)(self)

    def end_headers(self) -> None:
        """Say, as Go's server does, that the connection ends because the client wants it so."""
        if self.close_connection:
            self.send_header("Connection", "close")
        super().end_headers()

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def hang(self) -> None:
        """Say no more until the server is closed."""
        self.close_connection = True
        self.scripted.closing.wait()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Be quiet."""


Answer = Callable[[Handler], None]


def silence(begun: threading.Event | None = None) -> Answer:
    """Take the request and never say a word; ``begun`` is set when that begins."""

    def answer(handler: Handler) -> None:
        if begun:
            begun.set()
        handler.hang()

    return answer


def reply(status: int, body: bytes | Json, headers: Mapping[str, str] | None = None) -> Answer:
    """Send one whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def page(*pods: Json, version: str = "100", token: str = "") -> Answer:
    """Send a PodList, or one page of it."""
    metadata = {"resourceVersion": version} | ({"continue": token} if token else {})
    kind = {"kind": "PodList", "apiVersion": "v1"}
    return reply(200, {**kind, "metadata": metadata, "items": pods})


def late(answer: Answer, begun: threading.Event, release: threading.Event) -> Answer:
    """Take the request, and answer when ``release`` is set."""

    def wait_and_answer(handler: Handler) -> None:
        begun.set()
        release.wait(20)
        answer(handler)

    return wait_and_answer


def half_a_list(begun: threading.Event | None = None) -> Answer:
    """Begin a PodList and stop in the middle, without closing."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"kind": "PodList", ')
        silence(begun)(handler)

    return answer


def status(
    code: int,
    reason: str,
    message: str = "",
    *,
    extra: Json | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Refuse with a Status object; ``extra`` are its details or metadata."""
    return reply(code, status_object(code, reason, message, **(extra or {})), headers)


def status_object(code: int, reason: str, message: str = "", **extra: object) -> dict[str, object]:
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**kind, "message": message, "reason": reason, "code": code, **extra}


def line(kind: str, item: Json) -> bytes:
    """Return one event of a watch as the server writes it."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def bookmark(version: str) -> bytes:
    """Return a bookmark exactly as kube-apiserver v1.36.2 writes it: a Pod that is none."""
    return (
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":'
        b'{"resourceVersion":"%s"},"spec":{"containers":null},"status":{}}}\n' % version.encode()
    )


def stream(*parts: bytes) -> Answer:
    """Send each part as a chunk and end the stream properly, as at the server's own timeout."""
    return _stream(parts, lambda handler: handler.send_chunk(b""))


def killed(*parts: bytes) -> Answer:
    """Send the parts; then the connection ends without the last, empty chunk."""

    def cut(handler: Handler) -> None:
        handler.close_connection = True

    return _stream(parts, cut)


def stalled(*parts: bytes) -> Answer:
    """Send the parts, and then nothing, on a connection that stays open."""
    return _stream(parts, Handler.hang)


def _stream(parts: tuple[bytes, ...], end: Answer) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for part in parts:
            handler.send_chunk(part)
        end(handler)

    return answer


def unframed(*parts: bytes) -> Answer:
    """Send the parts as some proxies do: neither chunks nor length, ended by closing."""

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.end_headers()
        for part in parts:
            handler.wfile.write(part)

    return answer


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 that is its own authority."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Make one with the openssl program; skip the test where there is none."""
    if shutil.which("openssl") is None:
        import pytest  # noqa: PLC0415 - guests are served by this module, too: there it takes a second

        pytest.skip("the openssl program is not installed")
    made = Certificate(folder / "ca.crt", folder / "server.key")
    extensions = (
        "subjectAltName=IP:127.0.0.1",
        "basicConstraints=critical,CA:TRUE",
        "keyUsage=critical,digitalSignature,keyCertSign",
    )
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=scripted"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    for extension in extensions:
        command += ["-addext", extension]
    subprocess.run(command, check=True, capture_output=True)
    return made


class ScriptedApiServer(ThreadingHTTPServer):
    """Gives each request the next answer of its script; after the last one it is silent."""

    daemon_threads = False  # server_close() waits for all of them

    def __init__(self, *script: Answer, tls: Certificate | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.closing = threading.Event()
        self.requests: list[Request] = []
        self._script = list(script)
        self._turn = threading.Lock()
        self._scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def kinds(self) -> list[str]:
        """What was asked for, in order."""
        return ["watch" if request.is_watch else "list" for request in self.requests]

    def next_answer(self, request: Request) -> Answer:
        with self._turn:
            self.requests.append(request)
            return self._script.pop(0) if self._script else silence()

    def close(self) -> None:
        """End all connections and the server; may be called again."""
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any
    ) -> None:
        """Forgive clients that went away in the middle of an answer."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
