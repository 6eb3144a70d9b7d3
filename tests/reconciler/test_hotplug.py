"""CPUs that go offline and come back: nobody loses what he holds, and nobody gets strangers."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.startup import Rules
from agent.errors import InputError
from agent.ports import HardwareChanged, Snapshot
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    World,
    annotated_pod,
    exclusive_pod,
    shared_pod,
    two_sockets,
)

A, ONE, POOL, SHARED = (
    exclusive_pod("a", 2),
    exclusive_pod("one", 1),
    annotated_pod("pool", 3),
    shared_pod("s"),
)
PODS = (A, ONE, POOL, SHARED)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(two_sockets(), tmp_path)
    world.listed(*PODS)
    assert held(world.snapshots[-1]) == {"a": "1-2", "one": "3", "pool": "4-6"}
    return world


def held(snapshot: Snapshot) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}


def online(world: World, cpus: str) -> Snapshot:
    """Let exactly these CPUs be online, and the agent hear of it."""
    there = CPUSet.parse(cpus)
    world.kernel.set_online(there)
    cores = tuple(c for c in two_sockets().topology.cores if c.cpus & there)
    rules = replace(world.rules, topology=replace(world.rules.topology, cores=cores))
    world.reread = lambda: rules
    return world.handle(HardwareChanged("cpu offline"))


def test_of_a_slice_that_is_partly_offline_the_rest_is_used_and_nothing_is_written_for_it(
    world: World,
) -> None:
    world.kernel.writes.clear()
    snapshot = online(world, "0,2-15")
    assert world.effective(KUBEPODS / "poda" / "c0") == CPUSet([2])
    assert held(snapshot)["a"] == "1-2"
    assert world.kernel.writes == []
    assert snapshot.problems == ()
    assert snapshot.drift == {"cpu_offline": 1}


def test_a_container_without_any_cpu_left_runs_on_the_default_set_and_never_beside_others(
    world: World,
) -> None:
    snapshot = online(world, "0-2,4-15")
    shared = world.effective(BEST_EFFORT / "pods" / "c0")
    assert world.effective(KUBEPODS / "podone" / "c0") == shared == CPUSet.parse("0,7-15")
    assert snapshot.problems == ()


def test_a_member_of_a_pool_stays_in_the_pool(world: World) -> None:
    online(world, "0-3,6-15")
    assert world.effective(BURSTABLE / "podpool" / "c0") == CPUSet([6])


def test_what_comes_back_is_where_it_was(world: World) -> None:
    before = {
        path: world.effective(path / "c0") for path in (KUBEPODS / "poda", KUBEPODS / "podone")
    }
    online(world, "0,4-15")
    snapshot = online(world, "0-15")
    assert {path: world.effective(path / "c0") for path in before} == before
    assert held(snapshot) == {"a": "1-2", "one": "3", "pool": "4-6"}
    assert str(snapshot.state.default) == "0,7-15"


def test_a_cpu_that_is_offline_is_given_to_nobody(world: World) -> None:
    online(world, "0-6,8-15")
    snapshot = world.listed(*PODS, exclusive_pod("new", 1))
    assert held(snapshot)["new"] == "8"


def test_a_machine_that_no_longer_fits_the_configuration_is_told_and_all_goes_on(
    world: World,
) -> None:
    def refused() -> Rules:
        raise InputError("reservedSystemCPUs: CPU 0 is offline")

    world.reread = refused
    snapshot = world.handle(HardwareChanged("cpu0 offline"))
    assert snapshot.problems == (
        "after cpu0 offline the machine no longer fits: reservedSystemCPUs: CPU 0 is offline",
    )
    assert held(snapshot) == {"a": "1-2", "one": "3", "pool": "4-6"}


def test_what_an_ended_pod_held_comes_back_as_far_as_it_is_online(world: World) -> None:
    online(world, "0,2-15")
    snapshot = world.listed(ONE, POOL, SHARED)
    assert str(snapshot.state.default) == "0,2,7-15"
    assert str(online(world, "0-15").state.default) == "0-2,7-15"
