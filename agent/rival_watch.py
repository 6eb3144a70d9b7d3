"""Follows who else places containers on this node while the agent runs.

After a reboot all DaemonSets start together, and a kubelet can be given another policy.  So others are
looked for again every so often, in a thread of its own, and what changed is posted:

* who comes is told at once;
* who is not seen any more has gone only after several looks: a program that crashes is started again,
  after five minutes at the latest (``MaxContainerBackOff`` of the kubelet), and an update takes a while;
* who cannot be looked for has not gone.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from agent.core.checkup_rivals import NUMALET, PROCESSES
from agent.core.findings import Finding, Level
from agent.ports import OtherManagersFound, Post

log = structlog.get_logger(component="rival_watch")

Findings = tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalSettings:
    """How often to look, and for how long somebody must be missing; seconds where it ends in ``_s``."""

    interval_s: float = 60.0
    gone_after: int = 6
    """So many looks in a row must not find him."""
    close_s: float = 1.0
    """`RivalWatch.close` waits no longer for the thread."""


class RivalWatch:
    """Says who else places containers here: `look` at once, and after `start` whenever that changes.

    ``find`` returns findings of `agent.node.rivals`; ``why_not`` which of them keep the agent from
    enforcing, as sentences.  ``before_look`` is called in the thread only: it may ask somebody who does
    not answer for a while.
    """

    def __init__(
        self,
        find: Callable[[], Findings],
        why_not: Callable[[Findings], tuple[str, ...]],
        *,
        before_look: Callable[[], object] = lambda: None,
        settings: RivalSettings | None = None,
    ) -> None:
        self._find = find
        self._why_not = why_not
        self._before_look = before_look
        self._settings = settings or RivalSettings()
        self._known: dict[tuple[str, str], Finding] = {}
        self._missed: dict[tuple[str, str], int] = {}
        self._noted: frozenset[str] = frozenset()
        self._posted = OtherManagersFound()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> OtherManagersFound:
        """Look once, and return what is known by now; raises what ``find`` does."""
        found = self._find()
        warnings = [f for f in found if f.level is Level.WARNING]
        self._follow([f for f in found if f.level is Level.PROBLEM], {f.check for f in warnings})
        self._note([*warnings, *(f for f in found if f.check == NUMALET and f.level is Level.OK)])
        known = tuple(self._known.values())
        self._posted = OtherManagersFound(
            names=tuple(dict.fromkeys(finding.subject for finding in known)),
            why_not=self._why_not(known),
            unseen=tuple(f"{finding.sentence}: {finding.cure}" for finding in warnings),
        )
        return self._posted

    def start(self, post: Post, tell: Callable[[Finding], None]) -> None:
        """Begin to look; may be called once.

        ``tell`` is told of each other manager that comes, and of those that are known already.
        """
        self._thread = threading.Thread(
            target=self._run, args=(post, tell), name="rivals", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End within ``settings.close_s``."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._settings.close_s)

    def _run(self, post: Post, tell: Callable[[Finding], None]) -> None:
        told: set[tuple[str, str]] = set()
        while not self._stop.is_set():
            before = self._posted
            try:
                self._before_look()
                after = self.look()
            except Exception:
                # Nobody would be named any more by a thread that has gone.
                log.exception("others_not_looked_for")
                after = before
            if after != before:
                post(after)
            for key in self._known.keys() - told:
                tell(self._known[key])
            told = set(self._known)
            self._stop.wait(self._settings.interval_s)

    def _follow(self, found: Iterable[Finding], unseen: set[str]) -> None:
        here = {(finding.check, finding.subject): finding for finding in found}
        for key, finding in here.items():
            if key not in self._known:
                log.warning("other_cpu_manager", what=finding.sentence)
            self._known[key] = finding
            self._missed.pop(key, None)
        for key in self._known.keys() - here.keys():
            if unseen & {key[0], PROCESSES}:
                continue
            self._missed[key] = self._missed.get(key, 0) + 1
            if self._missed[key] >= self._settings.gone_after:
                log.info("other_cpu_manager_gone", what=self._known[key].subject)
                del self._known[key], self._missed[key]

    def _note(self, findings: Iterable[Finding]) -> None:
        """Log once what is odd, and keeps nobody from working."""
        sentences = {finding.sentence: finding for finding in findings}
        for sentence in sentences.keys() - self._noted:
            is_fine = sentences[sentence].level is Level.OK
            (log.info if is_fine else log.warning)("other_cpu_managers", what=sentence)
        self._noted = frozenset(sentences)
