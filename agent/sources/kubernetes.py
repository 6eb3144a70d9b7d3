"""The pods of one node, from the API server: list once, then watch for as long as it lasts.

    run          for ever: wait a little, then start again with a list
    └ follow     one list, then one watch after another, each from where the last one ended
      └ watch    one request: lines become events until the server ends it

A watch that the server ends properly is continued from the last ``resourceVersion``.  After
anything else something may have been missed, so the pods are listed anew: version too old (410, as
a status or inside a stream of status 200), a line that is cut or no JSON, a stream without its last
chunk, silence.  While the server is away nothing is posted but that it is away.

Only `ApiClient` of the client library is used, on raw JSON: importing its models costs another
20 MiB, and its watch and informer have no read deadline and know pods by name.
"""

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Protocol, cast

from agent.errors import InputError, KubernetesError
from agent.ports import Clock, Post, SourceState
from agent.sources.backoff import Backoff, Uniform, retry_after_s
from agent.sources.failures import what_failed
from agent.sources.known_pods import Json, KnownPods, Parse, metadata

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


OK = 200
GONE = 410
CHUNK_BYTES = 65_536
MESSAGE_BYTES = 65_536
CURES = {
    401: "the credentials are not accepted; they are read again from their file every minute",
    403: "allow this agent's service account to list and watch pods",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Every limit of a `PodWatch`; seconds where the name ends in ``_s``."""

    connect_s: float = 5.0
    """Until a connection stands."""
    list_s: float = 30.0
    """A list: asked of the server as ``timeoutSeconds``, and our own deadline for silence."""
    watch_least_s: float = 240.0
    watch_most_s: float = 300.0
    """How long the server shall let one watch last: drawn between the two, so that the watches of a
    cluster do not end together."""
    silence_s: float = 330.0
    """A watch without a byte for so long is dead.  Longer than any watch shall last: a server
    without a watch cache sends no bookmarks, and a quiet node is no fault."""
    short_watch_s: float = 1.0
    """A watch that ends properly but sooner than this is not repeated at once."""
    backoff_first_s: float = 1.0
    backoff_most_s: float = 30.0
    retry_after_most_s: float = 300.0
    close_s: float = 1.0
    """`PodWatch.close` waits no longer for the thread."""
    page_limit: int = 500
    """Pods in one page of a list."""


class _Body(Protocol):
    """What is used of a response of urllib3."""

    def read(self, amt: int | None = None) -> bytes: ...
    def read1(self, amt: int) -> bytes: ...
    def shutdown(self) -> None: ...
    def close(self) -> None: ...


class ApiRefusal(KubernetesError):
    """The API server answered, but not with what was asked for."""

    def __init__(self, code: int, message: str, *, wait_s: float = 0.0) -> None:
        cure = f"; {CURES[code]}" if code in CURES else ""
        super().__init__(f"the API server refuses with {code}: {message.strip()}{cure}")
        self.code = code
        self.wait_s = wait_s


@dataclass(kw_only=True, eq=False)
class PodWatch:
    """Lists and watches the pods of ``node_name`` in a thread of its own, and posts events.

    `PodsListed` after each complete list, `PodChanged` and `PodGone` for single pods,
    `InputRejected` once for a pod that ``parse`` cannot read and, with an empty reason, when that
    is over; `SourceState` whenever the health changes.  A pod whose phase is Succeeded or Failed is
    gone.  ``parse`` gets the raw object and a name for it, and raises `InputError`.

    ``api`` comes from `load_client`, which turns the library's own retries off.  ``wait`` sleeps;
    by default it ends early when `close` is called.
    """

    api: "ApiClient"
    node_name: str
    post: Post
    parse: Parse
    clock: Clock
    settings: WatchSettings = field(default_factory=WatchSettings)
    wait: Callable[[float], object] | None = None
    uniform: Uniform = random.uniform

    def __post_init__(self) -> None:
        if not self.node_name:
            # The selector would then match the pods that no node has yet.
            raise InputError("must not be empty: whose pods?", where="node name")
        self._stop = threading.Event()
        self._wait = self.wait or self._stop.wait
        self._open: _Body | None = None
        self._state: SourceState | None = None
        self._heard_s = self.clock.monotonic_s()
        self._pods = KnownPods(self.post, self.parse)
        self._backoff = Backoff(
            first_s=self.settings.backoff_first_s,
            most_s=self.settings.backoff_most_s,
            uniform=self.uniform,
        )
        self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)

    def start(self) -> None:
        """Begin; may be called once."""
        self._thread.start()

    def close(self) -> None:
        """End within ``settings.close_s``; may be called again.

        A thread that waits for a connection or for an answer to begin has no response to shut down
        yet.  It is left to its own deadlines, posts nothing more and does not keep the process.
        """
        self._stop.set()
        if (body := self._open) is not None:
            # It may be over in this very moment: closed, or back in the pool.
            with suppress(ValueError, RuntimeError, OSError):
                body.shutdown()
        if self._thread.is_alive():
            self._thread.join(self.settings.close_s)

    def silent_s(self) -> float:
        """Return for how many seconds nothing has come from the API server, not even a refusal."""
        return self.clock.monotonic_s() - self._heard_s

    def _run(self) -> None:
        while not self._stop.is_set():
            wait_s = 0.0
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - an agent without this thread is blind
                if self._stop.is_set():
                    return
                self._report(SourceState(healthy=False, detail=what_failed(error)))
                wait_s = error.wait_s if isinstance(error, ApiRefusal) else 0.0
            self._wait(self._backoff.next_s(wait_s))

    def _follow(self) -> None:
        """List and watch until the version is too old, which is no failure: time has passed."""
        version = self._list()
        while not self._stop.is_set():
            started_s = self.clock.monotonic_s()
            try:
                version = self._watch(version)
            except ApiRefusal as refusal:
                if refusal.code != GONE:
                    raise
                return
            if self.clock.monotonic_s() - started_s < self.settings.short_watch_s:
                self._wait(self._backoff.next_s())
            else:
                self._backoff.reset()

    def _list(self) -> str:
        """Tell the complete list, and return its version."""
        try:
            items, version = self._pages(self.settings.page_limit)
        except ApiRefusal as refusal:
            if refusal.code != GONE:
                raise
            # The continue token was outlived by the server's history.  The fresh token that comes
            # with the refusal would make an inconsistent list, where a pod deleted meanwhile stays
            # for ever.  All in one piece instead, as client-go's pager does.
            items, version = self._pages(limit=0)
        self._pods.all(items)
        return version

    def _pages(self, limit: int) -> tuple[list[Json], str]:
        items: list[Json] = []
        page: dict[str, object] = {"limit": limit, "timeoutSeconds": ceil(self.settings.list_s)}
        while True:
            with self._get(page, self.settings.list_s) as body:
                answer = _object(body.read(), "the list of pods")
            items += _items(answer)
            token = metadata(answer).get("continue")
            if not token:
                return items, _version(answer)
            page["continue"] = token

    def _watch(self, version: str) -> str:
        """Tell what changes after ``version`` until the server ends it; return the last version."""
        watch_s = self.uniform(self.settings.watch_least_s, self.settings.watch_most_s)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": ceil(watch_s),
        }
        with self._get(query, self.settings.silence_s) as body:
            # Not after the list already: one who may list but not watch is not well.
            detail = f"watching the pods of node {self.node_name}"
            self._report(SourceState(healthy=True, detail=detail))
            for line in _lines(iter(lambda: self._heard(body.read1(CHUNK_BYTES)), b"")):
                version = self._take(_object(line, "a line of the watch"), version)
        return version

    def _heard(self, chunk: bytes) -> bytes:
        self._heard_s = self.clock.monotonic_s()
        return chunk

    def _take(self, event: Json, version: str) -> str:
        """Tell one event, and return the version that it leads to."""
        item = event.get("object")
        if not isinstance(item, dict):
            raise KubernetesError("an event of the watch has no object")
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                self._pods.changed(item)
            case "DELETED":
                self._pods.gone(item)
            case "BOOKMARK":
                pass  # its object is no pod, it only carries the version
            case "ERROR":
                raise self._refusal(item, headers={})
            case _:
                return version  # of a later API: nothing that we could know
        self._backoff.reset()
        return _version(item)

    @contextmanager
    def _get(self, query: Json, silence_s: float) -> Iterator[_Body]:
        """Ask for this node's pods; the answer, of status 200, is open inside the block."""
        request = self.api.param_serialize(
            "GET",
            "/api/v1/pods",
            query_params=[("fieldSelector", f"spec.nodeName={self.node_name}"), *query.items()],
            # One request a connection, they are minutes apart: no half-dead one is ever taken from
            # the pool, and a rotated client certificate is used.
            header_params={"Accept": "application/json", "Connection": "close"},
            auth_settings=["BearerToken"],
        )
        response = self.api.call_api(
            *request, _request_timeout=(self.settings.connect_s, silence_s)
        )
        body = cast("_Body", response.response)
        self._open = body
        self._heard_s = self.clock.monotonic_s()
        try:
            if self._stop.is_set():  # `close` may have looked just before
                raise KubernetesError("stopped")
            if response.status != OK:
                raise self._refusal(_status(response.status, body), response.headers)
            yield body
        finally:
            self._open = None
            body.close()

    def _refusal(self, status: Json, headers: Mapping[str, str]) -> ApiRefusal:
        """Make an error of a Status object, with the seconds that the server asks to wait."""
        details = status.get("details")
        seconds = details.get("retryAfterSeconds", "") if isinstance(details, dict) else ""
        wait_s = retry_after_s(
            headers.get("Retry-After", str(seconds)),
            now_s=self.clock.now_s(),
            most_s=self.settings.retry_after_most_s,
        )
        code = status.get("code")
        message = str(status.get("message") or status.get("reason") or "no reason given")
        return ApiRefusal(code if isinstance(code, int) else 0, message, wait_s=wait_s)

    def _report(self, state: SourceState) -> None:
        if state != self._state:
            self._state = state
            self.post(state)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a stream into lines, without blank ones; a last line without its end is an error."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(bytes.strip, lines)
    if rest.strip():
        raise KubernetesError("the watch ended in the middle of a line")


def _object(text: bytes, what: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise KubernetesError(
            f"{what} is no JSON, it begins with {text[:40]!r}; is there a proxy in between?"
        ) from error
    if not isinstance(value, dict):
        raise KubernetesError(f"{what} is no JSON object, it begins with {text[:40]!r}")
    return value


def _items(answer: Json) -> list[Json]:
    """Return the pods of a list; what is no list of pods must not pass for an empty one."""
    items = [] if answer.get("items") is None else answer["items"]
    if answer.get("kind") != "PodList" or not isinstance(items, list):
        raise KubernetesError(f"asked for a PodList, got a {answer.get('kind')}")
    return items


def _version(item: Json) -> str:
    """Return the version to go on from; without one the stream cannot be trusted."""
    version = metadata(item).get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise KubernetesError("an answer without metadata.resourceVersion")
    return version


def _status(code: int, body: _Body) -> Json:
    """Return a refusal's Status object; an overloaded server or a proxy sends plain text."""
    text = body.read(MESSAGE_BYTES)
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    message = {"message": text.decode(errors="replace")[:200]}
    return {**(status if isinstance(status, dict) else message), "code": code}
