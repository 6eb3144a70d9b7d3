from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from agent.core.quantity import (
    QuantityError,
    format_bytes,
    format_milli,
    milli_cpu,
    parse,
    whole_bytes,
)

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        ("+2", Fraction(2)),
        ("-2", Fraction(-2)),
        ("1.5", Fraction(3, 2)),
        ("1.", Fraction(1)),
        (".5", Fraction(1, 2)),
        ("00012", Fraction(12)),
        ("1500m", Fraction(3, 2)),
        ("100u", Fraction(1, 10_000)),
        ("1n", Fraction(1, 10**9)),
        ("3k", Fraction(3000)),
        ("1E", Fraction(10**18)),
        ("9Gi", Fraction(9 * 2**30)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("0.1Ki", Fraction(1024, 10)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("1e+3", Fraction(1000)),
        ("12e-1", Fraction(6, 5)),
        ("1e30", Fraction(10**30)),
    ],
)
def test_every_spelling_of_the_api_is_read_exactly(text: str, value: Fraction) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", " 1", "1 ", "1\n", "NaN", "nan", "inf", "Infinity", "1_000", "1,000", "0x10"),
        *("1K", "1KI", "1ki", "1mi", "1gi", "1g", "1B", "1GiB", "1 Gi", "1Gi ", "1mm", "1MiMi"),
        *(".", "+", "-", "--1", "1-", "1e", "e3", "1e3Gi", "1e1.5", "1.2.3", "m", "Gi"),
        *("\u0661", "1\u0661", "\u00b2", "1\u066b5", "1e\u0661", "one"),  # digits of other scripts
        *("1e31", "1e99", "1e-31", "1e999999999999"),
    ],
)
def test_what_the_api_refuses_is_refused(text: str) -> None:
    for read in (parse, milli_cpu, whole_bytes):
        with pytest.raises(QuantityError):
            read(text)


@pytest.mark.parametrize("text", ["-1", "-1m", "-0.0001"])
def test_a_resource_is_never_negative(text: str) -> None:
    for read in (milli_cpu, whole_bytes):
        with pytest.raises(QuantityError, match="is negative"):
            read(text)


def test_the_error_shows_the_text_and_what_to_write_instead() -> None:
    with pytest.raises(QuantityError, match=r"'4 cores' is not a quantity: write .*1500m.*9Gi"):
        milli_cpu("4 cores")


@pytest.mark.parametrize(
    ("text", "milli"), [("2", 2000), ("0.1", 100), ("1500m", 1500), ("1u", 1), ("0", 0), ("-0", 0)]
)
def test_cpus_are_thousandths_rounded_up(text: str, milli: int) -> None:
    assert milli_cpu(text) == milli


@pytest.mark.parametrize(
    ("text", "amount"), [("1Ki", 1024), ("1k", 1000), ("100m", 1), ("1.5", 2), ("8Ei", None)]
)
def test_memory_is_whole_bytes_rounded_up(text: str, amount: int | None) -> None:
    if amount is None:
        with pytest.raises(QuantityError, match="too large"):
            whole_bytes(text)
    else:
        assert whole_bytes(text) == amount


def test_the_largest_amount_is_that_of_the_api() -> None:
    assert whole_bytes(str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(QuantityError, match="too large"):
        whole_bytes(str(2**63))


numbers = st.decimals(0, 10**6, allow_nan=False, places=3).map(str)


@given(st.one_of(numbers, st.integers(0, 10**6).map(str)), st.sampled_from(SUFFIXES))
def test_the_kubernetes_client_reads_the_same_value(number: str, suffix: str) -> None:
    theirs = parse_quantity(number + suffix)  # type: ignore[no-untyped-call] # the client has no types here
    assert isinstance(theirs, Decimal)
    ours = parse(number + suffix)
    # the client's Decimals keep 28 digits
    assert abs(Fraction(theirs) - ours) <= ours / 10**27


@given(st.integers(0, 2**63 - 1))
def test_bytes_are_read_back_from_what_is_written(amount: int) -> None:
    assert whole_bytes(format_bytes(amount)) == amount
    assert milli_cpu(format_milli(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1024, "1Ki"),
        (1000, "1000"),
        (9 << 30, "9Gi"),
        ((1 << 30) + 1, "1073741825"),
        (3 << 29, "1536Mi"),
        (1 << 60, "1Ei"),
    ],
)
def test_bytes_are_written_with_the_largest_suffix_that_is_exact(amount: int, text: str) -> None:
    assert format_bytes(amount) == text


@pytest.mark.parametrize(("milli", "text"), [(2000, "2"), (1500, "1500m"), (0, "0"), (50, "50m")])
def test_cpus_are_written_whole_where_they_are(milli: int, text: str) -> None:
    assert format_milli(milli) == text


def test_a_quantity_is_bounded_in_length() -> None:
    with pytest.raises(QuantityError, match="5000 characters"):
        parse("9" * 5000)
