"""A node on which the pods of a case run, as a kubelet and a runtime start them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, qos_class
from agent.core.startup import Rules
from agent.ports import CgroupWatcher, Clock
from tests.node.fragile_disks import Clock as StoppedClock
from tests.reconciler.rig import WatchedKernel
from tests.reconciler.test_runtime_cgroups import KubeletWorld

Files = Mapping[str, Mapping[str, str]]
"""What files of cgroups say; cgroups are called ``p1`` and ``p1/a``, as in the entries."""


@dataclass(frozen=True, kw_only=True)
class Living:
    """The node, and the cgroups on it by their names in the entries."""

    world: KubeletWorld
    at: Mapping[str, CgroupPath]

    def said(self, files: Files) -> Files:
        """Return what those files say now that are named."""
        return {
            name: {file: self.world.text(self.at[name], file) for file in of}
            for name, of in files.items()
        }

    def writes(self, file: str, name: str | None = None) -> int:
        """Return how often the agent wrote a file, of one cgroup or of all."""
        written = [path for path, of, _ in self.world.kernel.writes if of == file]
        return len(written if name is None else [p for p in written if p == self.at[name]])


def living(  # noqa: PLR0913 - a node, and who runs on it
    rules: Rules,
    folder: Path,
    *pods: Pod,
    before: Files | None = None,
    clock: Clock | None = None,
    watcher: CgroupWatcher | None = None,
    kernel_class: type[WatchedKernel] = WatchedKernel,
) -> Living:
    """Start the pods, then the agent; ``before`` is what their cgroups say meanwhile."""
    world = KubeletWorld(
        rules, folder, clock=clock or StoppedClock(), watcher=watcher, kernel_class=kernel_class
    )
    at = {}
    for pod in pods:
        at[pod.name] = world.pod(world.layout.pod(pod, qos_class(pod)))
        for c in pod.containers:
            at[f"{pod.name}/{c.name}"] = world.container(at[pod.name], c.name)
    for name, of in (before or {}).items():
        for file, value in of.items():
            world.kernel.foreign_write(at[name], file, value)
    world.listed(*pods)
    return Living(world=world, at=at)
