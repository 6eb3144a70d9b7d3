"""Time that passes only when somebody says so."""

from dataclasses import dataclass


@dataclass(slots=True)
class SimulatedClock:
    """An `agent.ports.Clock` that is moved by hand; it starts at ``start_s`` since the epoch."""

    start_s: float = 0.0
    _passed_s: float = 0.0

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        return self.start_s + self._passed_s

    def monotonic_s(self) -> float:
        """Return the seconds that have passed since the clock was made."""
        return self._passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass; raises `ValueError` for a negative amount, since clocks run forward."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._passed_s += seconds
