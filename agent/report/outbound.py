"""What goes out to the API server: one thread, so that a server that hangs delays nobody else.

    publish   any thread: there is a newer snapshot; the former need not be looked at any more
    └ look    the tellers say what they want said of it, one message a key, the newer one counts
      └ send  one message: said, refused, or kept for later; kinds take turns

Nothing is told before it is decided and on disk (`Snapshot.tentative`), and nothing by an agent that
only observes.  At the end of the agent nothing waits for a server: the next one finds by itself what
is still to be said, but for events that nobody can know to be missing (`agent.report.events`).
"""

import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf

import structlog

from agent.errors import KubernetesError
from agent.ports import ApiAnswer, ApiServer, Clock, Snapshot
from agent.report.outbox import Message, NotNow, Outbox, Pending, Teller, causes_of
from agent.report.patience import Patience

log = structlog.get_logger(component="outbound")

SAID, REFUSED, POSTPONED, UNANSWERED, DROPPED = (
    "said",
    "refused",
    "postponed",
    "unanswered",
    "dropped",
)
_AWAY = (
    HTTPStatus.UNAUTHORIZED,  # the credentials are read again from their file every minute
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundSettings:
    """Every limit of an `Outbound`; seconds where the name ends in ``_s``."""

    most_pending: int = 2000
    """Beyond that one of the kind with most is dropped: 250 pods have not half as many."""
    look_interval_s: float = 1.0
    """Snapshots come faster than that while pods churn."""
    rate_per_s: float = 5.0
    burst: int = 25
    backoff_first_s: float = 1.0
    backoff_most_s: float = 60.0
    """Between tries of a kind that is not answered, and of a message that cannot be taken yet."""
    forbidden_s: float = 300.0
    """Until a right that is missing is looked for again: one request of that kind and namespace."""
    most_tries: int = 5
    """Of a message that the server takes for its own fault (500) or forbids (403)."""
    close_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundNumbers:
    """What became of messages, by kind and outcome, and what is wrong now, by kind."""

    pending: int = 0
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)


class Outbound:
    """Says what its tellers want said of the published snapshots.

    `publish` and `numbers` may be called from any thread and wait for nothing.
    """

    def __init__(
        self,
        api: ApiServer,
        tellers: Sequence[Teller],
        clock: Clock,
        *,
        settings: OutboundSettings | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._api = api
        self._tellers = tellers
        self._clock = clock
        self._settings = settings or OutboundSettings()
        self._uniform = uniform
        self._patience = Patience(
            first_s=self._settings.backoff_first_s,
            most_s=self._settings.backoff_most_s,
            uniform=uniform,
        )
        self._outbox = Outbox(self._settings.most_pending)
        self._handed_in: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._latest: Snapshot | None = None
        self._seen: Snapshot | None = None
        self._next_look_s = self._free_s = -inf
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._troubles: dict[str, tuple[int | str, str]] = {}
        self._refusals_logged: set[tuple[str, int]] = set()
        self._numbers = OutboundNumbers()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbound", daemon=True)

    def say(self, message: Message) -> None:
        """Let this be said, whatever snapshots come; any thread."""
        self._handed_in.put(message)
        self._wake.set()

    def start(self) -> None:
        """Begin; may be called once."""
        self._thread.start()

    def close(self) -> None:
        """End within ``settings.close_s``; a request under way is left to its own deadline."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._settings.close_s)

    def publish(self, snapshot: Snapshot) -> None:
        """Let this be what is told from now on."""
        self._latest = snapshot
        self._wake.set()

    def numbers(self) -> OutboundNumbers:
        """Return how it goes, as of the last step."""
        return self._numbers

    def step(self) -> float:
        """Look at the latest snapshot, say one message, and return the seconds until more is due."""
        now_s = self._clock.monotonic_s()
        while not self._handed_in.empty():  # this thread alone takes
            self._outbox.put(self._handed_in.get())
        wait_s = min(self._look(now_s), self._send(now_s))
        self._numbers = OutboundNumbers(
            pending=len(self._outbox),
            outcomes=dict(self._outcomes),
            troubles={kind: why for kind, (_, why) in self._troubles.items()},
        )
        return wait_s

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                wait_s = self.step()
            except Exception:
                # A bug in one message must not silence all others; that one is gone.
                log.exception("outbound_failed")
                wait_s = self._settings.backoff_most_s
            if wait_s > 0 and not self._stop.is_set():
                self._wake.wait(None if wait_s == inf else wait_s)

    def _look(self, now_s: float) -> float:
        """Collect what is to be said; return the seconds until that may be done again."""
        snapshot = self._latest
        if snapshot is None or snapshot is self._seen:
            return inf
        if now_s < self._next_look_s:
            return self._next_look_s - now_s
        self._seen, self._next_look_s = snapshot, now_s + self._settings.look_interval_s
        if not snapshot.tentative and not snapshot.observe:
            for teller in self._tellers:
                for message in teller.look(snapshot, now_s):
                    dropped = self._outbox.put(message)
                    if dropped is not None:
                        self._outcomes[dropped.kind, DROPPED] += 1
        return inf

    def _send(self, now_s: float) -> float:
        """Say the message that is due, if any; return the seconds until one may be said again."""
        settings = self._settings
        # A leaky bucket by its virtual scheduling: `_free_s` is when all credit is there again.
        earliest_s = self._free_s - (settings.burst - 1) / settings.rate_per_s
        not_before = self._patience.not_before_s
        pending = None if earliest_s > now_s else self._outbox.take(now_s, not_before)
        if pending is None:
            return max(earliest_s, self._outbox.next_due_s(not_before)) - now_s
        self._free_s = max(self._free_s, now_s) + 1 / settings.rate_per_s
        self._say(pending)
        return 0.0

    def _say(self, pending: Pending) -> None:
        try:
            answer = pending.message.say(self._api)
        except NotNow as reason:
            self._postpone(pending, reason.wait_s + self._uniform(0, reason.wait_s / 10))
            self._note(pending.kind, str(reason), str(reason))
        except KubernetesError as error:
            self._not_answered(pending, "silent", str(error), 0.0)
        else:
            if answer is None:
                self._well(pending.kind)
            else:
                self._judge(pending, answer)

    def _judge(self, pending: Pending, answer: ApiAnswer) -> None:
        code, why = answer.code, _reason(answer)
        overloaded = code == HTTPStatus.TOO_MANY_REQUESTS and isinstance(answer.body, str)
        if code in _AWAY or overloaded:
            self._not_answered(pending, code, why, answer.wait_s)
            return
        self._patience.answered(pending.kind)
        if HTTPStatus.OK <= code < HTTPStatus.MULTIPLE_CHOICES or code in pending.message.fine:
            self._outcomes[pending.kind, SAID] += 1
            self._well(pending.kind)
            return
        if code == HTTPStatus.FORBIDDEN and not _is_of_this_one(answer):
            now_s = self._clock.monotonic_s()
            self._patience.forbidden(pending.message, now_s, self._settings.forbidden_s)
        if self._may_come_yet(pending, answer):
            self._note(pending.kind, code, why)
            self._postpone(pending, answer.wait_s + self._patience.backoff_s(pending.tries))
        else:
            self._refuse(pending, code, why)

    def _may_come_yet(self, pending: Pending, answer: ApiAnswer) -> bool:
        """Tell whether a refusal may turn into something better without a change of the message."""
        if answer.code == HTTPStatus.TOO_MANY_REQUESTS:
            return True  # a disruption budget
        if pending.tries + 1 >= self._settings.most_tries or _is_of_this_one(answer):
            return False
        return answer.code in (HTTPStatus.FORBIDDEN, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _postpone(self, pending: Pending, wait_s: float) -> None:
        pending.tries += 1
        self._outcomes[pending.kind, POSTPONED] += 1
        self._outbox.put_back(pending, self._clock.monotonic_s() + wait_s)

    def _refuse(self, pending: Pending, code: int, why: str) -> None:
        self._outcomes[pending.kind, REFUSED] += 1
        tell = log.debug if (pending.kind, code) in self._refusals_logged else log.warning
        tell("outbound_refused", key="/".join(pending.message.key), code=code, what=why)
        self._refusals_logged.add((pending.kind, code))

    def _not_answered(self, pending: Pending, what: int | str, why: str, wait_s: float) -> None:
        """Say nothing of that kind for a while; the next one to be tried is another message."""
        if self._stop.is_set():
            return
        self._outcomes[pending.kind, UNANSWERED] += 1
        self._note(pending.kind, what, why)
        now_s = self._clock.monotonic_s()
        self._patience.unanswered(pending.kind, now_s, wait_s)
        self._outbox.put_back(pending, max(pending.due_s, now_s))

    def _note(self, kind: str, what: int | str, why: str) -> None:
        """Log what is wrong, once until it is something else or over."""
        former = self._troubles.get(kind)
        self._troubles[kind] = (what, why)
        if former is None or former[0] != what:
            log.warning("outbound_trouble", kind=kind, what=why)

    def _well(self, kind: str) -> None:
        if self._troubles.pop(kind, None):
            log.info("outbound_well", kind=kind)


def _reason(answer: ApiAnswer) -> str:
    """Return the server's own words; a Status of an eviction says the cause in its details."""
    if isinstance(answer.body, str):
        return f"{answer.code}: {answer.body.strip()[:200]}"
    causes = [str(c.get("message", "")) for c in causes_of(answer)]
    words = [str(answer.body.get("message") or answer.body.get("reason") or "no reason given")]
    return f"{answer.code}: {'; '.join([*words, *causes])[:500]}"


def _is_of_this_one(answer: ApiAnswer) -> bool:
    """Tell whether it is this object that is forbidden, for no lack of rights.

    Its namespace is being deleted, or has a quota that is used up (``resourcequota/controller.go``).
    """
    ends = any(cause.get("reason") == "NamespaceTerminating" for cause in causes_of(answer))
    return ends or "exceeded quota" in _reason(answer)
