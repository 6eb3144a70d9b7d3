"""What is to be said to the API server, and what of it waits."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from agent.ports import ApiAnswer, ApiServer, Snapshot

Key = tuple[str, ...]


class NotNow(Exception):
    """A message is not to be said for ``wait_s``; the text says why."""

    def __init__(self, why: str, *, wait_s: float) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One thing to be said; ``key`` begins with its kind.

    ``say`` asks the server and returns the answer that counts, None where nothing is to be said any
    more, or raises `NotNow`.  It may be called again: twice must be the same as once.  ``fine`` are
    the statuses, besides 2xx, after which nothing is left to do.  It is not said before ``due_s`` of
    the monotonic clock.
    """

    key: Key
    say: Callable[[ApiServer], ApiAnswer | None]
    fine: frozenset[int] = frozenset()
    due_s: float = 0.0


class Teller(Protocol):
    """Who knows what is to be said of a snapshot."""

    def look(self, snapshot: Snapshot, now_s: float) -> Iterable[Message]:
        """Return it; ``now_s`` is of the monotonic clock.  Called in the thread that says it."""
        ...


@dataclass(slots=True)
class Pending:
    """A message that waits."""

    message: Message
    due_s: float
    tries: int = 0

    @property
    def kind(self) -> str:
        """Return what the message is about."""
        return self.message.key[0]


class Outbox:
    """The messages that wait: at most ``most``, and one a key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pending: dict[Key, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, message: Message) -> Pending | None:
        """Add it, or let it take the place of an older one, whose back-off stays.

        Returns the oldest message where that had to go to make room.
        """
        known = self._pending.get(message.key)
        if known is not None:
            known.message, known.due_s = message, max(known.due_s, message.due_s)
            return None
        dropped = None
        if len(self._pending) >= self._most:
            dropped = self._pending.pop(next(iter(self._pending)))
        self._pending[message.key] = Pending(message, message.due_s)
        return dropped

    def put_back(self, pending: Pending, due_s: float) -> None:
        """Let a message that was taken wait again, behind the others."""
        pending.due_s = due_s
        self._pending[pending.message.key] = pending

    def next_due_s(self, paused: Mapping[str, float]) -> float:
        """Return when the next message is due; ``paused`` says until when a kind is not."""
        return min((_due_s(p, paused) for p in self._pending.values()), default=inf)

    def take(self, paused: Mapping[str, float]) -> Pending:
        """Remove and return the message that is due first, of several the one that came first."""
        pending = min(self._pending.values(), key=lambda p: _due_s(p, paused))
        return self._pending.pop(pending.message.key)


def _due_s(pending: Pending, paused: Mapping[str, float]) -> float:
    return max(pending.due_s, paused.get(pending.kind, 0.0))


def causes_of(answer: ApiAnswer) -> list[Mapping[str, object]]:
    """Return ``details.causes`` of a Status object."""
    details = answer.body.get("details") if isinstance(answer.body, Mapping) else None
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [c for c in causes if isinstance(c, Mapping)] if isinstance(causes, list) else []
