"""``numalet run --once``: the daemon up to its first table, and what keeps it from starting."""

import json
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.node.checkpoint import COPIES
from agent.node.journal import JOURNAL_FILE
from agent.node.kubelet_state import CPU_FILE, MEMORY_FILE
from agent.node.state_folder import StateFolderLock
from agent.report.http import HttpServer
from tests.cli.rig import DB, MACHINE, SAMPLES, TINY, Cli, Ended
from tests.report.rig import Told, empty_snapshot, free_port

BROKEN = "apiVersion: v1\nkind: Pod\nmetadata: {name: broken}\nspec: {containers: 5}\n"


class Node:
    """A configuration, a folder of manifests and a state folder of its own."""

    def __init__(self, folder: Path, numalet: Cli) -> None:
        self.numalet = numalet
        self.state, self.pods, self.config = folder / "state", folder / "pods", folder / "c.yaml"
        self.port = free_port()
        self.pods.mkdir()
        self.configure()

    def configure(self, kubelet: str = "", **ours: str) -> None:
        values = {
            "stateDir": self.state,
            "metricsAddress": f"127.0.0.1:{self.port}",
            "logFormat": "json",
            **ours,
        }
        lines = (f"{key}: {value}\n" for key, value in values.items())
        section = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n" + "".join(lines)
        self.config.write_text(f"{kubelet}\n---\n{section}" if kubelet else section)

    def once(self, *words: str | Path, machine: Path = MACHINE) -> Ended:
        where = ("--simulate", machine, "--pods", self.pods, "--config", self.config)
        return self.numalet("run", "--once", *where, *words)


@pytest.fixture
def node(tmp_path: Path, numalet: Cli) -> Node:
    return Node(tmp_path, numalet)


def logged(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.err.splitlines()]


def test_one_line_says_what_was_filled_in_and_the_database_is_placed(node: Node) -> None:
    node.configure((SAMPLES / "kubelet-config-minimal.yaml").read_text())
    (node.pods / "db.yaml").write_text(DB.read_text())
    ended = node.once()
    assert ended.status == 0
    (filled_in,) = [line for line in logged(ended) if line["event"] == "filled_in"]
    assert filled_in["what"] == (
        "topologyManagerScope pod: none was named, and a kubelet would take container; "
        "reservedSystemCPUs 0: no CPU was reserved, so the first core is; "
        "reservedMemory node 0: memory=100Mi: no NUMA node was named for what is reserved"
    )
    words = [line.split() for line in ended.out.splitlines()]
    assert ["default/latency-critical-db", "Guaranteed", "admitted", "1-6", "0"] in [
        line[:5] for line in words
    ]


def test_the_start_says_where_everything_is(node: Node) -> None:
    ended = node.once(machine=TINY)
    simulated, files, ask, metrics, *_ = ended.out.splitlines()
    assert simulated == "simulated node: CPUs 0-3, 1 NUMA nodes"
    assert files.split()[:2] == ["cgroup", "files:"]
    assert ask.startswith("ask it:         numalet status --socket /")
    assert metrics == f"metrics:        http://127.0.0.1:{node.port}/metrics"


def test_a_simulation_keeps_everything_in_a_folder_that_goes_with_it(
    node: Node, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    node.numalet.monkeypatch.setattr("tempfile.tempdir", str(temporary))
    section = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n"
    node.config.write_text(f"{section}metricsAddress: 127.0.0.1:{node.port}\n")
    ended = node.once(machine=TINY)
    _, files, ask, *_ = ended.out.splitlines()
    assert ended.status == 0
    assert files.removeprefix("cgroup files:").strip().startswith(str(temporary))
    assert ask.rpartition(" ")[2].startswith(str(temporary))
    assert list(temporary.iterdir()) == []
    assert not node.state.exists()
    running = {thread.name for thread in threading.enumerate()}
    assert running.isdisjoint({"manifests", "http", "status"})


def test_the_state_folder_has_two_copies_and_the_kubelets_files(node: Node) -> None:
    (node.pods / "db.yaml").write_text(DB.read_text())
    node.once()
    names = {path.name for path in node.state.iterdir()}
    assert names == {*COPIES, CPU_FILE, MEMORY_FILE, JOURNAL_FILE, "lock"}
    assert json.loads((node.state / CPU_FILE).read_text())["defaultCpuSet"] == "0,7-31"


def test_started_again_it_decides_the_same_and_writes_nothing(node: Node) -> None:
    (node.pods / "db.yaml").write_text(DB.read_text())
    first = node.once()
    written = {path: path.stat() for path in node.state.iterdir() if path.name != "lock"}
    second = node.once()
    table = first.out.splitlines()[-6:]
    assert second.out.splitlines()[-6:] == table
    for path, before in written.items():
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_file_that_came_while_it_was_stopped_does_not_take_over_a_pod(node: Node) -> None:
    (node.pods / "b.yaml").write_text(DB.read_text())
    node.once()
    (node.pods / "a.yaml").write_text(DB.read_text().replace('cpu: "6"', 'cpu: "9"'))
    ended = node.once()
    assert ended.status == 0
    assert ["default/latency-critical-db", "Guaranteed", "admitted", "1-6"] in [
        line.split()[:4] for line in ended.out.splitlines()
    ]
    (line,) = [line for line in logged(ended) if line["event"] == "input_rejected"]
    assert line["where"].startswith(f"{node.pods}/a.yaml:")
    assert f"stands in {node.pods}/b.yaml:" in line["reason"]


def test_a_bad_manifest_is_told_with_file_line_and_reason(node: Node) -> None:
    (node.pods / "broken.yaml").write_text(BROKEN)
    (node.pods / "db.yaml").write_text(DB.read_text())
    ended = node.once()
    assert "default/latency-critical-db" in ended.out
    (line,) = [line for line in logged(ended) if line["event"] == "input_rejected"]
    assert line["where"] == f"{node.pods}/broken.yaml:4"
    assert line["reason"].startswith("spec.containers: ")


def test_observing_writes_no_state_and_no_cgroup(node: Node) -> None:
    (node.pods / "db.yaml").write_text(DB.read_text())
    ended = node.once("--observe")
    assert ended.status == 0
    assert "1-6" in ended.out
    assert {path.name for path in node.state.iterdir()} == {"lock"}


def test_a_damaged_checkpoint_keeps_nobody_from_starting(node: Node) -> None:
    (node.pods / "db.yaml").write_text(DB.read_text())
    node.once()
    for name in COPIES:
        (node.state / name).write_text("garbage")
    ended = node.once()
    assert ended.status == 0
    assert [line["event"] for line in logged(ended)].count("checkpoint") == 3


def test_a_second_agent_on_one_state_folder_says_so_and_ends(node: Node) -> None:
    with StateFolderLock(node.state):
        ended = node.once(machine=TINY)
    assert (ended.status, ended.out) == (3, "")
    assert ended.err.splitlines()[-1].startswith(
        f"numalet: the state folder {node.state} is in use by another numalet (process {os.getpid()} on "
    )
    assert ended.err.endswith("or start with --wait-for-lock to go on when it ends\n")


def test_an_address_in_use_says_so_and_ends(node: Node) -> None:
    with closing(
        HttpServer(f"127.0.0.1:{node.port}", lambda: b"", Told(empty_snapshot()).current)
    ) as server:
        server.start()
        ended = node.once(machine=TINY)
    assert ended.status == 3
    assert ended.err.splitlines()[-1] == (
        f"numalet: cannot listen on 127.0.0.1:{node.port}: Address already in use; "
        "set metricsAddress to another address"
    )


def test_a_socket_that_cannot_be_made_says_so_and_ends(node: Node) -> None:
    node.configure(statusSocket=f"{node.config}/status.sock")
    ended = node.once(machine=TINY)
    assert ended.status == 3
    assert ended.err.splitlines()[-1].endswith("set statusSocket to another path")


def test_a_state_folder_that_cannot_be_made_says_so_and_ends(node: Node) -> None:
    node.configure(stateDir=f"{node.config}/state")
    ended = node.once(machine=TINY)
    assert ended.status == 3
    assert ended.err.splitlines()[-1].startswith(
        f"numalet: cannot create the state folder {node.config}/state: "
    )
