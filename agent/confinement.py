"""How soon a new cgroup is confined after it was made, and whether something ran in it by then."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import product

import structlog

from agent.core.cgroups import EVENTS_FILE, CgroupPath, says_populated
from agent.errors import CgroupError
from agent.measures import ConfinementReport, Windows
from agent.ports import Cgroups

log = structlog.get_logger(component="confinement")

POD, CONTAINER = "pod", "container"
WINDOWS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NOTHING, RUNNING, UNSEEN = "nothing", "running", "unseen"
"""What runs in a cgroup when it is found; processes of another PID namespace are not seen."""
_INNER = "container"
"""crun's cgroup below the one of a container."""


class Confinement:
    """Remembers which cgroups are new, from when they are made until they are confined.

    When one was made is known from the watch on the cgroup above; where that was not there yet, the
    earliest moment counts at which it can have been made, so that no window is told too short.
    """

    def __init__(
        self,
        cgroups: Cgroups,
        now_s: Callable[[], float],
        has_program: Callable[[int], bool],
    ) -> None:
        """Begin; ``has_program`` tells of a pid whether a program runs, and not only a runtime.

        ``now_s`` returns seconds of a clock that is never set back.
        """
        self._cgroups = cgroups
        self._now_s = now_s
        self._has_program = has_program
        self._made_s: dict[CgroupPath, float] = {}
        """Also written by the thread that watches."""
        self._looked_s: float | None = None
        self._known: set[CgroupPath] = set()
        self._open: dict[CgroupPath, str] = {}
        """Not confined yet, and what they are."""
        self._found = Counter(
            dict.fromkeys(product((POD, CONTAINER), (NOTHING, RUNNING, UNSEEN)), 0)
        )
        self._windows = {POD: Windows.of(WINDOWS_S), CONTAINER: Windows.of(WINDOWS_S)}
        self._troubles = 0

    def made(self, path: CgroupPath) -> None:
        """Note that a cgroup was made just now."""
        self._made_s[path] = self._now_s()

    def degraded(self) -> None:
        """Note that what is made may not be noticed at once."""
        self._troubles += 1

    def begin(self, kinds: Mapping[CgroupPath, str], *, looked_at_all: bool) -> None:
        """Note what is new among all that are to be confined, before anything is written.

        ``looked_at_all`` says that all of them were searched for.  What is there when the agent
        starts is not new.
        """
        now_s = self._now_s()
        if self._looked_s is not None:
            for path, kind in kinds.items():
                if path not in self._known:
                    self._open[path] = kind
                    found = self._what_runs(path, kind)
                    self._found[kind, found] += 1
                    if found == RUNNING:
                        log.info("ran_before_it_was_confined", cgroup=str(path), kind=kind)
        self._known = set(kinds)
        self._open = {path: kind for path, kind in self._open.items() if path in kinds}
        if looked_at_all or self._looked_s is None:
            self._forget(kinds)
            self._looked_s = now_s

    def end(self, confined: Collection[CgroupPath]) -> None:
        """Note what is confined now."""
        now_s = self._now_s()
        for path in [path for path in self._open if path in confined]:
            kind = self._open.pop(path)
            self._windows[kind] = self._windows[kind].with_one(now_s - self._earliest_s(path))

    def report(self) -> ConfinementReport:
        """Return all that was counted since the start."""
        return ConfinementReport(
            windows=dict(self._windows), found=dict(self._found), watch_troubles=self._troubles
        )

    def _earliest_s(self, path: CgroupPath) -> float:
        made_s = self._made_s.get(path)
        if made_s is not None:
            return made_s
        assert self._looked_s is not None
        return max(self._looked_s, self._made_s.get(path.parent, self._looked_s))

    def _forget(self, kinds: Mapping[CgroupPath, str]) -> None:
        """Drop what has gone; what nobody has asked for yet may be asked for later."""
        for path in list(self._made_s):
            if path not in kinds and self._has_gone(path):
                del self._made_s[path]

    def _has_gone(self, path: CgroupPath) -> bool:
        try:
            return not isinstance(self._cgroups.identity(path), int)
        except CgroupError:
            return False

    def _what_runs(self, path: CgroupPath, kind: str) -> str:
        """Say whether anything runs in a pod, or a program in a container; a measurement fails softly."""
        try:
            if kind == POD:
                runs = says_populated(self._cgroups.read(path, EVENTS_FILE))
                return RUNNING if runs else NOTHING
            texts = [self._cgroups.read(cgroup, "cgroup.procs") for cgroup in (path, path / _INNER)]
        except CgroupError:
            return UNSEEN
        pids = [int(pid) for text in texts if isinstance(text, str) for pid in text.split()]
        if any(self._has_program(pid) for pid in pids if pid):
            return RUNNING
        return NOTHING if all(pids) else UNSEEN
