"""Many events at a time, room that comes back, and a list that is not complete."""

import queue
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.core.pods import PodUID
from agent.ports import Event, InputRejected, PodChanged, PodGone, PodsListed, Stop
from tests.reconciler.rig import World, exclusive_pod, two_sockets

A, B, BIG = exclusive_pod("a", 2), exclusive_pod("b", 3), exclusive_pod("big", 8)


def _run(world: World, *events: Event) -> None:
    waiting: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for event in events:
        waiting.put(event)
    world.agent.run(waiting)


def test_a_stop_comes_before_all_that_waits_with_it(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)

    _run(world, PodsListed((A,)), *[PodChanged(B)] * 1000, Stop("SIGTERM"))

    assert world.snapshots == []


def test_a_stop_ends_a_long_pass_half_way_and_the_next_start_completes_it(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.stopping = lambda: bool(world.kernel.writes)

    world.start().handle(PodsListed((A, B)))
    assert world.kernel.children(CgroupPath("kubepods")) != ()
    half = len(world.kernel.writes)

    world.stopping = lambda: False
    world.start().handle(PodsListed((A, B)))
    assert len(world.kernel.writes) > half
    assert world.snapshots[-1].problems == ()


def test_events_that_wait_together_are_settled_once(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)

    world.agent.handle(PodsListed((A,)), PodChanged(B))

    assert [[pod.name for pod in s.pods] for s in world.snapshots] == [["a", "b"]]


def test_a_rejected_pod_is_decided_on_anew_once_somebody_has_gone(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    fillers = tuple(exclusive_pod(name, 7) for name in ("x", "y"))
    world.agent.handle(PodsListed((*fillers, BIG)))
    assert set(world.snapshots[-1].rejections) == {"big"}

    world.agent.handle(PodGone(fillers[0].uid), PodGone(fillers[1].uid))

    assert world.snapshots[-1].rejections == {}
    assert len(world.snapshots[-1].state.pods[BIG.uid].held) == 8


def test_while_an_input_cannot_be_read_nobody_who_was_remembered_goes(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.agent.handle(PodsListed((A, B)))
    before = world.snapshots[-1].state
    agent = world.start()

    agent.handle(InputRejected("b.yaml:1", "is no pod"), PodsListed((A,), None))
    assert world.snapshots[-1].state == before

    agent.handle(InputRejected("b.yaml:1", ""), PodsListed((A,)))
    assert set(world.snapshots[-1].state.pods) == {A.uid}


def test_of_those_that_a_list_lacks_only_who_could_not_be_read_stays(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.agent.handle(PodsListed((A, B, BIG)))

    world.agent.handle(
        InputRejected("pod default/b", "is no pod"), PodsListed((A,), frozenset({B.uid}))
    )

    assert set(world.snapshots[-1].state.pods) == {A.uid, B.uid}


def test_a_resize_that_leaves_cpus_makes_room_for_the_rejected(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    fillers = tuple(exclusive_pod(name, 7) for name in ("x", "y"))
    world.agent.handle(PodsListed((*fillers, exclusive_pod("late", 4))))
    assert set(world.snapshots[-1].rejections) == {"late"}

    world.agent.handle(PodChanged(exclusive_pod("x", 1)))

    assert world.snapshots[-1].rejections == {}
    assert len(world.snapshots[-1].state.pods[PodUID("late")].held) == 4
