"""What the status of a running pod tells; the pods are recorded, see tests/data/pods."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.core.pods import Container, Pod, QosClass, Resources
from agent.errors import InputError
from agent.sources.manifests import parse_manifest
from agent.sources.pod_model import parse_pod

RECORDED = json.loads(
    (Path(__file__).resolve().parents[1] / "data" / "pods" / "recorded.json").read_text()
)
MI = 1 << 20


def raw(name: str) -> Any:
    """Return a recorded pod; everybody gets one of his own."""
    return json.loads(json.dumps(RECORDED[name]))


def recorded(name: str) -> Pod:
    return parse_pod(raw(name), where=name)


def equal(cpu_milli: int, mebibytes: int) -> Resources:
    amounts = {"cpu": cpu_milli, "memory": mebibytes * MI}
    return Resources(requests=amounts, limits=amounts)


def resources(pod: Pod) -> Mapping[str, Resources]:
    return {c.name: c.resources for c in pod.containers}


@pytest.mark.parametrize(
    ("name", "milli"),
    [
        ("just-posted", 4000),
        ("all-running", 4000),
        ("pod-asked", 4000),  # 5 asked for: the kubelet has not seen it
        ("pod-resized", 5000),  # its status.resources say 4995m
        ("pod-deferred", 5000),  # 8 asked for
    ],
)
def test_a_budget_is_what_the_kubelet_has_allocated(name: str, milli: int) -> None:
    assert recorded(name).budget == equal(milli, 256)


@pytest.mark.parametrize(
    ("name", "milli"),
    [
        ("container-asked", 2000),  # 1 asked for: the kubelet has not seen it
        ("container-in-progress", 1000),
        ("container-resized", 1000),
        ("container-infeasible", 2000),  # 1 asked for
    ],
)
def test_a_container_has_what_the_kubelet_has_allocated(name: str, milli: int) -> None:
    assert resources(recorded(name))["app"] == equal(milli, 64)


def test_what_the_status_adds_up_for_a_pod_without_budget_is_no_budget() -> None:
    assert raw("container-resized")["status"]["allocatedResources"]
    assert recorded("container-resized").budget is None


def test_nothing_but_the_allocation_depends_on_a_resize() -> None:
    before, after = recorded("all-running"), recorded("pod-resized")

    assert before.containers == after.containers
    assert before.uid == after.uid
    assert [c.name for c in after.ephemeral_containers] == ["debugger"]


def deferred(asked: Resources, allocated: Resources, *, conditions: Mapping[str, str]) -> Container:
    """Return the database as it is read while its resize waits."""

    def written(amounts: Mapping[str, int]) -> dict[str, str]:
        return {"cpu": f"{amounts['cpu']}m", "memory": str(amounts["memory"])}

    pod = raw("pod-deferred")
    pod["spec"]["resources"] = raw("pod-resized")["spec"]["resources"]
    pod["status"]["conditions"] = [{"type": t, "status": s} for t, s in conditions.items()]
    pod["spec"]["containers"][0]["resources"] = {
        "requests": written(asked.requests),
        "limits": written(asked.limits),
    }
    status = pod["status"]["containerStatuses"][0]
    status["allocatedResources"] = written(allocated.requests)
    status["resources"]["limits"] = written(allocated.limits)
    return parse_pod(pod, where="").app_containers[0]


EXCLUSIVE = equal(2000, 128)
SHARED = Resources(
    requests={"cpu": 1000, "memory": 128 * MI}, limits={"cpu": 4000, "memory": 128 * MI}
)


@pytest.mark.parametrize(
    ("asked", "allocated"), [(EXCLUSIVE, SHARED), (SHARED, EXCLUSIVE), (equal(3000, 128), SHARED)]
)
def test_whether_a_container_is_exclusive_does_not_change_while_a_resize_waits(
    asked: Resources, allocated: Resources
) -> None:
    read = deferred(asked, allocated, conditions={"PodResizePending": "True"})

    assert read.resources == allocated


def budget_in_wait(limit: str, *conditions: str) -> Resources | None:
    """Return the budget that is read while a resize of limits alone waits."""
    pod = raw("pod-deferred")
    pod["spec"]["resources"] = {
        "requests": {"cpu": "2", "memory": "256Mi"},
        "limits": {"cpu": limit, "memory": "512Mi"},
    }
    pod["status"]["conditions"] = [{"type": t, "status": "True"} for t in conditions]
    pod["status"]["allocatedResources"] = {"cpu": "2", "memory": "256Mi"}
    pod["status"]["resources"] = {
        "requests": {"cpu": "1999m", "memory": "256Mi"},
        "limits": {"cpu": "4", "memory": "512Mi"},
    }
    return parse_pod(pod, where="").budget


def test_limits_of_a_budget_are_those_in_force_while_a_resize_waits() -> None:
    requests = {"cpu": 2000, "memory": 256 * MI}
    allocated = Resources(requests=requests, limits={"cpu": 4000, "memory": 512 * MI})
    asked = Resources(requests=requests, limits={"cpu": 6000, "memory": 512 * MI})
    assert budget_in_wait("6", "PodResizePending") == allocated
    assert budget_in_wait("6") == asked
    # What is in force until a resize is carried out was allocated before.
    assert budget_in_wait("6", "PodResizePending", "PodResizeInProgress") == asked


def test_a_guaranteed_budget_stays_so_though_numalet_has_lifted_the_quota() -> None:
    pod = raw("pod-deferred")
    pod["status"]["resources"]["limits"] = {"cpu": "100", "memory": "256Mi"}
    assert parse_pod(pod, where="").budget == equal(5000, 256)


def test_a_resize_waits_even_before_the_kubelet_says_so() -> None:
    assert deferred(equal(4000, 128), SHARED, conditions={}).resources == SHARED


def test_limits_of_a_resize_that_is_carried_out_are_not_those_still_in_force() -> None:
    conditions = {"PodResizePending": "True", "PodResizeInProgress": "True"}
    in_force = Resources(requests=equal(3000, 128).requests, limits=EXCLUSIVE.limits)

    read = deferred(equal(4000, 128), in_force, conditions=conditions)

    assert read.resources == equal(3000, 128)


def test_containers_are_known_by_their_ids_whatever_runs_them() -> None:
    pod = raw("pod-resized")
    ids = {
        status["name"]: status["containerID"].removeprefix("containerd://")
        for kind in ("containerStatuses", "ephemeralContainerStatuses")
        for status in pod["status"][kind]
    }
    assert ids.keys() == {"database", "envoy-proxy", "log-collector", "debugger"}
    expected = {id_: name for name, id_ in ids.items()}

    assert recorded("pod-resized").container_ids == expected
    text = json.dumps(pod).replace("containerd://", "cri-o://")
    assert parse_pod(json.loads(text), where="").container_ids == expected


def test_init_containers_are_known_by_their_ids_and_by_how_they_ended() -> None:
    started, done = recorded("lifecycle-sidecar"), recorded("lifecycle-running")

    assert set(started.container_ids.values()) == {"setup", "mesh", "migrate"}
    assert started.ended_init == {"setup"}
    assert set(done.container_ids.values()) == {"setup", "mesh", "migrate", "app"}
    assert done.ended_init == {"setup", "migrate"}


def test_an_init_container_that_failed_has_not_ended_well_nor_has_a_sidecar() -> None:
    pod = raw("lifecycle-running")
    setup, mesh, _ = pod["status"]["initContainerStatuses"]
    setup["state"]["terminated"]["exitCode"] = 1
    mesh["state"] = {"terminated": {"exitCode": 0}}

    assert parse_pod(pod, where="").ended_init == {"migrate"}


def test_a_container_that_waits_to_be_restarted_still_has_the_id_of_the_dead_one() -> None:
    assert set(recorded("crash-backoff").container_ids.values()) == {"app", "side"}


def test_before_anything_runs_no_id_is_known() -> None:
    assert recorded("just-posted").container_ids == {}


def test_the_class_is_what_the_api_server_says() -> None:
    assert recorded("all-running").qos is QosClass.GUARANTEED
    assert recorded("crash-backoff").qos is QosClass(raw("crash-backoff")["status"]["qosClass"])
    assert parse_pod(raw("all-running") | {"status": None}, where="").qos is None


def test_a_wrong_amount_in_a_status_is_named() -> None:
    pod = raw("all-running")
    pod["status"]["containerStatuses"][1]["allocatedResources"]["cpu"] = "much"

    with pytest.raises(InputError) as caught:
        parse_pod(pod, where="w")

    field = "w: status.containerStatuses[1].allocatedResources.cpu: 'much'"
    assert str(caught.value).startswith(field)


def test_the_status_in_a_manifest_that_was_copied_from_a_cluster_is_not_believed() -> None:
    pod = raw("pod-deferred") | {"apiVersion": "v1", "kind": "Pod"}
    pod["spec"].pop("ephemeralContainers")

    manifest = parse_manifest(json.dumps(pod), name="copied.json")

    assert manifest.problems == ()
    [(_, read)] = manifest.pods
    assert read.budget == equal(8000, 256)
    assert read.container_ids == {}


def test_a_static_pod_is_known_by_the_hash_of_its_manifest_whatever_its_mirror_is() -> None:
    def parsed(api_uid: str, manifest: str) -> tuple[str, str]:
        annotations = {
            "kubernetes.io/config.mirror": manifest,
            "kubernetes.io/config.hash": manifest,
        }
        raw = {
            "metadata": {"name": "web", "uid": api_uid, "annotations": annotations},
            "spec": {"containers": [{"name": "c"}]},
        }
        pod = parse_pod(raw, where="here")
        return pod.uid, pod.object_uid

    assert parsed("api-1", "ab" * 16) == ("ab" * 16, "api-1")
    assert parsed("api-2", "ab" * 16) == ("ab" * 16, "api-2")
    victim = "ee08ee4c-3de0-403a-a21c-8432c97be5fd"
    assert parsed("api-3", victim) == ("api-3", "api-3")


def test_text_that_is_no_unicode_is_refused() -> None:
    raw = {
        "metadata": {"name": "web", "annotations": {"kubernetes.io/config.x": "\ud800"}},
        "spec": {"containers": [{"name": "c"}]},
    }
    with pytest.raises(InputError, match="half of a surrogate pair"):
        parse_pod(raw, where="here")
