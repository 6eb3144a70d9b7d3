"""Pods that come and go all the time: drift is looked for, and nothing is remembered for ever."""

import queue
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.ports import CgroupsChanged, Event, PodChanged, PodGone, PodsListed, Stop, Tick
from agent.reconciler import Reconciler
from tests.reconciler.rig import KUBEPODS, World, exclusive_pod, two_sockets
from tests.reconciler.test_runtime_cgroups import KubeletWorld, Names

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)
C0 = KUBEPODS / "poda" / "c0"
INTERVAL_S = 10.0


@dataclass
class SetClock:
    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def monotonic_s(self) -> float:
        return self.time_s


@pytest.mark.parametrize(("after_s", "says"), [(INTERVAL_S - 1, "9"), (INTERVAL_S + 1, "1-2")])
def test_drift_is_looked_for_in_time_though_there_is_always_an_event(
    tmp_path: Path, after_s: float, says: str
) -> None:
    clock = SetClock()
    world = World(two_sockets(), tmp_path, clock=clock)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def interfere() -> None:
        world.kernel.foreign_write(C0, "cpuset.cpus", "9")
        clock.time_s = after_s
        events.put(PodChanged(A))

    after_passes: Iterator[Callable[[], None]] = iter((interfere, lambda: events.put(Stop("end"))))

    class NeverIdle(Reconciler):
        def handle(self, *events: Event) -> None:
            super().handle(*events)
            next(after_passes)()

    events.put(PodsListed((A,)))
    world.start(NeverIdle).run(events)

    assert world.text(C0, "cpuset.cpus") == says


@dataclass
class ForgetfulNames(Names):
    kept: Collection[str] = field(default_factory=tuple)

    def forget_others(self, container_ids: Collection[str]) -> None:
        self.kept = set(container_ids)


def test_containers_that_have_gone_are_forgotten_with_the_next_look_at_all(tmp_path: Path) -> None:
    names = ForgetfulNames()
    world = KubeletWorld(two_sockets(), tmp_path, bundles=names)
    world.listed(A, B)
    pods = {pod.uid: world.pod(KUBEPODS / f"pod{pod.uid}") for pod in (A, B)}
    leaves = {uid: world.container(path, "c0") for uid, path in pods.items()}
    world.handle(CgroupsChanged(KUBEPODS), Tick())

    world.kernel.kill(world.pids[leaves[B.uid]])
    for gone in (leaves[B.uid], pods[B.uid]):
        world.kernel.vanish(gone)
    world.handle(PodGone(B.uid))
    world.handle(Tick(), Tick())

    assert names.kept == {leaves[A.uid].name}


def test_who_only_observes_forgets_what_was_found_too(tmp_path: Path) -> None:
    names = ForgetfulNames()
    world = KubeletWorld(two_sockets(), tmp_path, bundles=names, observe=True)
    path = world.pod(KUBEPODS / "poda")
    leaf: CgroupPath = world.container(path, "c0")
    world.listed(A)

    world.handle(Tick(), Tick())

    assert names.kept == {leaf.name}
