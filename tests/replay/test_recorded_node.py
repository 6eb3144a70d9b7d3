"""The replayed node is the recorded one: its cgroups, their files and what the kubelet wrote."""

from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.ports import Gone

from .node import SUBTREE
from .recording import RUNS, Line, day, names
from .rig import ReplayKernel, layout_of, recorded_node

WHILE_THINGS_HAPPENED = ("none", "03")
"""Reading all files took the recorder half a second, in which a scope was made."""


@pytest.mark.parametrize("run", RUNS)
def test_at_each_moment_the_same_cgroups_have_the_same_files(tmp_path: Path, run: str) -> None:
    lines = day(run)
    kernel, node = recorded_node(tmp_path, layout_of(run), names(lines))
    for line in lines:
        node.play(line)
        if line["ev"] == "moment" and (run, line["name"]) != WHILE_THINGS_HAPPENED:
            assert replayed(kernel, line) == recorded(line)


def recorded(moment: Line) -> dict[str, tuple[bool, str, str]]:
    """Return whether each cgroup has cpuset files, its controllers, and its quota.

    What the native managers and the recorder's own agent wrote instead of a quota is left out.
    """
    return {
        path: ("cpuset.cpus" in values, controllers(values[SUBTREE]), quota(values.get("cpu.max")))
        for path, values in moment["cgroups"].items()
    }


def replayed(kernel: ReplayKernel, moment: Line) -> dict[str, tuple[bool, str, str]]:
    said = {}
    below = [CgroupPath(next(iter(moment["cgroups"])))]
    for path in below:
        below += kernel.children(path)
        has_files = not isinstance(kernel.read(path, "cpuset.cpus"), Gone)
        quotas = quota(str(kernel.read(path, "cpu.max")))
        # A quota that the recorder's agent or a native manager lifted says nothing.
        if quota(moment["cgroups"].get(path.relative, {}).get("cpu.max")) == "max":
            quotas = "max"
        said[path.relative] = has_files, controllers(str(kernel.read(path, SUBTREE))), quotas
    return said


def controllers(text: str) -> str:
    return " ".join(name for name in text.split() if name in ("cpuset", "cpu", "memory"))


def quota(text: str | None) -> str:
    return "max" if text in (None, "GONE") else str(text).split()[0]
