"""Judgments on the cgroup hierarchy, and on who else has a hand in it."""

from collections.abc import Iterator

from agent.core.cpuset import CPUSet, IdSetError
from agent.core.findings import Finding, ok, problem, warning
from agent.core.node_facts import NodeFacts, PodsCgroup, UnitSetting
from agent.core.startup import Rules

_NEEDED = frozenset({"cpuset", "cpu", "memory"})
_UNITS_OF_PODS = ("kubepods", "numalet.slice", "numalet-", "cri-containerd-", "crio-")
"""What the names of units have that the kubelet, runtimes and numalet make for pods."""


def assignable(rules: Rules) -> CPUSet:
    """Return the CPUs that containers may come to hold exclusively."""
    free = rules.topology.cpus.bits & ~rules.withheld
    return CPUSet.from_bits(free) if rules.manages_cpus else CPUSet()


def mount(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether cgroup v2 is there, for writing."""
    obstacle = facts.cgroups.mount
    if obstacle is not None:
        yield problem("cgroup-v2", obstacle.what, obstacle.cure)
    else:
        yield ok("cgroup-v2", f"cgroup v2 is mounted at {facts.cgroups.root}, for writing")


def namespace(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether it is the host's whole hierarchy."""
    if not facts.cgroups.is_v2:
        return
    if facts.cgroups.is_host_root:
        yield ok("cgroup-root", f"{facts.cgroups.root} is the host's whole hierarchy")
    else:
        yield problem(
            "cgroup-root",
            f"{facts.cgroups.root} is a cgroup inside the host's hierarchy, such as a container's"
            " own: whatever runs outside of it cannot be kept off any CPU",
            "mount the host's /sys/fs/cgroup into the container, or run numalet in the host's"
            " cgroup namespace",
        )


def controllers(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether the controllers are there, and reach the pods."""
    if not facts.cgroups.is_v2:
        return
    obstacle = facts.cgroups.controllers
    findings = [found for cgroup in facts.cgroups.pods for found in _pods_cgroup(cgroup)]
    if obstacle is not None:
        yield problem("controllers", obstacle.what, obstacle.cure)
    elif findings:
        yield from findings
    else:
        yield ok("controllers", "cpuset, cpu and memory are there for pods")


def _pods_cgroup(cgroup: PodsCgroup) -> Iterator[Finding]:
    if cgroup.kind != "domain":
        # cgroup2-facts section 4: cpuset was enabled above while processes were there.
        yield problem(
            "controllers",
            f"/{cgroup.path} is of type {cgroup.kind!r}: no container can run there",
            "move the processes out of the cgroup above it, then remove it and let it be made anew",
        )
    missing = ", ".join(sorted(_NEEDED - cgroup.controllers))
    if missing:
        yield warning(
            "controllers",
            f"/{cgroup.path} does not have {missing}: until it does, nothing there can be enforced",
            "if that lasts while pods run, write +cpuset +cpu +memory to the cgroup.subtree_control"
            " of the cgroups above it, from the top down; systemd takes cpuset away when no unit"
            " below has Delegate=yes",
        )


def permissions(facts: NodeFacts) -> Iterator[Finding]:
    """Judge whether this user may write; of a mount that is read-only or something else nothing is said."""
    if facts.cgroups.mount is not None:
        return
    if facts.cgroups.unwritable:
        yield problem(
            "permissions",
            f"this user may not write {', '.join(facts.cgroups.unwritable)}",
            "run numalet (and this command) as root, also in a container: being root is enough",
        )
    else:
        yield ok("permissions", "this user may write the cgroup files")


def partitions(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether somebody takes CPUs away from all others (cgroup2-facts section 6)."""
    if not facts.cgroups.is_v2:
        return
    found = facts.cgroups.partitions
    for partition in found:
        taken = partition.cpus & assignable(rules)
        judge = problem if taken else warning
        yield judge(
            "partitions",
            f"/{partition.path} is a cpuset partition ({partition.kind}) on CPUs"
            f" {str(partition.cpus) or 'of nobody'}: no other cgroup can use those",
            "end what made it, or write member to its cpuset.cpus.partition"
            + (f"; or put {taken} among the reserved CPUs" if taken else ""),
        )
    if not found:
        yield ok("partitions", "no cpuset partition takes CPUs away")


def systemd_units(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether systemd writes cpuset files by itself (cgroup2-facts section 7)."""
    findings = [found for setting in facts.unit_settings for found in _unit(setting, rules)]
    yield from findings
    if not findings:
        yield ok("systemd-units", "systemd writes no cpuset that is in the way")


def _unit(setting: UnitSetting, rules: Rules) -> Iterator[Finding]:
    what = f"{setting.key}={setting.value} of {setting.unit} ({setting.file})"
    if setting.unit.startswith("numalet-") and setting.unit.endswith(".scope"):
        return  # of `numalet exec`: a program is born there, and numalet writes the same
    if any(name in setting.unit for name in _UNITS_OF_PODS):
        yield problem(
            "systemd-units",
            f"{what}: systemd writes that anew at each daemon-reload, over what numalet wrote",
            "remove that setting and run systemctl daemon-reload; a runtime makes it where a"
            " container's spec has CPUs, as under the kubelet's static policy",
        )
        return
    others = _cpus(setting) & assignable(rules)
    if others:
        yield warning(
            "systemd-units",
            f"{what}: it keeps processes on CPUs {others}, which containers can get exclusively",
            f"set it to the reserved CPUs ({rules.reserved}), or reserve those CPUs for it",
        )


def _cpus(setting: UnitSetting) -> CPUSet:
    """Return the CPUs of a setting; those of one that is no list, as with specifiers, are none."""
    try:
        return CPUSet.parse(setting.value) if setting.key == "AllowedCPUs" else CPUSet()
    except IdSetError:
        return CPUSet()


def host_services(facts: NodeFacts, rules: Rules) -> Iterator[Finding]:
    """Judge whether the host's own services may run where containers are promised to be alone."""
    ours = assignable(rules)
    roaming = {n: c & ours for n, c in facts.cgroups.host_services.items() if c & ours}
    if not roaming:
        yield ok("host-services", "the host's own services stay on the reserved CPUs")
        return
    slices = [name for name in roaming if name.endswith((".slice", ".scope"))]
    cpus = CPUSet(cpu for members in roaming.values() for cpu in members)
    reserved = str(rules.reserved)
    by_systemd = " && ".join(
        f"systemctl set-property {name} AllowedCPUs={reserved}" for name in slices
    )
    yield warning(
        "host-services",
        f"{', '.join(roaming)} may run on CPUs {cpus}, which containers can get exclusively",
        by_systemd if slices else f"start the host's programs with taskset -c {reserved}",
    )
