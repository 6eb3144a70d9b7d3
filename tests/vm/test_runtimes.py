"""Containers that real runtimes make as a kubelet has them made, on real kernels, with the agent beside."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.core.cpuset import CPUSet
from hack.lab.topology import TOPOLOGIES

from .rig import in_guest
from .tracing import FileWrite, Traced, file_writes, read_journal

pytestmark = pytest.mark.vm

Told = dict[str, Any]
AGENT = "numalet"
CPUS = CPUSet(range(len(TOPOLOGIES["2n"].by_number())))
ALL_NODES = "0-1"
SHARED_QUOTAS = {
    "side": "50000 100000", "envoy-proxy": "150000 100000", "log-collector": "300000 100000",
    "helper": "max 100000", "web": "max 100000",
}  # fmt: skip
"""What the runtimes wrote, which is the kubelet's business."""


@dataclass(frozen=True, slots=True)
class Life:
    """What was told of one node."""

    told: Told
    journal: list[Traced]

    @property
    def by_systemd(self) -> bool:
        """Tell whether systemd made the cgroups; then crun makes another one below the scope."""
        return all(".slice" in pod["path"] for pod in self.told["placed"]["pods"].values())

    def status(self, stage: str) -> Told:
        status = self.told[stage]["status"]
        assert isinstance(status, dict)
        return status

    def decided(self, stage: str) -> dict[str, Told]:
        """Return the verdicts on all containers by name."""
        pods = self.status(stage)["pods"]
        return {container["name"]: container for pod in pods for container in pod["containers"]}

    def decided_pods(self, stage: str) -> dict[str, Told]:
        return {pod["name"]: pod for pod in self.status(stage)["pods"]}

    def containers(self, stage: str) -> dict[str, Told]:
        """Return what the kernel said of all containers by name."""
        pods = self.told[stage]["pods"].values()
        return {name: one for pod in pods for name, one in pod["containers"].items()}

    def writes(self) -> list[FileWrite]:
        return list(file_writes(self.journal))


def live(driver: str, kernel: str, folder: Path, more: str = "") -> Life:
    """Let a node live in a guest."""
    command = f"python -m tests.vm.runtimes {driver} {folder} {more}"
    systemd = driver == "systemd"
    guest = TOPOLOGIES["2n"]
    outcome = in_guest(guest, command, kernel=kernel, systemd=systemd, results=folder)
    log = folder / "agent.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    told = json.loads((folder / "observed.json").read_text())
    return Life(told, read_journal(folder / "journal"))


LIVES = {
    "slices": ("systemd", "6.1", ""),
    "plain folders": ("cgroupfs", "6.12", ""),
    "slices, killed and with containerd": ("systemd", "6.12", "more"),
}
LONGEST = list(LIVES)[-1]


@pytest.fixture(scope="module", params=LIVES)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Life:
    driver, kernel, more = LIVES[request.param]
    return live(driver, kernel, tmp_path_factory.mktemp("runtimes"), more)


STAGES = ("placed", "killed", "restarted", "debugged", "deleted", "containerd")


def stages(life: Life) -> Iterator[str]:
    """Yield the stages that this life had."""
    return (stage for stage in STAGES if stage in life.told)


def test_every_thread_may_use_what_was_decided_and_nothing_else(life: Life) -> None:
    for stage in stages(life):
        decided = life.decided(stage)
        for name, container in life.containers(stage).items():
            want = [decided[name]["cpus"], decided[name]["mems"] or ALL_NODES]
            assert container["threads"] == [want] * len(container["threads"]), (stage, name)
            assert container["threads"], (stage, name)


def test_neither_an_event_nor_the_agent_s_death_changes_the_cpus_of_an_exclusive_container(
    life: Life,
) -> None:
    placed = life.containers("placed")
    for stage in stages(life):
        for name in ("app", "database"):
            now = life.containers(stage)[name]["threads"]
            assert {tuple(thread) for thread in now} == {tuple(placed[name]["born"])}, (stage, name)


def test_a_program_with_threads_of_its_own_was_among_them(life: Life) -> None:
    assert len(life.containers("placed")["database"]["threads"]) == 4


def test_exclusive_cpus_are_nobody_elses(life: Life) -> None:
    for stage in stages(life):
        exclusive = {
            name: CPUSet.parse(one["cpus"])
            for name, one in life.decided(stage).items()
            if one["verdict"] == "exclusive"
        }
        assert {"app", "database"} <= exclusive.keys()
        for owner, cpus in exclusive.items():
            for name, container in life.containers(stage).items():
                for allowed, _ in container["threads"] if name != owner else ():
                    assert cpus.isdisjoint(CPUSet.parse(allowed)), (stage, owner, name)
            for pod in life.told[stage]["pods"].values():
                for allowed, _ in pod["sandbox"]:
                    assert cpus.isdisjoint(CPUSet.parse(allowed)), (stage, owner, "a sandbox")


@pytest.mark.parametrize("qos", ["Burstable", "BestEffort"])
def test_a_class_has_the_default_cpu_set_and_the_pools_of_its_own_pods(
    life: Life, qos: str
) -> None:
    for stage in stages(life):
        cpus = CPUSet.parse(life.status(stage)["defaultCpuSet"])
        for name, pod in life.told[stage]["pods"].items():
            if qos.lower() in pod["path"]:
                cpus |= CPUSet.parse(life.decided_pods(stage)[name]["cpuPool"])
        assert life.told[stage]["classes"][qos] == str(cpus), stage


def test_the_cgroup_with_the_processes_says_it_crun_s_inner_one_too(life: Life) -> None:
    decided = life.decided("placed")
    for name, container in life.containers("placed").items():
        for files in container["files"]:
            want = decided[name]["cpus"], decided[name]["mems"]
            assert (files["cpuset.cpus"], files["cpuset.cpus.effective"]) == (want[0], want[0])
            assert files["cpuset.mems"] == want[1], name
    inner = {
        name
        for name, one in life.containers("placed").items()
        if one["files"][-1]["cgroup"] == "container"
    }
    made_by_crun = {"database", "envoy-proxy", "log-collector", "worker", "helper", "web"}
    assert inner == (made_by_crun if life.by_systemd else set())


def test_what_is_exclusive_has_no_quota_and_who_shares_keeps_the_runtime_s(life: Life) -> None:
    containers = life.containers("placed")

    quotas = {name: one["files"][0]["cpu.max"] for name, one in containers.items()}

    unlimited = dict.fromkeys(("app", "database", "worker"), "max 100000")
    assert quotas == unlimited | SHARED_QUOTAS
    pods = life.told["placed"]["pods"]
    for name in ("guaranteed", "latency-critical-db", "annotated"):
        assert pods[name]["files"]["cpu.max"] == "max 100000", name


@pytest.mark.parametrize(
    "name", ["app", "database", "envoy-proxy", "log-collector", "worker", "helper", "web"]
)
def test_a_program_saw_its_own_cpus_when_it_began(life: Life, name: str) -> None:
    container = life.containers("placed")[name]
    assert container["born"] == container["threads"][0]


def test_a_container_that_lives_for_less_than_half_a_second_is_confined_too(life: Life) -> None:
    assert life.told["blink"][0] == life.status("placed")["defaultCpuSet"]


def test_a_busy_sidecar_never_runs_on_the_cpus_of_its_pod_s_exclusive_container(life: Life) -> None:
    decided = life.decided("placed")
    for name, ran_on in life.told["busy loops"].items():
        assert CPUSet(ran_on) <= CPUSet.parse(decided[name]["cpus"]), name


def test_the_agent_s_own_metric_tells_no_window_too_short(life: Life) -> None:
    """Until the agent was killed, of which it knows nothing any more."""
    told = life.status("placed")["confinement"]
    until_s = life.told["placed"]["at"]
    made_s = {
        traced.fields["path"]: traced.at_s
        for traced in life.journal
        if traced.event == "cgroup_mkdir" and traced.at_s < until_s
    }
    confined_s: dict[str, float] = {}
    for write in life.writes():
        if write.comm == AGENT and write.file == "cpuset.cpus" and write.at_s < until_s:
            confined_s.setdefault(write.cgroup, write.at_s)
    leaves = [one["leaf"] for one in life.containers("placed").values()]
    windows_s = [
        next(at_s for cgroup, at_s in confined_s.items() if leaf.endswith(cgroup))
        - next(at_s for path, at_s in made_s.items() if path.endswith(leaf))
        for leaf in leaves
    ]

    containers = told["container"]
    assert containers["found"] == {"nothing": containers["confined"], "running": 0, "unseen": 0}
    assert containers["confined"] >= len(leaves)
    assert containers["windowSeconds"] >= sum(windows_s) * 0.9
    assert told["pod"]["confined"] == sum(told["pod"]["found"].values()) > 0


def test_no_value_is_written_where_it_stands_already(life: Life) -> None:
    stands: dict[tuple[str, str], str] = {}
    twice = []
    for write in life.writes():
        place = write.cgroup, write.file
        if write.file == "cgroup.subtree_control" and "-cpuset" in write.value:
            # With the files of the cgroups below go their values.
            above = write.cgroup.rpartition("/")[2] + "/"
            stands = {key: value for key, value in stands.items() if not key[0].startswith(above)}
        if write.comm == AGENT and stands.get(place) == write.value:
            twice.append(write)
        stands[place] = write.value
    assert twice == []


def test_a_restarted_container_keeps_its_cpus_under_its_new_id(life: Life) -> None:
    before, after = (life.containers(stage)["database"] for stage in ("placed", "restarted"))

    assert before["leaf"] != after["leaf"]
    assert after["threads"][0] == before["threads"][0] == after["born"]


def test_an_ephemeral_container_runs_on_the_default_cpu_set(life: Life) -> None:
    debug = life.containers("debugged")["debug"]
    assert debug["threads"][0][0] == life.status("debugged")["defaultCpuSet"]


def test_a_deleted_pod_s_cpus_are_everybody_s_again(life: Life) -> None:
    former = CPUSet.parse(life.decided_pods("debugged")["annotated"]["cpuPool"])
    before, after = (
        CPUSet.parse(life.status(stage)["defaultCpuSet"]) for stage in ("debugged", "deleted")
    )

    assert after == before | former
    assert life.containers("deleted")["web"]["threads"][0][0] == str(after)


def test_the_agent_ends_with_status_0_and_remembers_nothing_of_cgroups_that_have_gone(
    life: Life,
) -> None:
    assert life.told["exit"] == 0
    assert life.told["journalled"] != []
    assert life.told["gone"] == []


@pytest.mark.parametrize("life", [LONGEST], indirect=True)
def test_an_agent_that_is_killed_at_any_instant_and_started_again_writes_nothing(
    life: Life,
) -> None:
    begin, end = life.told["killed at"], life.told["killed"]["at"]

    made = [write for write in life.writes() if write.comm == AGENT and begin < write.at_s < end]

    assert made == [], f"it lived for {life.told['lives']} s"
    assert life.containers("killed").keys() == life.containers("placed").keys()
    for name, container in life.containers("placed").items():
        after = life.containers("killed")[name]
        assert (after["leaf"], after["files"]) == (container["leaf"], container["files"]), name
    assert life.status("killed")["pods"] == life.status("placed")["pods"]


@pytest.mark.parametrize("life", [LONGEST], indirect=True)
def test_debian_s_containerd_has_its_containers_confined_before_their_programs_begin(
    life: Life,
) -> None:
    decided, containers = life.decided("containerd"), life.containers("containerd")

    for name, verdict in (("worker", "exclusive"), ("helper", "pod-shared")):
        assert decided[name]["verdict"] == verdict
        assert containers[name]["born"] == [decided[name]["cpus"], decided[name]["mems"]]
        assert containers[name]["threads"] == [containers[name]["born"]]
