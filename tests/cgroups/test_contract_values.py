"""What every hierarchy makes of a written value; the contract of forms, as test_contract.py.

The rules and their sections are those of cgroup2-facts, each also tried on Linux 6.1.
"""

import errno

import pytest

from .rig import Rig

# Section 1: lists


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0,1,2", "0-2"),
        ("0-2,1-3", "0-3"),
        (" 1-2 ", "1-2"),
        ("1-2\n", "1-2"),
        ("1,,2", "1-2"),
        (",1", "1"),
        ("1,", "1"),
        ("1 2", "1-2"),
        ("1\t2", "1-2"),
        ("00-03", "0-3"),
        ("0-3:1/2", "0,2"),
        ("0-3:1/3 2", "0,2-3"),
        ("1-2\0", "1-2"),
        ("1\n2", "1"),
        ("1,\n2", "1-2"),
        ("0-3:0/2", ""),
    ],
)
def test_a_list_of_cpus_is_accepted_and_read_back_canonical(
    rig: Rig, text: str, canonical: str
) -> None:
    group = rig.group("a")
    rig.write(group, "cpuset.cpus", text)
    assert rig.text(group, "cpuset.cpus") == canonical


@pytest.mark.parametrize(
    "text",
    ["a", "3-1", "-1", "0x3", "+1", "1-2-3", "0-", "n", "0-3;1", "3:1/2", "0-3:3/2", "0-3:0/0"],
)
def test_a_malformed_list_is_invalid_and_changes_nothing(rig: Rig, text: str) -> None:
    group = rig.group("a")
    rig.write(group, "cpuset.cpus", "1-2")
    assert rig.errno(group, "cpuset.cpus", text) == errno.EINVAL
    assert rig.text(group, "cpuset.cpus") == "1-2"


def test_the_last_possible_cpu_has_a_name_and_the_one_after_it_is_out_of_range(rig: Rig) -> None:
    group = rig.group("a")
    rig.write(group, "cpuset.cpus", "N")
    last = int(rig.text(group, "cpuset.cpus"))
    for everything in ("all", "ALL", "0-N"):
        rig.write(group, "cpuset.cpus", everything)
        assert rig.text(group, "cpuset.cpus") == f"0-{last}"
    assert rig.errno(group, "cpuset.cpus", f"{last + 1}") == errno.ERANGE
    assert rig.errno(group, "cpuset.cpus", f"0-{last + 1}") == errno.ERANGE
    assert rig.errno(group, "cpuset.cpus", f"{last + 1},a") == errno.ERANGE
    assert rig.errno(group, "cpuset.cpus", f"{last + 2}-{last + 1}") == errno.EINVAL
    assert rig.errno(group, "cpuset.cpus", "4294967296") == errno.EOVERFLOW
    assert rig.text(group, "cpuset.cpus") == f"0-{last}"


def test_a_number_of_thousands_of_digits_is_too_large_unless_they_are_zeros(rig: Rig) -> None:
    group = rig.group("a")
    assert rig.errno(group, "cpuset.cpus", "9" * 5000) == errno.EOVERFLOW
    rig.write(group, "cpuset.cpus", "0" * 5000 + "1")
    assert rig.text(group, "cpuset.cpus") == "1"


@pytest.mark.parametrize(
    ("file", "text", "longest"),
    [("memory.max", "max", 4096), ("cpuset.mems", "0", 6244)],
)
def test_a_write_that_is_longer_than_a_page_or_all_names_is_refused(
    rig: Rig, file: str, text: str, longest: int
) -> None:
    group = rig.group("a")
    rig.write(group, file, text.rjust(longest))
    assert rig.text(group, file) == text
    assert rig.errno(group, file, text.rjust(longest + 1)) == errno.E2BIG


def test_absent_nodes_are_invalid_and_impossible_ones_out_of_range(rig: Rig) -> None:
    group = rig.group("a")
    rig.write(group, "cpuset.mems", "0")
    for text in ("1023", "0-1023", "N", "all", "x"):
        assert rig.errno(group, "cpuset.mems", text) == errno.EINVAL
    assert rig.errno(group, "cpuset.mems", "1024") == errno.ERANGE
    assert rig.text(group, "cpuset.mems") == "0"


# Section 4: cpu.max, cpu.weight; memory.max


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max", "max 70000"),
        ("max 50000", "max 50000"),
        ("50000", "50000 70000"),
        (" 50000", "50000 70000"),
        ("50000 50000\n", "50000 50000"),
        ("50000  60000", "50000 60000"),
        ("1000 1000", "1000 1000"),
        ("100000 1000000", "100000 1000000"),
        ("17592186044415", "17592186044415 70000"),
        ("50000 abc", "50000 70000"),
        ("max max", "max 70000"),
        ("50000 100000 1", "50000 100000"),
        ("50000.5 100000", "50000 100000"),
        ("50000,60000", "50000 70000"),
    ],
)
def test_a_quota_is_accepted(rig: Rig, text: str, value: str) -> None:
    group = rig.group("a")
    rig.write(group, "cpu.max", "20000 70000")
    rig.write(group, "cpu.max", text)
    assert rig.text(group, "cpu.max") == value


@pytest.mark.parametrize(
    "text",
    [
        *("999 100000", "1000 999", "100000 1000001", "50000 0", "50000 5x", "0", "0 100000"),
        *("-1", "-1 100000", "abc", "maxx", "max50000", "5e4", "0x5000", "+50000", "\n"),
        *("17592186044416", "1844674407370955 100000", "18446744073709551615 100000"),
    ],
)
def test_a_quota_out_of_bounds_is_invalid(rig: Rig, text: str) -> None:
    group = rig.group("a")
    rig.write(group, "cpu.max", "20000 70000")
    assert rig.errno(group, "cpu.max", text) == errno.EINVAL
    assert rig.text(group, "cpu.max") == "20000 70000"


def test_quotas_of_parent_and_child_do_not_bind_each_other(rig: Rig) -> None:
    parent, child = rig.group("a"), rig.group("a", "c1")
    assert rig.text(child, "cpu.max") == "max 100000"
    rig.write(parent, "cpu.max", "50000")
    rig.write(child, "cpu.max", "200000")
    rig.write(parent, "cpu.max", "10000")
    assert rig.text(child, "cpu.max") == "200000 100000"


@pytest.mark.parametrize(
    ("text", "weight"),
    [("1", "1"), ("10000\n", "10000"), ("0x10", "16"), ("010", "8"), ("+7", "7")],
)
def test_a_weight_is_accepted(rig: Rig, text: str, weight: str) -> None:
    group = rig.group("a")
    assert rig.text(group, "cpu.weight") == "100"
    rig.write(group, "cpu.weight", text)
    assert rig.text(group, "cpu.weight") == weight


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", errno.ERANGE),
        ("10001", errno.ERANGE),
        ("99999999999999999999", errno.ERANGE),
        ("abc", errno.EINVAL),
        ("-5", errno.EINVAL),
        (" 5", errno.EINVAL),
        ("5 ", errno.EINVAL),
        ("08", errno.EINVAL),
        ("\n", errno.EINVAL),
    ],
)
def test_a_weight_is_refused(rig: Rig, text: str, number: int) -> None:
    group = rig.group("a")
    assert rig.errno(group, "cpu.weight", text) == number
    assert rig.text(group, "cpu.weight") == "100"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1048576", "1048576"),
        ("1M", "1048576"),
        ("1m", "1048576"),
        ("65537", "65536"),
        ("0x20000", "131072"),
        ("1T", "1099511627776"),
        (" 65536 \n", "65536"),
        ("8E", "max"),
        ("20E", str(20 * 2**60 - 2**64)),
        ("k", "0"),
        ("\n", "0"),
    ],
)
def test_a_memory_limit_is_taken_in_whole_pages(rig: Rig, text: str, limit: str) -> None:
    group = rig.group("a")
    assert rig.text(group, "memory.max") == "max"
    rig.write(group, "memory.max", text)
    assert rig.text(group, "memory.max") == limit
    rig.write(group, "memory.max", "max")
    assert rig.text(group, "memory.max") == "max"


@pytest.mark.parametrize("text", ["1Kb", "1.5M", "-1", "65536 65536", "MAX", "+5"])
def test_a_malformed_memory_limit_is_invalid(rig: Rig, text: str) -> None:
    group = rig.group("a")
    assert rig.errno(group, "memory.max", text) == errno.EINVAL
    assert rig.text(group, "memory.max") == "max"
