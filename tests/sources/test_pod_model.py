"""An object of the Kubernetes API becomes a pod, or an error that names the field."""

import json
from collections.abc import Mapping

import pytest

from agent.core.claims import BUDGET_ANNOTATION
from agent.core.pods import Container, Kind, Resources
from agent.errors import InputError
from agent.sources.pod_model import parse_pod, stable_uid


def raw_pod(spec: Mapping[str, object] | None = None, **metadata: object) -> dict[str, object]:
    return {
        "metadata": {"name": "db", **metadata},
        "spec": {"containers": [{"name": "main"}]} if spec is None else spec,
    }


def with_limits(limits: object) -> dict[str, object]:
    return raw_pod({"containers": [{"name": "main", "resources": {"limits": limits}}]})


def test_a_whole_object_is_read_and_what_is_not_needed_ignored() -> None:
    raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "db",
            "namespace": "prod",
            "uid": "64a4ca5b-40aa-472a-acae-0ca0b9df6e30",
            "labels": {"app": "db"},
            "annotations": {"team": "storage"},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "resources": {"requests": {"cpu": "6"}, "limits": {"cpu": "6", "memory": "9Gi"}},
            "initContainers": [
                {"name": "load", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "proxy", "restartPolicy": "Always"},
            ],
            "containers": [
                {
                    "name": "main",
                    "restartPolicy": "Always",
                    "resources": {
                        "limits": {"cpu": "1500m", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "1"}
                    },
                }
            ],
            "ephemeralContainers": [{"name": "shell"}],
            "runtimeClassName": "kata-qemu",
        },
        "status": {"phase": "Running"},
    }

    pod = parse_pod(raw, where="prod/db")

    assert (pod.namespace, pod.name) == ("prod", "db")
    assert pod.uid == "64a4ca5b-40aa-472a-acae-0ca0b9df6e30"
    assert (pod.labels, pod.annotations) == ({"app": "db"}, {"team": "storage"})
    assert pod.budget == Resources(requests={"cpu": 6000}, limits={"cpu": 6000, "memory": 9 << 30})
    assert [(c.name, c.kind) for c in pod.init_containers] == [
        ("load", Kind.INIT),
        ("proxy", Kind.SIDECAR),
    ]
    assert pod.app_containers == (
        Container(
            name="main",
            resources=Resources(limits={"cpu": 1500, "hugepages-2Mi": 4 << 20}),
            extended=("nvidia.com/gpu",),
        ),
    )
    assert [(c.name, c.kind) for c in pod.ephemeral_containers] == [("shell", Kind.EPHEMERAL)]
    assert (pod.runtime_class, pod.own_kernel) == ("kata-qemu", "")


def test_of_resources_by_name_only_those_are_extended_that_devices_can_be_behind() -> None:
    others = ["cpu", "ephemeral-storage", "hugepages-1Gi", "attachable-volumes-aws-ebs"]
    others += ["requests.example.com/gpu", "batch.kubernetes.io/cpu", "kubernetes.io/x"]
    limits = dict.fromkeys((*others, "example.com/nic", "amd.com/gpu"), "1")

    [container] = parse_pod(with_limits(limits), where="").app_containers
    [none] = parse_pod(with_limits({"nvidia.com/gpu": 0}), where="").app_containers

    assert container.extended == ("amd.com/gpu", "example.com/nic")
    assert none.extended == ()


@pytest.mark.parametrize(
    ("value", "milli"),
    [(4, 4000), (1.5, 1500), ("2", 2000), ("100m", 100), (0.1, 100), ("1n", 1)],
)
def test_a_quantity_is_a_text_or_a_bare_number(value: object, milli: int) -> None:
    [container] = parse_pod(with_limits({"cpu": value}), where="").app_containers

    assert container.resources.limits == {"cpu": milli}


@pytest.mark.parametrize(
    "value", ["NaN", "1_000", " 1", "", "-1", True, None, ["1"], float("nan"), float("inf"), "1GiB"]
)
def test_what_is_no_quantity_is_refused_with_its_field(value: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_pod(with_limits({"cpu": value}), where="db.yaml:3")

    assert str(caught.value).startswith("db.yaml:3: spec.containers[0].resources.limits.cpu: ")
    assert caught.value.where == "db.yaml:3"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({}, "metadata: is missing"),
        ({"metadata": {}, "spec": {}}, "metadata.name: is missing"),
        (raw_pod(annotations={"a": 1}), "metadata.annotations.a: 1 is not a text"),
        (raw_pod(uid="../../x"), "metadata.uid: string should match"),
        (raw_pod({"containers": {}}), "spec.containers: {} is not a list"),
        (raw_pod({"containers": [{}]}), "spec.containers[0].name: is missing"),
        (raw_pod({"containers": ["a"]}), "spec.containers[0]: 'a' is not a mapping"),
        (raw_pod({"resources": {"limits": {"memory": "x"}}}), "spec.resources.limits.memory: 'x'"),
        (raw_pod({"resources": {"limits": []}}), "spec.resources.limits: [] is not a mapping"),
        (
            raw_pod(annotations={BUDGET_ANNOTATION: "6"}),
            "metadata.annotations[numalet.io/resources]: '6' names no resource",
        ),
    ],
)
def test_a_wrong_field_is_named(raw: Mapping[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_pod(raw, where="w")

    assert str(caught.value).startswith(f"w: {field}")


def test_null_is_the_same_as_absent() -> None:
    pod = parse_pod(
        raw_pod(
            {"containers": [{"name": "main", "resources": None}], "resources": None}, labels=None
        ),
        where="",
    )

    assert pod == parse_pod(raw_pod(), where="")


def test_a_pod_whose_deletion_has_begun_is_terminating() -> None:
    assert not parse_pod(raw_pod(), where="x").is_terminating
    assert not parse_pod(raw_pod(deletionTimestamp=None), where="x").is_terminating
    assert parse_pod(raw_pod(deletionTimestamp="2026-11-30T12:00:00Z"), where="x").is_terminating


def test_a_budget_may_stand_in_an_annotation() -> None:
    value = json.dumps({"cpu": "6", "memory": "9Gi"})

    pod = parse_pod(raw_pod(annotations={BUDGET_ANNOTATION: value}), where="")

    amounts = {"cpu": 6000, "memory": 9 << 30}
    assert pod.budget == Resources(requests=amounts, limits=amounts)


def test_a_pod_without_uid_gets_one_that_follows_from_its_name() -> None:
    pod = parse_pod(raw_pod(namespace="prod"), where="")

    # a state file knows the pod by it: it must never change
    assert pod.uid == stable_uid("prod", "db") == "d67c3d76-a311-5f9a-8759-db6dfbef9824"
    assert pod.uid not in {stable_uid("prod", "db2"), stable_uid("prod2", "db")}
