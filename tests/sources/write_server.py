"""A scripted API server that takes writes too, and shows what was written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .api_server import Answer, Handler, Request, ScriptedApiServer


@dataclass(frozen=True)
class Write(Request):
    """What came in, with its body."""

    method: str
    target: str
    body: Mapping[str, Any] | None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


Reply = Callable[[Write], Answer]


class WriteHandler(Handler):
    """One connection; the server is handed a `Write` for whatever comes on it."""

    def do_GET(self) -> None:  # noqa: N802 - the base's name
        self._take(None)

    def do_POST(self) -> None:  # noqa: N802 - as above
        self._take(self.rfile.read(int(self.headers["Content-Length"])))

    do_PATCH = do_POST  # noqa: N815 - as above

    def _take(self, body: bytes | None) -> None:
        parts = urlsplit(self.path)
        write = Write(
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            client_port=self.client_address[1],
            method=self.command,
            target=self.path,
            body=None if body is None else json.loads(body),
        )
        self.scripted.next_answer(write)(self)


class WriteServer(ScriptedApiServer):
    """Answers each request as ``reply`` says; it is running, until `close`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply
        self.writes: list[Write] = []
        self.RequestHandlerClass = WriteHandler
        self.start()

    def next_answer(self, request: Request) -> Answer:
        assert isinstance(request, Write)
        self.writes.append(request)
        return self.reply(request)
