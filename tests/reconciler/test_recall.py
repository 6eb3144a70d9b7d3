"""What runs keeps its CPUs though no checkpoint, or an older one, knows of it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.pods import Container, Kind, Pod
from agent.node.checkpoint import COPIES
from agent.ports import PodChanged, PodGone, Snapshot
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    World,
    annotated_pod,
    equal,
    exclusive_pod,
    shared_pod,
    two_sockets,
)

A, B, C = exclusive_pod("a", 2), exclusive_pod("b", 3), exclusive_pod("c", 2)
POOL = annotated_pod("pool", 3)
WITH_INIT = replace(
    A, init_containers=(Container(name="i0", kind=Kind.INIT, resources=equal(4000)),)
)
EPHEMERAL = replace(POOL, ephemeral_containers=(Container(name="debug", kind=Kind.EPHEMERAL),))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path)


def run(world: World, *pods: Pod) -> list[int]:
    """Start a process in each app container: the init containers have ended."""
    leaves = [path_of(pod) / c.name for pod in pods for c in pod.app_containers]
    return [world.kernel.add_task(path) for path in leaves]


def path_of(pod: Pod) -> CgroupPath:
    if pod.annotations:
        return BURSTABLE / f"pod{pod.uid}"
    return (KUBEPODS if pod.app_containers[0].resources.requests else BEST_EFFORT) / f"pod{pod.uid}"


def lose(world: World) -> None:
    for name in COPIES:
        (world.folder / "state" / name).write_text("junk")


def restarted(world: World, *pods: Pod) -> Snapshot:
    """Start another agent, forget what the one before wrote, and list the pods."""
    world.start()
    world.kernel.writes.clear()
    return world.listed(*pods)


def held(snapshot: Snapshot) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}


@pytest.mark.parametrize(
    "pods", [(A, B), (POOL, A), (EPHEMERAL, B), (WITH_INIT, B), (A, shared_pod("s"), POOL)]
)
def test_with_both_copies_damaged_running_pods_keep_their_cpus_and_no_file_is_written(
    world: World, pods: tuple[Pod, ...]
) -> None:
    world.listed(exclusive_pod("first", 2), *pods)
    before = held(world.handle(PodGone(exclusive_pod("first", 2).uid)))
    run(world, *pods)
    lose(world)

    snapshot = restarted(world, *reversed(pods))

    assert held(snapshot) == before
    assert world.kernel.writes == []
    assert not snapshot.rejections


def test_pods_that_do_not_run_are_placed_around_those_that_do(world: World) -> None:
    world.listed(A, B)
    run(world, B)
    lose(world)
    assert held(restarted(world, C, B)) == {"b": "3-5", "c": "1-2"}


def test_a_running_pod_in_no_list_holds_its_cpus_until_it_ends(world: World) -> None:
    world.listed(A, B)
    tasks = run(world, A, B)
    lose(world)

    snapshot = restarted(world, B, C)

    assert held(snapshot) == {"a": "1-2", "b": "3-5", "c": "6-7"}
    assert world.effective(KUBEPODS / "poda" / "c0") == CPUSet.parse("1-2")
    world.start()
    assert held(world.listed(B, C))["a"] == "1-2"
    world.kernel.kill(tasks[0])
    assert held(world.listed(B, C)) == {"b": "3-5", "c": "6-7"}
    assert not world.exists(KUBEPODS / "poda")


def test_a_parent_keeps_the_pool_of_a_running_pod_in_no_list(world: World) -> None:
    world.listed(POOL)
    run(world, POOL)
    lose(world)
    restarted(world)
    assert world.effective(BURSTABLE / "podpool" / "c0") == CPUSet.parse("1-2")


def test_a_running_pod_that_is_listed_late_keeps_its_cpus(world: World) -> None:
    world.listed(A, POOL)
    run(world, A, POOL)
    lose(world)
    restarted(world)
    world.kernel.writes.clear()

    snapshot = world.handle(PodChanged(POOL), PodChanged(A))

    assert held(snapshot) == {"pool": "3-5", "a": "1-2"}
    assert str(snapshot.state.pods[POOL.uid].cpus["c0"]) == "3-4"
    assert world.kernel.writes == []


def test_shared_pods_that_run_take_nothing(world: World) -> None:
    shared = shared_pod("s")
    world.listed(shared, A)
    run(world, shared, A)
    lose(world)
    assert held(restarted(world, A)) == {"a": "1-2"}


def test_a_rejected_pod_that_runs_on_the_default_set_is_not_taken_for_an_owner(
    world: World,
) -> None:
    big = exclusive_pod("big", 13)
    world.listed(A, big, shared_pod("s"))
    run(world, A, big, shared_pod("s"))
    lose(world)
    snapshot = restarted(world, big, A, shared_pod("s"))
    assert held(snapshot) == {"a": "1-2"}
    assert list(snapshot.rejections) == ["big"]


def test_of_two_owners_in_the_checkpoint_the_first_stays_and_the_agent_starts(
    world: World,
) -> None:
    world.listed(A, B)
    sound = world.remembered()
    assert sound is not None
    stolen = replace(sound.state.pods[B.uid], cpus=sound.state.pods[A.uid].cpus)
    state = replace(sound.state, pods={**sound.state.pods, B.uid: stolen})
    world.store().save(replace(sound, state=state))
    with capture_logs() as logs:
        snapshot = restarted(world, A, B)
    assert held(snapshot) == {"a": "1-2", "b": "3-5"}
    assert [(e["uid"], e["cpus"]) for e in logs if e["event"] == "second_owner_forgotten"] == [
        ("b", "1-2")
    ]


def test_of_two_owners_in_the_checkpoint_both_keep_what_they_run_on(world: World) -> None:
    world.listed(A, B)
    run(world, A, B)
    sound = world.remembered()
    assert sound is not None
    stolen = replace(sound.state.pods[A.uid], cpus=sound.state.pods[B.uid].cpus)
    state = replace(sound.state, pods={A.uid: stolen, B.uid: sound.state.pods[B.uid]})
    world.store().save(replace(sound, state=state))
    assert held(restarted(world, A, B)) == {"a": "1-2", "b": "3-5"}
    assert world.kernel.writes == []


def older_checkpoint(world: World, make_newer: Callable[[], object]) -> None:
    state, old = world.folder / "state", world.folder / "old"
    shutil.copytree(state, old)
    make_newer()
    shutil.rmtree(state)
    old.rename(state)


def test_where_the_checkpoint_is_older_what_runs_is_right(world: World) -> None:
    world.listed(A, B)

    def swap() -> None:
        world.handle(PodGone(A.uid), PodGone(B.uid))
        world.listed(C)
        world.listed(C, A)
        run(world, C, A)

    older_checkpoint(world, swap)
    now = held(world.snapshots[-1])
    assert now == {"c": "1-2", "a": "3-4"}

    assert held(restarted(world, A, B, C)) == {"c": "1-2", "a": "3-4", "b": "5-7"}
    moved = [path for path, _, _ in world.kernel.writes if path not in {BEST_EFFORT, BURSTABLE}]
    assert [path for path in moved if "podb" not in path.relative] == []


def test_a_pod_that_only_drifted_is_put_back_where_the_checkpoint_has_it(world: World) -> None:
    world.listed(A, B)
    run(world, A, B)
    world.kernel.write(KUBEPODS / "poda" / "c0", "cpuset.cpus", "1")
    restarted(world, A, B)
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"


def test_a_running_pod_whose_resize_does_not_fit_keeps_what_it_runs_on(world: World) -> None:
    world.listed(A, POOL)
    run(world, A, POOL)
    bigger = annotated_pod("pool", 30)
    world.handle(PodChanged(bigger))
    before = held(world.snapshots[-1])
    lose(world)

    snapshot = restarted(world, bigger, A)

    assert held(snapshot) == before == {"a": "1-2", "pool": "3-5"}
    assert world.effective(BURSTABLE / "podpool" / "side") == CPUSet([5])
    assert list(snapshot.complaints) == ["pool"]
    assert world.handle(PodChanged(POOL)).complaints == {}
