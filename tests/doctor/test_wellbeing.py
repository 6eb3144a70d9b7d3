"""What looks like a fault, and is none."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent.core.checkup import check_up
from agent.core.checkup_rivals import KUBELETS
from agent.core.findings import Finding, Level
from agent.core.node_facts import NodeFacts

from .made_up import CGROUPS, KUBELET_PID, MACHINE, OTHERS, MadeUpNode


def only(node: MadeUpNode, check: str) -> Finding:
    (finding,) = node.findings(check)
    return finding


def test_an_agent_that_runs_is_named_by_its_pid(node: MadeUpNode) -> None:
    pid = node.run("numalet", "run", "--pods", "kubernetes")
    node.run("numalet", "status")

    assert only(node, "numalet").sentence == f"numalet runs (pid {pid})"


def test_the_holder_of_the_lock_counts_as_an_agent(node: MadeUpNode) -> None:
    node.state_dir.mkdir(parents=True)
    node.write("var/lib/numalet/lock", "17")
    inode = (node.state_dir / "lock").stat().st_ino
    node.write("proc/locks", f"7: FLOCK  ADVISORY  WRITE 17 fe:00:{inode} 0 EOF")
    node.run("numalet", "run", pid=17)
    assert only(node, "numalet").level is Level.OK

    node.run("numalet", "run", pid=18)

    assert "(pid 17, 18)" in only(node, "numalet").sentence


def test_a_lock_on_another_file_is_not_that_of_the_state_folder(node: MadeUpNode) -> None:
    node.write("var/lib/numalet/lock", "17")
    inode = (node.state_dir / "lock").stat().st_ino
    node.write("proc/locks", f"7: FLOCK  ADVISORY  WRITE 17 fe:00:{inode + 1} 0 EOF")

    assert node.facts().state_folder.holder is None


@pytest.mark.parametrize("name", KUBELETS)
def test_every_kind_of_kubelet_is_seen(node: MadeUpNode, name: str) -> None:
    node.take_away(f"proc/{KUBELET_PID}/stat")
    node.take_away("var/lib/kubelet/cpu_manager_state")
    assert only(node, "kubelet").sentence == "no kubelet has been here"

    node.run(name)

    assert only(node, "kubelet").level is Level.WARNING


def test_siblings_that_are_switched_off_are_no_fault(node: MadeUpNode) -> None:
    node.write("sys/devices/system/cpu/present", "0-15")
    node.write("sys/devices/system/cpu/smt/control", "off")

    assert "8-15 are offline, since SMT is switched off" in only(node, "offline-cpus").sentence


def test_irqbalance_that_leaves_the_cpus_of_containers_alone_is_no_fault(node: MadeUpNode) -> None:
    node.run("irqbalance")
    node.write(
        "etc/sysconfig/irqbalance",
        f'#IRQBALANCE_BANNED_CPULIST=1\nIRQBALANCE_BANNED_CPULIST="{OTHERS}"',
    )

    assert only(node, "irqbalance").level is Level.OK


def test_irqbalance_leaves_isolated_cpus_alone_unless_it_has_a_list(node: MadeUpNode) -> None:
    node.run("irqbalance")
    node.write("sys/devices/system/cpu/isolated", OTHERS)
    assert only(node, "irqbalance").level is Level.OK

    node.write("etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=1")

    assert only(node, "irqbalance").level is Level.WARNING


@pytest.mark.parametrize("unit", ["numalet.service", "user.slice", "containerd.service"])
def test_a_unit_of_the_host_may_be_kept_on_reserved_cpus(node: MadeUpNode, unit: str) -> None:
    node.write(f"usr/lib/systemd/system/{unit}", "AllowedCPUs=0 4\nAllowedMemoryNodes=0")

    assert only(node, "systemd-units").level is Level.OK


def test_a_setting_that_systemd_has_yet_to_expand_names_no_cpus(node: MadeUpNode) -> None:
    node.write("etc/systemd/system/build@.service", "AllowedCPUs=%i")

    assert only(node, "systemd-units").level is Level.OK


def test_what_process_1_pinned_itself_to_holds_for_all_services(node: MadeUpNode) -> None:
    for name in ("system.slice", "user.slice", "init.scope"):
        node.write(f"{CGROUPS}/{name}/cpuset.cpus.effective", "0-7")

    assert only(node, "host-services").level is Level.OK  # its Cpus_allowed_list is 0,4


def test_the_cpus_of_init_s_own_scope_say_nothing_about_services(node: MadeUpNode) -> None:
    node.write(f"{CGROUPS}/system.slice/cpuset.cpus.effective", "0-7")

    found = only(node, "host-services")

    assert (found.level, "system.slice may run" in found.sentence) == (Level.WARNING, True)


def test_without_systemd_process_1_stands_for_the_host_s_programs(node: MadeUpNode) -> None:
    for name in ("system.slice", "user.slice", "init.scope"):
        node.take_away(f"{CGROUPS}/{name}/cpuset.cpus.effective")
    node.take_away(f"{CGROUPS}/system.slice/cpuset.cpus.partition")
    for name in ("system.slice", "user.slice", "init.scope"):
        (node.root / CGROUPS / name).rmdir()
    assert only(node, "host-services").level is Level.OK

    node.write("proc/1/status", "Cpus_allowed_list:\t0-7")

    assert only(node, "host-services").cure == "start the host's programs with taskset -c 0,4"


def test_memory_without_cpus_is_told_and_no_fault(node: MadeUpNode) -> None:
    folder = node.root / "sys/devices/system/node/node2"
    folder.mkdir()
    (folder / "cpulist").write_text("\n")
    (folder / "meminfo").write_text("Node 2 MemTotal: 1048576 kB\n")
    (folder / "distance").write_text("20 20 10\n")

    found = only(node, "numa-nodes")

    assert (found.level, found.sentence.endswith("; 2 have memory only")) == (Level.OK, True)


def test_where_no_cpu_is_exclusive_nothing_has_to_be_kept_off(node: MadeUpNode) -> None:
    node.config.write_text(
        node.config.read_text().replace(
            'cpuManagerPolicyOptions: {full-pcpus-only: "true"}', "cpuManagerPolicy: none"
        )
    )
    node.write("sys/devices/virtual/workqueue/cpumask", "ff")
    node.write("proc/irq/default_smp_affinity", "ff")
    node.run("irqbalance")

    checks = ("workqueues", "interrupts", "irqbalance", "smt")

    assert {only(node, check).level for check in checks} == {Level.OK}


def test_a_mask_of_many_cpus_is_written_as_the_kernel_reads_it(node: MadeUpNode) -> None:
    bigger = MadeUpNode(node.root / "bigger")
    bigger.build(MACHINE.replace("0-7", "0-69").replace("6-7", "6-69"))
    options = 'cpuManagerPolicyOptions: {full-pcpus-only: "true"}'
    reserved = 'reservedSystemCPUs: "0,33,64"'
    bigger.config.write_text(bigger.config.read_text().replace(options, reserved))
    bigger.write("sys/devices/virtual/workqueue/cpumask", "3f,ffffffff,ffffffff")

    found = only(bigger, "workqueues")

    assert "CPUs 1-32,34-63,65-69," in found.sentence
    assert found.cure.startswith("echo 1,00000002,00000001 >")


def test_a_full_disk_is_a_problem(node: MadeUpNode) -> None:
    facts: NodeFacts = node.facts()

    full = replace(facts, state_folder=replace(facts.state_folder, free_bytes=1 << 20))

    (found,) = (f for f in check_up(full, None) if f.check == "state-folder")
    assert (found.level, "has 1Mi of free space" in found.sentence) == (Level.PROBLEM, True)


@pytest.fixture
def nobody(node: MadeUpNode) -> Iterator[None]:
    """Be a user who may read the node's files and no more; root may write whatever the modes say."""
    node.root.chmod(0o755)
    for place in ("", "/cgroup.subtree_control", "/kubepods.slice/cpuset.cpus"):
        path = node.root / (CGROUPS + place)
        path.chmod(path.stat().st_mode & ~0o222)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    yield
    os.seteuid(before)


@pytest.mark.usefixtures("nobody")
def test_who_may_not_write_is_told_so_with_the_files(node: MadeUpNode) -> None:
    found = only(node, "permissions")

    assert found.level is Level.PROBLEM
    for name in ("cgroup", "cgroup.subtree_control", "kubepods.slice/cpuset.cpus"):
        assert name in found.sentence
    assert "as root" in found.cure
