import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cpuset import MAX_ID, CPUSet, IdSetError, NodeSet

ids = st.sets(st.integers(0, 130))
ranges = st.tuples(st.integers(0, 130), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1]))


@given(ids)
def test_a_set_reads_what_it_writes(members: set[int]) -> None:
    cpus = CPUSet(members)
    assert set(CPUSet.parse(str(cpus))) == set(cpus) == members
    assert CPUSet.parse(str(cpus)) == cpus


@given(st.lists(ranges))
def test_a_list_of_ranges_means_their_union(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{last}" for first, last in parts)
    expected = {i for first, last in parts for i in range(first, last + 1)}
    assert set(CPUSet.parse(text)) == expected


@given(ids, ids)
def test_sets_calculate_as_sets_of_python_do(a: set[int], b: set[int]) -> None:
    one, other = CPUSet(a), CPUSet(b)
    assert set(one & other) == a & b
    assert set(one | other) == a | b
    assert set(one - other) == a - b
    assert set(one ^ other) == a ^ b
    assert (one <= other) == (a <= b)
    assert one.isdisjoint(other) == a.isdisjoint(b)
    assert (one == other) == (a == b)
    assert (len(one), bool(one), list(one)) == (len(a), bool(a), sorted(a))


@given(ids, st.integers(-3, 200))
def test_membership_is_that_of_a_set_of_python(members: set[int], i: int) -> None:
    assert (i in CPUSet(members)) == (i in members)


@given(ids)
def test_equal_sets_have_equal_hashes_whatever_they_are_made_of(members: set[int]) -> None:
    one = CPUSet(members)
    for other in (
        CPUSet(sorted(members, reverse=True)),
        CPUSet.from_bits(sum(1 << i for i in members)),
    ):
        assert one == other
        assert hash(one) == hash(other)
        assert str(one) == str(other)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0", "0"),
        ("3,1,2", "1-3"),
        ("0-3,4-7", "0-7"),
        ("0,2,4", "0,2,4"),
        ("5-5", "5"),
        ("1,1,1", "1"),
        (" 0-1 , 3\n", "0-1,3"),
        (",,2,", "2"),
        ("0-1 8-9", "0-1,8-9"),
        ("0-10:2/4", "0-1,4-5,8-9"),
        ("4-9:1/3", "4,7"),
        ("0-7:4/4", "0-7"),
        ("007", "7"),
        (f"{MAX_ID}", f"{MAX_ID}"),
    ],
)
def test_lists_of_the_kernel_are_read_and_written_in_one_form(text: str, canonical: str) -> None:
    assert str(CPUSet.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "item", "what"),
    [
        ("0,x", "'x'", "CPU number or range like 0-3"),
        ("0-", "'0-'", "CPU number or range"),
        ("-1", "'-1'", "CPU number or range"),
        ("1,0-1-2", "'0-1-2'", "CPU number or range"),
        ("0x3", "'0x3'", "CPU number or range"),
        ("0-3:2", "'0-3:2'", "CPU number or range"),
        ("\u0663", "'\u0663'", "CPU number or range"),
        ("1.5", "'1.5'", "CPU number or range"),
        ("0,5-3", "'5-3'", "runs backwards: write 3-5"),
        ("0-3:0/2", "'0-3:0/2'", "0 < used <= group"),
        ("0-3:3/2", "'0-3:3/2'", "0 < used <= group"),
        ("65536", "65536", "is above 65535"),
        ("0-99999999999999999999", "99999999999999999999", "is above 65535"),
    ],
)
def test_what_is_wrong_is_named_with_its_item(text: str, item: str, what: str) -> None:
    with pytest.raises(IdSetError) as caught:
        CPUSet.parse(text)
    message = str(caught.value)
    assert item in message
    assert what in message
    assert repr(text) in message


def test_each_kind_of_set_speaks_of_its_own_things() -> None:
    with pytest.raises(IdSetError, match="NUMA node number"):
        NodeSet.parse("node0")


def test_an_empty_set_is_never_written() -> None:
    with pytest.raises(IdSetError, match="empty set of CPUs must never be written"):
        CPUSet().for_write()
    with pytest.raises(IdSetError, match="empty set of NUMA nodes must never be written"):
        NodeSet().for_write()
    assert CPUSet([0, 1, 5]).for_write() == "0-1,5"


@pytest.mark.parametrize(
    "change",
    [
        lambda cpus: setattr(cpus, "bits", 0),
        lambda cpus: setattr(cpus, "other", 0),
    ],
)
def test_a_set_never_changes(change: Callable[[CPUSet], None]) -> None:
    cpus = CPUSet([1, 2])
    with pytest.raises(AttributeError, match="CPUSet is immutable"):
        change(cpus)
    assert cpus == CPUSet([1, 2])


def test_cpus_and_numa_nodes_are_never_equal() -> None:
    assert CPUSet([1]) != NodeSet([1])
    assert CPUSet([1]) != {1}


def test_a_set_survives_copies_and_pickles_with_its_kind() -> None:
    nodes = NodeSet([0, 8])
    for same in (copy.copy(nodes), copy.deepcopy(nodes), pickle.loads(pickle.dumps(nodes))):
        assert same == nodes
        assert type(same) is NodeSet


def test_a_set_shows_itself_as_a_list() -> None:
    assert repr(CPUSet([3, 0, 1])) == "CPUSet('0-1,3')"
