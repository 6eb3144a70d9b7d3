"""Whether the loop of the reconciler still passes, for who would start the agent again if not."""

from collections.abc import Callable, Iterable

from agent.ports import Clock, Snapshot

PATIENCE_S = 180.0
"""As long as the watchdog of the systemd unit waits; no pass of thousands of cgroups takes that."""
_INTERVALS = 5


class Liveness:
    """Tells when the last pass ended; a healthy loop passes at least every ``drift_interval_s``.

    It is stalled after three minutes without a pass, or five intervals if that is more, and as long
    again as a move of memory has been in flight: beside one each write may take seconds, making a
    cgroup all of its time, and no process ends before its own move does.  ``moves`` returns since
    when (seconds since the epoch), None for those that wait.  May be asked from any thread.
    """

    def __init__(
        self,
        current: Callable[[], Snapshot],
        clock: Clock,
        *,
        drift_interval_s: float,
        moves: Callable[[], Iterable[float | None]] = tuple,
    ) -> None:
        self._current = current
        self._clock = clock
        self._limit_s = max(PATIENCE_S, _INTERVALS * drift_interval_s)
        self._moves = moves

    def age_s(self) -> float:
        """Return how many seconds ago the last pass ended."""
        return self._clock.monotonic_s() - self._current().passed_s

    def complaint(self) -> str:
        """Say that the loop is stalled; empty where it is not."""
        age_s, now_s = self.age_s(), self._clock.now_s()
        longest_s = max((now_s - since_s for since_s in self._moves() if since_s), default=0.0)
        if age_s <= self._limit_s + max(0.0, longest_s):
            return ""
        return f"the last pass over the cgroups ended {age_s:.0f} s ago"
