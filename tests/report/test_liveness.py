from dataclasses import dataclass, field, replace

import pytest

from agent.report.liveness import Liveness
from agent.simulation.clock import SimulatedClock

from .rig import empty_snapshot


@dataclass
class Loop:
    """A loop that passes when the test says so."""

    drift_interval_s: float = 10.0
    moves: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = SimulatedClock(start_s=1_796_040_000.0)
        self.snapshot = empty_snapshot()
        self.liveness = Liveness(
            lambda: self.snapshot,
            self.clock,
            drift_interval_s=self.drift_interval_s,
            moves=lambda: self.moves,
        )

    def go_on(self) -> None:
        self.snapshot = replace(self.snapshot, passed_s=self.clock.monotonic_s())


@pytest.mark.parametrize(("drift_interval_s", "limit_s"), [(10.0, 180.0), (600.0, 3000.0)])
def test_a_loop_is_stalled_after_three_minutes_and_five_intervals(
    drift_interval_s: float, limit_s: float
) -> None:
    loop = Loop(drift_interval_s)
    loop.clock.advance(limit_s)
    assert (loop.liveness.age_s(), loop.liveness.complaint()) == (limit_s, "")
    loop.clock.advance(1)
    assert (
        loop.liveness.complaint() == f"the last pass over the cgroups ended {limit_s + 1:.0f} s ago"
    )
    loop.go_on()
    assert (loop.liveness.age_s(), loop.liveness.complaint()) == (0, "")


def test_a_long_move_of_memory_is_no_stall_but_hides_none_from_before() -> None:
    loop = Loop()
    loop.clock.advance(100)
    loop.moves = [None, loop.clock.now_s()]
    loop.clock.advance(3600)
    assert loop.liveness.complaint() == ""
    loop.moves = [None]
    assert loop.liveness.complaint() != ""
    loop.go_on()
    loop.clock.advance(181)
    loop.moves = [loop.clock.now_s()]
    loop.clock.advance(3600)
    assert loop.liveness.complaint() != ""
