"""``numalet exec``: what it refuses, and what becomes of the program."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.cgroup_tree import CgroupTree
from agent.core.cgroups import CgroupPath
from agent.core.pods import Container
from agent.errors import EnvironmentProblem, InputError
from agent.exec_cli import Target, confined, find_target, scope_command, start
from agent.node.cgroup_layout import single_host_layout
from agent.report.status import StatusServer, status_document
from agent.simulation.kernel import SimulatedKernel
from tests.cli.rig import PROJECT, Cli
from tests.reconciler.rig import equal, exclusive_pod
from tests.report.rig import Told, snapshot_of
from tests.scratch import scratch_folder

DB = replace(
    exclusive_pod("db", 2),
    budget=equal(4000, 4),
    app_containers=(Container(name="main", resources=equal(2000)), Container(name="side")),
)
BIG = exclusive_pod("big", 16)
SNAPSHOT = replace(snapshot_of(DB, BIG), mode="host", cgroup_root="/sys/fs/cgroup")
POD_SLICE = "/numalet.slice/numalet-kubepods.slice/numalet-kubepods-poddb.slice"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    kernel = SimulatedKernel(SNAPSHOT.rules.topology, tmp_path_factory.mktemp("cgroups"))
    layout = single_host_layout("systemd", CgroupPath(), systemd=False)
    tree = CgroupTree(kernel, layout, knows_budgets=True)
    return status_document(SNAPSHOT, tree.of)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(
        name="default/db/main",
        cgroup=tmp_path,
        cpus="1",
        mems="",
        cpu_max="max 100000",
        cpu_weight=39,
        memory_max="max",
    )


def test_the_status_says_where_containers_are_and_what_their_files_say(document: Json) -> None:
    (db, _) = document["pods"]
    assert (db["cgroup"], db["cpuWeight"], db["memoryMax"]) == (POD_SLICE, 157, str(4 << 30))
    assert [(c["cgroup"], c["cpuWeight"], c["memoryMax"]) for c in db["containers"]] == [
        (f"{POD_SLICE}/numalet-db-main.scope", 79, str(1 << 30)),
        (f"{POD_SLICE}/numalet-db-side.scope", 1, str(4 << 30)),
    ]


@pytest.mark.parametrize("name", ["db/main", "default/db/main"])
def test_a_container_is_found_by_its_name(document: Json, name: str) -> None:
    assert find_target(document, name) == Target(
        name="default/db/main",
        cgroup=Path(f"/sys/fs/cgroup{POD_SLICE}/numalet-db-main.scope"),
        cpus="1-2",
        mems="0",
        cpu_max="max 100000",
        cpu_weight=79,
        memory_max=str(1 << 30),
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("db", "db: name a container: POD/CONTAINER, or NAMESPACE/POD/CONTAINER"),
        ("db/", "name a container"),
        ("/main", "name a container"),
        ("shop/db/main", "knows no pod shop/db; it knows: default/big, default/db"),
        ("db/envoy", "pod default/db has no container envoy; it has: main, side"),
        ("big/c0", "pod default/big was rejected, .*TopologyAffinityError: does not fit"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(
    document: Json, name: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        find_target(document, name)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mode": "simulated"}, "simulates a machine"),
        ({"mode": "kubernetes"}, "serves Kubernetes, .*kubectl exec"),
        ({"observe": True}, "only observes"),
    ],
)
def test_an_agent_without_cgroups_of_its_own_starts_nothing(
    document: Json, changes: Json, sentence: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=sentence):
        find_target(document | changes, "db/main")


@pytest.mark.parametrize("unenforced", [[], ["default/db"]])
def test_nothing_begins_in_a_pod_whose_cgroup_is_not_there_or_not_confined(
    document: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unenforced: list[str]
) -> None:
    """Others may run on its CPUs, and systemd would make the slice without a word."""
    monkeypatch.setattr("agent.exec_cli.PATIENCE_S", 0.0)
    if unenforced:
        (tmp_path / POD_SLICE[1:]).mkdir(parents=True)
    now = document | {"cgroupRoot": str(tmp_path), "unenforced": unenforced}
    with pytest.raises(
        EnvironmentProblem, match=r"db\.slice is not confined yet: .* numalet status"
    ):
        confined(lambda: now, "db/main")


def test_a_program_begins_once_a_later_status_says_that_its_pod_is_confined(
    document: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first status is from before the cgroup was made again: it is not narrowed yet."""
    monkeypatch.setattr("agent.exec_cli._POLL_S", 0.0)
    place = tmp_path / POD_SLICE[1:]
    asked: list[int] = []

    def read() -> Json:
        asked.append(len(asked))
        if len(asked) == len(["missing", "made"]):
            place.mkdir(parents=True)
        at = 1.0 if len(asked) < len(["missing", "made", "narrowed"]) else 2.0
        return document | {"cgroupRoot": str(tmp_path), "unenforced": [], "takenAt": at}

    assert confined(read, "db/main").cgroup.parent == place
    assert len(asked) == len(["missing", "made", "narrowed"])


def test_systemd_is_told_all_that_was_decided(document: Json) -> None:
    target = replace(find_target(document, "db/side"), cpu_max="150500 100000")
    command = scope_command(target, ["sleep", "1"])
    assert command[:4] == ["systemd-run", "--scope", "--quiet", "--collect"]
    assert command[5:] == [
        "--unit=numalet-db-side.scope",
        "--slice=numalet-kubepods-poddb.slice",
        "--property=Delegate=yes",
        "--property=TasksMax=infinity",
        "--property=AllowedCPUs=3-4",
        "--property=CPUWeight=1",
        f"--property=MemoryMax={4 << 30}",
        "--property=AllowedMemoryNodes=0",
        "--property=CPUQuota=150.5%",
        "--",
        "sleep",
        "1",
    ]


def test_systemd_is_told_of_no_limit_where_there_is_none(target: Target) -> None:
    properties = [word for word in scope_command(target, ["true"]) if "--property" in word]
    assert properties == [
        "--property=Delegate=yes",
        "--property=TasksMax=infinity",
        "--property=AllowedCPUs=1",
        "--property=CPUWeight=39",
        "--property=MemoryMax=infinity",
    ]


def test_without_systemd_the_program_is_moved_before_it_starts_and_its_status_is_ours(
    target: Target,
) -> None:
    procs = target.cgroup / "cgroup.procs"
    procs.touch()
    program = (
        "from pathlib import PosixPath; from agent.exec_cli import *;"
        f"start({target!r}, ['sh', '-c', 'echo $$; exit 7'], by_systemd=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.strip() == procs.read_text()


def test_a_cgroup_that_is_not_there_is_a_problem_of_the_machine(target: Target) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot move into .*: No such file"):
        start(target, ["true"], by_systemd=False)


def test_a_program_that_is_not_there_is_refused_before_anything_is_moved(target: Target) -> None:
    procs = target.cgroup / "cgroup.procs"
    procs.touch()
    with pytest.raises(InputError, match="no-such-program: there is no such program"):
        start(target, ["no-such-program"], by_systemd=False)
    assert procs.read_text() == ""


def test_a_scope_is_started_once_at_a_time(target: Target, tmp_path: Path) -> None:
    scope = tmp_path / "numalet-db-main.scope"
    scope.mkdir()
    (scope / "cgroup.procs").write_text("12\n13\n")
    with pytest.raises(EnvironmentProblem, match=r"runs in default/db/main already \(pid 12, 13\)"):
        start(replace(target, cgroup=scope), ["true"], by_systemd=True)


@pytest.fixture
def socket(document: Json) -> Iterator[Path]:
    with scratch_folder() as folder:
        server = StatusServer(Path(folder) / "s", Told(SNAPSHOT).current)
        server.start()
        with closing(server):
            yield Path(folder) / "s"


def test_without_an_agent_nothing_is_started(
    numalet: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    ended = numalet("exec", "db/main", "--socket", tmp_path / "s", "--", "true")
    assert ended.status == 3
    assert "is numalet running" in ended.err


def test_only_root_starts_programs(
    numalet: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    ended = numalet("exec", "db/main", "--socket", tmp_path / "s", "--", "true")
    assert ended.status == 3
    assert "run this as root" in ended.err


def test_options_after_the_dashes_are_the_programs_own(
    numalet: Cli, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    ended = numalet("exec", "--socket", socket, "shop/db/main", "--", "ls", "--color", "-l")
    assert (ended.status, ended.out) == (2, "")
    assert "knows no pod shop/db" in ended.err
