"""``numalet status`` and ``numalet explain``: what a running agent tells."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.pods import Container
from agent.report.status import StatusServer
from tests.cli.rig import Cli
from tests.reconciler.rig import equal, exclusive_pod, shared_pod
from tests.report.rig import Told, snapshot_of
from tests.scratch import scratch_folder

DB = replace(
    exclusive_pod("db", 2),
    budget=equal(4000, 4),
    app_containers=(Container(name="main", resources=equal(2000)), Container(name="side")),
)
BIG = exclusive_pod("big", 16)
SNAPSHOT = replace(
    snapshot_of(DB, shared_pod("web"), BIG),
    rejected_inputs={"pods/x.yaml:3": "is wrong"},
    problems=("cannot write /x: EACCES",),
    warnings=("the kubelet's policy cannot be seen",),
    drift={"foreign_write": 2},
)
SNAPSHOT = replace(
    SNAPSHOT, rejections={uid: r for uid, r in SNAPSHOT.rejections.items() if uid == BIG.uid}
)


@pytest.fixture
def socket() -> Iterator[Path]:
    with scratch_folder() as folder:
        server = StatusServer(Path(folder) / "s", Told(SNAPSHOT).current)
        server.start()
        with closing(server):
            yield Path(folder) / "s"


def test_json_is_the_document_of_the_socket(numalet: Cli, socket: Path) -> None:
    ended = numalet("status", "--socket", socket, "-o", "json")
    assert (ended.status, ended.err) == (0, "")
    document = ended.json()
    assert document["rejectedInputs"] == {"pods/x.yaml:3": "is wrong"}
    assert [pod["admitted"] for pod in document["pods"]] == [True, True, False]


def test_people_get_a_table_and_everything_that_is_wrong(numalet: Cli, socket: Path) -> None:
    ended = numalet("status", "--socket", socket)
    assert "\x1b" not in ended.out
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines == [
        "numalet 0.1.0, test, ready",
        "source of pods: the list of pods is complete",
        "cgroup files: /cgroup",
        "input rejected: pods/x.yaml:3: is wrong",
        "problem: cannot write /x: EACCES",
        "warning: the kubelet's policy cannot be seen",
        "drift (foreign_write): 2",
        "POD CONTAINER VERDICT CPUS MEMS CPU.MAX",
        "default/db Guaranteed admitted 1-4 0 400000 100000",
        "main (app) exclusive 1-2 0 max 100000",
        "side (app) pod-shared 3-4 0 400000 100000",
        "default/web BestEffort admitted - - max 100000",
        "c0 (app) node-shared 0,5-15 - max 100000",
        "default/big Guaranteed rejected - - 1600000 100000",
        "c0 (app) node-shared 0,5-15 - 1600000 100000",
        "default CPU set: 0,5-15 reserved CPUs: 0",
        "default/big rejected: TopologyAffinityError: does not fit",
    ]


def test_the_configured_socket_is_asked(numalet: Cli, socket: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    kind = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n"
    config.write_text(f"{kind}statusSocket: {socket}\n")
    assert numalet("status", "--config", config, "-o", "json").json()["ready"]


@pytest.mark.parametrize("name", ["db", "default/db"])
def test_a_pod_is_explained_container_by_container(numalet: Cli, socket: Path, name: str) -> None:
    ended = numalet("explain", name, "--socket", socket)
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines == [
        "default/db (Guaranteed, uid db)",
        "admitted, holds CPUs 1-4 on NUMA node 0",
        "CONTAINER VERDICT CPUS MEMS CPU.MAX WHY",
        "main exclusive 1-2 0 max 100000 requests and limits are equal, and cpu 2 is a whole number",
        "side pod-shared 3-4 0 400000 100000 it requests no cpu",
    ]


def test_a_rejected_pod_says_why(numalet: Cli, socket: Path) -> None:
    ended = numalet("explain", "default/big", "--socket", socket)
    assert ended.status == 0
    assert "rejected: TopologyAffinityError: does not fit" in ended.out
    assert "the pod was rejected: TopologyAffinityError" in ended.out


def test_an_unknown_pod_is_status_2_with_those_that_are_known(numalet: Cli, socket: Path) -> None:
    ended = numalet("explain", "shop/db", "--socket", socket)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == (
        "numalet: the agent knows no pod shop/db; it knows: default/big, default/db, default/web\n"
    )
