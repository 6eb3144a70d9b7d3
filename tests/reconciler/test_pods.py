"""What becomes of pods: who is admitted, who keeps what, who waits, who goes."""

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.core.cpuset import CPUSet
from agent.core.pods import Container, Kind, Pod, PodUID
from agent.core.state import NodeState
from agent.ports import (
    InputRejected,
    PodChanged,
    PodGone,
    PodsListed,
    Remembered,
    Snapshot,
    SourceState,
    Tick,
)
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    World,
    equal,
    exclusive_pod,
    shared_pod,
    two_sockets,
)

A, B = exclusive_pod("a", 2), exclusive_pod("b", 4, 1)
TOO_BIG = exclusive_pod("big", 16)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path)


def held(snapshot: Snapshot) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}


def test_listed_pods_are_placed_and_the_node_is_ready(world: World) -> None:
    assert not world.agent.snapshot().ready
    snapshot = world.listed(A, B, shared_pod("c"))
    assert snapshot.ready
    assert held(snapshot) == {"a": "1-2", "b": "3-7"}
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"
    assert world.text(KUBEPODS / "podb" / "c1", "cpuset.cpus") == "7"
    assert world.text(BEST_EFFORT / "podc" / "c0", "cpuset.cpus") == "0,8-15"


def test_a_pod_that_left_holds_its_cpus_until_nothing_runs_in_it(world: World) -> None:
    world.listed(A)
    pid = world.kernel.add_task(KUBEPODS / "poda" / "c0")
    snapshot = world.handle(PodGone(A.uid))
    assert held(snapshot) == {"a": "1-2"}
    assert world.effective(KUBEPODS / "poda" / "c0") == CPUSet([1, 2])
    world.kernel.kill(pid)
    assert held(world.handle(Tick())) == {}
    assert not world.exists(KUBEPODS / "poda")
    assert world.effective(BEST_EFFORT) == CPUSet(range(16))


def test_a_pod_that_comes_back_while_it_runs_keeps_everything(world: World) -> None:
    before = world.listed(A).state
    world.kernel.add_task(KUBEPODS / "poda" / "c0")
    writes = len(world.kernel.writes)
    assert world.handle(PodGone(A.uid), PodChanged(A), Tick()).state == before
    assert len(world.kernel.writes) == writes


def test_who_is_missing_from_a_list_makes_room_for_who_is_new_in_it(world: World) -> None:
    world.listed(exclusive_pod("old", 7), exclusive_pod("other", 8))
    snapshot = world.listed(exclusive_pod("new", 7), exclusive_pod("other", 8))
    assert held(snapshot) == {"new": "1-7", "other": "8-15"}
    assert snapshot.rejections == {}


def test_a_pod_is_released_with_cgroups_that_others_made_below_it(world: World) -> None:
    world.listed(A)
    world.kernel.make(KUBEPODS / "poda" / "c0" / "of" / "its-own")
    assert held(world.listed()) == {}
    assert world.kernel.children(KUBEPODS) == (BEST_EFFORT, BURSTABLE)


def test_a_rejected_pod_says_why_and_stays_rejected(world: World) -> None:
    world.listed(TOO_BIG)
    world.start()
    snapshot = world.listed(TOO_BIG)
    assert snapshot.rejections[TOO_BIG.uid].reason == "TopologyAffinityError"
    assert snapshot.decisions == {}
    assert world.effective(KUBEPODS / "podbig" / "c0") == CPUSet(range(16))


def test_a_rejection_is_told_and_counted_once_however_often_it_is_thought_over(
    world: World,
) -> None:
    with capture_logs() as logs:
        world.listed(A, B, TOO_BIG)
        world.handle(PodGone(A.uid))
        snapshot = world.handle(PodGone(B.uid))
    assert [line["event"] for line in logs].count("pod_rejected") == 1
    assert snapshot.decisions["TopologyAffinityError"] == 1


def test_a_rejected_pod_that_asks_for_less_is_admitted(world: World) -> None:
    world.listed(TOO_BIG)
    snapshot = world.handle(PodChanged(exclusive_pod("big", 3)))
    assert (held(snapshot), snapshot.rejections) == ({"big": "1-3"}, {})


def test_a_running_pod_whose_new_demand_does_not_fit_keeps_what_it_has(world: World) -> None:
    before = world.listed(A)
    with capture_logs() as logs:
        after = world.handle(PodChanged(exclusive_pod("a", 16)), PodsListed((A, B)))
        more = world.handle(PodChanged(exclusive_pod("a", 16)), Tick())
    assert after.state.pods[A.uid] == before.state.pods[A.uid]
    assert after.complaints == {}
    assert more.complaints[A.uid].reason == "TopologyAffinityError"
    assert more.rejections == {}
    assert [line["event"] for line in logs].count("demand_refused") == 2


def test_a_running_pod_without_cpus_of_its_own_is_not_rejected_either(world: World) -> None:
    half = Container(name="c0", resources=equal(500))
    world.listed(replace(A, app_containers=(half,)))
    snapshot = world.handle(PodChanged(exclusive_pod("a", 16)))
    assert snapshot.rejections == {}
    assert list(snapshot.complaints) == ["a"]


def test_a_demand_that_did_not_fit_is_met_once_there_is_room(world: World) -> None:
    world.listed(A, exclusive_pod("b", 5), exclusive_pod("c", 8))
    more = exclusive_pod("a", 4)
    assert list(world.handle(PodChanged(more)).complaints) == ["a"]
    snapshot = world.handle(PodGone(PodUID("b")))
    assert held(snapshot) == {"a": "1-4", "c": "8-15"}
    assert snapshot.complaints == {}


def test_a_change_is_taken_back_by_its_reverse(world: World) -> None:
    world.listed(A)
    world.handle(PodChanged(exclusive_pod("a", 16)))
    snapshot = world.handle(PodChanged(A))
    assert (held(snapshot), snapshot.complaints) == ({"a": "1-2"}, {})


def test_a_pod_of_another_class_waits_until_nothing_runs_in_its_old_cgroup(world: World) -> None:
    world.listed(A)
    pid = world.kernel.add_task(KUBEPODS / "poda" / "c0")
    snapshot = world.handle(PodChanged(shared_pod("a")))
    assert held(snapshot) == {"a": "1-2"}
    assert snapshot.complaints[A.uid].reason == "QoSClassChanged"
    assert "end what runs in the pod first" in snapshot.complaints[A.uid].message
    assert not world.exists(BEST_EFFORT / "poda")
    world.kernel.kill(pid)
    snapshot = world.handle(Tick())
    assert (held(snapshot), snapshot.complaints) == ({}, {})
    assert not world.exists(KUBEPODS / "poda")
    assert world.effective(BEST_EFFORT / "poda" / "c0") == CPUSet(range(16))


def test_an_ephemeral_container_lets_the_pod_use_the_default_set_too(world: World) -> None:
    world.listed(A)
    debug = Container(name="debug", kind=Kind.EPHEMERAL)
    world.handle(PodChanged(replace(A, ephemeral_containers=(debug,))))
    assert world.effective(KUBEPODS / "poda") == CPUSet(range(16))
    assert world.effective(KUBEPODS / "poda" / "c0") == CPUSet([1, 2])


def test_a_name_that_no_cgroup_can_have_is_reported_and_disturbs_nobody(world: World) -> None:
    annotations = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "../../etc"}
    bad = replace(A, annotations=annotations)
    snapshot = world.listed(bad, B)
    assert held(snapshot) == {"b": "1-5"}
    assert "cannot be part of a cgroup's name" in snapshot.complaints[bad.uid].message
    assert world.handle(PodGone(bad.uid)).complaints == {}


def test_imported_pods_keep_what_the_files_said_and_others_are_let_go(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    state = world.listed(exclusive_pod("first", 3), A, B).state
    world.store().save(Remembered(state=state))  # as `numalet state import` does: no pods
    world.start()
    assert held(world.handle(Tick())) == {"first": "1-3", "a": "4-5", "b": "8-12"}
    snapshot = world.listed(A, B)
    assert held(snapshot) == {"a": "4-5", "b": "8-12"}
    assert snapshot.state.default == CPUSet.parse("0-3,6-7,13-15")
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "4-5"


def test_inputs_and_sources_are_logged_once_per_change(world: World) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            world.handle(
                InputRejected("db.yaml:3", "is wrong"),
                SourceState(healthy=False, detail="connection refused"),
            )
        snapshot = world.handle(InputRejected("db.yaml:3", ""))
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("input_rejected", "warning"),
        ("source", "warning"),
    ]
    assert snapshot.rejected_inputs == {}
    assert snapshot.source == SourceState(healthy=False, detail="connection refused")


def test_without_a_list_what_is_remembered_is_enforced(world: World) -> None:
    world.listed(A)
    world.boot()
    world.start()
    snapshot = world.handle(SourceState(healthy=False, detail="connection refused"))
    assert not snapshot.ready
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1-2"


def test_a_state_that_does_not_fit_is_rebuilt_and_nobody_loses_anything(world: World) -> None:
    before = world.listed(A, B).state
    world.store().save(
        Remembered(
            state=NodeState(default=CPUSet(), pods=before.pods),
            pods={pod.uid: pod for pod in (A, B)},
        )
    )
    with capture_logs() as logs:
        world.start()
    assert [line["event"] for line in logs] == ["state_rebuilt"]
    (kept,) = (world.folder / "state").glob("*.unfit-*")
    assert '"default":""' in kept.read_text()
    assert world.listed(A, B).state == before


def test_a_whole_budget_is_one_pool(world: World) -> None:
    pod = replace(A, budget=equal(6000, 4), app_containers=(*A.app_containers, Container(name="s")))
    snapshot = world.listed(pod)
    assert held(snapshot) == {"a": "1-6"}
    assert world.text(KUBEPODS / "poda" / "s", "cpuset.cpus") == "3-6"
    assert world.text(KUBEPODS / "poda", "cpuset.mems") == "0"


def test_what_is_observed_only_is_decided_but_never_written(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, observe=True)
    snapshot = world.listed(A, B)
    assert (held(snapshot), snapshot.ready) == ({"a": "1-2", "b": "3-7"}, True)
    world.kernel.mkdir(KUBEPODS)
    world.kernel.mkdir(KUBEPODS / "poda")
    assert held(world.listed(B)) == {"b": "3-7"}
    assert world.exists(KUBEPODS / "poda")
    assert world.kernel.writes == []
    assert world.remembered() is None


def test_a_pods_uid_is_its_identity_not_its_name(world: World) -> None:
    world.listed(A)
    again = Pod(uid=PodUID("new"), name="a", app_containers=A.app_containers)
    assert held(world.listed(again)) == {"new": "1-2"}
