"""The API is away when the agent starts: nothing that anybody runs on alone is shared again."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.pods import Pod, PodUID
from agent.ports import CgroupsChanged, Event, PodChanged, Snapshot, SourceState, Tick
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    annotated_pod,
    exclusive_pod,
    shared_pod,
    two_sockets,
)
from tests.reconciler.test_runtime_cgroups import MIXED, KubeletWorld

AWAY = SourceState(healthy=False, detail="the API server does not answer")
A, B, POOL, SHARED = exclusive_pod("a", 2), exclusive_pod("b", 3), annotated_pod("pool", 3), "s"
STRANGER = shared_pod(SHARED)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KubeletWorld]:
    world = KubeletWorld(two_sockets(), tmp_path)
    yield world
    assert world.snapshots[-1].problems == ()


def path_of(pod: Pod) -> CgroupPath:
    parent = BURSTABLE if pod is POOL else BEST_EFFORT if pod is STRANGER else KUBEPODS
    return parent / f"pod{pod.uid}"


def run(world: KubeletWorld, *pods: Pod) -> list[CgroupPath]:
    """Let pods run, and return all their cgroups."""
    world.listed(*pods)
    paths = [world.pod(path_of(pod)) for pod in pods]
    leaves = [world.container(path_of(pod), c.name) for pod in pods for c in pod.app_containers]
    world.handle(*map(CgroupsChanged, paths))
    return [*paths, *leaves]


def lose_checkpoint(world: KubeletWorld) -> None:
    shutil.rmtree(world.folder / "state")
    (world.folder / "state").mkdir()


def held(snapshot: Snapshot) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}


@pytest.mark.parametrize("first", [AWAY, Tick(), CgroupsChanged(KUBEPODS / "poda")], ids=str)
@pytest.mark.parametrize("pod", [A, MIXED, POOL], ids=["exclusive", "mixed", "pool"])
def test_without_a_checkpoint_nobody_gets_the_cpus_of_what_runs(
    world: KubeletWorld, pod: Pod, first: Event
) -> None:
    paths = run(world, pod, STRANGER)
    before, owned = held(world.snapshots[-1]), world.snapshots[-1].state.pods[pod.uid].held
    sets = [world.cpus(path) for path in paths]
    lose_checkpoint(world)
    world.start()

    world.handle(first)

    assert [world.cpus(path) for path in paths] == sets
    for path in (BEST_EFFORT, world.pod(BEST_EFFORT / "podnew")):
        assert world.effective(path).isdisjoint(owned)
    assert held(world.listed(pod, STRANGER)) == before
    assert [world.cpus(path) for path in paths] == sets


def test_without_a_checkpoint_a_container_that_restarts_stays_on_its_pods_cpus(
    world: KubeletWorld,
) -> None:
    *_, container = run(world, STRANGER, A)
    lose_checkpoint(world)
    world.start()
    world.handle(AWAY)
    world.kernel.kill(world.pids[container])
    world.kernel.vanish(container)

    again = world.container(path_of(A), "c0")
    world.handle(CgroupsChanged(path_of(A)))

    assert world.cpus(again) == "1-2"


def test_a_pod_that_is_made_meanwhile_gets_what_nobody_holds(world: KubeletWorld) -> None:
    run(world, A, STRANGER)
    lose_checkpoint(world)
    world.start()
    world.handle(AWAY)
    new = world.pod(KUBEPODS / "podnew")
    world.handle(CgroupsChanged(KUBEPODS))
    assert world.cpus(new) == "0,3-15"


def older_checkpoint(world: KubeletWorld, make_newer: Callable[[], object]) -> None:
    state, old = world.folder / "state", world.folder / "old"
    shutil.copytree(state, old)
    make_newer()
    shutil.rmtree(state)
    old.rename(state)


def test_beside_an_older_checkpoint_what_it_knows_is_enforced_and_the_rest_is_not_given_away(
    world: KubeletWorld,
) -> None:
    known, _, leaf, _ = run(world, A, STRANGER)
    older_checkpoint(world, lambda: run(world, A, STRANGER, B))
    world.kernel.write(leaf, "cpuset.cpus", "1")
    world.start()

    world.handle(AWAY)

    assert (world.cpus(known), world.cpus(leaf)) == ("1-2", "1-2")
    assert world.cpus(path_of(B)) == "3-5"
    assert world.cpus(BEST_EFFORT) == "0,6-15"
    assert held(world.listed(A, B, STRANGER)) == {"a": "1-2", "b": "3-5"}


def test_who_was_rejected_when_the_checkpoint_was_written_keeps_what_he_runs_on(
    world: KubeletWorld,
) -> None:
    big = exclusive_pod("big", 8)
    fillers = [exclusive_pod(name, 7) for name in ("x", "y")]
    world.listed(*fillers, big)
    assert list(world.snapshots[-1].rejections) == ["big"]
    older_checkpoint(world, lambda: run(world, big))
    world.start()

    snapshot = world.handle(AWAY)

    assert held(snapshot)["big"] == "8-15"
    assert snapshot.rejections == {}
    assert held(world.listed(big)) == {"big": "8-15"}


def test_what_nobody_named_is_held_until_it_has_ended(world: KubeletWorld) -> None:
    _, _, leaf, *_ = run(world, MIXED, STRANGER)
    lose_checkpoint(world)
    world.start()
    assert held(world.listed(STRANGER)) == {"a": "1-2"}
    assert world.cpus(path_of(MIXED)) == "0-15"

    world.start()  # what is held without a name survives a restart, too
    assert held(world.listed(STRANGER)) == {"a": "1-2"}
    assert held(world.handle(PodChanged(MIXED))) == {"a": "1-2"}
    assert str(world.snapshots[-1].state.pods[PodUID("a")].cpus["db"]) == "1-2"
    assert world.effective(leaf) == CPUSet.parse("1-2")
