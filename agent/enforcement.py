"""From who holds what to cgroups that say so: find or make them, compute, write, keep watch."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from agent.cgroup_tree import CgroupTree
from agent.core.cgroups import CgroupPath
from agent.core.desired import PodCgroups, desired_values
from agent.core.pods import PodUID
from agent.core.startup import Rules
from agent.enforcer import Enforced, Enforcer
from agent.ports import CgroupWatcher, Remembered

WATCHED_FILES = ("cgroup.events", "cgroup.subtree_control")
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
    stopping: Callable[[], bool] = field(default=lambda: False)

    def apply(self, remembered: Remembered, released: Collection[PodUID]) -> Enforced:
        """Enforce what is remembered, without pods that were ``released`` since."""
        pods = [self.tree.of(pod) for uid, pod in remembered.pods.items() if uid not in released]
        problems = self.tree.make_missing(pods, self.stopping)
        if self.stopping():
            return Enforced(problems=tuple(problems))
        nameless = remembered.state.pods.keys() - remembered.pods.keys() - set(released)
        pods += filter(None, map(self.tree.of_unknown, nameless))
        if self.runtime_makes:
            pods += self.tree.unknown(pods)
        values = desired_values(
            self.rules,
            remembered.state,
            pods,
            self.tree.qos_parents,
            quota_is_ours=not self.runtime_makes,
        )
        self._watch(pods)
        done = self.enforcer.enforce(values)
        return replace(done, problems=(*problems, *done.problems))

    def _watch(self, pods: Iterable[PodCgroups]) -> None:
        """Watch before anything is looked at, so that nothing happens in between unseen."""
        if self.watcher is None:
            return
        parents, paths = self.tree.parents, [cgroups.path for cgroups in pods]
        files: list[tuple[CgroupPath, str]] = [(path, WATCHED_FILES[1]) for path in parents]
        files += [(path, file) for path in paths for file in WATCHED_FILES]
        self.watcher.watch([*parents, *paths], files)
