"""One daemon, running; everything that it promises to somebody who watches its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.rig import DB, MACHINE, SAMPLES, Cli
from tests.e2e.daemon import Daemon, Home
from tests.report.rig import get, until
from tests.scratch import scratch_folder

OTHER = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: cache, namespace: shop}
spec:
  template:
    spec:
      containers:
      - {name: redis, resources: {limits: {cpu: 3, memory: 2Gi}}}
      - {name: exporter, resources: {limits: {cpu: 500m, memory: 128Mi}}}
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with scratch_folder() as folder:
        home = Home(Path(folder))
        (home.pods / "db.yaml").write_text(DB.read_text())
        with home.daemon() as daemon:
            daemon.until_ready()
            yield daemon
            assert daemon.end() == 0


def drop(daemon: Daemon, text: str, name: str = "dropped.yaml") -> Path:
    """Put a manifest into the folder, as somebody does who knows how."""
    outside, inside = daemon.home.folder / name, daemon.home.pods / name
    outside.write_text(text)
    outside.rename(inside)
    return inside


@pytest.fixture
def tidy(daemon: Daemon) -> Iterator[None]:
    """Take away what a test has dropped, and wait until it is gone."""
    yield
    for path in daemon.home.pods.iterdir():
        if path.name != "db.yaml":
            path.unlink()
    until(lambda: list(daemon.pods()) == ["latency-critical-db"])
    until(lambda: not daemon.status()["rejectedInputs"])


def said(folder: Path, file: str) -> str:
    return (folder / file).read_text().removesuffix("\n")


def check_files(daemon: Daemon, pod: dict[str, Any]) -> None:
    """Compare a pod's document with what its files say."""
    folder = daemon.cgroup(pod)
    assert said(folder, "cpu.max") == pod["cpuMax"]
    for container in pod["containers"]:
        of_container = folder / container["name"]
        assert said(of_container, "cpuset.cpus") == container["cpus"]
        assert said(of_container, "cpuset.cpus.effective") == container["cpus"]
        assert said(of_container, "cpu.max") == container["cpuMax"]
        if container["mems"]:
            assert said(of_container, "cpuset.mems") == container["mems"]


def test_the_database_has_a_pool_of_six_on_one_numa_node(daemon: Daemon) -> None:
    pod = daemon.pods()["latency-critical-db"]
    assert (pod["cpuPool"], pod["numaNodes"]) == ("1-6", "0")
    database, envoy, logs = pod["containers"]
    assert (database["cpus"], database["cpuMax"]) == ("1-4", "max 100000")
    assert (envoy["cpus"], envoy["cpuMax"]) == ("5-6", "150000 100000")
    assert (logs["cpus"], logs["cpuMax"]) == ("5-6", "50000 100000")
    assert {container["mems"] for container in pod["containers"]} == {"0"}


def test_the_files_say_so_too(daemon: Daemon) -> None:
    pod = daemon.pods()["latency-critical-db"]
    check_files(daemon, pod)
    folder = daemon.cgroup(pod)
    assert said(folder, "cpuset.cpus") == "1-6"
    assert said(folder / "database", "cpuset.cpus") == "1-4"
    assert said(folder / "database", "cpuset.mems") == "0"
    assert said(folder / "envoy-proxy", "cpu.max") == "150000 100000"
    for parent in ("burstable", "besteffort"):
        assert said(folder.parent / parent, "cpuset.cpus") == "0,7-31"


def decided(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod without what only a node knows that has cgroups."""
    only_here = ("cgroup", "cpuWeight", "memoryMax")
    of_pod, *of_containers = (
        {key: value for key, value in each.items() if key not in only_here}
        for each in (pod, *pod["containers"])
    )
    return {**of_pod, "containers": of_containers}


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize(
    "manifest",
    [OTHER, (SAMPLES / "latency-critical-db-per-container.yaml").read_text()],
    ids=["shared and exclusive", "per container"],
)
def test_a_manifest_dropped_into_the_folder_gives_what_plan_says(
    daemon: Daemon, numalet: Cli, tmp_path: Path, manifest: str
) -> None:
    before, files = daemon.status(), daemon.files()
    planned_file = tmp_path / "planned.yaml"
    planned_file.write_text(manifest)
    planned = numalet(
        *("plan", "-f", planned_file, "--state", daemon.home.state, "-o", "json"),
        *("--simulate", MACHINE, "--config", daemon.home.config),
    ).json()
    (pod,) = planned["pods"]

    dropped = drop(daemon, manifest)

    until(lambda: pod["name"] in daemon.pods())
    assert decided(daemon.pods()[pod["name"]]) == pod
    assert daemon.status()["defaultCpuSet"] == planned["defaultCpuSet"]
    check_files(daemon, pod)
    check_files(daemon, daemon.pods()["latency-critical-db"])

    dropped.unlink()

    until(lambda: pod["name"] not in daemon.pods())
    assert daemon.status()["defaultCpuSet"] == before["defaultCpuSet"]
    assert daemon.files() == files


@pytest.mark.usefixtures("tidy")
def test_container_by_container_it_takes_seven_cpus(daemon: Daemon) -> None:
    drop(daemon, (SAMPLES / "latency-critical-db-per-container.yaml").read_text())
    name = "latency-critical-db-per-container"
    until(lambda: name in daemon.pods())
    pod = daemon.pods()[name]
    assert [c["verdict"] for c in pod["containers"]] == ["exclusive"] * 3
    assert pod["cpuPool"] == "7-13"


@pytest.mark.usefixtures("tidy")
def test_a_bad_manifest_is_reported_and_disturbs_nobody(daemon: Daemon, numalet: Cli) -> None:
    pods, writes = daemon.pods(), daemon.status()["writes"]
    bad = drop(daemon, "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers: 5\n")
    where, reason = f"{bad}:5", "spec.containers: 5 is not a list"
    until(lambda: daemon.status()["rejectedInputs"] == {where: reason})
    table = numalet("status", "--socket", daemon.home.socket)
    assert f"input rejected: {where}: {reason}" in table.out.splitlines()
    (line,) = [line for line in daemon.logged("input_rejected") if line["where"] == where]
    assert line["reason"] == reason
    assert (daemon.pods(), daemon.status()["writes"]) == (pods, writes)


@pytest.mark.usefixtures("tidy")
def test_a_pod_that_does_not_fit_is_rejected_with_the_kubelets_reason(
    daemon: Daemon, numalet: Cli
) -> None:
    drop(daemon, OTHER.replace("cpu: 3", "cpu: 17"))
    until(lambda: "cache" in daemon.pods())
    pod = daemon.pods()["cache"]
    assert (pod["admitted"], pod["reason"]) == (False, "TopologyAffinityError")
    explained = numalet("explain", "shop/cache", "--socket", daemon.home.socket)
    assert "rejected: TopologyAffinityError: Resources cannot be allocated" in explained.out


def test_a_file_that_a_hand_changed_is_repaired(daemon: Daemon) -> None:
    file = daemon.cgroup(daemon.pods()["latency-critical-db"]) / "database" / "cpuset.cpus"
    drift = daemon.status()["drift"].get("foreign_write", 0)
    file.write_text("0-31\n")
    until(lambda: file.read_text() == "1-4\n")
    until(lambda: daemon.status()["drift"].get("foreign_write", 0) > drift)


def test_health_and_metrics_are_served(daemon: Daemon) -> None:
    port = daemon.home.port
    assert get(port, "/healthz")[0] == 200
    assert get(port, "/readyz")[0] == 200
    assert get(port, "/")[0] == 404
    families = text_string_to_metric_families(get(port, "/metrics")[2])
    values = {s.name: s.value for family in families for s in family.samples if not s.labels}
    assert values["numalet_ready"] == 1
    assert values["numalet_cpu_manager_exclusive_cpu_allocation_count"] == 4
    assert values["numalet_resident_memory_bytes"] > 1 << 20


def test_everything_told_about_the_node_is_the_same_everywhere(
    daemon: Daemon, numalet: Cli
) -> None:
    shown = numalet("state", "show", "--state", daemon.home.state, "-o", "json").json()
    status = numalet("status", "--config", daemon.home.config, "-o", "json").json()
    assert shown["defaultCpuSet"] == status["defaultCpuSet"] == "0,7-31"
    held = {pod["uid"]: pod["cpuPool"] for pod in shown["pods"]}
    assert held == {pod["uid"]: pod["cpuPool"] for pod in status["pods"]}
    where = ("--simulate", MACHINE, "--config", daemon.home.config)
    assert numalet("state", "verify", "--state", daemon.home.state, *where).status == 0


def test_looking_for_drift_writes_and_prints_nothing(daemon: Daemon) -> None:
    until(lambda: "latency-critical-db" in daemon.printed())  # said after the status
    before, printed = daemon.status(), daemon.printed()
    until(lambda: bool(daemon.status()["takenAt"] > before["takenAt"] + 1.5))
    assert daemon.status()["writes"] == before["writes"]
    assert daemon.printed() == printed
