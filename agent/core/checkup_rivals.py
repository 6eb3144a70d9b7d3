"""Judgments on who else manages CPUs on this node."""

from collections.abc import Iterable, Iterator, Mapping

from agent.core.checkup_cgroups import assignable
from agent.core.cpuset import CPUSet
from agent.core.findings import Finding, Level, ok, problem, warning
from agent.core.node_facts import NodeFacts, RunningProcess
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

_KERNEL_THREAD = "kthreadd"
_WAITS = "--wait-for-lock"


def processes(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether the host's processes can be seen at all."""
    if facts.running(_KERNEL_THREAD):
        yield ok("processes", "the host's processes can be seen")
    else:
        yield warning(
            "processes",
            "the host's processes cannot be seen, so other CPU managers could be missed",
            "use the host's PID namespace (hostPID), or mount the host's / and name it with --root",
        )


def kubelet(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether the kubelet pins containers itself."""
    said = facts.kubelet
    policies = (("CPU", said.cpu_policy, "none"), ("Memory", said.memory_policy, "None"))
    active = [
        f"{kind} Manager: {policy}" for kind, policy, off in policies if policy not in (None, off)
    ]
    if active:
        yield problem(
            "kubelet",
            f"the kubelet places containers itself ({', '.join(active)}, by its state files in"
            f" {said.folder}) and would write over what numalet decides",
            "drain the node; set cpuManagerPolicy: none and memoryManagerPolicy: None; stop the"
            f" kubelet, remove {said.folder}/cpu_manager_state and memory_manager_state, start it",
            subject="kubelet",
        )
    elif said.cpu_policy is not None:
        yield ok("kubelet", "the kubelet's CPU and Memory Managers are off")
    elif facts.running(*KUBELETS):
        yield warning(
            "kubelet",
            f"a kubelet runs, but has no cpu_manager_state in {said.folder}: its policy is unknown",
            "make sure that its configuration has cpuManagerPolicy: none and memoryManagerPolicy: None",
        )
    else:
        yield ok("kubelet", "no kubelet has been here")


def managers(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether another program places containers, or moves what numalet places."""
    rivals, meddlers = facts.running(*MANAGERS), facts.running(*MEDDLERS)
    for name, pids in _by_name(rivals).items():
        yield problem(
            "cpu-managers",
            f"{name} of {MANAGERS[name]} runs (pid {pids}) and writes cpusets of containers, too",
            "keep one of the two off this node: by a node selector, or by removing it",
            subject=name,
        )
    for name, pids in _by_name(meddlers).items():
        does, cure = MEDDLERS[name]
        yield warning("cpu-managers", f"{name} runs (pid {pids}) and {does}", cure)
    if not rivals and not meddlers:
        yield ok("cpu-managers", "no other CPU manager that is known runs here")


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
