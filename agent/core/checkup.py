"""Is this node ready for numalet?  Judges what an inspection found; knows nothing else."""

from collections.abc import Callable, Iterator

from agent.core import checkup_cgroups, checkup_machine, checkup_rivals
from agent.core.findings import Finding, Level
from agent.core.node_facts import NodeFacts
from agent.core.startup import Rules

_ALWAYS: tuple[Callable[[NodeFacts], Iterator[Finding]], ...] = (
    checkup_cgroups.mount,
    checkup_cgroups.namespace,
    checkup_cgroups.controllers,
    checkup_cgroups.permissions,
    checkup_machine.kernel,
    checkup_machine.topology,
    checkup_rivals.processes,
    checkup_rivals.kubelet,
    checkup_rivals.managers,
    checkup_rivals.numalets,
    checkup_machine.devices,
    checkup_machine.state_folder,
    checkup_machine.inotify,
    checkup_machine.swap,
    checkup_machine.unread,
)
_AGAINST_RULES: tuple[Callable[[NodeFacts, Rules], Iterator[Finding]], ...] = (
    checkup_cgroups.partitions,
    checkup_cgroups.systemd_units,
    checkup_cgroups.host_services,
    checkup_rivals.irqbalance,
    checkup_machine.offline_cpus,
    checkup_machine.kernel_parameters,
    checkup_machine.threads,
    checkup_machine.numa_nodes,
    checkup_machine.numa_balancing,
    checkup_machine.workqueues,
    checkup_machine.interrupts,
)
_ORDER = (Level.PROBLEM, Level.WARNING, Level.OK)


def check_up(facts: NodeFacts, rules: Rules | None) -> tuple[Finding, ...]:
    """Return what there is to say about a node, the worst first.

    ``rules`` is the configuration resolved against the machine; None where the machine cannot be
    understood, and then only what does not depend on them is judged.
    """
    findings = [finding for check in _ALWAYS for finding in check(facts)]
    if rules is not None and rules.policy.fence:
        findings = [checkup_rivals.beside_fence(f, rules.policy.fence) for f in findings]
    if rules is not None:
        findings += [finding for check in _AGAINST_RULES for finding in check(facts, rules)]
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level)))
