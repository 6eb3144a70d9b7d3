"""The node that one agent looks after: its rules, its cgroups, and where it remembers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.cgroup_tree import CgroupTree, Layout
from agent.confinement import Confinement
from agent.contests import Contests
from agent.core.entitlement import Entitlement
from agent.core.overwritten import Overwritten
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.enforcement import Enforcement
from agent.enforcer import Enforcer
from agent.memory_care import MemoryCare
from agent.ports import (
    Cgroups,
    CgroupWatcher,
    CheckpointStore,
    Clock,
    ContainerNames,
    Journal,
)
from agent.runtime_tree import RuntimeTree


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
    entitlement: Entitlement = field(default_factory=Entitlement)
    standing_problems: tuple[str, ...] = ()
    """What was found at the start, and stays until the next one: another CPU manager, say."""
    other_managers: tuple[str, ...] = ()
    """Programs that place containers here, too, as found at the start."""
    drift_interval_s: float = 10.0
    on_idle: Callable[[NodeState], None] = field(default=lambda _state: None)
    """Called with the saved state when no event is waiting, and at the end: nobody waits for it."""
    stopping: Callable[[], bool] = field(default=lambda: False)
    """Asked before each cgroup is made or written: a long pass ends half-way, as at a crash."""
    before_pass: Callable[[], object] = field(default=lambda: None)
    """Called before the cgroups are looked at; the simulation takes over hand-made edits there."""
    reread: Callable[[], Rules] | None = None
    """Reads the machine anew and returns what holds on it; raises `agent.errors.NumaletError`."""
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
        memory_nodes = self.rules.topology.memory_nodes if self.rules.manages_memory else None
        return Enforcement(
            rules=self.rules,
            tree=tree,
            enforcer=Enforcer(
                self.cgroups,
                memory_nodes,
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
        )
