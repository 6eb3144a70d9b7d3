"""A healthy node has nothing to complain about; each check complains about what is wrong."""

import pytest

from agent.core.findings import Level, is_ready

from .ailments import HYBRID, OVERLAPPING, PROBLEMS, V1, WARNINGS, Change
from .made_up import CGROUPS, CONTROLLERS, MadeUpNode


def test_a_healthy_node_is_ready_without_a_warning(node: MadeUpNode) -> None:
    findings = node.examine()

    assert [f for f in findings if f.level is not Level.OK] == []
    assert all(not f.cure for f in findings)


@pytest.mark.parametrize(
    ("change", "check", "sentence", "cure"),
    [case[1:] for case in PROBLEMS],
    ids=[case[0] for case in PROBLEMS],
)
def test_a_problem_is_named_with_its_cure_and_the_node_is_not_ready(
    node: MadeUpNode, change: Change, check: str, sentence: str, cure: str
) -> None:
    change(node)

    findings = node.examine()

    found = findings[0]
    assert (found.check, found.level) == (check, Level.PROBLEM)
    assert sentence in found.sentence
    assert cure in found.cure
    assert not is_ready(findings)


@pytest.mark.parametrize(
    ("change", "check", "sentence", "cure"),
    [case[1:] for case in WARNINGS],
    ids=[case[0] for case in WARNINGS],
)
def test_a_warning_is_given_with_its_cure_and_the_node_stays_ready(
    node: MadeUpNode, change: Change, check: str, sentence: str, cure: str
) -> None:
    change(node)

    findings = node.examine()

    (found,) = (f for f in findings if f.check == check)
    assert found.level is Level.WARNING
    assert sentence in found.sentence
    assert cure in found.cure
    assert is_ready(findings)


def test_every_check_that_a_healthy_node_passes_can_complain(node: MadeUpNode) -> None:
    passed = {finding.check for finding in node.examine()}

    complaining = {case[2] for case in (*PROBLEMS, *WARNINGS)}

    assert passed - complaining == {"permissions"}  # in test_permissions, as another user
    assert complaining - passed == {"unread"}  # has nothing to say where all is well


def test_what_stands_at_other_files_is_still_told_where_the_machine_makes_no_sense(
    node: MadeUpNode,
) -> None:
    node.write(OVERLAPPING, "0-7")
    node.write("proc/sys/kernel/osrelease", "6.1.0")

    levels = {finding.check: finding.level for finding in node.examine()}

    assert levels["kernel"] is Level.WARNING
    assert "interrupts" not in levels  # nobody knows which CPUs are reserved


def test_findings_come_in_the_order_of_their_weight(node: MadeUpNode) -> None:
    V1(node)
    node.write("proc/sys/kernel/numa_balancing", "1")

    levels = [finding.level for finding in node.examine()]

    assert levels == sorted(levels, key=[Level.PROBLEM, Level.WARNING, Level.OK].index)
    assert set(levels) == set(Level)


def test_where_cgroup_v2_is_not_at_hand_nothing_is_said_about_its_files(node: MadeUpNode) -> None:
    HYBRID(node)
    node.take_away(f"{CGROUPS}/cgroup.controllers")

    checks = {finding.check for finding in node.examine()}

    assert checks.isdisjoint({"cgroup-root", "controllers", "permissions", "partitions"})


def test_a_read_only_hierarchy_is_judged_in_everything_else(node: MadeUpNode) -> None:
    node.mount(CGROUPS, "cgroup2", "ro")
    node.write(f"{CGROUPS}/cgroup.controllers", CONTROLLERS.replace("memory", ""))

    problems = [f.check for f in node.examine() if f.level is Level.PROBLEM]

    assert problems == ["cgroup-v2", "controllers"]
