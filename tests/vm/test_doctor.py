"""`numalet doctor` says the truth in guests of each kind."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agent.core.cpuset import IdSet
from hack.lab.topology import TOPOLOGIES

from .doctor_visits import OVERWRITTEN, RESERVED
from .rig import in_guest, side_by_side

pytestmark = pytest.mark.vm

Visits = dict[str, Any]
OTHERS = "1-3,5-7"


KINDS = {"bare": "6.12", "systemd": "6.1", "spoilt": "6.12"}
"""Guests and their kernels; process 1 is a shell, but for the one with systemd 252."""


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Visits]]:
    def visit(kind: str, folder: Path) -> Visits:
        is_systemd = kind == "systemd"
        command = f"python -m tests.vm.doctor_visits {kind} {folder}"
        in_guest(
            TOPOLOGIES["2n"], command, kernel=KINDS[kind], systemd=is_systemd, results=folder
        ).succeeded()
        said: Visits = json.loads((folder / "visits.json").read_text())
        return said

    return side_by_side(visit, KINDS, tmp_path_factory)


@pytest.fixture(scope="module")
def bare(visits: dict[str, Future[Visits]]) -> Visits:
    return visits["bare"].result() | visits["spoilt"].result()


@pytest.fixture(scope="module")
def systemd(visits: dict[str, Future[Visits]]) -> Visits:
    return visits["systemd"].result()


def told(visit: Visits, check: str) -> list[tuple[str, str]]:
    return [(f["level"], f["what"]) for f in visit["findings"] if f["check"] == check]


def level(visit: Visits, check: str) -> str:
    """The worst level of a check: findings come in that order."""
    return told(visit, check)[0][0]


def complaints(visit: Visits, of: str) -> set[str]:
    return {f["check"] for f in visit["findings"] if f["level"] == of}


def test_a_bare_guest_is_ready_and_warned_of_what_it_could_do_better(bare: Visits) -> None:
    visit = bare["as it is"]

    assert (visit["status"], visit["ready"], visit["stderr"]) == (0, True, "")
    assert complaints(visit, "warning") == {
        "host-services", "interrupts", "numa-balancing", "smt", "workqueues",
    }  # fmt: skip
    assert told(visit, "kernel")[0][1].startswith("Linux 6.12.")
    assert told(visit, "topology") == [("ok", "CPUs 0-7 are online, NUMA nodes 0-1")]


def test_what_was_done_about_it_is_seen(bare: Visits) -> None:
    visit = bare["prepared"]

    assert complaints(visit, "warning") <= {"interrupts"}
    assert told(visit, "numalet") == [("ok", f"numalet runs (pid {bare['pid of the agent']})")]


def test_interrupts_that_the_kernel_spreads_itself_are_all_that_is_left(bare: Visits) -> None:
    ((_, sentence),) = told(bare["prepared"], "interrupts")

    left = set(IdSet.parse(sentence.partition("(")[2].partition(")")[0]))

    assert left
    assert left <= set(bare["managed interrupts"])
    assert "new ones" not in sentence


def test_another_user_than_root_is_told_so(bare: Visits) -> None:
    visit = bare["another user"]

    assert (visit["status"], visit["ready"]) == (1, False)
    assert complaints(visit, "problem") == {"permissions", "state-folder"}
    assert "/sys/fs/cgroup/cgroup.subtree_control" in told(visit, "permissions")[0][1]


def test_other_cpu_managers_are_named(bare: Visits) -> None:
    visit = bare["beside others"]

    sentences = " ".join(what for _, what in told(visit, "cpu-managers"))
    assert complaints(visit, "problem") == {"cpu-managers", "kubelet", "numalet"}
    assert "koordlet of Koordinator" in sentences
    assert "nri-resource-policy-balloons of nri-plugins" in sentences
    assert "CPU Manager: static" in told(visit, "kubelet")[0][1]
    assert level(visit, "irqbalance") == "warning"
    assert "more than one numalet runs" in told(visit, "numalet")[0][1]


def test_a_partition_that_takes_cpus_away_is_named(bare: Visits) -> None:
    visit = bare["partition"]

    assert complaints(visit, "problem") == {"partitions"}
    assert "/apart is a cpuset partition (root) on CPUs 2-3" in told(visit, "partitions")[0][1]


def test_an_old_kernel_and_a_machine_that_cannot_be_read_are_problems(bare: Visits) -> None:
    visit = bare["old and blind"]

    assert complaints(visit, "problem") == {"kernel", "topology"}
    assert "4.18.0-553.el8.x86_64 has no cpuset controller" in told(visit, "kernel")[0][1]
    assert "/sys/devices/system/cpu shows no online CPU" in told(visit, "topology")[0][1]


@pytest.mark.parametrize(
    ("condition", "check", "sentence"),
    [
        ("read-only", "cgroup-v2", "/sys/fs/cgroup is mounted read-only"),
        ("own namespace", "cgroup-root", "is a cgroup inside the host's hierarchy"),
        ("own namespace", "controllers", "lacks the controllers cpuset, cpu, memory"),
        ("hybrid", "cgroup-v2", "is hybrid: cgroup v1 has the controllers"),
        ("v1", "cgroup-v2", "is cgroup v1, which numalet does not use"),
    ],
)
def test_a_hierarchy_that_numalet_cannot_use_is_called_by_its_name(
    bare: Visits, condition: str, check: str, sentence: str
) -> None:
    visit = bare[condition]

    ((how_bad, what),) = told(visit, check)

    assert (visit["status"], how_bad) == (1, "problem")
    assert sentence in what


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("read-only", "/sys/fs/cgroup is mounted read-only; run numalet on the host, or mount"),
        ("own namespace", "be kept off any CPU; mount the host's /sys/fs/cgroup and name it with"),
        ("hybrid", "is hybrid: cgroup v1 has the controllers"),
        ("hybrid", "boot with systemd.unified_cgroup_hierarchy=1"),
        ("v1", "which numalet does not use; boot with systemd.unified_cgroup_hierarchy=1"),
    ],
)
@pytest.mark.parametrize("command", ["run", "release"])
def test_nor_does_the_agent_begin_there_or_take_values_for_given_back(
    bare: Visits, command: str, condition: str, sentence: str
) -> None:
    refused = bare[condition][command]

    assert refused["status"] == 3
    assert sentence in refused["stderr"]
    assert refused["journal"] == [OVERWRITTEN]


def test_a_systemd_guest_is_ready_and_its_services_roam(systemd: Visits) -> None:
    visit = systemd["as it is"]

    assert (visit["status"], visit["ready"], visit["stderr"]) == (0, True, "")
    assert level(visit, "kernel") == "warning"  # 6.1 forgets what threads pinned themselves to
    ((how_bad, sentence),) = told(visit, "host-services")
    assert how_bad == "warning"
    assert f"system.slice, user.slice, init.scope may run on CPUs {OTHERS}," in sentence


def test_what_it_says_to_do_about_services_helps(systemd: Visits) -> None:
    assert f"AllowedCPUs={RESERVED}" in str(systemd["as it is"]["findings"])
    assert level(systemd["prepared"], "host-services") == "ok"
    assert level(systemd["prepared"], "systemd-units") == "ok"


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("a container pinned by its runtime", "AllowedCPUs=2-3 of cri-containerd-abc.scope"),
        ("kubepods.slice pinned", "AllowedCPUs=0-3 of kubepods.slice"),
    ],
)
def test_a_cpuset_that_systemd_writes_for_pods_is_a_problem(
    systemd: Visits, condition: str, sentence: str
) -> None:
    visit = systemd[condition]

    ((how_bad, what),) = told(visit, "systemd-units")

    assert (visit["status"], how_bad) == (1, "problem")
    assert sentence in what
