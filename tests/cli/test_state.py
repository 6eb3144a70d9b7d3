"""``numalet state``: the checkpoint, and a kubelet's files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.core.admission import Admitted, admit
from agent.core.pods import Pod
from agent.node import kubelet_state
from agent.node.checkpoint import COPIES, CheckpointStore
from agent.node.kubelet_state import CPU_FILE, MEMORY_FILE
from agent.node.state_folder import StateFolderLock
from agent.ports import Rejection, Remembered
from agent.simulation.description import dump_description
from agent.simulation.machine import describe
from tests.cli.rig import PROJECT, Cli, Ended
from tests.conformance.scenario import read_scenarios, topology
from tests.node.fragile_disks import Clock
from tests.reconciler.rig import exclusive_pod, two_sockets

VECTORS = PROJECT / "tests/data/conformance/restore_validation.jsonl.gz"
RULES = two_sockets()
CONFIG = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: "0"
evictionHard: {memory.available: 512Mi}
topologyManagerPolicy: single-numa-node
"""
A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)


class Place:
    """A state folder, and the machine and configuration that it belongs to."""

    def __init__(self, folder: Path, numalet: Cli) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        self.machine, self.config = folder / "machine.yaml", folder / "config.yaml"
        self.machine.write_text(dump_description(describe(RULES.topology, name="two-sockets")))
        self.config.write_text(CONFIG)
        self.numalet = numalet

    def save(self, *pods: Pod, rejected: Pod | None = None) -> Remembered:
        state = RULES.initial_state()
        for pod in pods:
            verdict = admit(RULES, state, pod)
            assert isinstance(verdict, Admitted)
            state = verdict.state
        rejections = {rejected.uid: Rejection("Reason", "why")} if rejected else {}
        known = {pod.uid: pod for pod in (*pods, *([rejected] if rejected else []))}
        remembered = Remembered(state=state, pods=known, rejections=rejections)
        CheckpointStore(self.state, Clock()).save(remembered)
        return remembered

    def load(self) -> Remembered | None:
        return CheckpointStore(self.state, Clock()).load().remembered

    def __call__(self, *words: str | Path) -> Ended:
        where = ("--state", self.state, "--simulate", self.machine, "--config", self.config)
        return self.numalet("state", *words, *where)


@pytest.fixture
def state(tmp_path: Path, numalet: Cli) -> Place:
    return Place(tmp_path, numalet)


def test_show_prints_who_holds_what(state: Place) -> None:
    state.save(A, B, rejected=exclusive_pod("c", 9))
    ended = state.numalet("state", "show", "--state", state.state)
    assert (ended.status, ended.err) == (0, "")
    assert "\x1b" not in ended.out
    assert [" ".join(line.split()) for line in ended.out.splitlines()] == [
        "generation 1, written 2027-01-15 08:00:00 UTC",
        "POD CONTAINER CPUS MEMORY",
        "default/a 1-2",
        "c0 1-2 1Gi on 0",
        "default/b 3-5",
        "c0 3-5 1Gi on 0",
        "default CPU set: 0,6-15",
        "c rejected: Reason: why",
    ]


def test_show_as_json(state: Place) -> None:
    state.save(A)
    document = state.numalet("state", "show", "--state", state.state, "-o", "json").json()
    assert document == {
        "generation": 1,
        "writtenAt": Clock().now_s(),
        "defaultCpuSet": "0,3-15",
        "pods": [
            {
                "uid": "a",
                "namespace": "default",
                "name": "a",
                "cpuPool": "1-2",
                "containers": [{"name": "c0", "cpus": "1-2", "memory": {"0": 1 << 30}}],
            }
        ],
        "rejected": {},
    }


def test_names_are_no_markup(state: Place) -> None:
    (container,) = A.app_containers
    odd = Pod(uid=A.uid, name="[b]", app_containers=(replace(container, name="[/b]"),))
    state.save(odd)
    ended = state.numalet("state", "show", "--state", state.state)
    assert "default/[b]" in ended.out
    assert "[/b]" in ended.out


def test_one_copy_may_be_named(state: Place) -> None:
    state.save(A)
    ended = state.numalet("state", "show", "--state", state.state / COPIES[1], "-o", "json")
    assert ended.json()["generation"] == 1


@pytest.mark.parametrize("command", ["show", "export"])
def test_without_a_checkpoint_there_is_a_sentence(state: Place, command: str) -> None:
    words = {"export": ("--to", state.state)}.get(command, ())
    ended = state.numalet("state", command, "--state", state.state, *words)
    assert (ended.status, ended.out) == (5, "")
    assert ended.err == (
        "numalet: no checkpoint that can be used; "
        f"{state.state / COPIES[0]}: cannot be read: No such file or directory; "
        f"{state.state / COPIES[1]}: cannot be read: No such file or directory\n"
    )


def test_a_kubelet_goes_on_from_what_is_exported_and_so_do_we(state: Place, tmp_path: Path) -> None:
    saved = state.save(A, B)
    kubelet = tmp_path / "kubelet"
    kubelet.mkdir()
    assert state("export", "--to", kubelet).status == 0
    assert json.loads((kubelet / CPU_FILE).read_text())["policyName"] == "static"
    ended = state("verify", "--kubelet", kubelet)
    assert (ended.status, ended.out) == (
        0,
        f"{kubelet}: a kubelet would start with these files\n",
    )
    assert state("verify", "--kubelet", kubelet, "-o", "json").json() == {
        "files": [
            {"path": str(kubelet / name), "status": "present", "generation": None, "reason": ""}
            for name in (CPU_FILE, MEMORY_FILE)
        ],
        "problems": [],
        "summary": f"{kubelet}: a kubelet would start with these files",
    }
    state.save()
    ended = state("import", "--kubelet", kubelet)
    assert (ended.status, ended.out) == (0, "imported 2 pods; default CPU set 0,6-15\n")
    loaded = state.load()
    assert loaded is not None
    assert loaded.state.default == saved.state.default
    assert loaded.state.memory == saved.state.memory
    assert {uid: entry.cpus for uid, entry in loaded.state.pods.items()} == {
        uid: entry.cpus for uid, entry in saved.state.pods.items()
    }


def test_import_while_numalet_runs_is_refused(state: Place, tmp_path: Path) -> None:
    state.save(A)
    state("export", "--to", tmp_path)
    with StateFolderLock(state.state):
        ended = state("import", "--kubelet", tmp_path)
    assert (ended.status, ended.out) == (3, "")
    assert "is in use by another numalet" in ended.err


def test_files_in_which_a_cpu_has_two_owners_are_not_imported(state: Place, tmp_path: Path) -> None:
    sound = state.save(A, B).state
    lost = sound.pods[B.uid]
    stolen = replace(sound.pods[B.uid], cpus=sound.pods[A.uid].cpus)
    broken = replace(sound, default=sound.default | lost.held, pods={**sound.pods, B.uid: stolen})
    kubelet_state.write(tmp_path, kubelet_state.render(RULES, broken))
    assert state("verify", "--kubelet", tmp_path).status == 0  # a kubelet takes no notice

    ended = state("import", "--kubelet", tmp_path)

    assert (ended.status, ended.out) == (5, "")
    assert "CPUs 1-2 have two owners" in ended.err


def test_a_folder_without_a_kubelets_files_is_wrong_input(state: Place, tmp_path: Path) -> None:
    ended = state("import", "--kubelet", tmp_path / "state")
    assert ended.status == 2
    assert "has neither cpu_manager_state nor memory_manager_state" in ended.err


def kubelet_configuration(config: dict[str, Any]) -> str:
    """Write a recorded configuration as an operator would."""
    reservation = dict(config["node_reservation"])
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "featureGates": config.get("feature_gates") or {},
            "cpuManagerPolicy": config["cpu_policy"],
            "cpuManagerPolicyOptions": config["cpu_options"],
            "reservedSystemCPUs": config["reserved_cpus"],
            "systemReserved": reservation,
            "evictionHard": {},
            "memoryManagerPolicy": config["memory_policy"],
            "reservedMemory": [
                {"numaNode": r["numa"], "limits": r["limits"]} for r in config["reserved_memory"]
            ],
            "topologyManagerPolicy": config["topology_policy"],
            "topologyManagerScope": config["topology_scope"],
            "topologyManagerPolicyOptions": config["topology_options"],
        }
    )


def restart(matches: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first recorded restart from tampered files with such an outcome."""
    return next(
        (scenario, step)
        for scenario in read_scenarios(VECTORS)
        for step in scenario["steps"]
        if step["op"] == "restart" and len(step.get("files") or ()) and not step.get("machine")
        if all(step["files"].values()) and not step.get("config")
        if matches(step["expect"]["init"])
    )


@pytest.mark.parametrize(
    "words",
    [
        "overlaps with default cpuset",
        "default cpuset cannot be empty",
        "not all reserved cpus",
        "doesn't match with CPUs in state",
        "checkpoint is corrupted",
        "expected machine state is different from the real one",
        "uses the NUMA that does not exist",
    ],
)
@pytest.mark.parametrize("command", ["verify", "import"])
def test_a_kubelets_refusal_is_told_in_its_own_words(
    state: Place, tmp_path: Path, words: str, command: str
) -> None:
    scenario, step = restart(lambda init: words in (init.get("error") or ""))
    state.machine.write_text(
        dump_description(describe(topology(scenario["machine"]), name="recorded"))
    )
    state.config.write_text(kubelet_configuration(scenario["config"]))
    kubelet = tmp_path / "kubelet"
    kubelet.mkdir()
    for name, text in step["files"].items():
        (kubelet / name).write_text(text)
    ended = state(command, "--kubelet", kubelet)
    init = step["expect"]["init"]
    assert (ended.status, ended.out) == (5, "")
    assert ended.err == (
        f"numalet: {init['stage']}: {init['error'].replace('<STATE_DIR>', str(kubelet))}\n"
    )
    assert state.load() is None
