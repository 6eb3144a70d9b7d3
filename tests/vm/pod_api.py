"""An API server, over real HTTP, that lists and watches the pods that its test puts into it."""

import threading
import time

from tests.sources.api_server import (
    Answer,
    Certificate,
    Handler,
    Json,
    Request,
    ScriptedApiServer,
    line,
    page,
    reply,
)
from tests.sources.write_server import Write, WriteHandler


class PodApi(ScriptedApiServer):
    """Knows pods by UID; the resource version is the number of changes so far.  Takes all events."""

    def __init__(self, *, tls: Certificate | None = None) -> None:
        super().__init__(tls=tls)
        self.RequestHandlerClass = WriteHandler
        self._pods: dict[str, Json] = {}
        self._changes: list[bytes] = []
        self.events: list[Json] = []
        self._news = threading.Condition()

    def put(self, pod: Json) -> None:
        """Add a pod, or say that it changed."""
        with self._news:
            kind = "MODIFIED" if _uid(pod) in self._pods else "ADDED"
            self._pods[_uid(pod)] = self._change(kind, pod)

    def remove(self, pod: Json) -> None:
        with self._news:
            del self._pods[_uid(pod)]
            self._change("DELETED", pod)

    def next_answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if isinstance(request, Write) and request.body is not None:
            self.events.append(request.body)
            return reply(201, request.body)
        if request.is_watch:
            query = request.query
            return self._watch(int(query["resourceVersion"]), float(query["timeoutSeconds"]))
        with self._news:
            return page(*self._pods.values(), version=str(len(self._changes)))

    def close(self) -> None:
        with self._news:
            self.closing.set()
            self._news.notify_all()
        super().close()

    def _change(self, kind: str, pod: Json) -> Json:
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        version = str(len(self._changes) + 1)
        stored = {**pod, "metadata": {**metadata, "resourceVersion": version}}
        self._changes.append(line(kind, stored))
        self._news.notify_all()
        return stored

    def _watch(self, version: int, lasts_s: float) -> Answer:
        def answer(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            told, until_s = version, time.monotonic() + lasts_s
            while not self.closing.is_set() and time.monotonic() < until_s:
                with self._news:
                    self._news.wait_for(
                        lambda: len(self._changes) > told or self.closing.is_set(),  # noqa: B023 - used at once
                        until_s - time.monotonic(),
                    )
                    news = self._changes[told:]
                for change in news:
                    handler.send_chunk(change)
                told += len(news)
            handler.send_chunk(b"")

        return answer


def _uid(pod: Json) -> str:
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["uid"])
