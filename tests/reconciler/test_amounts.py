"""Weights and limits of memory, where the agent makes the cgroups itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cgroups import MemoryMax
from agent.core.overwritten import Overwritten
from agent.core.pods import Container, Pod, PodUID, Resources
from agent.giving_back import give_back
from agent.observation import parse_memory_max
from agent.ports import PodChanged, Tick
from tests.reconciler.rig import BURSTABLE, KUBEPODS, World, exclusive_pod, two_sockets

A = exclusive_pod("a", 2)
POD, MAIN = KUBEPODS / "poda", KUBEPODS / "poda" / "c0"
MIB = 1 << 20


def limited(memory: int) -> Pod:
    limits = {"cpu": 500, "memory": memory}
    container = Container(name="c0", resources=Resources(requests={"cpu": 100}, limits=limits))
    return Pod(uid=PodUID("b"), name="b", app_containers=(container,))


B_MAIN = BURSTABLE / "podb" / "c0"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path)


def test_a_pod_and_its_containers_have_what_a_kubelet_and_runc_would_write(world: World) -> None:
    world.listed(A, limited(512 * MIB))
    assert [world.text(path, "cpu.weight") for path in (POD, MAIN, B_MAIN)] == ["79", "79", "4"]
    assert world.text(MAIN, "memory.max") == str(1 << 30)
    assert world.text(B_MAIN, "memory.max") == str(512 * MIB)
    assert world.text(BURSTABLE, "memory.max") == "max"


def test_what_systemd_resets_is_drift_and_repaired(world: World) -> None:
    world.listed(A)
    for file, value in (("cpu.weight", "100"), ("memory.max", "max")):
        world.kernel.foreign_write(MAIN, file, value)
    snapshot = world.handle(Tick())
    assert snapshot.drift == {"foreign_write": 2}
    assert (world.text(MAIN, "cpu.weight"), world.text(MAIN, "memory.max")) == ("79", str(1 << 30))


@pytest.mark.parametrize("controller", ["cpu", "memory", "cpuset"])
@pytest.mark.parametrize("runs", [True, False])
def test_a_controller_that_systemd_takes_away_with_the_last_scope_is_enabled_again(
    world: World, controller: str, *, runs: bool
) -> None:
    world.listed(A)
    if runs:
        world.kernel.add_task(MAIN)
    files = ("cpuset.cpus", "cpu.max", "cpu.weight", "memory.max")
    before = {file: world.text(MAIN, file) for file in files}
    world.kernel.foreign_write(POD, "cgroup.subtree_control", f"-{controller}")

    snapshot = world.handle(Tick())

    assert {file: world.text(MAIN, file) for file in files} == before
    assert (snapshot.problems, snapshot.unenforced) == ((), frozenset())
    assert snapshot.drift["foreign_write"] >= 1


def test_a_limit_that_less_than_is_charged_waits_until_it_fits(world: World) -> None:
    world.listed(limited(512 * MIB))
    pid = world.kernel.use_memory(B_MAIN, 300 * MIB)
    assert pid
    snapshot = world.handle(PodChanged(limited(256 * MIB)))
    assert world.text(B_MAIN, "memory.max") == str(512 * MIB)
    assert (
        f"/kubepods/burstable/podb/c0/memory.max is not lowered to {256 * MIB}: {300 * MIB} bytes"
        " are in use, and the kernel would kill for the difference; tried again in every pass"
    ) in snapshot.problems
    world.kernel.kill(pid)
    assert world.handle(Tick()).problems == ()
    assert world.text(B_MAIN, "memory.max") == str(256 * MIB)


def test_a_limit_is_raised_and_lifted_whatever_is_charged(world: World) -> None:
    world.listed(limited(512 * MIB))
    world.kernel.use_memory(B_MAIN, 300 * MIB)
    world.handle(PodChanged(limited(768 * MIB)))
    assert world.text(B_MAIN, "memory.max") == str(768 * MIB)
    (container,) = limited(1).app_containers
    free = replace(container, resources=Resources(requests={"cpu": 100}))
    world.handle(PodChanged(replace(limited(1), app_containers=(free,))))
    assert world.text(B_MAIN, "memory.max") == "max"


def test_they_are_given_back_like_everything_else(world: World) -> None:
    world.listed(A)
    identity = world.kernel.identity(MAIN)
    assert isinstance(identity, int)
    entries = [
        Overwritten(path=MAIN, identity=identity, file=file, value=value)
        for file, value in (("memory.max", "max"), ("cpu.weight", "100"))
    ]
    assert give_back(world.kernel, entries).problems == ()
    assert (world.text(MAIN, "cpu.weight"), world.text(MAIN, "memory.max")) == ("100", "max")


@pytest.mark.parametrize(("text", "value"), [("max", MemoryMax()), ("4096", MemoryMax(4096))])
def test_limits_are_read_as_the_kernel_writes_them(text: str, value: MemoryMax) -> None:
    assert parse_memory_max(text) == value
    assert str(value) == text
