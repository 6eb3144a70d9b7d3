"""Another CPU manager comes and goes while the agent runs."""

from pathlib import Path

import pytest

from agent.ports import DevicesFound, OtherManagersFound, PodChanged, PodGone, Tick
from tests.reconciler.rig import (
    KUBEPODS,
    Countdown,
    CountedDisk,
    Killed,
    World,
    exclusive_pod,
    two_sockets,
)
from tests.reconciler.test_devices import ON_1, with_gpu

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)
KOORDLET = OtherManagersFound(names=("koordlet",), why_not=("koordlet runs",))
NOBODY = OtherManagersFound()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path)


def test_who_comes_is_named_and_nothing_is_written_any_more(world: World) -> None:
    world.listed(A)
    path = KUBEPODS / "poda" / "c0"
    world.kernel.writes.clear()

    snapshot = world.handle(KOORDLET)
    world.kernel.foreign_write(path, "cpuset.cpus", "8")
    world.handle(PodChanged(B), Tick())

    assert (snapshot.observe, snapshot.other_managers) == (True, ("koordlet",))
    assert snapshot.problems == ("koordlet runs",)
    assert world.kernel.writes == []
    assert world.text(path, "cpuset.cpus") == "8"
    assert not world.exists(KUBEPODS / "podb")
    remembered = world.remembered()
    assert remembered is not None
    assert remembered.pods.keys() == {A.uid}


def test_once_he_has_gone_all_is_enforced_that_was_decided_meanwhile(world: World) -> None:
    world.listed(A)
    world.handle(KOORDLET, PodChanged(B), PodGone(A.uid))

    snapshot = world.handle(NOBODY)

    assert (snapshot.observe, snapshot.other_managers, snapshot.problems) == (False, (), ())
    assert world.text(KUBEPODS / "podb" / "c0", "cpuset.cpus") == str(
        snapshot.state.pods[B.uid].held
    )
    remembered = world.remembered()
    assert remembered is not None
    assert remembered.state == snapshot.state


def test_what_he_wrote_meanwhile_is_mended_and_no_drift(world: World) -> None:
    before = world.listed(A)
    world.handle(KOORDLET)
    world.kernel.foreign_write(KUBEPODS / "poda" / "c0", "cpuset.cpus", "8")

    snapshot = world.handle(NOBODY)

    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"
    assert snapshot.drift == before.drift


def test_the_state_is_on_disk_before_the_first_value_is_written(tmp_path: Path) -> None:
    countdown = Countdown()
    world = World(two_sockets(), tmp_path, countdown=countdown, disk=CountedDisk(countdown))
    world.handle(KOORDLET)
    world.listed(A)
    world.kernel.writes.clear()
    step = 0
    while True:
        countdown.left = step
        try:
            world.handle(NOBODY)
        except Killed:
            remembered = world.remembered()
            is_saved = remembered is not None and A.uid in remembered.state.pods
            assert is_saved or not world.kernel.writes
        else:
            break
        countdown.left = None
        world.start()
        world.handle(KOORDLET)
        world.listed(A)
        step += 1
    countdown.left = None
    assert step > 3
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"


def test_where_it_is_forced_others_are_named_and_nothing_else_changes(world: World) -> None:
    world.handle(OtherManagersFound(names=("koordlet",)))

    snapshot = world.listed(A)

    assert (snapshot.observe, snapshot.other_managers) == (False, ("koordlet",))
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"


def test_who_is_to_observe_goes_on_observing(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, observe=True)

    world.handle(KOORDLET, NOBODY)

    assert world.listed(A).observe
    assert not world.exists(KUBEPODS / "poda")


def test_what_cannot_be_seen_is_a_warning_beside_which_all_is_enforced(world: World) -> None:
    world.handle(OtherManagersFound(unseen=("nobody knows",)))

    snapshot = world.listed(A)

    assert (snapshot.warnings, snapshot.problems) == (("nobody knows",), ())
    assert (snapshot.ready, snapshot.observe) == (True, False)


def test_a_pod_that_waits_for_devices_is_decided_on_beside_another_manager(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, hears_of_devices=True)
    pod = with_gpu(B)
    world.listed(pod)
    world.handle(KOORDLET, DevicesFound(pod.uid, ON_1))

    world.handle(NOBODY)

    assert world.text(KUBEPODS / "podb" / "c0", "cpuset.cpus") == "8-10"
