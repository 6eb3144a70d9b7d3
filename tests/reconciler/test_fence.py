"""Beside another CPU manager numalet keeps to its fence, and leaves the rest to the other one."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.startup import start
from agent.ports import CgroupsChanged, PodChanged, Tick
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    annotated_pod,
    equal,
    exclusive_pod,
    shared_pod,
    two_sockets,
)
from tests.reconciler.test_runtime_cgroups import KubeletWorld

A, POOL = exclusive_pod("a", 2), annotated_pod("pool", 3)


@pytest.fixture
def world(tmp_path: Path) -> KubeletWorld:
    """CPUs 8-15, which are NUMA node 1, are ours; 0 is reserved; 1-7 are another manager's."""
    rules = two_sockets()
    fenced = start(rules.topology, replace(rules.policy, fence=CPUSet.parse("8-15")))
    return KubeletWorld(fenced, tmp_path)


def test_cpus_and_pools_come_from_inside_of_the_fence_only(world: KubeletWorld) -> None:
    big, more = exclusive_pod("big", 4), exclusive_pod("more", 1)
    snapshot = world.listed(A, POOL, big, more)
    held = {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}
    assert held == {"a": "8-9", "pool": "10-12", "more": "13"}
    assert snapshot.rejections[big.uid].reason == "TopologyAffinityError"
    assert str(snapshot.state.default) == "0-7,14-15"


def test_what_the_other_manager_says_of_its_containers_stays(world: KubeletWorld) -> None:
    theirs = shared_pod("s")
    pod = world.pod(BURSTABLE / "pods")
    c0 = world.container(pod, "c0")
    world.kernel.write(c0, "cpuset.cpus", "2-3")
    world.kernel.write(c0, "cpuset.mems", "0")
    world.kernel.write(c0, "cpu.max", "150000 100000")

    world.listed(A, POOL, theirs)
    world.handle(Tick())

    files = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpu.max")
    assert [world.text(c0, file) for file in files] == ["2-3", "2-3", "0", "150000 100000"]
    assert world.text(pod, "cpuset.mems") == ""


def test_its_containers_are_kept_off_the_cpus_that_are_given_here(world: KubeletWorld) -> None:
    pods = [world.pod(parent / f"pods{i}") for i, parent in enumerate((KUBEPODS, BURSTABLE))]
    wide, unset = (world.container(pod, "c0") for pod in pods)
    world.kernel.write(wide, "cpuset.cpus", "0,4-15")

    world.listed(A, POOL, replace(exclusive_pod("s0", 1), app_containers=()), shared_pod("s1"))

    assert world.cpus(wide) == "0,4-7,13-15"
    assert world.cpus(unset) == "0-7,13-15"
    assert world.cpus(BEST_EFFORT) == "0-7,13-15"
    assert world.cpus(BURSTABLE) == "0-7,10-15"
    assert world.text(wide, "cpuset.cpus") == "0,4-15"


def test_ours_are_enforced_as_everywhere(world: KubeletWorld) -> None:
    world.listed(POOL)
    pool = world.pod(BURSTABLE / "podpool")
    c0, side = world.container(pool, "c0"), world.container(pool, "side")
    world.handle(CgroupsChanged(pool))
    assert [world.cpus(path) for path in (pool, c0, side)] == ["8-10", "8-9", "10"]
    assert world.text(c0, "cpu.max") == "max 100000"
    world.kernel.write(c0, "cpuset.cpus", "2-3")
    world.handle(CgroupsChanged(c0))
    assert world.cpus(c0) == "8-9"


def test_who_has_nothing_of_his_own_any_more_has_his_containers_given_back(
    world: KubeletWorld,
) -> None:
    world.listed(A)
    path = world.pod(KUBEPODS / "poda")
    c0 = world.container(path, "c0")
    for file, value in (("cpuset.cpus", "1-9"), ("cpuset.mems", "0"), ("cpu.max", "1000 100000")):
        world.kernel.write(c0, file, value)
    world.handle(CgroupsChanged(path))
    assert [world.text(c0, file) for file in ("cpuset.cpus", "cpuset.mems")] == ["8-9", "1"]

    world.kernel.may_unset = True  # the pod's own list of NUMA nodes was

    half = replace(A.app_containers[0], resources=equal(500, 1000))
    world.handle(PodChanged(replace(A, app_containers=(half,), own_kernel="runtime runsc")))

    assert world.cpus(path) == "0-15"
    files = ("cpuset.cpus", "cpuset.mems", "cpu.max")
    assert [world.text(c0, file) for file in files] == ["1-9", "0", "1000 100000"]


def test_a_pod_that_the_other_manager_has_pinned_is_not_taken_over(world: KubeletWorld) -> None:
    theirs = exclusive_pod("theirs", 2)
    path = world.pod(KUBEPODS / "podtheirs")
    world.kernel.write(world.container(path, "c0"), "cpuset.cpus", "2-3")
    snapshot = world.listed(theirs)
    assert str(snapshot.state.pods[theirs.uid].held) == "8-9"
