"""Single requests to the API server: those of everybody who does not watch."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from agent.errors import KubernetesError
from agent.ports import ApiAnswer, Clock
from agent.sources.backoff import retry_after_s
from agent.sources.failures import what_failed

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONNECT_S = 5.0
SILENCE_S = 10.0
RETRY_AFTER_MOST_S = 300.0
MOST_BYTES = 4 * 1024 * 1024
"""More than etcd's limit for one object (1.5 MiB), written as JSON."""


class _Body(Protocol):
    def read(self, amt: int) -> bytes: ...
    def close(self) -> None: ...


class ApiRequests:
    """An `agent.ports.ApiServer`; ``api`` comes from `agent.sources.api_access.load_client`.

    A server that does not connect within ``connect_s``, or is silent for ``silence_s``, gave no
    answer.  Nothing is tried twice.
    """

    def __init__(
        self,
        api: "ApiClient",
        clock: Clock,
        *,
        connect_s: float = CONNECT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._api = api
        self._clock = clock
        self._timeout_s = (connect_s, silence_s)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> ApiAnswer:
        """Return the answer to one request, whatever it says; ``path`` may end with a query.

        Raises `KubernetesError` where there is none in time.
        """
        try:
            code, text, retry_after = self._exchange(method, path, body, content_type)
        except Exception as error:  # urllib3's, ssl's or the library's own: no answer is no answer
            raise KubernetesError(f"no answer to {method} {path}: {what_failed(error)}") from error
        answer = _object(text)
        wait_s = retry_after_s(
            retry_after or _asked_seconds(answer),
            now_s=self._clock.now_s(),
            most_s=RETRY_AFTER_MOST_S,
        )
        return ApiAnswer(code=code, body=answer, wait_s=wait_s)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, object] | None, content_type: str
    ) -> tuple[int, bytes, str]:
        """Return status, body and Retry-After of the answer."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = self._api.param_serialize(
            method,
            path,
            # As for lists and watches: no half-dead connection is ever taken from the pool.
            header_params=headers | {"Connection": "close"},
            body=None if body is None else dict(body),
            auth_settings=["BearerToken"],
        )
        response = self._api.call_api(*request, _request_timeout=self._timeout_s)
        answer = cast("_Body", response.response)
        try:
            text = answer.read(MOST_BYTES)
        finally:
            answer.close()
        return response.status, text, response.headers.get("Retry-After", "")


def _object(text: bytes) -> dict[str, object] | str:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else text.decode(errors="replace")


def _asked_seconds(answer: dict[str, object] | str) -> str:
    """Return what a Status object says of the wait, where the header was lost on the way."""
    details = answer.get("details") if isinstance(answer, dict) else None
    seconds = details.get("retryAfterSeconds", "") if isinstance(details, dict) else ""
    return str(seconds)
