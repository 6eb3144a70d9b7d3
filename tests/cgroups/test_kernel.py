"""What only the model can show: absent CPUs, memory-less nodes, lost pins, its log and its hook."""

import errno
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet, NodeSet
from agent.errors import CgroupError, InputError
from agent.ports import GONE
from agent.simulation.kernel import SimulatedKernel

from .rig import two_nodes

POD = CgroupPath("kubepods.slice") / "pod1.slice"
APP = POD / "app.scope"


@pytest.fixture
def app(kernel: SimulatedKernel) -> SimulatedKernel:
    kernel.make(APP)
    kernel.writes.clear()
    return kernel


def effective(kernel: SimulatedKernel, path: CgroupPath, what: str = "cpus") -> str:
    return str(kernel.read(path, f"cpuset.{what}.effective"))


def test_the_root_has_the_online_cpus_and_no_settings(kernel: SimulatedKernel) -> None:
    root = CgroupPath()
    assert effective(kernel, root) == "0-7"
    assert effective(kernel, root, "mems") == "0-1"
    for file in ("cpuset.cpus", "cpu.max", "memory.max", "cgroup.type", "cgroup.events"):
        assert kernel.read(root, file) is GONE


# Section 1: CPUs that are possible but absent, nodes without memory


def test_an_absent_cpu_may_be_named_but_is_never_effective(tmp_path: Path) -> None:
    kernel = SimulatedKernel(two_nodes(), tmp_path, possible_cpus=10)
    kernel.make(POD)
    kernel.write(POD, "cpuset.cpus", "6-9")
    assert (kernel.read(POD, "cpuset.cpus"), effective(kernel, POD)) == ("6-9", "6-7")
    kernel.write(POD, "cpuset.cpus", "9")
    assert effective(kernel, POD) == "0-7"
    with pytest.raises(CgroupError, match="ERANGE"):
        kernel.write(POD, "cpuset.cpus", "10")
    kernel.set_online(CPUSet(range(10)))
    assert effective(kernel, POD) == "9"


def test_a_node_without_memory_may_be_named_but_is_never_effective(tmp_path: Path) -> None:
    kernel = SimulatedKernel(two_nodes(memoryless=True), tmp_path)
    kernel.make(POD)
    for mems in ("1", "0-1", "0"):
        kernel.write(POD, "cpuset.mems", mems)
        assert (kernel.read(POD, "cpuset.mems"), effective(kernel, POD, "mems")) == (mems, "0")


def test_memory_that_goes_and_comes_back_moves_effective_nodes(app: SimulatedKernel) -> None:
    app.write(APP, "cpuset.mems", "1")
    app.set_memory_nodes(NodeSet([0]))
    assert effective(app, APP, "mems") == "0"
    app.set_memory_nodes(NodeSet([0, 1]))
    assert effective(app, APP, "mems") == "1"


@pytest.mark.parametrize("cpus", [CPUSet(), CPUSet([8])])
def test_no_cpus_or_impossible_ones_cannot_be_online(kernel: SimulatedKernel, cpus: CPUSet) -> None:
    with pytest.raises(InputError, match="name some of the CPUs 0-7"):
        kernel.set_online(cpus)


@pytest.mark.parametrize("nodes", [NodeSet(), NodeSet([2])])
def test_no_nodes_or_absent_ones_cannot_have_memory(
    kernel: SimulatedKernel, nodes: NodeSet
) -> None:
    with pytest.raises(InputError, match="name some of the nodes 0-1"):
        kernel.set_memory_nodes(nodes)


# Section 2: which changes drop a sched_setaffinity mask before 6.2


def test_only_a_real_change_of_the_effective_set_unpins(app: SimulatedKernel) -> None:
    pid = app.add_task(APP)
    for path, file, value in [
        (APP, "cpuset.cpus", "0-7"),
        (APP, "cpuset.cpus", "0-7"),
        (APP, "cpuset.cpus", "0-3,4-7"),
        (POD, "cpuset.cpus", "0-7"),
        (APP, "cpuset.mems", "1"),
        (POD, "memory.max", "1G"),
        (POD, "cpu.max", "50000"),
    ]:
        app.write(path, file, value)
        assert app.unpinned[pid] == 0, (path, file, value)
    app.write(APP, "cpuset.cpus", "0-6")
    assert app.unpinned[pid] == 1
    app.write(POD, "cpuset.cpus", "0-6")
    assert app.unpinned[pid] == 1
    app.write(POD, "cpuset.cpus", "0-5")
    assert app.unpinned[pid] == 2


def test_only_an_offline_cpu_of_its_own_unpins(app: SimulatedKernel) -> None:
    app.write(APP, "cpuset.cpus", "4-5")
    pid = app.add_task(APP)
    app.set_online(CPUSet(range(7)))
    assert app.unpinned[pid] == 0
    app.set_online(CPUSet(range(5)))
    assert app.unpinned[pid] == 1


def test_another_cpuset_unpins_even_where_it_has_the_same_cpus(app: SimulatedKernel) -> None:
    app.make(POD / "other.scope")
    pid = app.add_task(APP)
    app.move(pid, APP)
    assert app.unpinned[pid] == 0
    app.move(pid, POD / "other.scope")
    assert app.unpinned[pid] == 1
    app.write(POD, "cgroup.subtree_control", "-memory")
    assert app.unpinned[pid] == 1
    app.write(POD, "cgroup.subtree_control", "-cpuset")
    assert app.unpinned[pid] == 2
    app.move(pid, APP)
    assert app.unpinned[pid] == 2
    app.write(POD, "cgroup.subtree_control", "+cpuset")
    assert app.unpinned[pid] == 3


# Processes


def test_a_process_that_is_none_cannot_be_found_moved_or_killed(app: SimulatedKernel) -> None:
    pid = app.add_task(APP)
    app.kill(pid)
    for attempt in (app.kill, app.allowed, lambda pid: app.move(pid, APP)):
        with pytest.raises(CgroupError) as refused:
            attempt(pid)
        assert refused.value.errno == errno.ESRCH


def test_a_process_starts_only_where_one_may_be(app: SimulatedKernel) -> None:
    with pytest.raises(CgroupError, match="EBUSY"):
        app.add_task(POD)
    with pytest.raises(CgroupError, match="ENOENT"):
        app.add_task(POD / "nowhere")
    first, second = app.add_task(APP), app.add_task(CgroupPath())
    assert first != second
    with pytest.raises(CgroupError, match="ENOENT"):
        app.move(first, POD / "nowhere")
    with pytest.raises(CgroupError, match="EBUSY"):
        app.move(first, POD)
    assert app.read(APP, "cgroup.procs") == str(first)


def test_the_root_may_have_processes_beside_controllers(app: SimulatedKernel) -> None:
    app.add_task(CgroupPath())
    app.make(CgroupPath("system.slice") / "a.service")
    assert app.read(CgroupPath("system.slice"), "cgroup.type") == "domain"


# Directories


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("kubepods.slice", errno.EEXIST),
        ("kubepods.slice/cgroup.procs", errno.EEXIST),
        ("kubepods.slice/..", errno.EEXIST),
        ("nowhere/a", errno.ENOENT),
        ("a\nb", errno.EINVAL),
    ],
)
def test_a_directory_is_refused_as_mkdir_refuses_it(
    app: SimulatedKernel, path: str, number: int
) -> None:
    with pytest.raises(CgroupError) as refused:
        app.mkdir(CgroupPath(path))
    assert refused.value.errno == number


def test_a_plain_new_directory_has_no_controllers(app: SimulatedKernel) -> None:
    app.mkdir(APP / "inner")
    assert app.read(APP / "inner", "cgroup.controllers") == ""
    assert app.read(APP / "inner", "cpuset.cpus") is GONE
    app.write(APP, "cpuset.cpus", "3")
    assert app.allowed(app.add_task(APP / "inner")) == CPUSet([3])


def test_the_root_is_never_removed(kernel: SimulatedKernel) -> None:
    with pytest.raises(CgroupError, match="EBUSY"):
        kernel.remove(CgroupPath())


# The log and the hook


def test_the_log_has_the_accepted_writes_of_the_agent_only(app: SimulatedKernel) -> None:
    app.write(APP, "cpuset.cpus", "1")
    app.write(APP, "cpuset.cpus", "")
    app.write(POD / "nowhere", "cpuset.cpus", "1")
    with pytest.raises(CgroupError):
        app.write(APP, "cpuset.cpus", "x")
    assert app.foreign_write(APP, "cpuset.cpus", "2") is None
    assert app.writes == [(APP, "cpuset.cpus", "1")]
    assert app.foreign_writes == [(APP, "cpuset.cpus", "2")]


def test_the_hook_sees_the_new_value_after_every_accepted_write(app: SimulatedKernel) -> None:
    seen: list[str] = []
    app.on_write = lambda path, file, value: seen.append(f"{value!r}: {app.read(path, file)}")
    app.write(APP, "cpuset.cpus", "0,1")
    app.foreign_write(APP, "cpuset.cpus", "2,3")
    with pytest.raises(CgroupError):
        app.write(APP, "cpuset.cpus", "x")
    assert seen == ["'0,1': 0-1", "'2,3': 2-3"]
