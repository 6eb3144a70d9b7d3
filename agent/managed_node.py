"""The node that one agent looks after: its rules, its cgroups, and where it remembers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from agent.cgroup_tree import CgroupTree, Layout
from agent.confinement import Confinement
from agent.contests import Contests
from agent.core.backing import shrunk
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.entitlement import Entitlement, asks_as_much
from agent.core.overwritten import Overwritten
from agent.core.pods import Pod
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.enforcement import Enforcement, memory_nodes
from agent.enforcer import Enforcer
from agent.hardware import Hardware
from agent.memory_care import MemoryCare
from agent.ports import (
    Cgroups,
    CgroupWatcher,
    CheckpointStore,
    Clock,
    ContainerNames,
    Journal,
    OtherManagersFound,
)
from agent.runtime_tree import RuntimeTree

log = structlog.get_logger(component="reconciler")


@dataclass(frozen=True, kw_only=True)
class Node:
    """What the reconciler works on; ``mode`` is for people."""

    rules: Rules
    cgroups: Cgroups
    layout: Layout
    store: CheckpointStore
    clock: Clock
    mode: str
    cgroup_root: str
    observe: bool = False
    """Write nothing, whoever else is there."""
    entitlement: Entitlement = field(default_factory=Entitlement)
    others: OtherManagersFound = field(default_factory=OtherManagersFound)
    """Who else places containers here; followed while the agent runs."""
    drift_interval_s: float = 10.0
    on_idle: Callable[[NodeState], None] = field(default=lambda _state: None)
    """Called with the saved state when no event is waiting, and at the end: nobody waits for it."""
    stopping: Callable[[], bool] = field(default=lambda: False)
    """Asked before each cgroup is made or written: a long pass ends half-way, as at a crash."""
    before_pass: Callable[[], object] = field(default=lambda: None)
    """Called before the cgroups are looked at; the simulation takes over hand-made edits there."""
    hardware: Hardware | None = None
    """Follows CPUs and memory that come and go; None where they cannot."""
    possible: CPUSet | None = None
    """The CPUs that the kernel can ever have: it refuses lists with others.  None where all are."""
    names: ContainerNames | None = None
    """Who names containers where a runtime makes their cgroups; None where the agent makes them."""
    hears_of_devices: bool = False
    """Whether somebody posts `agent.ports.DevicesFound`: then pods that ask for devices wait for it."""
    watcher: CgroupWatcher | None = None
    confinement: Confinement | None = None
    """Who notes how soon new cgroups are confined, where a watch tells him of them."""
    journal: Journal | None = None
    care: MemoryCare | None = None
    """How memory is moved; without, a pass waits for all pages that move, and nobody checks."""

    def may_place(self, pod: Pod) -> bool:
        """Tell whether a pod asks for something of its own, and is entitled to it."""
        return self.entitlement.refusal(pod) is None and Demand(self.rules, pod).is_for_own

    def shrunk(self, state: NodeState, pod: Pod, known: Pod | None) -> tuple[NodeState, Pod | None]:
        """Take from a placed pod, which is refused what it asks for, what it asks for no longer.

        So too what is not backed any more.  Returns what is known of it then; one that still asks
        for what it was placed by, whatever the configuration says by now, keeps that.
        """
        if known is not None and asks_as_much(known, pod):
            return state, known
        counted = self.entitlement.counted(pod)
        after = shrunk(self.rules, state, pod, counted)
        if after is state:
            return state, known
        log.warning("given_up", pod=pod.full_name, cpus=str(after.default - state.default))
        return after, counted

    @property
    def only_observes(self) -> bool:
        """Tell whether nothing is written for now."""
        return self.observe or bool(self.others.why_not)

    def beside(self, others: OtherManagersFound) -> "Node":
        """Return this node with these others on it; moves that wait are forgotten if nothing is written."""
        node = replace(self, others=others)
        if node.only_observes != self.only_observes:
            if node.only_observes and self.care is not None:
                self.care.stop()
            why = "; ".join(others.why_not) or "no other CPU manager is here any more"
            log.warning("only_observing" if node.only_observes else "enforcing", why=why)
        return node

    def note(self, entries: Sequence[Overwritten]) -> None:
        """Journal values that are about to be overwritten; raises `StateFileError`."""
        if self.journal is not None:
            self.journal.note(entries)

    def tree(self) -> CgroupTree:
        """Return where the cgroups of pods are."""
        knows_budgets = self.rules.knows_budgets
        if self.names is None:
            return CgroupTree(self.cgroups, self.layout, knows_budgets=knows_budgets)
        return RuntimeTree(self.cgroups, self.layout, self.names, knows_budgets=knows_budgets)

    def enforcement(self, tree: CgroupTree) -> Enforcement:
        """Return what makes these cgroups say what was decided."""
        return Enforcement(
            rules=self.rules,
            tree=tree,
            enforcer=Enforcer(
                self.cgroups,
                memory_nodes(self.rules),
                stopping=self.stopping,
                note=self.note,
                care=self.care,
                quota_is_ours=self.names is None,
                contests=Contests(self.clock.monotonic_s),
            ),
            cgroups=self.cgroups,
            confinement=self.confinement
            or Confinement(self.cgroups, self.clock.monotonic_s, lambda _pid: False),
            journal=self.journal,
            runtime_makes=self.names is not None,
            watcher=self.watcher,
            stopping=self.stopping,
            possible=self.possible,
        )
