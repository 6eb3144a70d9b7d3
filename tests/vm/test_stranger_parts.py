"""What is read from a churn's journal, on one that was made up: this needs no guest."""

from pathlib import Path
from typing import Any

import pytest

from agent.core.cpuset import CPUSet

from .churn import LIFE_S
from .strangers import FOR_EVER, Span, Told
from .tracing import read_journal

SWITCH = "sched_switch: prev_comm={} prev_pid={} ==> next_comm={} next_pid={}"
IDLE, TASK = ("idle", 0), ("pod-1", 70)
WRITE = (
    'begin_cpuset_write_resmask: () above="kubepods" dir="podu1" file="cpuset.cpus" value="1"'
    ' comm="numalet"'
)
ENTRIES = (
    ("<...>-70", 2, 1.0, SWITCH.format(*IDLE, *TASK)),
    ("pod-1-70", 2, 2.0, SWITCH.format(*TASK, *IDLE)),
    ("pod-1-70", 3, 3.0, "cgroup_attach_task: dst_path=/kubepods/podu1/leaf1 pid=70 comm=pod-1"),
    ("pod-1-70", 3, 4.0, SWITCH.format(*TASK, *IDLE)),
    ("numalet-50", 0, 4.5, WRITE),
    ("numalet-50", 0, 5.0, "end_cpuset_write_resmask: () result=2"),
    ("<idle>-0", 1, 6.0, SWITCH.format(*IDLE, *TASK)),
)
"""Who did what on which CPU at which second."""


@pytest.fixture
def told(tmp_path: Path) -> Told:
    lines = [f"{who} [{cpu:03}] d..2. {at_s:.6f}: {what}\n" for who, cpu, at_s, what in ENTRIES]
    head = f"# entries-in-buffer/entries-written: {len(lines)}/{len(lines)}   #P:4\n"
    (tmp_path / "journal").write_text(head + "".join(lines))
    pods: dict[int, dict[str, Any]] = {
        0: {"kind": "resident", "uid": "u0"},
        1: {"kind": "guaranteed", "uid": "u1", "leaves": ["leaf1"]},
        2: {"kind": "burstable", "uid": "u2"},
    }
    return Told(pods, [], read_journal(tmp_path / "journal"), LIFE_S + 4.0)


def test_a_task_uses_cpus_from_the_moment_in_which_it_has_joined(told: Told) -> None:
    assert list(told.used()) == [
        Span(pod=1, cpus=CPUSet([3]), begin_s=3.0, end_s=4.0),
        Span(pod=1, cpus=CPUSet([1]), begin_s=6.0, end_s=FOR_EVER),
    ]


def test_a_pod_that_was_confined_late_is_told_from_one_that_was_in_time(told: Told) -> None:
    assert told.at_the_top() == {1}
    assert (told.joined_at(), told.confined_at()) == ({1: 3.0}, {1: 5.0})


def test_the_rate_is_that_of_the_pods_that_came(told: Told) -> None:
    assert told.rate == 0.5
