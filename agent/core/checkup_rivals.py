"""Judgments on who else manages CPUs on this node."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from agent.core.checkup_cgroups import assignable
from agent.core.cpuset import CPUSet
from agent.core.findings import Finding, Level, ok, problem, warning
from agent.core.node_facts import NodeFacts, Others, RunningProcess
from agent.core.startup import Rules

KUBELETS = ("kubelet", "hyperkube", "kubelite", "k3s", "k3s-agent", "k3s-server")
"""Programs that are a kubelet, or have one inside."""

MANAGERS: Mapping[str, str] = {
    "cpusetter": "CPU-Pooler",
    "crane-agent": "Crane",
    "cri-resmgr": "CRI Resource Manager",
    "dracpu": "dra-driver-cpu",
    "katalyst-agent": "Katalyst",
    "koordlet": "Koordinator",
    "nri-resource-policy-balloons": "nri-plugins",
    "nri-resource-policy-template": "nri-plugins",
    "nri-resource-policy-topology-aware": "nri-plugins",
}
"""Programs that write the cpusets of containers, and what they are part of."""

MEDDLERS: Mapping[str, tuple[str, str]] = {
    "cgrulesengd": (
        "moves processes between cgroups",
        "take pods and runtimes out of /etc/cgrules.conf, or stop it",
    ),
    "numad": (
        "binds processes to NUMA nodes as it sees fit",
        "stop it: numalet decides on which nodes containers are",
    ),
    "tuned": (
        "can set the CPUs of services, interrupts and cgroups by itself (profile cpu-partitioning, say)",
        "let its profile isolate all CPUs but numalet's reserved ones, or use one that isolates none",
    ),
}
"""Programs that only get in the way: what each does, and what helps."""

KERNEL_THREAD = "kthreadd"
"""Who sees this one sees all processes of the host."""

PROCESSES, KUBELET, CPU_MANAGERS, NUMALET = "processes", "kubelet", "cpu-managers", "numalet"
"""What is looked at."""

WATCHED = frozenset({KERNEL_THREAD, NUMALET, *KUBELETS, *MANAGERS})
"""The processes by which others are found that place containers, and whether any can be seen."""

_WAITS = "--wait-for-lock"
_NO_WRITERS = frozenset({"--observe", "--simulate"})


def processes(facts: Others) -> Iterator[Finding]:
    """Judge whether the host's processes can be seen at all."""
    if facts.running(KERNEL_THREAD):
        yield ok(PROCESSES, "the host's processes can be seen")
    else:
        yield warning(
            PROCESSES,
            "the host's processes cannot be seen, so other CPU managers could be missed",
            "use the host's PID namespace (hostPID), or mount the host's / and name it with --root",
        )


def kubelet(facts: Others) -> Iterator[Finding]:
    """Judge whether the kubelet pins containers itself."""
    said = facts.kubelet
    policies = (("CPU", said.cpu_policy, "none"), ("Memory", said.memory_policy, "None"))
    active = [
        f"{kind} Manager: {policy}" for kind, policy, off in policies if policy not in (None, off)
    ]
    if active:
        by = said.said_by or f"its state files in {said.folder}"
        yield problem(
            KUBELET,
            f"the kubelet places containers itself ({', '.join(active)}, by {by}) and"
            " would write over what numalet decides",
            "drain the node; set cpuManagerPolicy: none and memoryManagerPolicy: None; stop the"
            f" kubelet, remove {said.folder}/cpu_manager_state and memory_manager_state, start it",
            subject=KUBELET,
        )
    elif said.unread:
        yield warning(
            KUBELET,
            f"it cannot be seen whether the kubelet places containers itself: {'; '.join(said.unread)}",
            f"let {said.folder}/cpu_manager_state and memory_manager_state be read as they are now",
        )
    elif said.cpu_policy is not None:
        yield ok(KUBELET, "the kubelet's CPU and Memory Managers are off")
    elif facts.running(*KUBELETS):
        yield warning(
            KUBELET,
            f"a kubelet runs, but has no cpu_manager_state in {said.folder}: its policy is unknown",
            "make sure that its configuration has cpuManagerPolicy: none and memoryManagerPolicy: None",
        )
    else:
        yield ok(KUBELET, "no kubelet has been here")


def managers(facts: Others) -> Iterator[Finding]:
    """Judge whether another program places containers, or moves what numalet places."""
    rivals, meddlers = facts.running(*MANAGERS), facts.running(*MEDDLERS)
    for name, pids in _by_name(rivals).items():
        yield problem(
            CPU_MANAGERS,
            f"{name} of {MANAGERS[name]} runs (pid {pids}) and writes cpusets of containers, too",
            "keep one of the two off this node: by a node selector, or by removing it",
            subject=name,
        )
    for name, pids in _by_name(meddlers).items():
        does, cure = MEDDLERS[name]
        yield warning(CPU_MANAGERS, f"{name} runs (pid {pids}) and {does}", cure)
    if not rivals and not meddlers:
        yield ok(CPU_MANAGERS, "no other CPU manager that is known runs here")


def beside_fence(finding: Finding, fence: CPUSet) -> Finding:
    """Return what is left of a finding on another CPU manager where numalet keeps to a fence."""
    if not finding.subject or finding.level is not Level.PROBLEM:
        return finding
    return warning(
        finding.check,
        f"{finding.sentence}; numalet keeps to CPUs {fence} (coexistence: fence), but not to a part of"
        " the memory",
        f"tell {finding.subject} to leave CPUs {fence} alone, and the pods that numalet places"
        " (podSelector); let one of the two only manage memory",
    )


def _by_name(running: Iterable[RunningProcess]) -> dict[str, str]:
    """Return the pids of processes by their names."""
    pids: dict[str, list[str]] = {}
    for process in running:
        pids.setdefault(process.name, []).append(str(process.pid))
    return {name: ", ".join(numbers) for name, numbers in sorted(pids.items())}


def numalets(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether there is one numalet at most."""
    agents = [p for p in facts.running("numalet") if "run" in p.arguments]
    holder = facts.state_folder.holder
    pids = sorted({p.pid for p in agents} | ({holder} if holder is not None else set()))
    listed = ", ".join(map(str, pids))
    if len(pids) <= 1:
        yield ok("numalet", f"numalet runs (pid {listed})" if pids else "no numalet runs yet")
    elif any(_WAITS in p.arguments for p in agents):
        yield warning(
            "numalet",
            f"more than one numalet is there (pid {listed}), one of which waits for a lock",
            f"nothing while an upgrade is under way; else see that all have the state folder"
            f" {facts.state_folder.path}, or stop all but one",
        )
    else:
        yield problem(
            "numalet",
            f"more than one numalet runs (pid {listed}), each with a state folder of its own: they"
            " give the same CPUs to different pods",
            "stop all but one",
        )


def second_numalet(
    facts: Others, own_pid: int | None, lockers: Collection[int] | None
) -> Iterator[Finding]:
    """Judge, in a numalet with ``own_pid`` that holds its lock, whether another one places pods.

    ``lockers`` are the processes that hold a lock; None where nobody says so.  Another numalet that
    has one has it on a state folder of its own.  One without waits, or ends, as in a roll-out: it
    writes nothing, and has no subject.
    """
    others = [
        process
        for process in facts.running(NUMALET)
        if "run" in process.arguments
        and process.pid != own_pid
        and not _NO_WRITERS & set(process.arguments)
    ]
    for process in others:
        if lockers is not None and process.pid in lockers:
            yield problem(
                NUMALET,
                f"another numalet runs (pid {process.pid}), with a state folder of its own: it gives"
                " the same CPUs to other pods",
                "stop one of the two",
                subject=NUMALET,
            )
        elif lockers is not None:
            yield ok(NUMALET, f"another numalet is there (pid {process.pid}), and holds no lock")
        else:
            yield warning(
                NUMALET,
                f"another numalet is there (pid {process.pid}), and it cannot be seen whether it has"
                " a state folder of its own",
                "see that there is one only, or that both have the same state folder",
            )


def irqbalance(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether irqbalance puts interrupts on CPUs of containers."""
    running = facts.running("irqbalance")
    banned = facts.irqbalance_banned
    # Without a list irqbalance leaves the isolated and the tickless CPUs alone.
    free = assignable(rules) - (facts.isolated | facts.nohz_full if banned is None else banned)
    if running and free:
        yield warning(
            "irqbalance",
            f"irqbalance (pid {running[0].pid}) moves interrupts to CPUs {free}, which containers can"
            " get exclusively",
            f"set IRQBALANCE_BANNED_CPULIST={assignable(rules)} in /etc/default/irqbalance or"
            " /etc/sysconfig/irqbalance (old ones know the mask IRQBALANCE_BANNED_CPUS only) and"
            " restart it, or stop it",
        )
    else:
        yield ok(
            "irqbalance",
            "irqbalance leaves CPUs of containers alone" if running else "no irqbalance runs",
        )
