import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.backoff import Backoff, retry_after_s

NOON_S = 1_796_040_000.0  # Mon, 30 Nov 2026 12:00:00 GMT


def highest(_low: float, high: float) -> float:
    return high


def test_the_ceiling_doubles_from_the_first_to_the_longest_wait() -> None:
    backoff = Backoff(first_s=1, most_s=30, uniform=highest)

    assert [backoff.next_s() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_good_answer_starts_the_waits_from_the_first_again() -> None:
    backoff = Backoff(first_s=1, most_s=30, uniform=highest)
    for _ in range(5):
        backoff.next_s()

    backoff.reset()

    assert backoff.next_s() == 1


def test_a_wait_is_drawn_from_nothing_to_its_ceiling() -> None:
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    backoff = Backoff(first_s=1, most_s=3, uniform=uniform)

    assert [backoff.next_s() for _ in range(3)] == [0, 0, 0]
    assert drawn == [(0, 1), (0, 2), (0, 3)]


def test_a_wait_that_is_asked_for_is_kept_and_spread_by_half_of_it_at_least() -> None:
    backoff = Backoff(first_s=4, most_s=30, uniform=highest)

    assert [backoff.next_s(asked_s) for asked_s in (2, 30, 0)] == [2 + 4, 30 + 15, 16]


@given(attempts=st.integers(1, 2000))
def test_no_wait_is_ever_longer_than_the_longest(attempts: int) -> None:
    backoff = Backoff(first_s=1, most_s=30)

    assert all(0 <= backoff.next_s() <= 30 for _ in range(attempts))


@pytest.mark.parametrize(
    ("header", "wanted_s"),
    [
        ("7", 7),
        ("0", 0),
        ("Mon, 30 Nov 2026 12:00:20 GMT", 20),
        ("Mon, 30 Nov 2026 13:00:20 +0100", 20),
        ("Mon, 30 Nov 2026 12:00:20 -0000", 20),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0),
        ("86400", 300),
        ("-5", 0),
        ("soon", 0),
        ("²", 0),
        ("", 0),
    ],
)
def test_a_retry_after_header_is_read_as_seconds_or_date_and_bounded(
    header: str, wanted_s: float
) -> None:
    assert retry_after_s(header, now_s=NOON_S, most_s=300) == wanted_s


@given(header=st.text())
def test_no_retry_after_header_is_too_strange_to_be_read(header: str) -> None:
    assert 0 <= retry_after_s(header, now_s=NOON_S, most_s=300) <= 300
