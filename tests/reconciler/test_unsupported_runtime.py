"""Who runs under a kernel of his own has no CPUs of his own: no cgroup places his threads."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.entitlement import UNSUPPORTED_RUNTIME, Entitlement
from agent.core.isolation import Isolation
from agent.core.pods import Pod, PodUID
from agent.ports import CgroupsChanged, PodChanged, PodGone, Snapshot, Tick
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    annotated_pod,
    exclusive_pod,
    shared_pod,
    two_sockets,
)
from tests.reconciler.test_runtime_cgroups import KubeletWorld, Name

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)
POD = KUBEPODS / "poda"


@pytest.fixture
def world(tmp_path: Path) -> KubeletWorld:
    return KubeletWorld(two_sockets(), tmp_path)


def isolations(snapshot: Snapshot, pod: Pod) -> set[Isolation]:
    (verdict,) = (verdict for verdict in snapshot.verdicts if verdict.pod.uid == pod.uid)
    return {container.verdict for container in verdict.containers}


def test_a_bundle_that_tells_late_gives_the_cpus_to_whom_they_serve(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(POD)
    world.kernel.write(path, "cpu.max", "200000 100000")
    sandbox = world.container(path, None, named=False)
    world.handle(CgroupsChanged(path))
    assert (world.cpus(sandbox), world.text(path, "cpu.max")) == ("1-2", "max 100000")

    world.bundles.known[sandbox.name] = Name(None, A.uid, "kata-qemu")
    snapshot = world.handle(CgroupsChanged(path))

    assert snapshot.ready
    assert snapshot.state == world.rules.initial_state()
    assert snapshot.rejections[A.uid].reason == UNSUPPORTED_RUNTIME
    assert "runtime kata-qemu runs it under a kernel" in snapshot.rejections[A.uid].message
    assert isolations(snapshot, A) == {Isolation.UNSUPPORTED_RUNTIME}
    assert world.cpus(sandbox) == world.cpus(path) == "0-15"
    assert world.text(path, "cpu.max") == "200000 100000"

    world.handle(PodChanged(B))

    assert world.cpus(sandbox) == "0,4-15"
    assert world.handle(Tick()).problems == ()


def test_the_cpus_go_at_once_to_a_pod_that_waited_for_them(world: KubeletWorld) -> None:
    big, other = exclusive_pod("a", 7), exclusive_pod("other", 8)
    world.listed(big, other, B)
    assert list(world.snapshots[-1].rejections) == ["b"]

    path = world.pod(POD)
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, A.uid, "runsc")
    snapshot = world.handle(CgroupsChanged(path))

    assert list(snapshot.rejections) == ["a"]
    assert str(snapshot.state.pods[B.uid].held) == "1-3"


def test_what_the_source_says_later_changes_nothing_of_that(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(POD)
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, A.uid, "runsc")
    world.handle(CgroupsChanged(path))
    world.bundles.known.clear()  # as when it has ended

    snapshot = world.handle(PodChanged(exclusive_pod("a", 4)), Tick())

    assert snapshot.rejections[A.uid].reason == UNSUPPORTED_RUNTIME
    assert (snapshot.state.pods, snapshot.complaints) == ({}, {})


def test_a_resize_that_was_refused_is_no_complaint_any_more(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(POD)
    assert world.handle(PodChanged(exclusive_pod("a", 16))).complaints
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, A.uid, "runsc")

    snapshot = world.handle(CgroupsChanged(path))

    assert (snapshot.state.pods, snapshot.complaints) == ({}, {})


def test_a_virtual_machine_outside_of_its_pod_is_known_by_the_pods_status(
    world: KubeletWorld,
) -> None:
    world.listed(A)
    world.pod(POD)
    id_ = "f1f5" * 16
    world.bundles.known[id_] = Name("c0", A.uid, "kata-clh")
    snapshot = world.handle(PodChanged(replace(A, container_ids={id_: "c0"})))
    assert list(snapshot.rejections) == ["a"]


def test_what_is_told_of_another_pod_is_not_believed(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(POD)
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, PodUID("other"), "kata-qemu")
    assert world.handle(CgroupsChanged(path)).rejections == {}


def test_a_class_that_is_known_by_its_name_gets_nothing_from_the_start(world: KubeletWorld) -> None:
    world.entitlement = Entitlement(unsupported_classes=("kata*",))
    world.start()
    pool = replace(annotated_pod("pool", 3), runtime_class="kata-fc")
    world.pod(BURSTABLE / "podpool")

    snapshot = world.listed(replace(A, runtime_class="runc"), pool)

    assert list(snapshot.state.pods) == ["a"]
    assert "RuntimeClass kata-fc runs it" in snapshot.rejections[pool.uid].message
    assert isolations(snapshot, pool) == {Isolation.UNSUPPORTED_RUNTIME}
    assert world.cpus(BURSTABLE / "podpool") == "0,3-15"


def test_who_asks_for_nothing_is_refused_nothing_but_has_the_verdict(world: KubeletWorld) -> None:
    idle = shared_pod("s")
    world.listed(idle)
    path = world.pod(BEST_EFFORT / "pods")
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, idle.uid, "runsc")

    snapshot = world.handle(CgroupsChanged(path))

    assert snapshot.rejections == {}
    assert isolations(snapshot, idle) == {Isolation.UNSUPPORTED_RUNTIME}


def test_an_agent_that_only_observes_sees_it_too(world: KubeletWorld) -> None:
    world.observe = True
    world.start()
    world.listed(A)
    path = world.pod(POD)
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, A.uid, "runsc")
    assert list(world.handle(CgroupsChanged(path)).rejections) == ["a"]


def test_a_restart_changes_nothing(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(POD)
    sandbox = world.container(path, None, named=False)
    world.bundles.known[sandbox.name] = Name(None, A.uid, "runsc")
    before = world.handle(CgroupsChanged(path))
    world.kernel.writes.clear()

    world.start()
    after = world.listed(A)

    assert (after.state, after.rejections) == (before.state, before.rejections)
    assert world.kernel.writes == []


def test_a_pod_that_leaves_is_not_called_back_by_its_bundle(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(POD)
    sandbox = world.container(path, None, named=False)
    world.handle(PodGone(A.uid))
    world.bundles.known[sandbox.name] = Name(None, A.uid, "runsc")
    assert world.handle(CgroupsChanged(path)).state.pods == {}
    world.kernel.kill(world.pids[sandbox])
    assert world.handle(CgroupsChanged(path)).pods == ()
