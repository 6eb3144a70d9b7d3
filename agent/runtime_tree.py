"""The cgroups of pods where a kubelet and a container runtime make them: found, never made or removed."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from agent.cgroup_tree import CgroupTree, Layout
from agent.core.cgroups import CgroupPath
from agent.core.desired import PodCgroups
from agent.core.pods import Pod, PodUID, QosClass
from agent.errors import CgroupError
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
        self._found: dict[CgroupPath, tuple[Mapping[str, str], dict[CgroupPath, str | None]]] = {}
        """By pod, what was found there while its status named these containers; all are named."""
        self._own_kernels: dict[PodUID, str] = {}
        """By pod that a runtime has told of; empty where it runs under this kernel."""
        self._asked_for: set[str] = set()
        """The containers whose names were looked for since everything was forgotten."""

    def refresh(self, changed: Collection[CgroupPath] | None) -> None:
        """Forget what was found before in these cgroups (None: in all)."""
        if changed is None:
            self._found.clear()
            self._own_kernels.clear()
            self._names.forget_others(self._asked_for)
            self._asked_for = set()
        for path in changed or ():
            self._found.pop(path, None)
            self._found.pop(path.parent, None)

    def newly_unsupported(self, pods: Iterable[Pod], problems: list[str]) -> list[Pod]:
        """Return pods that turn out to have kernels of their own, with what runs them."""
        found = []
        for pod in (pod for pod in pods if not pod.own_kernel):
            try:
                runtime = self._own_kernel(pod)
            except CgroupError as error:
                problems.append(str(error))
                continue
            found += [replace(pod, own_kernel=f"runtime {runtime}")] if runtime else []
        return found

    def _own_kernel(self, pod: Pod) -> str:
        """Return the runtime of a pod that is none of this kernel's, else empty.

        A runtime tells it beside the name, of the sandbox too.  The cgroup of a virtual machine is
        not always in its pod's: then the containers that the status names are asked for.
        """
        if pod.uid not in self._own_kernels:
            path = self.path_of(pod)
            self._leaves(pod, path)
            for container_id in pod.container_ids:
                self._name(pod, path, container_id)
        return self._own_kernels.get(pod.uid, "")

    def _qos(self, pod: Pod) -> QosClass:
        """Return the class that the API server says, as the kubelet does (``GetPodQOS``)."""
        return pod.qos or super()._qos(pod)

    def _leaves(self, pod: Pod, path: CgroupPath) -> dict[CgroupPath, str | None]:
        """Return the cgroups of containers that are there, each with its name if that is known."""
        found = self._found.get(path)
        if found is not None and found[0] == pod.container_ids:
            return found[1]
        leaves: dict[CgroupPath, str | None] = {}
        all_named = True
        for leaf in self._cgroups.children(path):
            container_id = self._layout.container_id(leaf)
            if container_id is None:
                continue
            is_known, name = self._name(pod, path, container_id)
            all_named &= is_known
            leaves[leaf] = name
            if leaf / _INNER in self._cgroups.children(leaf):
                leaves[leaf / _INNER] = name
        if all_named and leaves:
            self._found[path] = pod.container_ids, leaves
        return leaves

    def _name(self, pod: Pod, path: CgroupPath, container_id: str) -> tuple[bool, str | None]:
        """Return whether a container is known, and its name; that of a sandbox is None.

        The runtime knows it first, the pod's status seconds later.

        What a runtime says of another pod is not believed: a pod's author can have keys copied into
        its files.
        """
        self._asked_for.add(container_id)
        told = self._names.name_of(container_id)
        if told is not None and told.pod_uid == self._layout.uid_of(path):
            self._own_kernels[pod.uid] = told.runtime if told.has_own_kernel else ""
            return True, told.container
        return container_id in pod.container_ids, pod.container_ids.get(container_id)

    def make_missing(
        self,
        pods: Iterable[PodCgroups],  # noqa: ARG002 - of the base class
        stopping: Callable[[], bool] = lambda: False,  # noqa: ARG002
    ) -> list[str]:
        """Make nothing: that is the kubelet's."""
        return []

    def remove(self, path: CgroupPath) -> None:
        """Remove nothing: that is the kubelet's."""
