"""A node that is made up of plain files, and healthy until somebody changes some of them."""

from dataclasses import dataclass, field
from pathlib import Path

from agent.core.findings import Finding
from agent.core.node_facts import NodeFacts
from agent.doctor_cli import examine
from agent.node.inspection import inspect
from agent.simulation.description import parse_description
from agent.simulation.machine import write_sysfs

MACHINE = """\
schema: numalet-topology/v1
name: two-nodes
cpu: {online: 0-7, present: 0-7}
packages: {0: "0-1,4-5", 1: "2-3,6-7"}
threads: {kind: offset, threads_per_core: 2, offset: 4}
nodes:
  0: {cpus: "0-1,4-5", mem_mib: 4096, distance: [10, 20]}
  1: {cpus: "2-3,6-7", mem_mib: 4096, distance: [20, 10]}
"""
RESERVED = "0,4"
OTHERS = "1-3,5-7"
KUBELET_PID = 101
CGROUPS = "sys/fs/cgroup"
CONTROLLERS = "cpuset cpu io memory pids"

FILES = {
    "proc/sys/kernel/osrelease": "6.12.9-amd64",
    "proc/sys/kernel/numa_balancing": "0",
    "proc/sys/fs/inotify/max_user_instances": "128",
    "proc/sys/fs/inotify/max_user_watches": "15228",
    "proc/sys/fs/inotify/max_queued_events": "16384",
    "proc/swaps": "Filename  Type  Size  Used  Priority",
    "proc/locks": "",
    "proc/1/status": "Name:\tsystemd\nCpus_allowed_list:\t0,4\n",
    "proc/irq/default_smp_affinity": "11",
    "proc/irq/0/smp_affinity_list": "0-7",  # no handler: of no interest
    "proc/irq/24/nvme0q0/handler": "",
    "proc/irq/24/smp_affinity_list": "0,4",
    "proc/irq/25/eth0/handler": "",
    "proc/irq/25/smp_affinity_list": "4",
    "sys/devices/virtual/workqueue/cpumask": "11",
    "sys/devices/system/cpu/nohz_full": "(null)",
    "sys/devices/system/cpu/smt/control": "on",
    f"{CGROUPS}/cgroup.controllers": CONTROLLERS,
    f"{CGROUPS}/cgroup.subtree_control": CONTROLLERS,
    f"{CGROUPS}/cpuset.cpus.effective": "0-7",
    f"{CGROUPS}/init.scope/cpuset.cpus.effective": "0,4",
    f"{CGROUPS}/system.slice/cpuset.cpus.effective": "0,4",
    f"{CGROUPS}/system.slice/cpuset.cpus.partition": "member",
    f"{CGROUPS}/user.slice/cpuset.cpus.effective": "0,4",
    f"{CGROUPS}/kubepods.slice/cgroup.controllers": CONTROLLERS,
    f"{CGROUPS}/kubepods.slice/cgroup.type": "domain",
    f"{CGROUPS}/kubepods.slice/cpuset.cpus": "",
    "var/lib/kubelet/cpu_manager_state": '{"policyName":"none","defaultCpuSet":"","checksum":1}',
    "var/lib/kubelet/memory_manager_state": '{"policyName":"None","checksum":1}',
    "run/systemd/transient/cri-containerd-abc.scope": "[Scope]\nDelegate=yes\nAllowedCPUs=\n",
    "run/systemd/transient/numalet-abc-db.scope": "[Scope]\nDelegate=yes\nAllowedCPUs=2-3\n",
    "run/systemd/system.control/system.slice.d/50-AllowedCPUs.conf": "[Slice]\nAllowedCPUs=0 4\n",
}
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
---
apiVersion: numalet.io/v1alpha1
kind: AgentConfiguration
stateDir: %s
"""


@dataclass(slots=True)
class MadeUpNode:
    """The files of a node below ``root``; its mounts are of types ``filesystems`` by folder."""

    root: Path
    filesystems: dict[str, str] = field(default_factory=dict)
    next_pid: int = KUBELET_PID

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def state_dir(self) -> Path:
        return self.root / "var/lib/numalet"

    def build(self, machine: str = MACHINE) -> None:
        write_sysfs(parse_description(machine, name="machine"), self.root / "sys")
        for path, text in FILES.items():
            self.write(path, text)
        self.config.write_text(CONFIG % self.state_dir)
        self.mount("", "ext4")
        self.mount(CGROUPS, "cgroup2")
        self.run("kthreadd", pid=2)
        self.run("kubelet", "--config=/var/lib/kubelet/config.yaml")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n" if text else "")

    def mount(self, folder: str, kind: str, options: str = "rw") -> None:
        self.filesystems[folder] = f"{kind} none {options}"
        lines = (
            f"{i} 1 0:{i} / {self.root / place} rw - {what}\n"
            for i, (place, what) in enumerate(self.filesystems.items(), start=30)
        )
        self.write("proc/self/mountinfo", "".join(lines).rstrip())

    def run(self, name: str, *arguments: str, pid: int = 0) -> int:
        """Let a process be seen, as proc(5) shows it."""
        if not pid:
            pid, self.next_pid = self.next_pid, self.next_pid + 1
        self.write(f"proc/{pid}/stat", f"{pid} ({name[:15]}) S 1 {' 0' * 50}")
        self.write(f"proc/{pid}/comm", name[:15])
        words = (f"/usr/bin/{name}", *arguments)
        (self.root / f"proc/{pid}/cmdline").write_text("".join(f"{word}\0" for word in words))
        return pid

    def take_away(self, path: str) -> None:
        (self.root / path).unlink()

    def facts(self) -> NodeFacts:
        return inspect(self.root, state_dir=self.state_dir, pods=(), processes=())

    def examine(self) -> tuple[Finding, ...]:
        return examine(self.config, self.root)

    def findings(self, check: str) -> list[Finding]:
        return [finding for finding in self.examine() if finding.check == check]
