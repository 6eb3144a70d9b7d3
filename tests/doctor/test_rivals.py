"""Who is found by an agent that runs: other managers, another numalet, and what cannot be seen."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.core.findings import Finding, Level
from agent.core.node_facts import KubeletFacts
from agent.node import procfs
from agent.node.rivals import rivals

from .ailments import KUBELET
from .made_up import KUBELET_PID, MadeUpNode

STATIC = '{"policyName":"static"}'
OWN_PID = 50
LOCK = "7: FLOCK  ADVISORY  WRITE {pid} fe:00:1234 0 EOF"


@pytest.fixture
def agent_s_node(node: MadeUpNode) -> MadeUpNode:
    """The node of an agent that runs, and holds its lock."""
    procfs.use_proc_root(node.root / "proc")
    (node.root / "proc/self/mountinfo").unlink()
    (node.root / "proc/self").rmdir()
    (node.root / "proc/self").symlink_to(str(OWN_PID))
    node.run("numalet", "run", "--wait-for-lock", pid=OWN_PID)
    node.write("proc/locks", LOCK.format(pid=OWN_PID))
    return node


def found(node: MadeUpNode, level: Level, answer: KubeletFacts | None = None) -> list[Finding]:
    return [finding for finding in rivals(node.root, answer) if finding.level is level]


def said(cpu: str = "none", memory: str = "None") -> KubeletFacts:
    return KubeletFacts(folder="", cpu_policy=cpu, memory_policy=memory, said_by="its configz")


def test_nobody_is_found_where_nobody_is(agent_s_node: MadeUpNode) -> None:
    assert {f.level for f in rivals(agent_s_node.root)} == {Level.OK}


def test_another_manager_is_found_by_its_process(agent_s_node: MadeUpNode) -> None:
    pid = agent_s_node.run("nri-resource-policy-topology-aware")

    (finding,) = found(agent_s_node, Level.PROBLEM)

    assert finding.subject == "nri-resource-policy-topology-aware"
    assert f"(pid {pid})" in finding.sentence


def test_a_program_that_only_begins_like_one_is_none(agent_s_node: MadeUpNode) -> None:
    agent_s_node.run("nri-resource-policy-none-of-them")

    assert not found(agent_s_node, Level.PROBLEM)


def test_a_second_numalet_with_a_state_folder_of_its_own_is_named(
    agent_s_node: MadeUpNode,
) -> None:
    pid = agent_s_node.run("numalet", "run", "--pods", "kubernetes")
    agent_s_node.write(
        "proc/locks",
        "\n".join((LOCK.format(pid=OWN_PID), LOCK.format(pid=pid).replace("7", "8", 1))),
    )

    (finding,) = found(agent_s_node, Level.PROBLEM)

    assert finding.subject == "numalet"
    assert f"another numalet runs (pid {pid})" in finding.sentence


def test_who_waits_for_the_lock_during_a_roll_out_is_no_rival(agent_s_node: MadeUpNode) -> None:
    pid = agent_s_node.run("numalet", "run", "--wait-for-lock")
    waits = f"8: -> FLOCK  ADVISORY  WRITE {pid} fe:00:1234 0 EOF"
    agent_s_node.write("proc/locks", f"{LOCK.format(pid=OWN_PID)}\n{waits}")

    findings = rivals(agent_s_node.root)

    assert {f.level for f in findings} == {Level.OK}
    assert [f.sentence for f in findings if f.check == "numalet"] == [
        f"another numalet is there (pid {pid}), and holds no lock"
    ]


@pytest.mark.parametrize("words", [("run", "--observe"), ("run", "--simulate", "x"), ("status",)])
def test_a_numalet_that_writes_nothing_is_no_rival(
    agent_s_node: MadeUpNode, words: tuple[str, ...]
) -> None:
    pid = agent_s_node.run("numalet", *words)
    agent_s_node.write("proc/locks", LOCK.format(pid=pid))

    assert {f.level for f in rivals(agent_s_node.root)} == {Level.OK}


def test_where_locks_are_not_told_another_numalet_is_a_warning(agent_s_node: MadeUpNode) -> None:
    agent_s_node.run("numalet", "run")
    agent_s_node.take_away("proc/locks")

    (finding,) = found(agent_s_node, Level.WARNING)

    assert "it cannot be seen whether it has a state folder of its own" in finding.sentence


@contextmanager
def a_file_replaced_since_it_was_mounted(node: MadeUpNode) -> Iterator[None]:
    """Open by its descriptor what is deleted: as in a container that has the old file mounted."""
    path = node.root / KUBELET / "cpu_manager_state"
    file = os.open(path, os.O_RDONLY)
    path.unlink()
    path.symlink_to(f"/proc/self/fd/{file}")
    try:
        yield
    finally:
        os.close(file)


def test_a_state_file_that_was_replaced_says_nothing_any_more(agent_s_node: MadeUpNode) -> None:
    with a_file_replaced_since_it_was_mounted(agent_s_node):
        (finding,) = found(agent_s_node, Level.WARNING)

    assert "cpu_manager_state (was replaced since it was mounted here" in finding.sentence


@pytest.mark.parametrize("file", ["cpu_manager_state", "memory_manager_state"])
def test_a_state_file_that_cannot_be_read_is_said_and_does_not_mean_none(
    agent_s_node: MadeUpNode, file: str
) -> None:
    agent_s_node.take_away(f"{KUBELET}/{file}")
    (agent_s_node.root / KUBELET / file).mkdir()  # as if mounted where there was none

    (finding,) = found(agent_s_node, Level.WARNING)

    assert "it cannot be seen whether the kubelet places containers itself" in finding.sentence
    assert f"{file} (Is a directory)" in finding.sentence


def test_a_kubelet_without_a_state_file_is_a_warning(agent_s_node: MadeUpNode) -> None:
    agent_s_node.take_away(f"{KUBELET}/cpu_manager_state")

    (finding,) = found(agent_s_node, Level.WARNING)

    assert "a kubelet runs, but has no cpu_manager_state" in finding.sentence


def test_processes_that_cannot_be_seen_are_a_warning(agent_s_node: MadeUpNode) -> None:
    procfs.use_proc_root(agent_s_node.root / "nowhere")

    assert [f.check for f in found(agent_s_node, Level.WARNING)] == ["processes"]


def test_what_the_kubelet_answers_counts_where_its_files_say_nothing(
    agent_s_node: MadeUpNode,
) -> None:
    agent_s_node.take_away(f"{KUBELET}/cpu_manager_state")
    assert not found(agent_s_node, Level.WARNING, said())

    (finding,) = found(agent_s_node, Level.PROBLEM, said(memory="Static"))

    assert finding.subject == "kubelet"
    assert "(Memory Manager: Static, by its configz)" in finding.sentence


@pytest.mark.parametrize(
    ("file", "answer"), [(STATIC, "none"), ('{"policyName":"none"}', "static")]
)
def test_of_two_that_disagree_the_one_counts_that_names_a_policy(
    agent_s_node: MadeUpNode, file: str, answer: str
) -> None:
    agent_s_node.write(f"{KUBELET}/cpu_manager_state", file)

    (finding,) = found(agent_s_node, Level.PROBLEM, said(answer))

    assert "CPU Manager: static" in finding.sentence


def test_a_look_costs_little_beside_that_at_all_processes(agent_s_node: MadeUpNode) -> None:
    for _ in range(300):
        agent_s_node.run("sleep", "1000")

    def cost_s(look: object) -> float:
        assert callable(look)
        begin_s = time.thread_time()
        look()
        return time.thread_time() - begin_s

    whole = min(cost_s(procfs.processes) for _ in range(3))
    look = min(cost_s(lambda: rivals(agent_s_node.root)) for _ in range(3))

    assert look < whole / 2
    assert KUBELET_PID in {p.pid for p in procfs.processes_named({"kubelet"})}
