from http.client import HTTPConnection

import pytest

from agent.errors import KubernetesError
from agent.sources.failures import what_failed


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KubernetesError("a proxy in between"), "a proxy in between"),
        (ConnectionRefusedError("refused"), "ConnectionRefusedError: refused"),
        (KeyError("SECRET"), "KeyError"),
    ],
)
def test_words_are_told_of_what_cannot_hold_our_headers(error: Exception, text: str) -> None:
    assert what_failed(error) == text


class Unconnected(HTTPConnection):
    def connect(self) -> None:
        """Need nobody to listen."""


@pytest.mark.parametrize("value", ["SECRET\n", "SECRET\u2026"])
def test_a_header_that_a_library_quotes_is_not_passed_on(value: str) -> None:
    connection = Unconnected("127.0.0.1")
    connection.putrequest("GET", "/")
    with pytest.raises(ValueError, match=r"SECRET|codec") as refused:
        connection.putheader("authorization", value)
    assert what_failed(refused.value) == type(refused.value).__name__
