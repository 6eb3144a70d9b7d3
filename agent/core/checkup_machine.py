"""Judgments on the machine, its kernel, and numalet's own files."""

import re
from collections.abc import Iterator

from agent.core.checkup_cgroups import assignable
from agent.core.cpuset import CPUSet, IdSet
from agent.core.findings import Finding, ok, problem, warning
from agent.core.node_facts import NodeFacts
from agent.core.quantity import format_bytes
from agent.core.startup import FULL_PCPUS_ONLY, Rules

_HAS_CPUSET = (5, 0)
_MOVES_PAGES = (5, 15)
_KEEPS_PINS = (6, 2)
"""The first kernels with cpuset in cgroup v2, with the moving of pages when ``cpuset.mems`` changes,
and with memory for a thread's own affinity (cgroup2-facts sections 2 and 3)."""

_VOLATILE = {
    "tmpfs": "is in memory: what pods hold is forgotten at a reboot",
    "ramfs": "is in memory: what pods hold is forgotten at a reboot",
    "overlay": "belongs to this container or live system: what pods hold is forgotten with it",
}
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "fuse.glusterfs")
_ENOUGH_BYTES = 16 << 20
"""Both copies of the checkpoint of a large node, a temporary one, and the kubelet's files."""

_INOTIFY_DEFAULTS = {
    "max_user_instances": 128,
    "max_user_watches": 8192,
    "max_queued_events": 16384,
}
"""What a kernel with little memory starts with (fs/notify/inotify/inotify_user.c)."""


def kernel(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether the kernel is new enough."""
    found = re.match(r"(\d+)\.(\d+)", facts.release)
    version = (int(found[1]), int(found[2])) if found else None
    if version is None:
        yield warning(
            "kernel",
            f"the kernel's version cannot be understood: {facts.release!r}",
            "see that /proc is mounted; numalet needs Linux 5.0, and from 6.2 on all works best",
        )
    elif version < _HAS_CPUSET:
        yield problem(
            "kernel",
            f"Linux {facts.release} has no cpuset controller in cgroup v2",
            "boot Linux 5.0 or later, best 6.2 or later",
        )
    elif version < _KEEPS_PINS:
        yield warning(
            "kernel",
            f"Linux {facts.release}, unless its vendor has mended that, forgets which CPUs a thread"
            " pinned itself to whenever the CPUs of its container change"
            + ("" if version >= _MOVES_PAGES else ", and leaves pages on their old NUMA node"),
            "boot Linux 6.2 or later where applications pin their threads (DPDK, OpenMP, QEMU)",
        )
    else:
        yield ok("kernel", f"Linux {facts.release}")


def topology(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether the machine can be understood, and without assumptions."""
    if isinstance(facts.topology, str):
        yield problem(
            "topology",
            facts.topology,
            "numalet topology shows the machine; without CPUs and NUMA nodes nothing can be decided",
        )
        return
    for note in facts.notes:
        yield warning(
            "topology", note, "compare with numalet topology and lscpu; update the firmware"
        )
    if not facts.notes:
        shown = facts.topology
        yield ok("topology", f"CPUs {shown.cpus} are online, NUMA nodes {shown.node_ids}")


def offline_cpus(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether there are CPUs that could be online."""
    offline = facts.present - facts.online
    if not offline:
        yield ok("offline-cpus", "every CPU that is present is online")
    elif facts.smt_control in ("off", "forceoff"):
        yield ok("offline-cpus", f"CPUs {offline} are offline, since SMT is switched off")
    else:
        yield warning(
            "offline-cpus",
            f"CPUs {offline} are offline: nobody gets them, and a container confined to one that"
            " goes offline falls back to the CPUs of the cgroup above",
            f"write 1 to /sys/devices/system/cpu/cpuN/online; numalet counts {rules.topology.cpus}",
        )


def kernel_parameters(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether the kernel command line isolates CPUs in a way that is in the way."""
    isolated = facts.isolated & rules.topology.cpus
    if isolated:
        yield warning(
            "kernel-parameters",
            f"isolcpus= keeps CPUs {isolated} out of load balancing: the threads of a container all"
            " stay on the CPU that they were started on",
            "take isolcpus= off the kernel command line; cpusets isolate without it",
        )
    tickless = facts.nohz_full & rules.reserved
    if tickless:
        yield warning(
            "kernel-parameters",
            f"nohz_full= has the reserved CPUs {tickless}, where the system's own work is done, at a"
            " higher price for each system call",
            f"give nohz_full= only CPUs out of {assignable(rules)}, or none",
        )
    if not isolated and not tickless:
        yield ok("kernel-parameters", "neither isolcpus= nor nohz_full= is in the way")


def threads(_facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether a core can have two owners."""
    if rules.topology.cpus_per_core <= 1:
        yield ok("smt", "cores have one thread each")
    elif FULL_PCPUS_ONLY in rules.cpu_options or not rules.manages_cpus:
        yield ok("smt", "no core is shared between exclusive containers")
    else:
        yield warning(
            "smt",
            f"cores have {rules.topology.cpus_per_core} threads, and those of one core can belong to"
            " two containers",
            "set full-pcpus-only: 'true' in cpuManagerPolicyOptions",
        )


def numa_nodes(_facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether every NUMA node with CPUs has memory."""
    machine = rules.topology
    with_cpus = set(machine.cpu_bits_by_node)
    without_memory = with_cpus - set(machine.memory_nodes)
    without_cpus = set(machine.node_ids) - with_cpus
    if without_memory:
        yield warning(
            "numa-nodes",
            f"NUMA nodes {IdSet(without_memory)} have CPUs but no memory: what runs there has its"
            " memory on another node",
            "put memory into every socket and see the firmware's settings for NUMA; else reserve"
            " the CPUs of those nodes",
        )
    else:
        others = f"; {IdSet(without_cpus)} have memory only" if without_cpus else ""
        yield ok("numa-nodes", f"every NUMA node with CPUs has memory{others}")


def numa_balancing(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether the kernel moves pages by itself."""
    if facts.numa_balancing and len(rules.topology.memory_nodes) > 1:
        yield warning(
            "numa-balancing",
            "the kernel unmaps pages now and then to see who uses them, and moves them between the"
            " NUMA nodes of a container",
            "sysctl kernel.numa_balancing=0 (in /etc/sysctl.d to keep it)",
        )
    else:
        yield ok("numa-balancing", "the kernel moves no pages by itself")


def workqueues(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether deferred work of the kernel stays on the reserved CPUs."""
    roaming = (facts.workqueue_cpus or CPUSet()) & assignable(rules)
    if roaming:
        yield warning(
            "workqueues",
            f"deferred work of the kernel may run on CPUs {roaming}, which containers can get"
            " exclusively",
            f"echo {_mask(rules.reserved)} >/sys/devices/virtual/workqueue/cpumask",
        )
    else:
        yield ok("workqueues", "deferred work of the kernel stays on the reserved CPUs")


def interrupts(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether interrupts stay on the reserved CPUs."""
    ours, handled = assignable(rules), facts.interrupts
    roaming = IdSet(number for number, cpus in handled.items() if cpus & ours)
    new_ones = (facts.default_irq_cpus or CPUSet()) & ours
    if not roaming and not new_ones:
        yield ok("interrupts", "interrupts stay on the reserved CPUs")
        return
    listed = f" ({roaming})" if roaming else ""
    coming = ", and so may new ones" if new_ones else ""
    yield warning(
        "interrupts",
        f"{len(roaming)} of {len(handled)} interrupts{listed} may go to CPUs that containers can get"
        f" exclusively{coming}",
        f"echo {_mask(rules.reserved)} >/proc/irq/default_smp_affinity, and {rules.reserved} to"
        " /proc/irq/N/smp_affinity_list; one that refuses (EIO, EPERM) is spread by the kernel, as the"
        " queues of NVMe and virtio disks are, and serves only those CPUs that it is on",
    )


def _mask(cpus: CPUSet) -> str:
    """Return a set as the kernel reads masks: hexadecimal, in groups of 32 bits."""
    groups = [
        f"{cpus.bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, cpus.bits.bit_length(), 32)
    ]
    return ",".join(reversed(groups)).lstrip("0,") or "0"


def swap(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether memory of containers can be swapped out."""
    if facts.swaps:
        yield warning(
            "swap",
            f"swap is on ({', '.join(facts.swaps)}): memory that a container has on its NUMA node can"
            " be taken from it",
            "swapoff -a, and take swap out of /etc/fstab; the kubelet does not start with it by default",
        )
    else:
        yield ok("swap", "swap is off")


def inotify(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether new pods can be noticed at once.

    numalet needs one instance of inotify, and a watch for each cgroup of pods.
    """
    low = {
        name: least
        for name, least in _INOTIFY_DEFAULTS.items()
        if facts.inotify.get(name, least) < least
    }
    if low:
        found = ", ".join(f"{name} is {facts.inotify[name]}" for name in low)
        yield warning(
            "inotify",
            f"fs.inotify has limits below the kernel's own ({found}): numalet would find new pods by"
            " scanning, later than it could",
            "sysctl " + " ".join(f"fs.inotify.{name}={least}" for name, least in low.items()),
        )
    else:
        yield ok("inotify", "the limits of inotify suffice for noticing new pods")


def devices(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether the kubelet can be asked for the devices of pods, where that is wanted."""
    asked = facts.pod_resources
    if asked is None:
        return
    if asked.is_served:
        yield ok("devices", f"the kubelet listens on {asked.path}")
    else:
        yield warning(
            "devices",
            f"nobody listens on {asked.path}: CPUs do not follow the devices of pods, and pods that ask for"
            " some may wait in vain for as long as devicesTimeout",
            "see that a kubelet runs; mount the socket's folder, not the socket; or set devices: off",
        )


def state_folder(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether numalet can remember, and for how long."""
    folder = facts.state_folder
    place = f"the state folder {folder.path}"
    elsewhere = "set stateDir to a folder on a local disk, or mount such a volume there"
    if not folder.writable:
        yield problem(
            "state-folder",
            f"{place} cannot be made or written",
            f"run numalet as root, and {elsewhere}",
        )
    elif folder.free_bytes < _ENOUGH_BYTES:
        yield problem(
            "state-folder",
            f"{place} has {format_bytes(folder.free_bytes)} of free space: too little to remember what"
            " pods hold",
            f"free {format_bytes(_ENOUGH_BYTES)} there, or {elsewhere}",
        )
    elif folder.filesystem in _VOLATILE:
        yield warning("state-folder", f"{place} {_VOLATILE[folder.filesystem]}", elsewhere)
    elif folder.filesystem in _SHARED:
        yield warning(
            "state-folder",
            f"{place} is on a network file system ({folder.filesystem}): it can be away when numalet"
            " starts, and its lock need not hold",
            elsewhere,
        )
    else:
        yield ok("state-folder", f"{place} can be written and outlives a reboot")


def unread(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether everything was seen that had to be judged."""
    if facts.unread:
        yield warning(
            "unread",
            f"could not be read: {', '.join(facts.unread)}: what they would say is missing here",
            "run this command as root, or look at those files",
        )
