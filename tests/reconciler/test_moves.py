"""Pods that move as a whole: nobody comes onto CPUs before the other has left them."""

import pytest

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet
from agent.core.plan import plan_writes
from tests.reconciler.rig import BURSTABLE, KUBEPODS

Lists = dict[CgroupPath, str]


def planned(desired: Lists, observed: Lists) -> list[tuple[str, str, str]]:
    want = {path: CgroupValues(cpus=CPUSet.parse(text)) for path, text in desired.items()}
    have = {path: CgroupValues(cpus=CPUSet.parse(text)) for path, text in observed.items()}
    return [(w.phase.name, w.path.name, w.value) for w in plan_writes(want, have)]


A, B, C = (KUBEPODS / name for name in "abc")


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_in_a_chain_of_moves_who_leaves_goes_first(order: str) -> None:
    one, two, three = (KUBEPODS / name for name in order)
    moves = planned({one: "2-3", two: "4-5", three: "6-7"}, {one: "0-1", two: "2-3", three: "4-5"})
    assert moves == [
        ("MOVE", three.name, "6-7"),
        ("MOVE", two.name, "4-5"),
        ("MOVE", one.name, "2-3"),
    ]


def test_a_ring_of_moves_ends_all_the_same() -> None:
    moves = planned({A: "2-3", B: "4-5", C: "0-1"}, {A: "0-1", B: "2-3", C: "4-5"})
    assert sorted(moves) == [("MOVE", "a", "2-3"), ("MOVE", "b", "4-5"), ("MOVE", "c", "0-1")]


def test_the_cgroup_above_has_room_for_both_places_meanwhile() -> None:
    pod = BURSTABLE / "pod"
    moves = planned(
        {BURSTABLE: "0,8-9", pod: "8-9", pod / "c": "8-9"},
        {BURSTABLE: "0,4-5", pod: "4-5", pod / "c": "4-5"},
    )
    assert moves == [
        ("WIDEN", "burstable", "0,4-5,8-9"),
        ("MOVE", "c", "8-9"),
        ("MOVE", "pod", "8-9"),
        ("NARROW", "burstable", "0,8-9"),
    ]


def test_the_cgroup_above_is_written_no_more_than_needed() -> None:
    pod = BURSTABLE / "pod"
    had = {BURSTABLE: "0-9", pod: "4-5", pod / "c": "4-5"}
    moved = {pod: "8-9", pod / "c": "8-9"}
    assert [w[0] for w in planned({BURSTABLE: "0-3,6-9", **moved}, had)] == [
        "MOVE",
        "MOVE",
        "NARROW",
    ]
    assert [w[0] for w in planned({BURSTABLE: "0-9", **moved}, had)] == ["MOVE", "MOVE"]
    had[BURSTABLE] = "0-5"
    assert [w[0] for w in planned({BURSTABLE: "0-9", **moved}, had)] == ["WIDEN", "MOVE", "MOVE"]


def test_a_container_that_moves_inside_its_pod_widens_nothing() -> None:
    pod = BURSTABLE / "pod"
    moves = planned(
        {BURSTABLE: "0-7", pod: "2-5", pod / "c": "4-5"},
        {BURSTABLE: "0-9", pod: "2-3,8-9", pod / "c": "2-3"},
    )
    assert moves == [
        ("SHRINK", "pod", "2-3"),
        ("SHRINK", "burstable", "0-7"),
        ("MOVE", "c", "4-5"),
        ("GROW", "pod", "2-5"),
    ]
