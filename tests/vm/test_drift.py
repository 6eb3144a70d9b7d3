"""Systemd, a runtime, a stranger and the hardware change what the agent wrote: it stands again."""

import json
from typing import Any

import pytest

from agent.core.contest import FIRST_PAUSE_S, MOST_REPAIRS
from agent.core.cpuset import CPUSet
from hack.lab.topology import TOPOLOGIES

from .drift import LATE, REWRITES
from .rig import in_guest
from .tracing import FileWrite, file_writes, read_journal

pytestmark = pytest.mark.vm

Told = dict[str, Any]
AGENT = "numalet"
INTERFERENCES = (
    "daemon-reload", "daemon-reexec", "set-property", "another program", "another node",
    "a controller switched off", "a stubborn program", "runtime update", "reload after that",
)  # fmt: skip


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("drift")
    command = f"python -m tests.vm.drift {folder}"
    outcome = in_guest(TOPOLOGIES["2n"], command, systemd=True, results=folder)
    log = folder / "agent.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    told: Told = json.loads((folder / "observed.json").read_text())
    return told | {"writes": list(file_writes(read_journal(folder / "journal")))}


def containers(stage: Told) -> dict[str, Told]:
    return {name: one for pod in stage["pods"].values() for name, one in pod["containers"].items()}


def leaves_of(life: Told, pod: str) -> list[str]:
    return [one["leaf"] for one in life["placed"]["pods"][pod]["containers"].values()]


def kernel_view(stage: Told) -> Told:
    """All that must not change while a pod runs."""
    return {
        "pods": {name: pod["files"] for name, pod in stage["pods"].items()},
        "containers": {name: one["files"] for name, one in containers(stage).items()},
        "threads": {name: one["threads"][0] for name, one in containers(stage).items()},
    }


def writes_of(life: Told, what: str, *, by_agent: bool) -> list[FileWrite]:
    begin, end = life[what]["began"], life[what]["at"]
    made: list[FileWrite] = life["writes"]
    return [w for w in made if begin < w.at_s < end and (w.comm == AGENT) == by_agent]


@pytest.mark.parametrize("what", INTERFERENCES)
def test_everything_says_again_what_was_decided(life: Told, what: str) -> None:
    assert kernel_view(life[what]) == kernel_view(life["placed"])
    assert not life[what]["status"]["problems"]
    default = life[what]["status"]["defaultCpuSet"]
    assert life[what]["classes"]["Burstable"] == default
    assert set(life[what]["classes"].values()) == {default}


@pytest.mark.parametrize("what", ["daemon-reload", "daemon-reexec", "set-property"])
def test_quotas_that_systemd_resets_are_counted_as_theirs(life: Told, what: str) -> None:
    theirs = {
        write.cgroup
        for write in writes_of(life, what, by_agent=False)
        if write.file == "cpu.max" and not write.value.startswith("max")
    }
    exclusive = {container["leaf"] for container in containers(life["placed"]).values()}

    assert life[what]["causes"]["quota_rewritten"] >= 1
    assert any(leaf.endswith(cgroup) for leaf in exclusive for cgroup in theirs)


@pytest.mark.parametrize(
    "what", ["another program", "another node", "runtime update", "reload after that"]
)
def test_cpus_that_somebody_else_wrote_are_counted_as_foreign(life: Told, what: str) -> None:
    assert life[what]["causes"]["foreign_write"] >= 1


def test_one_foreign_write_leads_to_one_repair(life: Told) -> None:
    assert life["another program"]["causes"] == {"foreign_write": 1}
    repairs = writes_of(life, "another program", by_agent=True)
    assert [write.file for write in repairs] == ["cpuset.cpus"]


def test_a_pod_from_which_systemd_took_cpuset_before_its_first_scope_is_confined_when_it_has_one(
    life: Told,
) -> None:
    """A kubelet enables it, and systemd takes it away again: nobody below has asked it for that."""
    assert "cpuset" not in life["without a scope"]["controllers"]
    assert not life["without a scope"]["status"]["problems"]
    app = containers(life["placed"])["app"]
    assert app["born"] == app["threads"][0]
    assert CPUSet.parse(app["born"][0]).isdisjoint(CPUSet([0]))  # which is reserved


def test_a_controller_that_was_switched_off_is_enabled_again(life: Told) -> None:
    what = "a controller switched off"
    lost = len(leaves_of(life, "latency-critical-db")) + len(["the sandbox"])

    # The kernel takes the files away one by one: some may still be there at the first look.
    assert life[what]["causes"].keys() == {"controller_off"}
    assert 1 <= life[what]["causes"]["controller_off"] <= lost * len(["cpus", "mems"])
    enabled = [
        w for w in writes_of(life, what, by_agent=True) if w.file == "cgroup.subtree_control"
    ]
    assert len(enabled) == 1


def test_a_file_that_somebody_writes_again_and_again_is_named_and_left_for_a_while(
    life: Told,
) -> None:
    theirs = writes_of(life, "a stubborn program", by_agent=False)
    ours = writes_of(life, "a stubborn program", by_agent=True)

    last_s = theirs[-1].at_s
    repaired_s = max(write.at_s for write in ours if write.at_s < last_s)
    tried_again_s = min(write.at_s for write in ours if write.at_s > last_s)
    cgroup = theirs[0].cgroup
    repairs = [
        write
        for write in life["writes"]
        if (write.comm, write.cgroup, write.file) == (AGENT, cgroup, "cpuset.cpus")
        and write.at_s <= repaired_s
    ]
    assert len(repairs) >= MOST_REPAIRS  # with those of what other programs wrote before
    assert len([write for write in theirs if write.at_s > repaired_s]) >= REWRITES
    assert tried_again_s - repaired_s >= FIRST_PAUSE_S
    assert "cpuset.cpus is left as it is for 10 s" in life["a stubborn program"]["log"]


def test_a_pod_all_of_whose_cpus_go_offline_never_comes_onto_somebody_s_own(life: Told) -> None:
    """Its cgroup would have the CPUs of the one above it then: all, if nothing were written."""
    offline = life["offline"]
    default = CPUSet.parse(offline["status"]["defaultCpuSet"])
    own = CPUSet.parse(containers(offline)["app"]["files"][0]["cpuset.cpus"])
    pod = offline["pods"]["latency-critical-db"]

    allowed = [CPUSet.parse(cpus) for cpus, _ in pod["sandbox"]]
    for container in pod["containers"].values():
        allowed += [CPUSet.parse(cpus) for cpus, _ in container["threads"]]
    effective = CPUSet.parse(pod["files"]["cpuset.cpus.effective"])

    assert own
    assert len(allowed) > len(pod["containers"])
    assert all(cpus <= default and cpus.isdisjoint(own) for cpus in [*allowed, effective])
    assert offline["status"]["drift"]["cpu_offline"] >= 1
    assert containers(offline)["app"]["threads"] == containers(life["placed"])["app"]["threads"]


def test_it_is_back_on_its_cpus_once_they_are_online_again(life: Told) -> None:
    assert kernel_view(life["online"]) == kernel_view(life["placed"])


def test_programs_that_ran_before_their_cgroups_were_seen_are_counted_and_confined_then(
    life: Told,
) -> None:
    before, after = (life[when]["status"]["confinement"] for when in ("online", "late"))
    late = life["late"]["pods"][LATE]["containers"]
    decided = {pod["name"]: pod for pod in life["late"]["status"]["pods"]}[LATE]["containers"]

    for kind, count in (("pod", 1), ("container", len(late))):
        assert after[kind]["found"]["running"] - before[kind]["found"]["running"] == count, kind
        assert after[kind]["windowSeconds"] > before[kind]["windowSeconds"]
    assert {c["name"]: c["cpus"] for c in decided} == {
        name: one["threads"][0][0] for name, one in late.items()
    }


def test_the_agent_ends_with_status_0(life: Told) -> None:
    assert life["exit"] == 0
