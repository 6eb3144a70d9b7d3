"""Cases from the field about the cgroup tree: its controllers, its mount, its names."""

import errno
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, PodUID, QosClass
from agent.errors import CgroupError, EnvironmentProblem
from agent.node.cgroup_layout import detect_layout
from agent.node.cgroupfs import CgroupFs
from agent.ports import GONE, CgroupsChanged, Tick
from agent.runtime_tree import RuntimeTree
from agent.simulation.clock import SimulatedClock
from agent.simulation.kernel import SimulatedKernel
from tests.reconciler.rig import KUBEPODS, WatchedKernel
from tests.reconciler.test_runtime_cgroups import KubeletWorld, Name, Names
from tests.strategies import machine

from .answers import answers, compare
from .living import living
from .loader import Case
from .pods import app, pod, rules, sharing

EIGHT = machine(cores_per_node=8, threads=1)
P1 = pod(app("a", 2), uid="p1")
POD, A_ID, UID = KUBEPODS / "podp1", "0123456789abcdef" * 4, "AAAA-BBBB"


class ForbiddingKernel(WatchedKernel):
    """Lets the agent enable no controller: the tree is delegated to somebody else."""

    def enable(self, path: CgroupPath) -> None:
        raise CgroupError(str(path), errno.EACCES, "enable controllers in")


def switch(kernel: SimulatedKernel, sign: str, paths: Iterable[CgroupPath]) -> None:
    for path in paths:
        kernel.foreign_write(path, "cgroup.subtree_control", f"{sign}cpuset")


@answers("PC-34")
def test_a_missing_controller_is_a_problem_until_it_is_there(case: Case, tmp_path: Path) -> None:
    world = KubeletWorld(rules(EIGHT), tmp_path, kernel_class=ForbiddingKernel)
    a = world.container(world.pod(POD), "a")
    switch(world.kernel, "-", (POD, KUBEPODS))
    enabled = case.raw["cgroup_before"]["kubepods.slice"]["cgroup.subtree_control"].split()
    assert set(world.text(KUBEPODS, "cgroup.subtree_control").split()) == set(enabled) - {"pids"}

    waiting = world.listed(P1)

    assert world.kernel.read(a, "cpuset.cpus") is GONE
    assert str(waiting.state.pods[P1.uid].held) == "1-2"
    assert any(
        "the controller is off above it, and cannot be enabled" in what and "EACCES" in what
        for what in waiting.problems
    )

    switch(world.kernel, "+", (KUBEPODS, POD))
    pinned = world.handle(Tick())

    compare(
        case,
        startup="ok",
        ready=[waiting.ready, pinned.ready],
        cgroup_after={"p1/a": {"cpuset.cpus": world.text(a, "cpuset.cpus")}},
    )
    assert pinned.problems == ()
    assert pinned.drift == {}, "nobody was made anew"


@answers("PC-34")
def test_a_missing_controller_is_enabled_where_that_is_permitted(
    case: Case, tmp_path: Path
) -> None:
    node = living(rules(EIGHT), tmp_path, P1)
    switch(node.world.kernel, "-", (POD, KUBEPODS))
    snapshot = node.world.handle(Tick())
    after = case.raw["expect"]["cgroup_after"]
    assert node.said(after) == after
    assert snapshot.problems == ()


def host_tree(root: Path) -> Path:
    """Make what a container sees that has the host's tree mounted; return the file of a container."""
    file = root / "kubepods.slice/kubepods-podp1.slice" / f"cri-containerd-{A_ID}.scope/cpuset.cpus"
    file.parent.mkdir(parents=True)
    for path in (file, root / "cgroup.controllers"):
        path.write_text("cpuset cpu memory\n" if path.name == "cgroup.controllers" else "")
    return file


@answers("PC-35")
def test_the_one_configured_tree_is_used_and_it_must_be_the_hosts(
    case: Case, tmp_path: Path
) -> None:
    """In a real container: ``tests/vm/test_daemon_set.py``."""
    host, private = tmp_path.resolve() / "host/cgroup", tmp_path.resolve() / "sys/cgroup"
    file, other = host_tree(host), host_tree(private)
    for path in (other, other.parent, *other.parent.parents[:2]):
        path.unlink() if path.is_file() else path.rmdir()
    table = tmp_path / "mountinfo"
    lines = (f"{i} 1 0:{i} / {at} rw - cgroup2 none rw\n" for i, at in enumerate((host, private)))
    table.write_text("".join(lines))

    cgroups = CgroupFs(host, mountinfo=table)
    cgroups.check()
    layout = detect_layout(cgroups)
    (scope,) = cgroups.children(layout.pod(P1, QosClass.GUARANTEED))
    cgroups.write(scope, "cpuset.cpus", "1-2")
    inside_only = CgroupFs(private, mountinfo=table)
    inside_only.check()
    with pytest.raises(EnvironmentProblem, match="mount the host's /sys/fs/cgroup"):
        detect_layout(inside_only)
    with pytest.raises(EnvironmentProblem, match="is not a cgroup v2 hierarchy"):
        CgroupFs(tmp_path, mountinfo=table).check()

    own = pod(sharing("numalet"), uid="numalet")
    node = living(rules(EIGHT), tmp_path, P1, own)
    compare(
        case,
        startup="ok",
        properties={
            "own container in shared pool": node.world.cpus(node.at["numalet/numalet"])
            == str(node.world.snapshots[-1].state.default),
            "every path starts with the configured root": file.read_text() == "1-2"
            and not any(private.rglob("cpuset.cpus")),
        },
    )


@answers("PC-36")
def test_a_container_is_found_in_every_layout_and_waited_for(case: Case, tmp_path: Path) -> None:
    """With runc and crun: ``tests/vm/test_runtimes.py``."""
    resolved = 0
    for i, text in enumerate(case.raw["tree"]):
        kernel = SimulatedKernel(EIGHT, tmp_path / str(i))
        path = CgroupPath(text.replace("/ID", f"/{A_ID}").replace("-ID", f"-{A_ID}"))
        kernel.make(path)
        burstable = replace(P1, uid=PodUID(UID), qos=QosClass.BURSTABLE)
        where = burstable if "burstable" in text else replace(burstable, qos=QosClass.GUARANTEED)
        names = Names({A_ID: Name("a", PodUID(UID))})
        tree = RuntimeTree(kernel, detect_layout(kernel), names, knows_budgets=True)
        assert tree.path_of(where) in path.ancestors
        resolved += tree.of(where).leaves.get(path) == "a"
    compare(
        case,
        resolved=resolved,
        properties={
            "missing id -> retry, then condition after 60 s": says_so_while_it_waits(tmp_path, P1)
        },
    )


def says_so_while_it_waits(folder: Path, expected: Pod) -> bool:
    """Tell whether a cgroup is called missing that comes after ten minutes, and is then confined."""
    clock = SimulatedClock()
    (folder / "waiting").mkdir()
    world = KubeletWorld(rules(EIGHT), folder / "waiting", clock=clock)
    world.listed(expected)
    for _ in range(60):
        clock.advance(10)
        world.handle(Tick())
    told = any(snapshot.problems for snapshot in world.snapshots)
    a = world.container(world.pod(POD), "a")
    world.handle(CgroupsChanged(KUBEPODS))
    assert world.text(a, "cpuset.cpus") == "1-2"
    return told
