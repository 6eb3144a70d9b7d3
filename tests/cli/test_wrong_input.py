"""Whatever is wrong: a status that says which kind, and a sentence that says what to do."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.rig import DB, PROJECT, TINY, Cli

POD = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    resources:
      limits: {cpu: %s, memory: 1Gi}
"""
KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
OURS = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n"
PLAN = ("plan", "--simulate", TINY, "-f")


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ("a: [1,\nb: 2\n", r"in\.yaml:\d+: .*"),
        ("a:\n\t- 1\n", r"in\.yaml:2: .*"),
        ("", r"in\.yaml: is empty.*"),
        ("just words\n", r"in\.yaml:1: is not a Kubernetes object.*"),
        (
            "apiVersion: v1\nkind: Service\n",
            r"in\.yaml:2: kind: 'Service' describes no pod: write Pod, Deployment, .*List",
        ),
        (
            "apiVersion: v2\nkind: Pod\n",
            r"in\.yaml:1: apiVersion: 'v2' is not possible for a Pod: write v1",
        ),
        (
            POD % "1x",
            r"in\.yaml:8: spec\.containers\[0\]\.resources\.limits\[?\.?cpu\]?: .*'1x'.*",
        ),
        (POD % "1_000", r"in\.yaml:8: .*1_000.*"),
        (POD % "NaN", r"in\.yaml:8: .*NaN.*"),
        (POD % "' 1'", r"in\.yaml:8: .*' 1'.*"),
        (POD % "-1", r"in\.yaml:8: .*"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", r"in\.yaml:\d: metadata\.name: .*"),
    ],
)
def test_a_wrong_manifest(numalet: Cli, tmp_path: Path, manifest: str, sentence: str) -> None:
    file = tmp_path / "in.yaml"
    file.write_text(manifest)
    ended = numalet(*PLAN, file)
    assert (ended.status, ended.out) == (2, "")
    assert re.fullmatch(f"numalet: .*/{sentence}", ended.err.splitlines()[0])


def test_every_wrong_manifest_is_told_at_once(numalet: Cli, tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("kind: Service\n")
    ended = numalet(*PLAN, tmp_path)
    assert [line.split(":")[1].strip() for line in ended.err.splitlines()] == [
        f"{tmp_path}/a.yaml",
        f"{tmp_path}/b.yaml",
    ]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            OURS + "stateDirr: /x\n",
            "3: stateDirr: is not a key of an AgentConfiguration; is stateDir meant?",
        ),
        (OURS + "logLevel: loud\n", "3: logLevel: "),
        (OURS + "metricsAddress: nowhere\n", "3: metricsAddress: 'nowhere' is not an address: "),
        (OURS + "driftInterval: 5\n", "3: driftInterval: 5 is not a duration above 0: "),
        (KUBELET + "cpuManagerPolicy: dynamic\n", "3: cpuManagerPolicy: "),
        (KUBELET + "reservedSystemCPUs: 0-\n", "3: reservedSystemCPUs: "),
        (
            KUBELET + "reservedSystemCPUs: 40\n",
            " the cpu_manager refuses this: .*unknown CPU ID: 40",
        ),
        (
            KUBELET
            + "cpuManagerPolicyOptions: {full-pcpus-only: true, distribute-cpus-across-cores: true}\n",
            " the cpu_manager refuses this: .*static policy options .* at the same time",
        ),
        (
            KUBELET + "cpuManagerPolicyOptions: {fast: true}\n",
            ' the cpu_manager refuses this: .*unknown CPU Manager Policy option: "fast"',
        ),
        (
            KUBELET + "reservedMemory: [{numaNode: 0, limits: {memory: 3Gi}}]\n",
            ' the memory_manager refuses this: the total amount "3Gi" .*',
        ),
        ("kind: Nonsense\n", "1: kind: 'Nonsense' is no configuration: write "),
        ("a: b: c\n", "1: "),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_wrong_configuration(
    numalet: Cli, tmp_path: Path, command: str, config: str, sentence: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    words: Sequence[str | Path] = ("-f", DB) if command == "plan" else ("--pods", tmp_path)
    ended = numalet(command, "--simulate", TINY, *words, "--config", file)
    assert (ended.status, ended.out) == (2, "")
    assert re.match(f"numalet: {file}:{sentence}", ended.err)


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("schema: numalet-topology/v9\n", r":1: schema: .*numalet-topology/v1"),
        ("schema: numalet-topology/v1\nname: x\ncpu: {online: 0-x}\n", r":3: cpu\.online: "),
        ("[]\n", r".*"),
        ("", r": "),
    ],
)
def test_a_wrong_machine(numalet: Cli, tmp_path: Path, description: str, sentence: str) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(description)
    ended = numalet("topology", "--simulate", file)
    assert (ended.status, ended.out) == (2, "")
    assert re.match(f"numalet: {file}{sentence}", ended.err)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*PLAN, "/no/such.yaml"), "/no/such.yaml: cannot be read: No such file or directory"),
        ((*PLAN, DB, "--config", "/no/c"), "/no/c: cannot be read: No such file or directory"),
        ((*PLAN, DB, "--state", "/no/s"), "--state: no checkpoint that can be used; /no/s: "),
        (("plan", "-f", DB, "--simulate", "/no/m"), "/no/m: cannot be read: No such file"),
        (("plan", "-f", DB, "--sysfs", "/no/sys"), "--sysfs /no/sys: is not a folder: "),
        (
            (*PLAN, DB, "--sysfs", "/sys"),
            "--simulate and --sysfs exclude each other: give one of them",
        ),
        (("run", "--simulate", TINY), "say where pods come from: --pods"),
        (("run", "--simulate", TINY, "--pods", "/no/pods"), "--pods /no/pods: is not a folder"),
        (("run", "--print-config", "--config", "/no/c"), "/no/c: cannot be read: "),
        (("status", "--config", "/no/c"), "/no/c: cannot be read: "),
        (("state", "show", "--config", "/no/c"), "/no/c: cannot be read: "),
    ],
)
def test_what_is_not_there(numalet: Cli, words: Sequence[str | Path], sentence: str) -> None:
    ended = numalet(*words)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith(f"numalet: {sentence}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("plan",), "Missing option '-f' / '--file'"),
        (("plan", "-f"), "requires an argument"),
        ((*PLAN, DB, "-o", "xml"), "'xml' is not one of 'text', 'json'"),
        (("topology", "-o", "xml"), "'text', 'json', 'yaml'"),
        (("explain",), "Missing argument 'NAMESPACE/POD'"),
        (("frob",), "No such command 'frob'"),
        (("run", "--fast"), "No such option"),
        (("state", "export"), "Missing option '--to'"),
    ],
)
def test_a_wrong_command_line(numalet: Cli, words: Sequence[str | Path], sentence: str) -> None:
    ended = numalet(*words)
    assert (ended.status, ended.out) == (2, "")
    assert sentence in re.sub(r"[\s│]+", " ", ended.err)


@pytest.mark.parametrize("command", [("status",), ("explain", "default/db")])
def test_no_agent_to_ask_is_status_3(numalet: Cli, tmp_path: Path, command: Sequence[str]) -> None:
    ended = numalet(*command, "--socket", tmp_path / "none.sock")
    assert (ended.status, ended.out) == (3, "")
    assert re.match(r"numalet: no agent answers on .*/none.sock: .*; is numalet running", ended.err)


def test_a_machine_that_makes_no_sense_is_status_4(numalet: Cli, tmp_path: Path) -> None:
    ended = numalet("topology", "--sysfs", tmp_path)
    assert (ended.status, ended.out) == (4, "")
    assert "shows no online CPU: is" in ended.err


@pytest.mark.parametrize(
    "words",
    [("topology",), ("plan", "-f", DB), ("state", "verify"), ("run", "--once", "--pods", "/tmp")],
)
def test_a_description_that_makes_no_sense_is_status_4_and_named(
    numalet: Cli, words: Sequence[str | Path]
) -> None:
    broken = PROJECT / "tests/data/topologies/broken-overlapping-nodes.yaml"
    ended = numalet(*words, "--simulate", broken)
    assert (ended.status, ended.out) == (4, "")
    assert ended.err.startswith(f"numalet: {broken} describes no sound machine: /sys/devices/")


def test_a_disk_that_fails_is_a_sentence_too(numalet: Cli, tmp_path: Path) -> None:
    numalet.monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    ended = numalet("run", "--once", "--simulate", TINY, "--pods", tmp_path)
    assert (ended.status, ended.out) == (3, "")
    assert ended.err.startswith("numalet: [Errno 2] No such file or directory: ")
