"""Huge pages on one of two NUMA nodes, and an inotify that has too little: pods are placed all the same."""

import json
from typing import Any

import pytest

from agent.core.cpuset import CPUSet
from hack.lab.topology import TOPOLOGIES

from .rig import in_guest
from .scarcity import LIMITS

pytestmark = pytest.mark.vm

Told = dict[str, Any]
GUEST = TOPOLOGIES["hugepages"]
HUGE_NODE = 1
CPUS_THERE = CPUSet(
    cpu
    for cpu, place in enumerate(GUEST.by_number())
    if (place.socket, place.die) == GUEST.nodes[HUGE_NODE].die
)
COMPLAINTS = {
    "max_user_watches": "ENOSPC (No space left on device); raise fs.inotify.max_user_watches",
    "max_queued_events": "changes of cgroups were lost: more than fs.inotify.max_queued_events",
    "max_user_instances": "EMFILE (Too many open files); raise fs.inotify.max_user_instances",
}


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("scarcity")
    outcome = in_guest(GUEST, f"python -m tests.vm.scarcity {folder}", results=folder)
    log = folder / "agent.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    told: Told = json.loads((folder / "observed.json").read_text())
    return told


def decided(stage: Told) -> dict[str, Told]:
    return {c["name"]: c for pod in stage["status"]["pods"] for c in pod["containers"]}


def threads(stage: Told) -> dict[str, list[list[str]]]:
    """Return the CPUs and nodes of every thread, by container."""
    pods = stage["pods"].values()
    return {name: c["threads"] for pod in pods for name, c in pod["containers"].items()}


def test_a_pod_with_huge_pages_has_its_cpus_where_they_are(life: Told) -> None:
    stage = life["huge pages"]

    pages = decided(stage)["pages"]
    assert pages["verdict"] == "exclusive"
    assert CPUSet.parse(pages["cpus"]) <= CPUS_THERE
    assert threads(stage)["pages"] == [[pages["cpus"], str(HUGE_NODE)]]


def test_its_program_has_them_there(life: Told) -> None:
    assert life["pages by node"] == [f"N{HUGE_NODE}=16"]


def test_a_pod_that_wants_more_than_are_left_is_rejected_and_keeps_nobody_from_running(
    life: Told,
) -> None:
    stage = life["huge pages"]

    (pod,) = (pod for pod in stage["status"]["pods"] if pod["name"] == "too-many")
    assert (pod["admitted"], pod["reason"]) == (False, "UnexpectedAdmissionError")
    assert threads(stage)["waits"] == [[stage["status"]["defaultCpuSet"], "0-1"]]


@pytest.mark.parametrize("limit", LIMITS)
def test_where_inotify_has_too_little_it_says_so_and_counts_it(life: Told, limit: str) -> None:
    assert COMPLAINTS[limit] in life[limit]["log"]
    assert life[limit]["troubles"] >= 1


@pytest.mark.parametrize("limit", LIMITS)
def test_and_who_comes_then_is_placed_all_the_same(life: Told, limit: str) -> None:
    stage = life[limit]

    assert LIMITS[limit][1] in stage["pods"]
    for name, seen in threads(stage).items():
        want = decided(stage)[name]
        assert seen == [[want["cpus"], want["mems"] or "0-1"]] * len(seen), name
        assert seen, name


def test_who_runs_stays_where_he_is_meanwhile(life: Told) -> None:
    before = threads(life["huge pages"])["pages"]

    assert [threads(life[limit])["pages"] for limit in LIMITS] == [before] * len(LIMITS)


def test_the_agent_ends_with_status_0(life: Told) -> None:
    assert life["exit"] == 0
