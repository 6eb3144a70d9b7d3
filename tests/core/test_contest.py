"""A value is given back often, but not for ever."""

from hypothesis import given
from hypothesis import strategies as st

from agent.core.contest import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST_REPAIRS,
    WITHIN_S,
    Contest,
)


def repaired_at(*times_s: float) -> Contest:
    contest = Contest()
    for at_s in times_s:
        contest = contest.repaired(at_s)
    return contest


def test_a_burst_of_daemon_reloads_is_no_contest() -> None:
    burst = repaired_at(*range(MOST_REPAIRS - 1))
    assert (burst.pause_s, burst.is_paused(MOST_REPAIRS)) == (0, False)


def test_one_repair_more_begins_a_pause() -> None:
    last_s = MOST_REPAIRS - 1
    contest = repaired_at(*range(MOST_REPAIRS))
    assert contest.is_paused(last_s)
    assert contest.is_paused(last_s + FIRST_PAUSE_S - 1)
    assert not contest.is_paused(last_s + FIRST_PAUSE_S)


def test_who_writes_every_ten_seconds_is_noticed_too() -> None:
    times_s = [10.0 * n for n in range(MOST_REPAIRS)]
    assert repaired_at(*times_s).is_paused(times_s[-1])


def test_pauses_double_up_to_the_longest_as_long_as_the_other_one_goes_on() -> None:
    contest, now_s, pauses = repaired_at(*[0.0] * MOST_REPAIRS), 0.0, []
    for _ in range(9):
        pauses.append(contest.pause_s)
        now_s += pauses[-1]
        contest = contest.repaired(now_s)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert max(pauses) == LONGEST_PAUSE_S


def test_who_has_left_the_value_alone_for_long_begins_anew() -> None:
    contest = repaired_at(*[0.0] * MOST_REPAIRS)
    later_s = FIRST_PAUSE_S + WITHIN_S + 1
    assert contest.repaired(later_s) == Contest(repaired_s=(later_s,))


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=200))
def test_nobody_makes_us_write_without_end(gaps_s: list[float]) -> None:
    """Who waits out every pause is answered more and more seldom."""
    contest, now_s = Contest(), 0.0
    answered: list[float] = []
    for gap_s in gaps_s:
        now_s += gap_s
        if not contest.is_paused(now_s):
            contest = contest.repaired(now_s)
            answered.append(now_s)
    for at_s in answered:
        assert sum(at_s <= other <= at_s + WITHIN_S for other in answered) <= 2 * MOST_REPAIRS
