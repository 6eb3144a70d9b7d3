"""Pods that wait for their devices, and are placed beside them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent.core.entitlement import NOT_SELECTED, Entitlement
from agent.core.explain import WAITING_FOR_DEVICES
from agent.core.pods import DeviceNodes, Devices, Pod, PodUID, QosClass
from agent.ports import DevicesFound, PodChanged, PodGone, PodsListed, Snapshot
from agent.report.status import status_document
from tests.reconciler.rig import KUBEPODS, World, exclusive_pod, shared_pod, two_sockets
from tests.reconciler.test_runtime_cgroups import KubeletWorld

GPU = "nvidia.com/gpu"
ON_1: DeviceNodes = {"c0": {GPU: ((1,),)}}
A = exclusive_pod("a", 2)


def with_gpu(pod: Pod) -> Pod:
    containers = tuple(replace(c, extended=(GPU,)) for c in pod.app_containers)
    return replace(pod, app_containers=containers)


B = with_gpu(exclusive_pod("b", 3))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path, hears_of_devices=True)


def held(snapshot: Snapshot, pod: Pod) -> str:
    entry = snapshot.state.pods.get(pod.uid)
    return "" if entry is None else str(entry.held)


def reasons(snapshot: Snapshot, uid: PodUID) -> list[str]:
    (verdict,) = [v for v in snapshot.verdicts if v.pod.uid == uid]
    return [c.reason for c in verdict.containers]


def test_a_pod_waits_until_it_is_known_where_its_devices_are(world: World) -> None:
    snapshot = world.listed(A, B)
    assert (held(snapshot, A), held(snapshot, B)) == ("1-2", "")
    assert snapshot.waiting == {B.uid}

    snapshot = world.handle(DevicesFound(B.uid, ON_1))

    assert held(snapshot, B) == "8-10"
    assert not snapshot.waiting
    (reason,) = reasons(snapshot, B.uid)
    assert reason.endswith("is a whole number; beside its devices on NUMA node 1")


def test_who_waits_is_shown_and_keeps_nobody_from_being_ready(world: World) -> None:
    document = status_document(world.listed(B))
    assert document["ready"] is True
    (pod,) = cast("list[dict[str, Any]]", document["pods"])
    assert (pod["admitted"], pod["reason"]) == (False, WAITING_FOR_DEVICES)
    assert pod["message"] == "the kubelet has not told yet which devices the pod has"
    assert pod["containers"][0]["reason"] == "it is not decided on yet"


def test_who_waits_runs_on_the_default_cpu_set_and_nobody_waits_for_him(tmp_path: Path) -> None:
    world = KubeletWorld(two_sockets(), tmp_path, hears_of_devices=True)
    path = world.pod(KUBEPODS / "podb")
    world.listed(B, A)
    assert world.cpus(path) == "0,3-15"
    world.handle(DevicesFound(B.uid, ON_1))
    assert world.cpus(path) == "8-10"


def test_after_the_time_limit_a_pod_is_placed_as_if_it_had_no_devices(world: World) -> None:
    world.listed(B)
    snapshot = world.handle(DevicesFound(B.uid, None))
    assert held(snapshot, B) == "1-3"
    (reason,) = reasons(snapshot, B.uid)
    assert reason.endswith("; the kubelet did not say in time where its devices are")


def test_a_placed_pod_stays_where_it_is_when_its_devices_are_told(world: World) -> None:
    world.listed(B)
    world.handle(DevicesFound(B.uid, None))
    world.kernel.writes.clear()

    snapshot = world.handle(DevicesFound(B.uid, ON_1), PodChanged(B))

    assert (held(snapshot, B), world.kernel.writes) == ("1-3", [])
    (reason,) = reasons(snapshot, B.uid)
    assert reason.endswith(
        "; it stays, since it was placed before the kubelet told of its devices on NUMA node 1"
    )


def test_a_restart_waits_for_nobody_who_was_decided_on(world: World) -> None:
    world.listed(A, B)
    before = world.handle(DevicesFound(B.uid, ON_1))
    world.kernel.writes.clear()

    world.start()
    after = world.listed(B, A)

    assert (after.state, after.waiting, world.kernel.writes) == (before.state, frozenset(), [])
    assert reasons(after, B.uid)[0].endswith("; beside its devices on NUMA node 1")
    again = world.handle(DevicesFound(B.uid, ON_1))  # by the new agent's own question
    assert reasons(again, B.uid) == reasons(after, B.uid)


def test_a_restart_lets_those_wait_who_waited(world: World) -> None:
    world.listed(B)
    world.start()
    assert world.listed(B).waiting == {B.uid}
    assert held(world.handle(DevicesFound(B.uid, ON_1)), B) == "8-10"


def test_a_pod_that_runs_since_before_devices_were_asked_for_stays(world: World) -> None:
    world.hears_of_devices = False
    world.start()
    assert held(world.listed(B), B) == "1-3"
    world.hears_of_devices = True
    world.start()
    assert not world.listed(B).waiting
    snapshot = world.handle(DevicesFound(B.uid, ON_1))
    assert held(snapshot, B) == "1-3"
    assert "it stays" in reasons(snapshot, B.uid)[0]


def test_a_pod_that_changes_while_it_waits_is_decided_on_as_it_is_then(world: World) -> None:
    world.listed(B)
    world.handle(PodChanged(with_gpu(exclusive_pod("b", 4))))
    assert held(world.handle(DevicesFound(B.uid, ON_1)), B) == "8-11"


@pytest.mark.parametrize("gone", [PodGone(B.uid), PodsListed((A,))], ids=str)
def test_a_pod_that_goes_while_it_waits_is_forgotten(
    world: World, gone: PodGone | PodsListed
) -> None:
    world.listed(A, B)
    assert not world.handle(gone).waiting
    snapshot = world.handle(DevicesFound(B.uid, ON_1))
    assert [pod.uid for pod in snapshot.pods] == [A.uid]


def test_a_pod_under_another_class_is_still_beside_its_devices(world: World) -> None:
    world.listed(B)
    world.handle(DevicesFound(B.uid, ON_1))
    burstable = replace(B, budget=None, qos=QosClass.BURSTABLE)
    cheaper = replace(
        burstable,
        app_containers=(*burstable.app_containers, shared_pod("x").app_containers[0]),
    )
    snapshot = world.handle(PodChanged(cheaper))
    assert not snapshot.waiting
    (pod,) = snapshot.pods
    assert pod.devices == Devices(nodes=ON_1)


def test_a_strict_policy_rejects_who_does_not_fit_beside_his_devices(world: World) -> None:
    world.listed(exclusive_pod("first", 7), exclusive_pod("second", 6))
    world.handle(PodChanged(B))
    snapshot = world.handle(DevicesFound(B.uid, {"c0": {GPU: ((0,),)}}))
    assert snapshot.rejections[B.uid].reason == "TopologyAffinityError"

    snapshot = world.handle(PodGone(PodUID("first")))

    assert held(snapshot, B) == "1-3"


def test_a_rejected_pod_is_decided_on_again_with_what_is_known_by_then(world: World) -> None:
    world.listed(exclusive_pod("first", 7), exclusive_pod("second", 8), B)
    world.handle(DevicesFound(B.uid, None))
    world.handle(DevicesFound(B.uid, ON_1))

    snapshot = world.handle(PodGone(PodUID("second")))

    assert held(snapshot, B) == "8-10"
    assert reasons(snapshot, B.uid)[0].endswith("; beside its devices on NUMA node 1")


def test_who_gets_nothing_of_his_own_does_not_wait(world: World) -> None:
    world.entitlement = Entitlement(namespaces=frozenset({"default"}))
    world.start()
    elsewhere = replace(B, namespace="elsewhere")
    snapshot = world.listed(elsewhere, with_gpu(shared_pod("s")))
    assert not snapshot.waiting
    assert snapshot.rejections[B.uid].reason == NOT_SELECTED


def test_who_waits_and_may_get_nothing_any_more_waits_no_longer(world: World) -> None:
    world.entitlement = Entitlement(labels={"tier": "fast"})
    world.start()
    assert world.listed(replace(B, labels={"tier": "fast"})).waiting == {B.uid}
    snapshot = world.handle(PodChanged(B))
    assert not snapshot.waiting
    assert [pod.uid for pod in snapshot.pods] == [B.uid]


def test_a_mirror_pod_that_is_made_again_is_still_beside_its_devices(world: World) -> None:
    world.listed(B)
    world.handle(DevicesFound(B.uid, ON_1))
    task = world.kernel.add_task(KUBEPODS / "podb" / "c0")
    world.handle(PodGone(B.uid))

    snapshot = world.handle(PodChanged(B), DevicesFound(B.uid, ON_1))

    assert held(snapshot, B) == "8-10"
    assert reasons(snapshot, B.uid)[0].endswith("; beside its devices on NUMA node 1")

    world.kernel.kill(task)
    world.handle(PodGone(B.uid))
    assert world.handle(PodChanged(B)).waiting == {B.uid}  # another pod, as far as one can know


def test_without_a_source_of_devices_nobody_waits(tmp_path: Path) -> None:
    snapshot = World(two_sockets(), tmp_path).listed(B)
    assert (held(snapshot, B), snapshot.waiting) == ("1-3", frozenset())
