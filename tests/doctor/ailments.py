"""What can be wrong with a node: how it comes about, and what is then said."""

from collections.abc import Callable

from agent.core.checkup_rivals import MANAGERS, MEDDLERS

from .made_up import CGROUPS, KUBELET_PID, OTHERS, RESERVED, MadeUpNode

Change = Callable[[MadeUpNode], object]


def writing(path: str, text: str) -> Change:
    return lambda node: node.write(path, text)


def running(*words: str) -> Change:
    return lambda node: node.run(*words)


def in_turn(*changes: Change) -> Change:
    return lambda node: [change(node) for change in changes]


def mounting(folder: str, kind: str, options: str = "rw") -> Change:
    return lambda node: node.mount(folder, kind, options)


def taking_away(*paths: str) -> Change:
    def change(node: MadeUpNode) -> None:
        for path in paths:
            node.take_away(path)

    return change


def configuring(old: str, new: str) -> Change:
    return lambda node: node.config.write_text(node.config.read_text().replace(old, new))


V1 = in_turn(mounting(CGROUPS, "tmpfs"), mounting(f"{CGROUPS}/cpuset", "cgroup"))
HYBRID = in_turn(V1, mounting(f"{CGROUPS}/unified", "cgroup2"))
KUBELET = "var/lib/kubelet"
UNITS = "etc/systemd/system"
OVERLAPPING = "sys/devices/system/node/node1/cpulist"

PROBLEMS: list[tuple[str, Change, str, str, str]] = [
    # check, what is done to the node, a part of the sentence, a part of the cure
    ("v1", V1, "cgroup-v2", "is cgroup v1", "systemd.unified_cgroup_hierarchy=1"),
    ("hybrid", HYBRID, "cgroup-v2", "is hybrid", "systemd.unified_cgroup_hierarchy=1"),
    ("read-only", mounting(CGROUPS, "cgroup2", "ro"), "cgroup-v2", "read-only", "hostRoot"),
    ("not mounted", mounting(CGROUPS, "sysfs"), "cgroup-v2", "not a cgroup v2", "mount cgroup2"),
    ("no proc", taking_away("proc/self/mountinfo"), "cgroup-v2", "cannot read", "mount proc"),
    (
        "a container's own",
        writing(f"{CGROUPS}/cgroup.type", "domain"),
        "cgroup-root",
        "is a cgroup inside the host's hierarchy",
        "mount the host's /sys/fs/cgroup",
    ),
    (
        "no cpuset at the top",
        writing(f"{CGROUPS}/cgroup.controllers", "cpu io memory"),
        "controllers",
        "lacks the controllers cpuset",
        "cgroup_disable=",
    ),
    (
        "pods under a threaded cgroup",
        writing(f"{CGROUPS}/kubepods.slice/cgroup.type", "domain invalid"),
        "controllers",
        "/kubepods.slice is of type 'domain invalid'",
        "move the processes",
    ),
    (
        "a partition on CPUs of containers",
        in_turn(
            writing(f"{CGROUPS}/a.slice/cpuset.cpus.partition", "isolated"),
            writing(f"{CGROUPS}/a.slice/cpuset.cpus.effective", "2-3"),
        ),
        "partitions",
        "/a.slice is a cpuset partition (isolated) on CPUs 2-3",
        "put 2-3 among the reserved CPUs",
    ),
    (
        "AllowedCPUs of a pod",
        writing("run/systemd/transient/cri-containerd-abc.scope", "AllowedCPUs=\nAllowedCPUs=2-3"),
        "systemd-units",
        "AllowedCPUs=2-3 of cri-containerd-abc.scope (/run/systemd/transient/cri-containerd-abc.scope)",
        "daemon-reload",
    ),
    (
        "AllowedMemoryNodes of all pods",
        writing(f"{UNITS}/kubepods.slice.d/50-mems.conf", "[Slice]\nAllowedMemoryNodes=0"),
        "systemd-units",
        "AllowedMemoryNodes=0 of kubepods.slice",
        "remove that setting",
    ),
    (
        "old kernel",
        writing("proc/sys/kernel/osrelease", "4.18.0-553.el8"),
        "kernel",
        "4.18",
        "boot",
    ),
    (
        "overlapping NUMA nodes",
        writing(OVERLAPPING, "0-7"),
        "topology",
        "claims CPUs 0-1,4-5 of other NUMA nodes",
        "numalet topology",
    ),
    (
        "CPU Manager",
        writing(f"{KUBELET}/cpu_manager_state", '{"policyName":"static"}'),
        "kubelet",
        "CPU Manager: static",
        "cpuManagerPolicy: none",
    ),
    (
        "Memory Manager",
        writing(f"{KUBELET}/memory_manager_state", '{"policyName":"Static"}'),
        "kubelet",
        "Memory Manager: Static",
        "memoryManagerPolicy: None",
    ),
    (
        "CPU Manager of a kubelet with another folder",
        in_turn(
            running("kubelet", "--root-dir", "/srv/kubelet"),
            writing("srv/kubelet/cpu_manager_state", '{"policyName":"static"}'),
        ),
        "kubelet",
        "its state files in /srv/kubelet",
        "remove /srv/kubelet/cpu_manager_state",
    ),
    *(
        (name, running(name), "cpu-managers", f"{name} of {whose} runs (pid 102)", "off this node")
        for name, whose in MANAGERS.items()
    ),
    (
        "two agents",
        in_turn(running("numalet", "run"), running("numalet", "run")),
        "numalet",
        "more than one numalet runs (pid 102, 103)",
        "stop all but one",
    ),
    (
        "state folder is a file",
        writing("var/lib/numalet", "x"),
        "state-folder",
        "cannot be made or written",
        "stateDir",
    ),
]

WARNINGS: list[tuple[str, Change, str, str, str]] = [
    (
        "no cpuset for pods yet",
        writing(f"{CGROUPS}/kubepods.slice/cgroup.controllers", "memory pids"),
        "controllers",
        "/kubepods.slice does not have cpu, cpuset",
        "Delegate=yes",
    ),
    (
        "a partition on reserved CPUs",
        in_turn(
            writing(f"{CGROUPS}/a.slice/cpuset.cpus.partition", "root"),
            writing(f"{CGROUPS}/a.slice/cpuset.cpus.effective", "4"),
        ),
        "partitions",
        "(root) on CPUs 4",
        "write member",
    ),
    (
        "a partition that is none",
        in_turn(
            writing(f"{CGROUPS}/a.slice/cpuset.cpus.partition", "root invalid (Parent is no root)"),
            writing(f"{CGROUPS}/a.slice/cpuset.cpus.effective", "2"),
        ),
        "partitions",
        "on CPUs of nobody",
        "write member",
    ),
    (
        "AllowedCPUs of a container that is no pod's",
        writing("run/systemd/transient/docker-abc.scope", "AllowedCPUs=4-5"),
        "systemd-units",
        "keeps processes on CPUs 5,",
        RESERVED,
    ),
    (
        "services everywhere",
        in_turn(
            writing(f"{CGROUPS}/system.slice/cpuset.cpus.effective", "0-7"),
            writing(f"{CGROUPS}/init.scope/cpuset.cpus.effective", "0-7"),
            writing("proc/1/status", "Cpus_allowed_list:\t0-7"),
        ),
        "host-services",
        f"system.slice, init.scope may run on CPUs {OTHERS}",
        f"systemctl set-property system.slice AllowedCPUs={RESERVED}",
    ),
    (
        "services in slices without cpuset",
        in_turn(
            taking_away(f"{CGROUPS}/user.slice/cpuset.cpus.effective"),
            writing("proc/1/status", ""),
        ),
        "host-services",
        f"user.slice may run on CPUs {OTHERS}",
        "set-property user.slice",
    ),
    (
        "Linux 5.10",
        writing("proc/sys/kernel/osrelease", "5.10.0-30-amd64"),
        "kernel",
        "leaves pages on their old NUMA node",
        "6.2",
    ),
    ("Linux 6.1", writing("proc/sys/kernel/osrelease", "6.1.0-57"), "kernel", "forgets", "6.2"),
    (
        "no version",
        writing("proc/sys/kernel/osrelease", ""),
        "kernel",
        "cannot be understood",
        "/proc",
    ),
    (
        "distances not shown",
        taking_away("sys/devices/system/node/node1/distance"),
        "topology",
        "the distances of NUMA node 1 are not shown",
        "firmware",
    ),
    (
        "processes of a container",
        taking_away("proc/2/stat"),
        "processes",
        "cannot be seen",
        "--root",
    ),
    (
        "no proc at all",
        taking_away(
            *(f"proc/{pid}/{name}" for pid in (2, KUBELET_PID) for name in ("stat", "cmdline"))
        ),
        "processes",
        "cannot be seen",
        "hostPID",
    ),
    (
        "kubelet without state",
        taking_away(f"{KUBELET}/cpu_manager_state"),
        "kubelet",
        "its policy is unknown",
        "cpuManagerPolicy: none",
    ),
    *(
        (name, running(name), "cpu-managers", f"{name} runs (pid 102) and {does}", cure)
        for name, (does, cure) in MEDDLERS.items()
    ),
    (
        "an agent that waits",
        in_turn(running("numalet", "run"), running("numalet", "run", "--wait-for-lock")),
        "numalet",
        "one of which waits for a lock",
        "upgrade",
    ),
    (
        "irqbalance",
        running("irqbalance", "--foreground"),
        "irqbalance",
        f"moves interrupts to CPUs {OTHERS}",
        f"IRQBALANCE_BANNED_CPULIST={OTHERS}",
    ),
    (
        "irqbalance with a list that is too short",
        in_turn(
            running("irqbalance"),
            writing("etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=1-3\n"),
        ),
        "irqbalance",
        "moves interrupts to CPUs 5-7",
        f"IRQBALANCE_BANNED_CPULIST={OTHERS}",
    ),
    (
        "an absent CPU",
        writing("sys/devices/system/cpu/present", "0-8"),
        "offline-cpus",
        "CPUs 8 are offline",
        "/sys/devices/system/cpu/cpuN/online",
    ),
    (
        "isolcpus",
        writing("sys/devices/system/cpu/isolated", "6-7"),
        "kernel-parameters",
        "isolcpus= keeps CPUs 6-7 out of load balancing",
        "kernel command line",
    ),
    (
        "nohz_full",
        writing("sys/devices/system/cpu/nohz_full", "4-7"),
        "kernel-parameters",
        "nohz_full= has the reserved CPUs 4",
        OTHERS,
    ),
    (
        "cores with two owners",
        configuring("cpuManagerPolicyOptions", "#"),
        "smt",
        "cores have 2 threads",
        "full-pcpus-only",
    ),
    (
        "a NUMA node without memory",
        writing("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB"),
        "numa-nodes",
        "NUMA nodes 1 have CPUs but no memory",
        "socket",
    ),
    (
        "NUMA balancing",
        writing("proc/sys/kernel/numa_balancing", "1"),
        "numa-balancing",
        "moves them",
        "kernel.numa_balancing=0",
    ),
    (
        "workqueues",
        writing("sys/devices/virtual/workqueue/cpumask", "ff"),
        "workqueues",
        f"may run on CPUs {OTHERS}",
        "echo 11 >/sys/devices/virtual/workqueue/cpumask",
    ),
    (
        "an interrupt",
        writing("proc/irq/25/smp_affinity_list", "4-5"),
        "interrupts",
        "1 of 2 interrupts (25) may go to CPUs that containers can get exclusively",
        "/proc/irq/N/smp_affinity_list",
    ),
    (
        "interrupts to come",
        writing("proc/irq/default_smp_affinity", "00000000,000000ff"),
        "interrupts",
        "0 of 2 interrupts may go to CPUs that containers can get exclusively, and so may new ones",
        "echo 11 >/proc/irq/default_smp_affinity",
    ),
    (
        "swap",
        writing("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 9 0 -2"),
        "swap",
        "swap is on (/dev/sda2)",
        "swapoff",
    ),
    (
        "few watches",
        writing("proc/sys/fs/inotify/max_user_watches", "100"),
        "inotify",
        "max_user_watches is 100",
        "sysctl fs.inotify.max_user_watches=8192",
    ),
    ("tmpfs", mounting("var", "tmpfs"), "state-folder", "forgotten at a reboot", "stateDir"),
    ("overlay", mounting("var", "overlay"), "state-folder", "forgotten with it", "stateDir"),
    ("nfs", mounting("var/lib", "nfs4"), "state-folder", "network file system", "local disk"),
    (
        "a damaged state file",
        writing(f"{KUBELET}/memory_manager_state", "{"),
        "unread",
        "/var/lib/kubelet/memory_manager_state (names no policy)",
        "look at those files",
    ),
    (
        "a mask that is none",
        writing("sys/devices/virtual/workqueue/cpumask", "zz"),
        "unread",
        "/sys/devices/virtual/workqueue/cpumask ('zz' cannot be understood)",
        "look at those files",
    ),
]
