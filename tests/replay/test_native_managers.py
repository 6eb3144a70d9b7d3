"""What the kubelet's own static managers did on recorded days is what numalet does."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.kubelet_files import load_cpu, load_memory, node_state
from agent.core.pods import PodUID
from agent.core.state import NodeState, PodEntry
from agent.ports import Rejection

from .recording import Line
from .rig import Container, Moment, Replay, rules

RUNS: Mapping[str, Mapping[str, object]] = {
    "static": {},
    "static-restart": {},
    "static-best-effort": {"topologyManagerPolicy": "best-effort"},
}
"""Each with what was another in its configuration."""

RECONFIGURED: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("static", "12"): {"topologyManagerScope": "container"},
    ("static", "13"): {
        "featureGates": {"PodLevelResources": True, "PodLevelResourceManagers": False}
    },
}
"""How a kubelet was restarted with another configuration, by the moment before."""

NOT_COMPARED = {
    ("static", "01"): "the kubelet's policy was still none",
    ("static", "08"): "the pod that it had killed at its restart still held its CPUs",
    ("static-best-effort", "03"): "somebody had put every container on CPU 7",
    ("static-best-effort", "04"): "somebody had put every container on CPU 7",
}


@dataclass(frozen=True)
class Day:
    """A day that is over: its moments, who was rejected by numalet, and who by the kubelet."""

    run: str
    replay: Replay
    moments: list[Moment]
    native: Mapping[PodUID, Rejection]


@pytest.fixture(scope="module", params=RUNS)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Day:
    run: str = request.param
    folder = tmp_path_factory.mktemp("day")
    replay, moments = Replay(folder, run, rules(folder, **RUNS[run])), []
    native: dict[PodUID, Rejection] = {}
    for line in replay.play():
        native |= dict(rejected(line))
        if line["ev"] == "moment":
            moments.append(replay.look(line))
            if (run, line["name"]) in RECONFIGURED:
                replay.start(rules(folder, **RECONFIGURED[run, line["name"]]))
    return Day(run, replay, moments, native)


def rejected(line: Line) -> Iterator[tuple[PodUID, Rejection]]:
    """Yield the managers' rejection of a new pod; OutOfcpu comes from the kubelet itself."""
    pod = line["event"]["object"] if line["ev"] == "watch" else {}
    status = pod.get("status", {})
    has_run = any(one.get("containerID") for one in status.get("containerStatuses", ()))
    if "reason" in status and status["reason"] != "OutOfcpu" and not has_run:
        message = re.sub("^Pod was rejected: ", "", status["message"])
        yield PodUID(pod["metadata"]["uid"]), Rejection(status["reason"], message)


def test_at_each_moment_every_container_has_the_cpus_and_memory_of_the_native_managers(
    lived: Day,
) -> None:
    compared = 0
    for moment in lived.moments:
        if (lived.run, moment.name) not in NOT_COMPARED:
            native = dict(sets(lived.replay, moment.line))
            here = {path: in_force(c, native[path]) for path, c in moment.containers.items()}
            assert here == native
            compared += len(native)
    assert compared == {"static": 70, "static-restart": 15, "static-best-effort": 18}[lived.run]


def sets(replay: Replay, line: Line) -> Iterator[tuple[CgroupPath, tuple[str, str]]]:
    """Yield what the native managers wrote for each container but the sandboxes.

    They leave these on all CPUs; numalet has them on the pod shared pool.
    """
    for name, values in line["cgroups"].items():
        path = CgroupPath(name)
        if replay.layout.container_id(path) and replay.who(path)[1] is not None:
            yield path, (values["cpuset.cpus"], values["cpuset.mems"])


def in_force(container: Container, native: tuple[str, str]) -> tuple[str, str]:
    """Return CPUs and memory; the kubelet binds no memory of containers that it found running."""
    return container.cpus, container.mems if native[1] else ""


def test_at_each_moment_the_state_is_that_of_the_kubelets_own_files(lived: Day) -> None:
    compared = []
    for moment in lived.moments:
        if moment.containers and (lived.run, moment.name) not in NOT_IN_FILES:
            native = in_files(moment.line["state_files"])
            assert comparable(moment, moment.snapshot.state) == comparable(moment, native)
            compared.append(moment.name)
    assert len(compared) == {"static": 8, "static-restart": 2, "static-best-effort": 3}[lived.run]


NOT_IN_FILES = {
    ("static", "01"): "the kubelet's policy was still none",
    **dict.fromkeys(
        [
            ("static", "08"),
            ("static", "09"),
            ("static-restart", "02"),
            ("static-best-effort", "05"),
        ],
        "its tables still count the memory of pods that it had killed at its restart",
    ),
    ("static", "13"): "the pod that it had just refused still has an entry",
    ("static", "14"): "the gate is off, and so the file has another form",
    ("static-best-effort", "04"): "the pod that it had just refused still has an entry",
}


def in_files(files: Mapping[str, str]) -> NodeState:
    cpu, memory = files["cpu_manager_state"], files["memory_manager_state"]
    return node_state(load_cpu(cpu), load_memory(memory))


def comparable(moment: Moment, state: NodeState) -> NodeState:
    """Return a state without what only one of both says.

    The kubelet's files have no affinities and keep entries of pods that have gone; it has tables for
    page sizes of which the machine has no page.  The blocks of an ordinary init container go when
    the next container starts (kubelet-semantics 5.10); in a pod with a budget that frees nothing.
    """
    entries: dict[PodUID, PodEntry] = {}
    for pod in moment.snapshot.pods:
        if pod.uid in state.pods:
            entry = state.pods[pod.uid]
            memory = {name: b for name, b in entry.memory.items() if name not in pod.ended_init}
            entries[pod.uid] = replace(entry, memory=memory, affinity={}, first=None)
    tables = {
        node: replace(memory, tables={"memory": memory.tables["memory"]})
        for node, memory in state.memory.items()
    }
    return NodeState(default=state.default, pods=entries, memory=tables)


def test_who_was_rejected_is_rejected_with_the_same_words(lived: Day) -> None:
    assert lived.replay.rejected == lived.native
    reasons = sorted(rejection.reason for rejection in lived.native.values())
    assert (
        reasons
        == {
            "static": [
                "TopologyAffinityError",
                "TopologyAffinityError",
                "UnexpectedAdmissionError",
            ],
            "static-restart": ["TopologyAffinityError"],
            "static-best-effort": ["EmptyPodSharedPoolError"],
        }[lived.run]
    )
