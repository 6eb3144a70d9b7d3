"""From who holds what to cgroups that say so: find or make them, compute, write, keep watch.

Values are written to the files, and systemd is not told of them (``SetUnitProperties``, runtime), for
what was measured with systemd 252 on Linux 6.1 and 6.12 (cgroup2-facts section 7, tests/vm/test_drift.py):
it writes over cpuset files only of units that have AllowedCPUs, and where it resets a quota (at
daemon-reload and set-property) inotify tells of it, so that ours stands again after one pass.  To tell
systemd costs a call of its own per unit, a thousand times a write; under a kubelet the units are the
kubelet's and the runtime's, who overwrite the same properties at their next update; and the bus of
the host would be all rights on the host for a container that needs none.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from agent.cgroup_tree import CgroupTree
from agent.confinement import CONTAINER, POD, Confinement
from agent.core.cgroups import CONTROLLERS_FILE, EVENTS_FILE, CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.desired import PodCgroups, PodValues, desired_values, within
from agent.core.overwritten import Overwritten, no_longer_ours
from agent.core.plan import CPU_MAX_FILE, CPUS_FILE, MEMS_FILE
from agent.core.pods import PodUID
from agent.core.startup import Rules
from agent.enforcer import Enforced, Enforcer
from agent.errors import CgroupError, StateFileError
from agent.giving_back import give_back
from agent.ports import Cgroups, CgroupWatcher, Journal, Remembered

log = structlog.get_logger(component="enforcement")

WATCHED_FILES = (EVENTS_FILE, CONTROLLERS_FILE)
"""Of each pod: the first process comes or the last one ends; the cpuset files come or go."""


@dataclass(frozen=True, kw_only=True)
class Enforcement:
    """Makes cgroups say what was decided, those of all pods in one pass.

    ``runtime_makes`` says that a kubelet and a runtime make the cgroups: then pods are there before
    a source names them, and quotas are the kubelet's but for what an exclusive slice needs.
    """

    rules: Rules
    tree: CgroupTree
    enforcer: Enforcer
    runtime_makes: bool = False
    watcher: CgroupWatcher | None = None
    cgroups: Cgroups
    confinement: Confinement
    journal: Journal | None = None
    stopping: Callable[[], bool] = field(default=lambda: False)
    possible: CPUSet | None = None
    of_pods: PodValues = field(default_factory=PodValues)

    def apply(
        self,
        remembered: Remembered,
        released: Collection[PodUID],
        changed: Collection[CgroupPath] | None = None,
        *,
        names_may_be_missing: bool = False,
    ) -> Enforced:
        """Enforce what is remembered, without pods that were ``released`` since.

        Of cgroups that say already what they should only the ``changed`` ones are looked at, and what
        is directly below them; None means all.  Where ``names_may_be_missing``, memory and quota of
        containers without a name stay as they are: they may be those of one that has its own.
        """
        self.tree.refresh(changed)
        try:
            pods = self._find(remembered, released)
        except CgroupError as error:
            # What is not found would be missing in the sets above it: rather write nothing at all.
            return Enforced(problems=(str(error),))
        problems = self.tree.make_missing([p for p in pods if p.pod.containers], self.stopping)
        if self.stopping():
            return Enforced(problems=tuple(problems))
        values = desired_values(
            self.rules,
            remembered.state,
            pods,
            self.tree.qos_parents,
            quota_is_ours=not self.runtime_makes,
            of_pods=self.of_pods,
        )
        values = values if self.possible is None else within(self.possible, values)
        values |= _nameless(pods, values) if names_may_be_missing else {}
        self._watch(pods, values, anew=changed is None)
        self.confinement.begin(_kinds(pods, values), looked_at_all=changed is None)
        problems += self._give_back(values)
        look = None if changed is None else lambda path: path in changed or path.parent in changed
        done = self.enforcer.enforce(values, self.rules.topology.cpus, look)
        self.confinement.end(self.enforcer.settled)
        granted = self.enforcer.granted
        enforced = frozenset(p.pod.uid for p in pods if {p.path, *p.leaves} <= granted)
        return replace(done, problems=(*problems, *done.problems), enforced=enforced)

    def under(self, rules: Rules) -> "Enforcement":
        """Return this on a machine that changed, with all that is known of its cgroups."""
        self.enforcer.memory_nodes = memory_nodes(rules)
        return replace(self, rules=rules)

    def _find(self, remembered: Remembered, released: Collection[PodUID]) -> list[PodCgroups]:
        """Return the cgroups of all pods, of those last that no source has named."""
        pods = [self.tree.of(pod) for uid, pod in remembered.pods.items() if uid not in released]
        nameless = remembered.state.pods.keys() - remembered.pods.keys() - set(released)
        pods += filter(None, map(self.tree.of_unknown, nameless))
        return pods + self.tree.unknown(pods) if self.runtime_makes else pods

    def _give_back(self, values: Mapping[CgroupPath, CgroupValues]) -> tuple[str, ...]:
        """Give back what is decided on no more, and forget cgroups that have gone."""
        if self.journal is None:
            return ()
        entries = self.journal.entries
        given = give_back(self.cgroups, no_longer_ours(entries, values))
        for note in given.notes:
            log.info("given_back", what=note)
        over = {e for e in entries if e.path not in values and self._has_gone(e)} | set(given.done)
        try:
            if over:
                self.journal.forget(over.__contains__)
        except StateFileError as error:
            return (*given.problems, str(error))
        return given.problems

    def _has_gone(self, entry: Overwritten) -> bool:
        try:
            return self.cgroups.identity(entry.path) != entry.identity
        except CgroupError:
            return False

    def _watch(
        self,
        pods: Iterable[PodCgroups],
        values: Mapping[CgroupPath, CgroupValues],
        *,
        anew: bool,
    ) -> None:
        """Watch before anything is looked at, so that nothing happens in between unseen."""
        if self.watcher is None:
            return
        parents, paths = self.tree.parents, [cgroups.path for cgroups in pods]
        files: list[tuple[CgroupPath, str]] = [(path, WATCHED_FILES[1]) for path in parents]
        files += [(path, file) for path in paths for file in WATCHED_FILES]
        files += [(path, CPUS_FILE) for path, want in values.items() if want.cpus is not None]
        files += [(path, MEMS_FILE) for path, want in values.items() if want.mems is not None]
        files += [(path, CPU_MAX_FILE) for path, want in values.items() if want.cpu_max is not None]
        self.watcher.watch([*parents, *paths], files, anew=anew)


def memory_nodes(rules: Rules) -> NodeSet | None:
    """Return the nodes that who is bound to none may use; None where memory is not managed."""
    return rules.topology.memory_nodes if rules.manages_memory else None


def _nameless(
    pods: Iterable[PodCgroups], values: Mapping[CgroupPath, CgroupValues]
) -> dict[CgroupPath, CgroupValues]:
    """Return the values of containers whose name is not known, for the CPUs alone."""
    leaves = (leaf for cgroups in pods for leaf, name in cgroups.leaves.items() if name is None)
    return {leaf: replace(values[leaf], keeps_rest=True) for leaf in leaves}


def _kinds(
    pods: Iterable[PodCgroups], values: Mapping[CgroupPath, CgroupValues]
) -> dict[CgroupPath, str]:
    """Return the cgroups that are to be confined, and are known: of pods and of containers."""
    kinds = {}
    for cgroups in pods:
        of_pod = {path: CONTAINER for path, name in cgroups.leaves.items() if name is not None}
        for path, kind in {cgroups.path: POD, **of_pod}.items():
            is_inner = kind == CONTAINER and path.parent != cgroups.path
            if path in values and values[path].cpus is not None and not is_inner:
                kinds[path] = kind
    return kinds
