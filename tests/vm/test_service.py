"""The service of a single host under systemd: installed, started, disturbed, taken away."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.core.cpuset import CPUSet
from hack.lab.guest import PROJECT
from hack.lab.topology import TOPOLOGIES

from .rig import in_guest
from .service_story import INSTALLED, KEPT

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("lab")]

Story = dict[str, Any]
PODS = "numalet.slice/numalet-kubepods.slice"
NAMES = ("database", "side")
MIB = 1 << 20
UNLIMITED = ["max 100000", "100", "max"]
"""What cpu.max, cpu.weight and memory.max say where nobody has written."""


@pytest.fixture(scope="module")
def tree() -> Path:
    """What `make install` puts onto a machine, where guests can read it."""
    folder = (PROJECT / ".venv").resolve() / "installed"
    subprocess.run(["make", "install", f"DESTDIR={folder}"], cwd=PROJECT, check=True)
    return folder


@pytest.fixture(scope="module")
def story(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("service")
    command = f"python -m tests.vm.service_story {folder} {tree}"
    outcome = in_guest(TOPOLOGIES["2n"], command, systemd=True, results=folder)
    assert outcome.status == 0, outcome.stderr
    told: Story = json.loads((folder / "observed.json").read_text())
    return told | {"journal": (folder / "journal").read_text()}


@pytest.fixture(scope="module")
def journal(story: Story) -> str:
    return str(story["journal"])


def containers(stage: Story) -> dict[str, Story]:
    (pod,) = stage["status"]["pods"]
    return {c["name"]: c for c in pod["containers"]}


def pod_path(stage: Story) -> str:
    (pod,) = stage["status"]["pods"]
    return str(pod["cgroup"]).lstrip("/")


def files(stage: Story, container: str) -> Story:
    found = stage["cgroups"][containers(stage)[container]["cgroup"].lstrip("/")]
    assert isinstance(found, dict)
    return found


def below(stage: Story, path: str) -> Story:
    return {p: said for p, said in stage["cgroups"].items() if p.startswith(path)}


def test_the_installed_program_names_no_folder_of_the_build(tree: Path) -> None:
    link = tree / "usr/local/bin/numalet"
    script = tree / link.readlink().relative_to("/")

    assert script.read_text().startswith("#!/usr/local/lib/numalet/bin/python\n")


def test_the_unit_is_verified_without_a_word(story: Story) -> None:
    assert story["verify"] == {"status": 0, "out": "", "err": ""}


def test_the_unit_is_exposed_to_little(story: Story) -> None:
    (level,) = re.findall(
        r"Overall exposure level for numalet\.service: (\d\.\d)", story["security"]
    )

    assert level == "2.3"  # as README.md says


def test_what_starts_at_boot_starts_it_and_systemd_knows_how_it_is(story: Story) -> None:
    assert story["boot"]["status"] == 0
    assert "ActiveState=active" in story["unit"]
    assert "StatusText=pods: 1 admitted, 0 rejected" in story["unit"]


def test_the_host_had_no_cpuset_enabled_before(story: Story) -> None:
    """As a Debian on which nobody has asked for it: to enable it is the hardened unit's."""
    assert "cpuset" not in story["enabled before"]


def test_pods_lie_where_a_kubelet_with_systemd_would_put_them(story: Story) -> None:
    (pod,) = story["placed"]["status"]["pods"]
    uid = pod["uid"].replace("-", "_")

    assert pod_path(story["placed"]) == f"{PODS}/numalet-kubepods-pod{uid}.slice"
    assert containers(story["placed"])["side"]["cgroup"].endswith(f"/numalet-{uid}-side.scope")


def test_pods_and_containers_have_the_weights_and_limits_of_a_kubelet(story: Story) -> None:
    stage = story["placed"]
    pod = stage["cgroups"][pod_path(stage)]

    assert (pod["cpu.weight"], pod["memory.max"], pod["cpu.max"]) == (
        "118", str(300 * MIB), "max 100000",
    )  # fmt: skip
    database, side = files(stage, "database"), files(stage, "side")
    assert (database["cpu.weight"], database["memory.max"], database["cpu.max"]) == (
        "79", str(200 * MIB), "max 100000",
    )  # fmt: skip
    assert (side["cpu.weight"], side["memory.max"], side["cpu.max"]) == (
        "4", str(64 * MIB), "150000 100000",
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_born_where_it_belongs(story: Story, name: str) -> None:
    decided = containers(story["placed"])[name]

    assert story[f"born {name}"] == [decided["cpus"], decided["mems"]]
    assert story["membership"][name] == f"0::{decided['cgroup']}"
    assert story["scopes"][name] == "Delegate=yes"


def test_the_database_and_its_sidecar_never_meet(story: Story) -> None:
    database, side = (CPUSet.parse(story[f"born {name}"][0]) for name in NAMES)

    assert (len(database), len(side)) == (2, 1)
    assert database.isdisjoint(side)


def test_what_systemd_resets_when_a_scope_starts_is_repaired(story: Story) -> None:
    assert below(story["running"], PODS) == below(story["placed"], PODS)


@pytest.mark.parametrize("stage", ["restarted", "stopped", "killed", "hung"])
def test_restart_stop_and_death_of_the_service_change_nothing(story: Story, stage: str) -> None:
    for part in ("programs", "cgroups"):
        assert story[stage][part] == story["running"][part]


def test_a_restart_writes_nothing(story: Story) -> None:
    assert story["restarted"]["status"]["writes"] == {}
    assert story["killed"]["status"]["writes"] == {}
    assert story["hung"]["status"]["writes"] == {}


def test_a_service_that_hangs_is_noticed_by_systemd_and_says_where(
    story: Story, journal: str
) -> None:
    assert re.search(r"numalet.service: Watchdog timeout \(limit 10s\)!", journal)
    assert re.search(r"numalet\[\d+\]: Fatal Python error: Aborted", journal)
    assert (story["covered"], story["uncovered"]) == (0, 0)
    assert re.search(r'numalet\[\d+\]:   File ".*/node/cgroupfs.py", line \d+ in ', journal)
    assert re.search(r'numalet\[\d+\]:   File ".*/reconciler.py", line \d+ in run', journal)


def test_a_daemon_reload_is_noticed_and_repaired(story: Story) -> None:
    before, after = (story[stage]["status"]["drift"] for stage in ("running", "reloaded"))
    assert after["foreign_write"] > before.get("foreign_write", 0)
    for part in ("programs", "cgroups"):
        assert story["reloaded"][part] == story["running"][part]


def test_release_beside_running_programs_lets_them_run_everywhere_and_says_so(
    story: Story,
) -> None:
    release, after = story["release beside programs"], story["given back"]

    assert release["status"] == 0, release
    for name in NAMES:
        assert after["programs"][name]["cpus"] == "0-7"
        assert after["programs"][name]["mems"] == "0-1"
        path = containers(story["placed"])[name]["cgroup"]
        assert f"{path}/cpuset.cpus" in release["out"] + release["err"]
        left = after["cgroups"][path.lstrip("/")]
        assert [left[file] for file in ("cpu.max", "cpu.weight", "memory.max")] == UNLIMITED


def test_a_start_after_that_takes_them_in_again(story: Story) -> None:
    for part in ("programs", "cgroups"):
        assert story["taken again"][part] == story["running"][part]


def test_the_doctor_finds_nothing_wrong_with_what_exec_started(story: Story) -> None:
    findings = json.loads(story["doctor"]["out"])["findings"]
    assert [f["what"] for f in findings if f["check"] == "systemd-units"] == [
        "systemd writes no cpuset that is in the way"
    ]


def test_a_container_has_one_program_at_a_time(story: Story) -> None:
    assert story["again"]["status"] == 3
    assert "a program runs in default/db/database already" in story["again"]["err"]


def test_a_program_s_status_is_that_of_the_command(story: Story) -> None:
    assert story["exit"] == {"status": 7, "out": "", "err": ""}


def test_cgroups_that_systemd_takes_away_with_the_last_program_are_made_again(
    story: Story,
) -> None:
    assert below(story["ended"], PODS) == below(story["placed"], PODS)


def test_uninstalling_takes_all_of_it_away_and_keeps_what_is_the_owner_s(story: Story) -> None:
    assert story["installed"] == list(INSTALLED)
    assert story["uninstall"]["status"] == 0, story["uninstall"]
    after = story["after that"]
    assert after["files"] == list(KEPT)
    # Systemd keeps slices in which a scope was, and which are empty now, until the machine ends.
    assert after["units"] == ["numalet-kubepods.slice", "numalet.slice"]
    assert set(after["folders"]) <= set(after["units"])
    assert not any(after["values"])
