"""How long to wait before a server is asked again."""

import random
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

Uniform = Callable[[float, float], float]


class Backoff:
    """Waits whose ceiling doubles from ``first_s`` to ``most_s``, until `reset`.

    Each wait is drawn from 0 to the ceiling ("full jitter", AWS Architecture Blog, "Exponential
    Backoff And Jitter"): the agents of a whole cluster lose their server in the same instant and
    must not come back in the same instant.
    """

    def __init__(self, *, first_s: float, most_s: float, uniform: Uniform = random.uniform) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._uniform = uniform
        self._ceiling_s = first_s

    def next_s(self, asked_s: float = 0.0) -> float:
        """Return the next wait in seconds, no less than the ``asked_s`` that the server asks for.

        All agents of the cluster may have been told the same number: they come back spread over half
        of it at least.
        """
        span_s = max(self._ceiling_s, asked_s / 2)
        self._ceiling_s = min(self._most_s, self._ceiling_s * 2)
        return asked_s + self._uniform(0, span_s)

    def reset(self) -> None:
        """Start from ``first_s`` again: the server answered well."""
        self._ceiling_s = self._first_s


def retry_after_s(header: str, *, now_s: float, most_s: float) -> float:
    """Return the seconds that a ``Retry-After`` header asks for (RFC 9110, 10.2.3).

    The header is a number of seconds or a date.  Never less than 0 nor more than ``most_s``: a
    mistaken proxy must not send the agent away for days.  0 where it is empty or nonsense.
    """
    wanted_s = _seconds(header, now_s)
    return min(max(wanted_s, 0.0), most_s)


def _seconds(header: str, now_s: float) -> float:
    if header.isdecimal():
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    # "-0000" as the zone makes a naive date that means UTC (RFC 5322, 3.3).
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp() - now_s
