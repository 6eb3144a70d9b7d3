"""``numalet doctor`` as a person or a program calls it."""

from pathlib import Path

import pytest

from tests.cli.rig import Cli

from .made_up import CGROUPS, MadeUpNode


@pytest.fixture
def numalet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def files_below(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_ready_node_ends_with_status_0_and_a_table(numalet: Cli, node: MadeUpNode) -> None:
    ended = numalet("doctor", "--root", node.root, "--config", node.config)

    lines = ended.out.splitlines()
    assert (ended.status, ended.err) == (0, "")
    assert lines[0].split() == ["LEVEL", "CHECK", "WHAT", "WHAT", "TO", "DO"]
    assert lines[-1] == "this node is ready; problems: 0, warnings: 0"
    assert {line.split()[0] for line in lines[1:-1]} == {"ok"}


def test_warnings_leave_the_status_at_0(numalet: Cli, node: MadeUpNode) -> None:
    node.write("proc/sys/kernel/numa_balancing", "1")

    ended = numalet("doctor", "--root", node.root, "--config", node.config)

    lines = ended.out.splitlines()
    assert ended.status == 0
    assert lines[-1] == "this node is ready; problems: 0, warnings: 1"
    level, check, what, cure = (
        lines[0].index(word) for word in ("LEVEL", "CHECK", "WHAT", "WHAT TO")
    )
    assert lines[1][level:check].strip() == "warning"
    assert lines[1][check:what].strip() == "numa-balancing"
    assert lines[1][cure:].startswith("sysctl kernel.numa_balancing=0")


def test_a_problem_ends_with_status_1_and_is_the_first_of_the_findings(
    numalet: Cli, node: MadeUpNode
) -> None:
    node.mount(CGROUPS, "cgroup2", "ro")

    ended = numalet("doctor", "--root", node.root, "--config", node.config, "-o", "json")

    said = ended.json()
    assert (ended.status, ended.err) == (1, "")
    assert set(said) == {"ready", "findings"}
    assert said["ready"] is False
    assert said["findings"][0] == {
        "check": "cgroup-v2",
        "level": "problem",
        "what": f"{node.root / CGROUPS} is mounted read-only",
        "cure": "run numalet on the host, or mount the host's /sys/fs/cgroup read-write into its"
        " container and name it with hostRoot",
    }
    assert [f["cure"] for f in said["findings"] if f["level"] == "ok"] == [""] * (
        len(said["findings"]) - 1
    )


def test_nothing_is_changed(numalet: Cli, node: MadeUpNode) -> None:
    before = files_below(node.root)

    numalet("doctor", "--root", node.root, "--config", node.config)

    assert files_below(node.root) == before
    assert not node.state_dir.exists()


def test_bad_input_ends_with_status_2(numalet: Cli, node: MadeUpNode) -> None:
    config = node.root / "bad.yaml"
    config.write_text("apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\nstateDri: /x\n")

    wrong = numalet("doctor", "--root", node.root, "--config", config)
    nowhere = numalet("doctor", "--root", node.root / "nowhere")
    yaml = numalet("doctor", "-o", "yaml")

    assert (wrong.status, nowhere.status, yaml.status) == (2, 2, 2)
    assert f"{config}:3: stateDri" in wrong.err
    assert "--root" in nowhere.err


def test_a_configuration_that_does_not_fit_the_machine_is_bad_input(
    numalet: Cli, node: MadeUpNode
) -> None:
    node.config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "reservedSystemCPUs: 0,99\n"
    )

    ended = numalet("doctor", "--root", node.root, "--config", node.config)

    assert ended.status == 2
    assert "unknown CPU ID: 99" in ended.err


def test_keys_that_nobody_reads_are_told_beside_the_answer(numalet: Cli, node: MadeUpNode) -> None:
    text = node.config.read_text()
    node.config.write_text(
        text.replace("cpuManagerPolicyOptions", "maxPods: 9\n" + "cpuManagerPolicyOptions")
    )

    ended = numalet("doctor", "--root", node.root, "--config", node.config, "-o", "json")

    assert "keys that are not read: maxPods" in ended.err
    assert ended.json()["ready"]


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="no Linux")
def test_this_machine_gets_an_answer(numalet: Cli) -> None:
    ended = numalet("doctor", "-o", "json")

    findings = ended.json()["findings"]
    assert ended.status == (0 if ended.json()["ready"] else 1)
    assert {f["check"] for f in findings} >= {"cgroup-v2", "kernel", "topology", "cpu-managers"}
    assert all(f["cure"] for f in findings if f["level"] != "ok")
