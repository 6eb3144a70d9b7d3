"""The daemon on a single host with real cgroups: what it decided is what the kernel does."""

import json
from typing import Any

import pytest

from agent.core.cpuset import CPUSet
from hack.lab.topology import TOPOLOGIES

from .rig import in_guest

pytestmark = pytest.mark.vm

Story = dict[str, Any]
CPUS = CPUSet(range(len(TOPOLOGIES["sample"].by_number())))
QOS_PARENTS = ("numalet.slice/kubepods/besteffort", "numalet.slice/kubepods/burstable")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("single-host")
    command = f"python -m tests.vm.single_host {folder}"
    outcome = in_guest(TOPOLOGIES["sample"], command, results=folder)
    log = folder / "daemon.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    told: Story = json.loads((folder / "observed.json").read_text())
    return told


def pod(status: Story) -> Story:
    (only,) = status["pods"]
    assert isinstance(only, dict)
    return only


def pod_path(status: Story) -> str:
    return f"numalet.slice/kubepods/pod{pod(status)['uid']}"


def containers(status: Story) -> dict[str, Story]:
    return {c["name"]: c for c in pod(status)["containers"]}


def kernel_view(stage: Story) -> Story:
    """All that must not change while a pod runs."""
    return {"cgroups": stage["cgroups"], "processes": stage["processes"]}


def test_the_database_alone_has_four_cpus_and_its_sidecars_share_two_others(story: Story) -> None:
    decided = containers(story["placed"]["status"])

    database = CPUSet.parse(decided["database"]["cpus"])
    shared = CPUSet.parse(decided["envoy-proxy"]["cpus"])

    assert (len(database), len(shared)) == (4, 2)
    assert database.isdisjoint(shared)
    assert decided["log-collector"]["cpus"] == str(shared)
    assert pod(story["placed"]["status"])["cpuPool"] == str(database | shared)


@pytest.mark.parametrize("name", ["database", "envoy-proxy", "log-collector"])
def test_a_process_may_use_what_was_decided_and_nothing_else(story: Story, name: str) -> None:
    decided = containers(story["placed"]["status"])[name]

    process = story["placed"]["processes"][name]

    assert (process["cpus"], process["mems"]) == (decided["cpus"], decided["mems"])


@pytest.mark.parametrize("name", ["database", "envoy-proxy", "log-collector"])
def test_a_container_s_files_say_what_was_decided(story: Story, name: str) -> None:
    status = story["placed"]["status"]
    decided = containers(status)[name]

    files = story["placed"]["cgroups"][f"{pod_path(status)}/{name}"]

    assert files == {
        "cpuset.cpus": decided["cpus"],
        "cpuset.cpus.effective": decided["cpus"],
        "cpuset.mems": decided["mems"],
        "cpuset.mems.effective": decided["mems"],
        "cpu.max": decided["cpuMax"],
    }


def test_the_quotas_are_those_of_the_limits_and_none_where_cpus_are_exclusive(
    story: Story,
) -> None:
    path = pod_path(story["placed"]["status"])
    names = ("", "/database", "/envoy-proxy", "/log-collector")

    quotas = [story["placed"]["cgroups"][path + name]["cpu.max"] for name in names]

    assert quotas == ["max 100000", "max 100000", "150000 100000", "50000 100000"]


def test_the_pod_s_files_say_its_pool_and_its_nodes(story: Story) -> None:
    status = story["placed"]["status"]
    decided = pod(status)

    files = story["placed"]["cgroups"][pod_path(status)]

    assert files["cpuset.cpus"] == files["cpuset.cpus.effective"] == decided["cpuPool"]
    assert files["cpuset.mems"] == files["cpuset.mems.effective"] == decided["numaNodes"]


def test_pods_of_other_classes_are_born_outside_the_pool(story: Story) -> None:
    default = CPUS - CPUSet.parse(pod(story["placed"]["status"])["cpuPool"])

    effective = [story["placed"]["cgroups"][p]["cpuset.cpus.effective"] for p in QOS_PARENTS]

    assert effective == [str(default)] * 2
    assert story["placed"]["status"]["defaultCpuSet"] == str(default)


def test_nothing_drifts_by_itself(story: Story) -> None:
    assert not story["placed"]["status"]["drift"]
    assert not story["placed"]["status"]["problems"]


def test_a_foreign_write_is_repaired_and_counted(story: Story) -> None:
    assert kernel_view(story["repaired"]) == kernel_view(story["placed"])
    assert story["command"]["drift"] == {"foreign_write": 1}


def test_a_daemon_that_is_killed_leaves_everything_as_it_is(story: Story) -> None:
    assert kernel_view(story["killed"]) == kernel_view(story["repaired"])


def test_a_restart_changes_no_value_and_writes_none(story: Story) -> None:
    assert kernel_view(story["restarted"]) == kernel_view(story["killed"])
    assert not story["restarted"]["status"]["writes"]
    assert not story["restarted"]["status"]["drift"]
    assert story["restarted"]["status"]["pods"] == story["placed"]["status"]["pods"]


def test_a_pod_without_manifest_holds_what_it_has_while_its_processes_run(story: Story) -> None:
    assert kernel_view(story["held"]) == kernel_view(story["placed"])


def test_once_the_processes_have_ended_the_cgroups_are_gone_and_the_default_set_is_whole(
    story: Story,
) -> None:
    released = story["released"]

    left = sorted(path.removeprefix("numalet.slice").strip("/") for path in released["cgroups"])

    assert left == ["", "kubepods", "kubepods/besteffort", "kubepods/burstable"]
    assert released["status"]["defaultCpuSet"] == str(CPUS)
    assert {released["cgroups"][p]["cpuset.cpus.effective"] for p in QOS_PARENTS} == {str(CPUS)}


def test_the_daemon_stops_with_status_0(story: Story) -> None:
    assert story["exit"] == 0
