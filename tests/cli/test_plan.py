"""``numalet plan``: who would get what."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.core.cpuset import CPUSet
from tests.cli.rig import DB, EXAMPLES, MACHINE, SAMPLES, Cli

CONFIG = EXAMPLES / "config.yaml"
DOCUMENT = {"defaultCpuSet": str, "reservedCpuSet": str, "pods": list}
POD = {
    "namespace": str,
    "name": str,
    "uid": str,
    "qosClass": ("Guaranteed", "Burstable", "BestEffort"),
    "admitted": bool,
    "reason": str,
    "message": str,
    "cpuPool": str,
    "numaNodes": str,
    "cpuMax": str,
    "containers": list,
}
CONTAINER = {
    "name": str,
    "kind": ("init", "sidecar", "app", "ephemeral"),
    "verdict": ("exclusive", "pod-shared", "node-shared", "unsupported-runtime"),
    "reason": str,
    "cpus": str,
    "mems": str,
    "cpuMax": str,
    "memory": dict,
}
MANY_KINDS = """
apiVersion: v1
kind: Pod
metadata: {name: all-kinds, namespace: shop, uid: abc-1}
spec:
  initContainers:
  - {name: prepare, resources: {limits: {cpu: 1, memory: 1Gi}}}
  - {name: mesh, restartPolicy: Always, resources: {limits: {cpu: 1, memory: 1Gi}}}
  containers:
  - {name: main, resources: {limits: {cpu: 2, memory: 1Gi}}}
  ephemeralContainers:
  - {name: debug}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: nginx, resources: {requests: {cpu: 500m}}}]}}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: idle}, spec: {containers: [{name: sleep}]}}
"""
TOO_BIG = """
apiVersion: v1
kind: Pod
metadata: {name: too-big}
spec: {containers: [{name: all, resources: {limits: {cpu: 40, memory: 1Gi}}}]}
"""


def check(part: dict[str, Any], schema: dict[str, Any]) -> None:
    assert list(part) == list(schema)
    for key, kind in schema.items():
        if isinstance(kind, tuple):
            assert part[key] in kind
        else:
            assert type(part[key]) is kind


def check_cpu_max(text: str) -> None:
    quota, period = text.split(" ")
    assert quota == "max" or int(quota) > 0
    assert int(period) == 100_000


def check_document(document: dict[str, Any]) -> None:
    """Compare every key and type with the schema; sets must be Linux lists."""
    check(document, DOCUMENT)
    CPUSet.parse(document["defaultCpuSet"] + "," + document["reservedCpuSet"])
    for pod in document["pods"]:
        check(pod, POD)
        assert bool(pod["reason"]) != pod["admitted"]
        check_cpu_max(pod["cpuMax"])
        CPUSet.parse(pod["cpuPool"])
        for container in pod["containers"]:
            check(container, CONTAINER)
            check_cpu_max(container["cpuMax"])
            assert container["reason"]
            assert CPUSet.parse(container["cpus"])
            for nodes, size in container["memory"].items():
                assert CPUSet.parse(nodes)
                assert type(size) is int


def test_the_document_has_every_key_of_the_schema_and_no_other(
    numalet: Cli, tmp_path: Path
) -> None:
    for name, text in {"many.yaml": MANY_KINDS, "big.yaml": TOO_BIG}.items():
        (tmp_path / name).write_text(text)
    ended = numalet("plan", "-f", tmp_path, "--simulate", MACHINE, "-o", "json")
    assert ended.err == ""
    document = ended.json()
    check_document(document)
    names = [(pod["namespace"], pod["name"], pod["admitted"]) for pod in document["pods"]]
    assert names == [
        ("default", "too-big", False),
        ("shop", "all-kinds", True),
        ("default", "web", True),
        ("default", "idle", True),
    ]
    kinds = [container["kind"] for container in document["pods"][1]["containers"]]
    assert kinds == ["init", "sidecar", "app", "ephemeral"]
    assert document["pods"][1]["uid"] == "abc-1"


def test_the_database_gets_what_the_readme_says(numalet: Cli) -> None:
    ended = numalet("plan", "-f", DB, "--simulate", MACHINE, "--config", CONFIG, "-o", "json")
    assert ended.status == 0
    (pod,) = ended.json()["pods"]
    assert (pod["cpuPool"], pod["numaNodes"], pod["cpuMax"]) == ("1-6", "0", "max 100000")
    assert [(c["name"], c["verdict"], c["cpus"], c["cpuMax"]) for c in pod["containers"]] == [
        ("database", "exclusive", "1-4", "max 100000"),
        ("envoy-proxy", "pod-shared", "5-6", "150000 100000"),
        ("log-collector", "pod-shared", "5-6", "50000 100000"),
    ]
    assert {c["mems"] for c in pod["containers"]} == {"0"}
    assert pod["containers"][0]["memory"] == {"0": 8 << 30}


def test_container_by_container_it_takes_seven(numalet: Cli) -> None:
    file = SAMPLES / "latency-critical-db-per-container.yaml"
    ended = numalet("plan", "-f", file, "--simulate", MACHINE, "--config", CONFIG, "-o", "json")
    (pod,) = ended.json()["pods"]
    assert [c["verdict"] for c in pod["containers"]] == ["exclusive"] * 3
    assert [c["cpus"] for c in pod["containers"]] == ["1-4", "5-6", "7"]
    assert pod["cpuPool"] == "1-7"


def test_the_minimal_configuration_is_enough(numalet: Cli) -> None:
    config = SAMPLES / "kubelet-config-minimal.yaml"
    ended = numalet("plan", "-f", DB, "--simulate", MACHINE, "--config", config, "-o", "json")
    (pod,) = ended.json()["pods"]
    assert (ended.status, pod["admitted"], pod["cpuPool"]) == (0, True, "1-6")


def test_status_1_says_that_something_is_rejected(numalet: Cli) -> None:
    ended = numalet("plan", "-f", "-", "-f", DB, "--simulate", MACHINE, stdin=TOO_BIG)
    assert ended.status == 1
    assert "default/too-big rejected: " in ended.out
    assert "admitted" in ended.out


def test_standard_input_is_a_manifest(numalet: Cli) -> None:
    ended = numalet("plan", "-f", "-", "--simulate", MACHINE, "-o", "json", stdin=DB.read_text())
    assert (ended.status, ended.json()["pods"][0]["name"]) == (0, "latency-critical-db")


def test_json_is_a_manifest_too(numalet: Cli) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "j"},
        "spec": {"containers": [{"name": "c"}]},
    }
    ended = numalet(
        "plan", "-f", "-", "--simulate", MACHINE, "-o", "json", stdin=json.dumps(pod, indent=1)
    )
    assert (ended.status, ended.json()["pods"][0]["name"]) == (0, "j")


def test_pods_are_decided_in_the_order_of_the_files(numalet: Cli) -> None:
    other = SAMPLES / "latency-critical-db-per-container.yaml"
    pools = []
    for files in ((DB, other), (other, DB)):
        words = [word for file in files for word in ("-f", file)]
        document = numalet("plan", *words, "--simulate", MACHINE, "-o", "json").json()
        pools.append([pod["cpuPool"] for pod in document["pods"]])
    assert pools == [["1-6", "7-13"], ["1-7", "8-13"]]


def test_the_table_is_aligned_and_plain_where_a_program_reads_it(numalet: Cli) -> None:
    ended = numalet("plan", "-f", DB, "--simulate", MACHINE)
    assert "\x1b" not in ended.out
    lines = [line.rstrip() for line in ended.out.splitlines()]
    assert lines == [
        "POD                          CONTAINER            VERDICT     CPUS  MEMS  CPU.MAX",
        "default/latency-critical-db  Guaranteed           admitted    1-6   0     max 100000",
        "                             database (app)       exclusive   1-4   0     max 100000",
        "                             envoy-proxy (app)    pod-shared  5-6   0     150000 100000",
        "                             log-collector (app)  pod-shared  5-6   0     50000 100000",
        "default CPU set: 0,7-31   reserved CPUs: 0",
    ]


def test_a_long_line_is_never_wrapped_where_a_program_reads_it(
    numalet: Cli, tmp_path: Path
) -> None:
    name = "x" * 200
    file = tmp_path / "long.yaml"
    file.write_text(TOO_BIG.replace("too-big", name))
    ended = numalet("plan", "-f", file, "--simulate", MACHINE)
    assert any(
        line.startswith(f"default/{name} rejected: ") and len(line) > 250
        for line in ended.out.splitlines()
    )


def test_a_copy_of_sysfs_is_a_machine(numalet: Cli, tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    for file, text in {
        "cpu/online": "0-3",
        "cpu/cpu0/topology/physical_package_id": "0",
        "node/node0/cpulist": "0-3",
        "node/node0/meminfo": "Node 0 MemTotal: 16777216 kB",
        "node/node0/distance": "10",
    }.items():
        path = sysfs / "devices/system" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    ended = numalet("plan", "-f", DB, "--sysfs", sysfs, "-o", "json")
    assert ended.status == 1
    assert ended.json()["defaultCpuSet"] == "0-3"


def test_without_a_cpu_manager_all_cpus_are_shared_and_said_to_be(
    numalet: Cli, tmp_path: Path
) -> None:
    config = tmp_path / "none.yaml"
    kind = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    config.write_text(f"{kind}cpuManagerPolicy: none\n")
    ended = numalet("plan", "-f", DB, "--simulate", MACHINE, "--config", config)
    *_, first, _, _, last = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert first == "database (app) node-shared 0-31 0 400000 100000"
    assert last == "default CPU set: 0-31 reserved CPUs: none"


def test_memory_of_a_group_of_nodes_is_told_as_a_whole_under_the_list_of_the_group(
    numalet: Cli,
) -> None:
    # Each of the two nodes has 64Gi.
    wide = TOO_BIG.replace("cpu: 40, memory: 1Gi", "cpu: 2, memory: 100Gi")
    ended = numalet("plan", "-f", "-", "--simulate", MACHINE, "-o", "json", stdin=wide)
    ((container,),) = [pod["containers"] for pod in ended.json()["pods"]]
    assert (container["mems"], container["memory"]) == ("0-1", {"0-1": 100 << 30})


@pytest.mark.parametrize("kind", ["text", "json"])
def test_nothing_is_left_behind(numalet: Cli, tmp_path: Path, kind: str) -> None:
    numalet.monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert numalet("plan", "-f", DB, "--simulate", MACHINE, "-o", kind).status == 0
    assert list(tmp_path.iterdir()) == []


def test_a_class_with_a_kernel_of_its_own_is_refused_its_cpus_unless_it_is_taken_off_the_list(
    numalet: Cli, tmp_path: Path
) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        TOO_BIG.replace("cpu: 40", "cpu: 4").replace(
            "spec: {", "spec: {runtimeClassName: kata-qemu, "
        )
    )
    ended = numalet("plan", "-f", pod, "--simulate", MACHINE, "-o", "json")
    check_document(ended.json())
    (told,) = ended.json()["pods"]
    assert (ended.status, told["reason"], told["cpuPool"]) == (1, "UnsupportedRuntime", "")
    (container,) = told["containers"]
    assert (container["verdict"], container["cpus"]) == ("unsupported-runtime", "0-31")
    table = numalet("plan", "-f", pod, "--simulate", MACHINE).out
    assert "take the class out of unsupportedRuntimeClasses" in table

    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\nunsupportedRuntimeClasses: []\n"
    )
    assert numalet("plan", "-f", pod, "--simulate", MACHINE, "--config", config).status == 0
