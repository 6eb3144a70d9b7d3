"""What a real kernel tells a watch, and that it tells nothing else."""

import os
import queue
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.core.cgroups import CONTROLLERS_FILE, EVENTS_FILE, CgroupPath
from agent.node.cgroup_watch import CgroupWatch

from .rig import Rig, real

pytestmark = pytest.mark.realcgroup
PATIENCE_S = 10


class Watched:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.changes: queue.SimpleQueue[CgroupPath] = queue.SimpleQueue()
        self.troubles: queue.SimpleQueue[str] = queue.SimpleQueue()
        root = Path(os.environ["NUMALET_TEST_CGROUP"])
        self.made: queue.SimpleQueue[CgroupPath] = queue.SimpleQueue()
        self.watch = CgroupWatch(
            root,
            on_change=self.changes.put,
            on_degraded=self.troubles.put,
            on_made=self.made.put,
        )

    def change(self) -> CgroupPath:
        return self.changes.get(timeout=PATIENCE_S)


@pytest.fixture
def watched() -> Iterator[Watched]:
    with real() as rig:
        watched = Watched(rig)
        with closing(watched.watch):
            yield watched
        assert watched.troubles.empty()


def test_cgroups_that_come_and_go(watched: Watched) -> None:
    base = watched.rig.base
    watched.watch.watch([base])
    assert watched.change() == base
    pod = watched.rig.group("pod1")
    assert watched.change() == base
    assert watched.made.get_nowait() == pod
    watched.rig.cgroups.remove(pod)
    assert watched.change() == base
    assert watched.made.empty()


def test_the_first_process_and_the_end_of_the_last(watched: Watched) -> None:
    pod = watched.rig.group("pod1")
    leaf = watched.rig.group("pod1", "container")
    watched.watch.watch([], [(pod, EVENTS_FILE)])
    assert watched.change() == pod
    process = watched.rig.machine.add_task(leaf)
    assert watched.change() == pod
    watched.rig.machine.kill(process)
    assert watched.change() == pod
    assert "populated 0" in watched.rig.text(pod, EVENTS_FILE)


def test_controllers_that_are_switched(watched: Watched) -> None:
    pod = watched.rig.group("pod1")
    watched.watch.watch([], [(pod, CONTROLLERS_FILE)])
    assert watched.change() == pod
    watched.rig.write(pod, CONTROLLERS_FILE, "+cpuset")
    assert watched.change() == pod
    watched.rig.write(pod, CONTROLLERS_FILE, "-cpuset")
    assert watched.change() == pod


def test_a_pod_whose_cgroups_were_made_again_unseen(watched: Watched) -> None:
    """The kernel does not say that a watched cgroup is gone: its watch would stay deaf."""
    pod = watched.rig.group("pod1")
    watched.watch.watch([pod], [(pod, EVENTS_FILE)])
    assert watched.change() == pod
    watched.rig.cgroups.remove(pod)
    watched.rig.group("pod1")
    watched.watch.watch([pod], [(pod, EVENTS_FILE)])
    assert watched.change() == pod
    watched.rig.group("pod1", "container")
    assert watched.change() == pod


def test_a_narrower_parent_changes_no_file_below(watched: Watched) -> None:
    pod, other = watched.rig.group("pod1"), watched.rig.group("other")
    watched.watch.watch([pod, other], [(pod, "cpuset.cpus")])
    assert [watched.change(), watched.change()] == [other, pod]
    watched.rig.write(watched.rig.base, "cpuset.cpus", "0-2")
    assert "0-2" in watched.rig.text(pod, "cpuset.cpus.effective")
    watched.rig.group("other", "container")
    assert watched.change() == other
