"""What every hierarchy promises: the simulated kernel, and the real one where it may be tried.

Which values each file takes is in test_contract_values.py.

The rules and their sections are those of cgroup2-facts.
"""

import errno

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.errors import CgroupError
from agent.ports import GONE

from .rig import Rig

NOWHERE = CgroupPath("numalet-nowhere")


# Section 1: effective sets


def test_a_new_cgroup_inherits(rig: Rig) -> None:
    parent, child = rig.group("a"), rig.group("a", "c1")
    rig.write(parent, "cpuset.cpus", "0-1")
    assert rig.text(child, "cpuset.cpus") == rig.text(child, "cpuset.mems") == ""
    assert rig.cpus(child) == rig.cpus(parent) == CPUSet([0, 1])
    assert rig.text(child, "cpuset.mems.effective") == rig.text(parent, "cpuset.mems.effective")


def test_a_child_need_not_be_a_subset_of_its_parent(rig: Rig) -> None:
    parent, child = rig.group("a"), rig.group("a", "c1")
    rig.write(parent, "cpuset.cpus", "0-1")
    rig.write(child, "cpuset.cpus", "2-3")
    assert (rig.text(child, "cpuset.cpus"), rig.cpus(child)) == ("2-3", CPUSet([0, 1]))
    rig.write(child, "cpuset.cpus", "1-3")
    assert (rig.text(child, "cpuset.cpus"), rig.cpus(child)) == ("1-3", CPUSet([1]))


def test_a_parent_may_be_lowered_below_a_running_child_which_follows(rig: Rig) -> None:
    parent, child = rig.group("a"), rig.group("a", "c1")
    rig.write(child, "cpuset.cpus", "2-3")
    pid = rig.machine.add_task(child)
    for lowered, effective in (("0-1", "0-1"), ("0-2", "2"), ("0-3", "2-3")):
        rig.write(parent, "cpuset.cpus", lowered)
        assert rig.text(child, "cpuset.cpus") == "2-3"
        assert str(rig.cpus(child)) == str(rig.machine.allowed(pid)) == effective


def test_a_set_can_be_emptied_only_while_no_task_is_below(rig: Rig) -> None:
    parent, child = rig.group("a"), rig.group("a", "c1")
    for group in (parent, child):
        rig.write(group, "cpuset.cpus", "0-1")
        rig.write(group, "cpuset.mems", "0")
    pid = rig.machine.add_task(child)
    for group in (parent, child):
        for file in ("cpuset.cpus", "cpuset.mems"):
            for text in ("\n", " ", ","):
                assert rig.errno(group, file, text) == errno.ENOSPC
        assert rig.text(group, "cpuset.cpus") == "0-1"
    rig.machine.kill(pid)
    rig.write(child, "cpuset.cpus", "\n")
    rig.write(child, "cpuset.mems", "\n")
    assert rig.text(child, "cpuset.cpus") == rig.text(child, "cpuset.mems") == ""


def test_an_unset_list_can_be_emptied_beside_tasks(rig: Rig) -> None:
    group = rig.group("a")
    rig.machine.add_task(group)
    rig.write(group, "cpuset.cpus", "\n")
    assert rig.text(group, "cpuset.cpus") == ""


def test_writing_no_bytes_is_no_write(rig: Rig) -> None:
    group = rig.group("a")
    rig.write(group, "cpuset.cpus", "1")
    for file in ("cpuset.cpus", "cpu.max", "cpu.weight", "cgroup.procs", "cgroup.subtree_control"):
        rig.write(group, file, "")
    assert rig.text(group, "cpuset.cpus") == "1"
    assert rig.text(group, "cpu.max") == "max 100000"


# Section 6: hotplug


def test_an_offline_cpu_leaves_and_comes_back_by_itself(rig: Rig) -> None:
    pod, one, two = rig.group("a"), rig.group("a", "k1"), rig.group("a", "k2")
    rig.write(pod, "cpuset.cpus", "1-3")
    rig.write(one, "cpuset.cpus", "2-3")
    rig.write(two, "cpuset.cpus", "3")
    pid = rig.machine.add_task(two)
    before = rig.cpus(rig.base)
    rig.machine.set_online(before - CPUSet([3]))
    assert [str(rig.cpus(group)) for group in (pod, one, two)] == ["1-2", "2", "1-2"]
    assert [rig.text(group, "cpuset.cpus") for group in (pod, one, two)] == ["1-3", "2-3", "3"]
    assert rig.machine.allowed(pid) == CPUSet([1, 2])
    rig.machine.set_online(before)
    assert [str(rig.cpus(group)) for group in (pod, one, two)] == ["1-3", "2-3", "3"]
    assert rig.machine.allowed(pid) == CPUSet([3])


def test_a_pod_whose_cpus_are_all_offline_moves_to_those_of_its_parent(rig: Rig) -> None:
    pod, container = rig.group("a"), rig.group("a", "c1")
    rig.write(pod, "cpuset.cpus", "2-3")
    rig.write(container, "cpuset.cpus", "3")
    before = rig.cpus(rig.base)
    rig.machine.set_online(before - CPUSet([2, 3]))
    assert rig.cpus(pod) == rig.cpus(container) == before - CPUSet([2, 3])
    rig.machine.set_online(before)
    assert (rig.cpus(pod), rig.cpus(container)) == (CPUSet([2, 3]), CPUSet([3]))


def test_an_offline_cpu_is_accepted_and_counts_once_it_is_back(rig: Rig) -> None:
    group = rig.group("a")
    before = rig.cpus(rig.base)
    rig.machine.set_online(before - CPUSet([3]))
    rig.write(group, "cpuset.cpus", "2-3")
    assert rig.cpus(group) == CPUSet([2])
    rig.write(group, "cpuset.cpus", "3")
    assert (rig.text(group, "cpuset.cpus"), rig.cpus(group)) == ("3", before - CPUSet([3]))
    rig.machine.set_online(before)
    assert rig.cpus(group) == CPUSet([3])


# Section 4: controllers


def test_make_enables_the_controllers_from_the_top_down(rig: Rig) -> None:
    group = rig.group("a", "b.with-dots_and-dashes", "c")
    assert rig.text(group, "cgroup.controllers").split()[:2] == ["cpuset", "cpu"]
    offered = rig.text(CgroupPath(), "cgroup.controllers").split()
    enabled = rig.text(group.parent, "cgroup.subtree_control").split()
    assert enabled == [c for c in offered if c in ("cpuset", "cpu", "memory", "hugetlb")]
    assert rig.text(group, "cgroup.subtree_control") == ""
    for file in ("cpuset.cpus", "cpuset.mems", "cpu.max", "cpu.weight", "memory.max"):
        rig.text(group, file)


def test_making_a_cgroup_again_changes_nothing(rig: Rig) -> None:
    group = rig.group("a", "b")
    rig.write(group, "cpuset.cpus", "1")
    before = rig.cgroups.identity(group)
    rig.group("a", "b")
    assert rig.cgroups.identity(group) == before
    assert rig.text(group, "cpuset.cpus") == "1"


def test_make_never_enables_controllers_beside_processes(rig: Rig) -> None:
    group = rig.group("a")
    rig.machine.add_task(group)
    with pytest.raises(CgroupError, match="EBUSY"):
        rig.group("a", "b")
    assert rig.text(group, "cgroup.subtree_control") == ""
    assert rig.text(group, "cgroup.type") == "domain"


def test_enable_gives_an_existing_cgroup_its_files_again_and_makes_none(rig: Rig) -> None:
    group = rig.group("a", "b")
    rig.write(group.parent, "cgroup.subtree_control", "-cpuset")
    assert rig.cgroups.read(group, "cpuset.cpus") is GONE

    rig.cgroups.enable(group)
    assert rig.text(group, "cpuset.cpus") == ""
    rig.cgroups.enable(NOWHERE / "below")
    assert NOWHERE not in rig.cgroups.children(CgroupPath())


def test_enable_never_enables_controllers_beside_processes(rig: Rig) -> None:
    group = rig.group("a", "b")
    rig.disable_all(group.parent)
    rig.machine.add_task(group.parent)

    with pytest.raises(CgroupError, match="EBUSY"):
        rig.cgroups.enable(group)
    assert rig.text(group.parent, "cgroup.type") == "domain"


def test_controllers_are_enabled_parent_first_and_disabled_child_first(rig: Rig) -> None:
    child = rig.group("a", "b")
    parent = child.parent
    rig.disable_all(parent)
    assert rig.errno(child, "cgroup.subtree_control", "+cpuset") == errno.ENOENT
    rig.write(parent, "cgroup.subtree_control", "+cpuset  +cpu\n")
    rig.write(child, "cgroup.subtree_control", "+cpuset")
    assert rig.errno(parent, "cgroup.subtree_control", "-cpuset") == errno.EBUSY
    rig.write(child, "cgroup.subtree_control", "+cpu -cpu")
    assert rig.text(child, "cgroup.subtree_control") == "cpuset"


def test_disabling_what_is_not_enabled_is_no_change(rig: Rig) -> None:
    child = rig.group("a", "b")
    for _ in range(2):
        rig.write(child.parent, "cgroup.subtree_control", "-memory")
        assert rig.text(child, "cgroup.controllers").split()[:2] == ["cpuset", "cpu"]
        assert "memory" not in rig.text(child, "cgroup.controllers")


@pytest.mark.parametrize("text", ["cpuset", "+bogus", "+CPUSET", "+", "+cpuset,+cpu"])
def test_a_malformed_list_of_controllers_is_invalid(rig: Rig, text: str) -> None:
    assert rig.errno(rig.group("a"), "cgroup.subtree_control", text) == errno.EINVAL


def test_disabling_a_controller_loses_its_values_at_once(rig: Rig) -> None:
    child = rig.group("a", "b")
    rig.write(child, "cpuset.cpus", "2-3")
    rig.write(child, "cpu.max", "50000")
    pid = rig.machine.add_task(child)
    rig.write(child.parent, "cgroup.subtree_control", "-cpuset -cpu")
    assert rig.cgroups.read(child, "cpuset.cpus") is GONE
    assert rig.cgroups.write(child, "cpuset.cpus", "2-3") is GONE
    assert rig.cgroups.read(child, "cpuset.cpus.effective") is GONE
    assert rig.machine.allowed(pid) == rig.cpus(child.parent)
    rig.write(child.parent, "cgroup.subtree_control", "+cpuset +cpu")
    assert rig.text(child, "cpuset.cpus") == ""
    assert rig.text(child, "cpu.max") == "max 100000"


# Section 4: inner processes


def test_a_domain_controller_cannot_be_enabled_beside_a_process(rig: Rig) -> None:
    group = rig.group("a")
    rig.machine.add_task(group)
    for text in ("+memory", "+cpuset +cpu +memory"):
        assert rig.errno(group, "cgroup.subtree_control", text) == errno.EBUSY


def test_threaded_controllers_beside_a_process_spoil_the_children(rig: Rig) -> None:
    group, child = rig.group("a"), rig.group("a") / "b"
    rig.cgroups.make(child)
    rig.disable_all(group)
    pid = rig.machine.add_task(group)
    rig.write(group, "cgroup.subtree_control", "+cpuset")
    assert rig.text(group, "cgroup.type") == "domain threaded"
    assert rig.text(child, "cgroup.type") == "domain invalid"
    assert rig.errno(child, "cgroup.procs", str(pid)) == errno.EOPNOTSUPP
    assert rig.errno(child, "cgroup.subtree_control", "+cpuset") == errno.EOPNOTSUPP
    assert rig.errno(group, "cgroup.subtree_control", "+memory") == errno.EOPNOTSUPP
    rig.machine.kill(pid)
    assert rig.text(group, "cgroup.type") == rig.text(child, "cgroup.type") == "domain"


def test_no_process_enters_a_cgroup_with_controllers_for_its_children(rig: Rig) -> None:
    child = rig.group("a", "b")
    pid = rig.machine.add_task(child)
    assert rig.errno(child.parent, "cgroup.procs", str(pid)) == errno.EBUSY
    assert rig.text(child, "cgroup.procs") == str(pid)


def test_no_process_enters_beside_populated_children_that_have_a_controller(rig: Rig) -> None:
    child = rig.group("a", "b")
    rig.disable_all(child.parent, but="cpuset")
    pid, other = rig.machine.add_task(child), rig.machine.add_task(rig.group("z"))
    assert rig.errno(child.parent, "cgroup.procs", str(other)) == errno.EBUSY
    rig.machine.kill(pid)
    rig.write(child.parent, "cgroup.procs", str(other))
    assert rig.text(child.parent, "cgroup.type") == "domain threaded"


def test_without_controllers_a_process_may_be_beside_populated_children(rig: Rig) -> None:
    child = rig.group("a", "b")
    rig.disable_all(child.parent)
    rig.machine.add_task(child)
    rig.machine.add_task(child.parent)
    assert rig.text(child.parent, "cgroup.type") == rig.text(child, "cgroup.type") == "domain"
    assert rig.errno(child.parent, "cgroup.subtree_control", "+cpuset") == errno.EBUSY


# Section 4: processes and life cycle


def test_processes_are_listed_and_populate_all_cgroups_above(rig: Rig) -> None:
    group = rig.group("a", "b")
    assert rig.text(group, "cgroup.procs") == ""
    first, second = rig.machine.add_task(group), rig.machine.add_task(group)
    assert rig.text(group, "cgroup.procs").split() == sorted(map(str, (first, second)), key=int)
    for populated in (group, group.parent):
        assert rig.text(populated, "cgroup.events") == "populated 1\nfrozen 0"
    rig.machine.kill(first)
    rig.machine.kill(second)
    for empty in (group, group.parent):
        assert rig.text(empty, "cgroup.events") == "populated 0\nfrozen 0"
    assert rig.text(group, "cgroup.procs") == ""


def test_a_process_is_moved_by_its_pid(rig: Rig) -> None:
    here, there = rig.group("a"), rig.group("b")
    rig.write(there, "cpuset.cpus", "1")
    pid = rig.machine.add_task(here)
    rig.write(there, "cgroup.procs", f" {pid} \n")
    assert rig.text(here, "cgroup.procs") == ""
    assert rig.text(there, "cgroup.procs") == str(pid)
    assert rig.machine.allowed(pid) == CPUSet([1])


def test_a_pid_that_is_none_is_refused(rig: Rig) -> None:
    group = rig.group("a")
    assert rig.errno(group, "cgroup.procs", "4194303") == errno.ESRCH
    for text in ("x", "-1", "1x", "\n"):
        assert rig.errno(group, "cgroup.procs", text) == errno.EINVAL


def test_a_vanished_cgroup_is_gone_and_no_error(rig: Rig) -> None:
    assert rig.cgroups.read(NOWHERE, "cpuset.cpus") is GONE
    assert rig.cgroups.write(NOWHERE, "cpuset.cpus", "0") is GONE
    assert rig.cgroups.identity(NOWHERE) is GONE
    assert rig.cgroups.children(NOWHERE) == ()
    rig.cgroups.remove(NOWHERE)


def test_a_file_that_is_not_there_is_gone(rig: Rig) -> None:
    group = rig.group("a")
    assert rig.cgroups.read(group, "no.such.file") is GONE
    assert rig.cgroups.write(group, "no.such.file", "1") is GONE


def test_the_root_of_a_subtree_lists_its_children_sorted(rig: Rig) -> None:
    for name in ("b", "a-2.slice", "a.10", "c"):
        rig.group("top", name)
    top = rig.base / "top"
    assert rig.cgroups.children(top) == tuple(top / n for n in ("a-2.slice", "a.10", "b", "c"))
    assert rig.cgroups.children(top / "b") == ()


def test_a_recreated_directory_is_another_cgroup(rig: Rig) -> None:
    group = rig.group("a")
    rig.write(group, "cpuset.cpus", "1")
    before = rig.cgroups.identity(group)
    rig.cgroups.remove(group)
    assert rig.cgroups.identity(group) is GONE
    rig.cgroups.make(group)
    assert rig.cgroups.identity(group) not in (before, GONE)
    assert rig.text(group, "cpuset.cpus") == ""


def test_only_an_empty_cgroup_is_removed(rig: Rig) -> None:
    child = rig.group("a", "b")
    pid = rig.machine.add_task(child)
    for busy in (child.parent, child):
        with pytest.raises(CgroupError) as refused:
            rig.cgroups.remove(busy)
        assert refused.value.errno == errno.EBUSY
    rig.machine.kill(pid)
    rig.cgroups.remove(child)
    rig.cgroups.remove(child.parent)
    assert rig.cgroups.identity(child.parent) is GONE


@pytest.mark.parametrize(
    "file",
    ["cgroup.controllers", "cgroup.events", "cpuset.cpus.effective", "cpuset.mems.effective"],
)
def test_what_the_kernel_tells_cannot_be_written(rig: Rig, file: str) -> None:
    assert rig.errno(rig.group("a"), file, "1") == errno.EINVAL


def test_a_refusal_names_the_file_the_value_and_the_errno(rig: Rig) -> None:
    group = rig.group("a")
    with pytest.raises(CgroupError, match=r"cannot write '4-x' to .*/a/cpuset\.cpus: EINVAL"):
        rig.cgroups.write(group, "cpuset.cpus", "4-x")
