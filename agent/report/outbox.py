"""What is to be said to the API server, and what of it waits."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from agent.ports import ApiAnswer, ApiServer, Snapshot

Key = tuple[str, ...]
NotBefore = Callable[["Message"], float]
"""Says until when a message must wait because of others; of the monotonic clock."""


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
    the monotonic clock.  ``namespace`` is that of the object, empty where it is in none.
    """

    key: Key
    say: Callable[[ApiServer], ApiAnswer | None]
    fine: frozenset[int] = frozenset()
    due_s: float = 0.0
    namespace: str = ""

    @property
    def kind(self) -> str:
        """Return what it is about."""
        return self.key[0]


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
        return self.message.kind


class Outbox:
    """The messages that wait: at most ``most``, and one a key.

    Kinds take turns, so that one of which much is to be said does not keep the others waiting.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kinds: dict[str, dict[Key, Pending]] = {}
        """By kind, the one that had its turn last at the end."""

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def put(self, message: Message) -> Pending | None:
        """Add it, or let it take the place of an older one, whose back-off stays.

        Returns what had to go to make room: the oldest message of the kind that has most.
        """
        waiting = self._kinds.setdefault(message.kind, {})
        known = waiting.get(message.key)
        if known is not None:
            known.message, known.due_s = message, max(known.due_s, message.due_s)
            return None
        waiting[message.key] = Pending(message, message.due_s)
        return self._drop() if len(self) > self._most else None

    def _drop(self) -> Pending:
        most = max(self._kinds.values(), key=len)
        return most.pop(next(iter(most)))

    def put_back(self, pending: Pending, due_s: float) -> None:
        """Let a message that was taken wait again, behind the others of its kind."""
        pending.due_s = due_s
        self._kinds[pending.kind][pending.message.key] = pending

    def next_due_s(self, not_before: NotBefore) -> float:
        """Return when the next message is due."""
        waiting = (pending for kind in self._kinds.values() for pending in kind.values())
        return min((_due_s(pending, not_before) for pending in waiting), default=inf)

    def take(self, now_s: float, not_before: NotBefore) -> Pending | None:
        """Remove and return a message that is due, None where none is.

        Of the kinds that have one the turn is of that which has waited longest for it; of one kind
        that comes first which is due first, and of several which came first.
        """
        for kind, waiting in self._kinds.items():
            if not waiting:
                continue
            first = min(waiting.values(), key=lambda pending: _due_s(pending, not_before))
            if _due_s(first, not_before) <= now_s:
                self._kinds[kind] = self._kinds.pop(kind)
                return waiting.pop(first.message.key)
        return None


def _due_s(pending: Pending, not_before: NotBefore) -> float:
    return max(pending.due_s, not_before(pending.message))


def causes_of(answer: ApiAnswer) -> list[Mapping[str, object]]:
    """Return ``details.causes`` of a Status object."""
    details = answer.body.get("details") if isinstance(answer.body, Mapping) else None
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [c for c in causes if isinstance(c, Mapping)] if isinstance(causes, list) else []
