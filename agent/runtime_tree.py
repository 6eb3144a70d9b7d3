"""The cgroups of pods where a kubelet and a container runtime make them: found, never made or removed."""

from collections.abc import Callable, Iterable

from agent.cgroup_tree import CgroupTree, Layout
from agent.core.cgroups import CgroupPath
from agent.core.desired import PodCgroups
from agent.core.pods import Pod
from agent.ports import Cgroups, ContainerNames

_INNER = "container"
"""crun puts the processes, and their limits, into a cgroup of this name below the scope."""


class RuntimeTree(CgroupTree):
    """The cgroups of all pods, as a kubelet lays them out."""

    def __init__(
        self, cgroups: Cgroups, layout: Layout, names: ContainerNames, *, knows_budgets: bool
    ) -> None:
        super().__init__(cgroups, layout, knows_budgets=knows_budgets)
        self._names = names

    def _leaves(self, pod: Pod, path: CgroupPath) -> dict[CgroupPath, str | None]:
        """Return the cgroups of containers that are there, each with its name if that is known."""
        leaves: dict[CgroupPath, str | None] = {}
        for leaf in self._cgroups.children(path):
            container_id = self._layout.container_id(leaf)
            if container_id is None:
                continue
            name = self._name(pod, path, container_id)
            leaves[leaf] = name
            if leaf / _INNER in self._cgroups.children(leaf):
                leaves[leaf / _INNER] = name
        return leaves

    def _name(self, pod: Pod, path: CgroupPath, container_id: str) -> str | None:
        """Return a container's name: the runtime knows it first, the pod's status seconds later.

        What a runtime says of another pod is not believed: a pod's author can have keys copied into
        its files.
        """
        told = self._names.name_of(container_id)
        if told is not None and told.pod_uid == self._layout.uid_of(path):
            return told.container
        return pod.container_ids.get(container_id)

    def make_missing(
        self,
        pods: Iterable[PodCgroups],  # noqa: ARG002 - of the base class
        stopping: Callable[[], bool] = lambda: False,  # noqa: ARG002
    ) -> list[str]:
        """Make nothing: that is the kubelet's."""
        return []

    def remove(self, path: CgroupPath) -> None:
        """Remove nothing: that is the kubelet's."""
