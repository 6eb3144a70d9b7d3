"""Where the cgroups of pods are, and making and removing them where the agent does that itself."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from agent.core.cgroups import EVENTS_FILE, CgroupPath, Seen, says_populated
from agent.core.claims import has_annotated_budget
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.desired import PodCgroups
from agent.core.plan import CPU_MAX_FILE, CPUS_FILE, MEMORY_MAX_FILE, MEMS_FILE
from agent.core.pods import Pod, PodUID, QosClass, qos_class
from agent.errors import CgroupError
from agent.ports import GONE, Cgroups

_ONE_OF_EACH = (CPUS_FILE, CPU_MAX_FILE, MEMORY_MAX_FILE)
"""A file of each controller that a cgroup needs."""


class Layout(Protocol):
    """Names of cgroups; see `agent.node.cgroup_layout`."""

    def kubepods(self) -> CgroupPath:
        """Return the cgroup above all pods."""
        ...

    def qos_parent(self, qos: QosClass) -> CgroupPath:
        """Return the cgroup above the pods of one class."""
        ...

    def pod(self, pod: Pod, qos: QosClass) -> CgroupPath:
        """Return a pod's cgroup."""
        ...

    def paths_of(self, uid: PodUID) -> tuple[CgroupPath, ...]:
        """Return where the cgroup of a pod may be of which only the UID is known."""
        ...

    def uid_of(self, path: CgroupPath) -> PodUID | None:
        """Return the UID of the pod whose cgroup this is, None for every other cgroup."""
        ...

    def container(self, pod_path: CgroupPath, name: str) -> CgroupPath:
        """Return the cgroup of a container, where the agent itself makes it."""
        ...

    def container_id(self, path: CgroupPath) -> str | None:
        """Return the id of the container whose cgroup a runtime made, None for every other."""
        ...


class CgroupTree:
    """The cgroups of all pods, which the agent itself makes and removes.

    ``knows_budgets`` is the gate ``PodLevelResources``.
    """

    def __init__(self, cgroups: Cgroups, layout: Layout, *, knows_budgets: bool) -> None:
        self._cgroups = cgroups
        self._layout = layout
        self._knows_budgets = knows_budgets
        parents = {layout.qos_parent(qos) for qos in QosClass} - {layout.kubepods()}
        self.qos_parents = tuple(sorted(parents))
        """The parents that are narrowed: not that of Guaranteed pods, which is above all."""
        self.parents = (*self.qos_parents, layout.kubepods())
        """All cgroups in which those of pods are."""

    def of(self, pod: Pod) -> PodCgroups:
        """Return where a pod's cgroups are.

        Raises `agent.errors.InputError` where the pod's UID cannot be part of a cgroup's name.
        """
        path = self.path_of(pod)
        return PodCgroups(pod=pod, path=path, leaves=self._leaves(pod, path))

    def path_of(self, pod: Pod) -> CgroupPath:
        """Return a pod's cgroup; raises like `of`."""
        return self._layout.pod(pod, self._qos(pod))

    def is_there(self, pod: Pod) -> bool:
        """Tell whether a pod's cgroup has been made; raises like `of`, and `CgroupError`."""
        return isinstance(self._cgroups.identity(self.path_of(pod)), int)

    def refresh(self, changed: Collection[CgroupPath] | None) -> None:
        """Forget what was found before in these cgroups (None: in all)."""

    def newly_unsupported(
        self,
        pods: Iterable[Pod],  # noqa: ARG002 - for the class below
        problems: list[str],  # noqa: ARG002 - as above
    ) -> list[Pod]:
        """Return pods that turn out to have kernels of their own, with what runs them: none here."""
        return []

    def _leaves(self, pod: Pod, path: CgroupPath) -> dict[CgroupPath, str | None]:
        return {self._layout.container(path, c.name): c.name for c in pod.containers}

    def _qos(self, pod: Pod) -> QosClass:
        """Return the class by which the kubelet chose the parent: it reads no annotation."""
        by_budget = self._knows_budgets and not has_annotated_budget(pod)
        return qos_class(pod, pod_level_resources=by_budget)

    def make_missing(
        self, pods: Iterable[PodCgroups], stopping: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Make cgroups that are not there, or that somebody took a controller from.

        systemd takes them from a slice with its last scope, cpuset or memory alone, too.

        Returns a sentence for each that could not be made; ends early once ``stopping`` says so.
        """
        problems = []
        for path in (*self.qos_parents, *_paths(pods)):
            if stopping():
                break
            try:
                if any(self._cgroups.read(path, file) is GONE for file in _ONE_OF_EACH):
                    self._cgroups.make(path)
            except CgroupError as error:
                problems.append(str(error))
        return problems

    def of_unknown(self, uid: PodUID) -> PodCgroups | None:
        """Return the cgroup of a pod of which only the UID is known, None where it has none."""
        for path in self._layout.paths_of(uid):
            if isinstance(self._cgroups.identity(path), int):
                return PodCgroups(pod=Pod(uid=uid, name=uid, namespace="?"), path=path)
        return None

    def unknown(self, pods: Iterable[PodCgroups]) -> list[PodCgroups]:
        """Return the cgroups of pods that are not among these."""
        known = {cgroups.path for cgroups in pods}
        found = (path for parent in self.parents for path in self._cgroups.children(parent))
        uids = (self._layout.uid_of(path) for path in found if path not in known)
        return [one for uid in uids if uid is not None and (one := self.of_unknown(uid))]

    def seen(self, cgroups: PodCgroups) -> Seen | None:
        """Return what a pod's cgroups say, None where nothing runs in them; raises `CgroupError`."""
        if not self.is_populated(cgroups.path):
            return None
        named = {cgroups.path: None, **{p: n for p, n in cgroups.leaves.items() if n is not None}}
        cpus = {name: CPUSet.parse(self._text(path, CPUS_FILE)) for path, name in named.items()}
        mems = {name: NodeSet.parse(self._text(path, MEMS_FILE)) for path, name in named.items()}
        return Seen(
            cpus={name: one for name, one in cpus.items() if one},
            mems={name: one for name, one in mems.items() if one},
        )

    def ids_by_cpus(self, pod: Pod, names: Mapping[CPUSet, str]) -> dict[str, str]:
        """Return names of a pod's containers by their IDs: who says exactly these CPUs has this name.

        Where the agent makes the cgroups there is no ID: their own names tell.  Raises `CgroupError`.
        """
        found = {}
        for leaf in self._cgroups.children(self.path_of(pod)):
            container_id, cpus = self._layout.container_id(leaf), self._text(leaf, CPUS_FILE)
            name = names.get(CPUSet.parse(cpus))
            if container_id is not None and name is not None:
                found[container_id] = name
        return found

    def shared_cpus(self) -> CPUSet:
        """Return CPUs that certainly belong to no pod: those of BestEffort pods."""
        return CPUSet.parse(self._text(self._layout.qos_parent(QosClass.BEST_EFFORT), CPUS_FILE))

    def _text(self, path: CgroupPath, file: str) -> str:
        text = self._cgroups.read(path, file)
        return text if isinstance(text, str) else ""

    def is_populated(self, path: CgroupPath) -> bool:
        """Tell whether anything runs in a cgroup or below; raises `CgroupError`."""
        return says_populated(self._cgroups.read(path, EVENTS_FILE))

    def remove(self, path: CgroupPath) -> None:
        """Remove a cgroup with all below it; raises `CgroupError` where something runs there."""
        for child in self._cgroups.children(path):
            self.remove(child)
        self._cgroups.remove(path)


def _paths(pods: Iterable[PodCgroups]) -> Iterator[CgroupPath]:
    for cgroups in pods:
        yield cgroups.path
        yield from cgroups.leaves
