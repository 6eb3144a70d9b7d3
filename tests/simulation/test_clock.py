from typing import TYPE_CHECKING

import pytest

from agent.simulation.clock import SimulatedClock

if TYPE_CHECKING:
    from agent.ports import Clock


def test_time_stands_still_until_it_is_moved() -> None:
    clock = SimulatedClock(start_s=1000.0)
    as_port: Clock = clock

    assert (as_port.now_s(), as_port.monotonic_s()) == (1000.0, 0.0)
    clock.advance(2.5)
    assert (as_port.now_s(), as_port.monotonic_s()) == (1002.5, 2.5)


def test_time_is_never_moved_back() -> None:
    with pytest.raises(ValueError, match="cannot go back by 1"):
        SimulatedClock().advance(-1)
