"""Until when what is not said: after silence of the server, and while a right is missing.

Both count for one kind of messages alone.  A webhook that hangs on patches of pods looks as if the
server were away, and a right may be missing in one namespace only.  A server that really is away is
asked by each kind for itself, ever more rarely.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.report.outbox import Message

_MOST_DOUBLINGS = 20


@dataclass(slots=True, kw_only=True)
class Patience:
    """Waits; all times are of the monotonic clock, in seconds.

    Without an answer a wait doubles from ``first_s`` to ``most_s``.
    """

    first_s: float
    most_s: float
    uniform: Callable[[float, float], float]
    _failures: Counter[str] = field(default_factory=Counter)
    _until_s: dict[tuple[str, ...], float] = field(default_factory=dict)
    """By kind, and by kind and namespace."""

    def not_before_s(self, message: Message) -> float:
        """Return until when a message must wait."""
        of_kind = self._until_s.get((message.kind,), 0.0)
        return max(of_kind, self._until_s.get((message.kind, message.namespace), 0.0))

    def unanswered(self, kind: str, now_s: float, asked_s: float) -> None:
        """Say nothing of a kind for a while, ``asked_s`` at least: there was no answer to it."""
        self._until_s[kind,] = now_s + asked_s + self.backoff_s(self._failures[kind])
        self._failures[kind] += 1

    def answered(self, kind: str) -> None:
        """Be patient no longer: the server hears what is said of a kind."""
        self._failures.pop(kind, None)

    def forbidden(self, message: Message, now_s: float, wait_s: float) -> None:
        """Say nothing of a message's kind in its namespace for ``wait_s``."""
        self._until_s = {key: s for key, s in self._until_s.items() if s > now_s}
        self._until_s[message.kind, message.namespace] = now_s + wait_s

    def backoff_s(self, failures: int) -> float:
        """Return a wait with jitter: the agents of a whole cluster have lost the same server."""
        ceiling_s = min(self.most_s, self.first_s * 2 ** min(failures, _MOST_DOUBLINGS))
        return self.uniform(ceiling_s / 2, ceiling_s)
