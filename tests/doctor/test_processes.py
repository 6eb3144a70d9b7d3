"""The list of processes is that of proc(5)."""

import os
import sys
from pathlib import Path

import pytest

from agent.errors import EnvironmentProblem
from agent.node import procfs

from .made_up import MadeUpNode


def test_this_process_is_among_those_of_this_machine() -> None:
    own = next(p for p in procfs.processes() if p.pid == os.getpid())

    assert own.arguments[0].endswith(Path(sys.orig_argv[0]).name)


def test_long_names_are_whole_and_those_that_end_meanwhile_left_out(node: MadeUpNode) -> None:
    procfs.use_proc_root(node.root / "proc")
    long = node.run("nri-resource-policy-balloons", "--host-root", "/host")
    node.take_away(f"proc/{node.run('gone')}/stat")
    node.take_away(f"proc/{node.run('going')}/cmdline")

    found = {p.pid: p for p in procfs.processes()}

    assert found[long].name == "nri-resource-policy-balloons"
    assert found[long].arguments[1:] == ("--host-root", "/host")
    assert not {p.name for p in found.values()} & {"gone", "going"}


def test_a_proc_file_system_that_is_not_there_is_named(tmp_path: Path, node: MadeUpNode) -> None:
    procfs.use_proc_root(tmp_path / "proc")

    with pytest.raises(EnvironmentProblem, match="is proc mounted there"):
        procfs.processes()
