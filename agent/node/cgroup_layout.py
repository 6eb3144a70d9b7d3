"""Where the kubelet puts a pod's cgroup, and which pod and container a cgroup belongs to.

Mirrors ``NewCgroupName``, ``ToSystemd`` and ``ToCgroupfs`` (pkg/kubelet/cm/
cgroup_manager_linux.go) and ``GetPodContainerName`` (pod_container_manager_linux.go) of
Kubernetes v1.36; the cgroups of containers are named by their runtimes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent.core.cgroups import EVENTS_FILE, CgroupPath, says_populated
from agent.core.pods import Pod, PodUID, QosClass
from agent.errors import EnvironmentProblem, InputError
from agent.ports import GONE, Cgroups

_CONFIG_HASH = "kubernetes.io/config.hash"
_CONFIG_MIRROR = "kubernetes.io/config.mirror"
_QOS_NAMES = {QosClass.BURSTABLE: ("burstable",), QosClass.BEST_EFFORT: ("besteffort",)}
_UID = re.compile(r"[A-Za-z0-9.-]{1,128}")
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_CONTAINER_CGROUP = re.compile(
    r"((cri-containerd|crio|docker)-|kata_)?(?P<id>[0-9a-f]{64})(\.scope)?"
)
_OWN_CONTAINER = re.compile(r"\.scope$|/kubepods/((burstable|besteffort)/)?pod[^/]+/[^/]+$")
_INNER = "container"
SINGLE_HOST_SLICE = CgroupPath("numalet.slice")
"""Above all pods of a single host, whatever the driver."""

_DRIVERS: tuple[Literal["systemd", "cgroupfs"], ...] = ("systemd", "cgroupfs")
_SEARCH_DEPTH = 4
"""``cgroupRoot`` rarely has a component, and more than three are unheard of."""


def kubelet_uid(pod: Pod) -> PodUID:
    """Return the UID that the kubelet knows a pod by.

    That of a static pod is the hash of its manifest; the API server shows a mirror pod, which has
    a UID of its own and the hash in an annotation.
    """
    if _CONFIG_MIRROR in pod.annotations:
        return PodUID(pod.annotations.get(_CONFIG_HASH, pod.uid))
    return pod.uid


def container_id(path: CgroupPath) -> str | None:
    """Return the id of the container whose cgroup this is, None for every other cgroup.

    Sandboxes count, and so does the cgroup ``container`` that crun puts the processes in, below
    the scope (cgroup2-facts section 7).  CRI-O's ``crio-conmon-ID`` holds no container, and its
    ``crio-ID`` without ``.scope`` is a sandbox that it spares the process (cgmgr/systemd_linux.go).
    """
    leaf = path.parent if path.name == _INNER else path
    match = _CONTAINER_CGROUP.fullmatch(leaf.name)
    return match["id"] if match else None


def is_own_container(path: CgroupPath) -> bool:
    """Tell whether this is a container's cgroup on a single host, under either driver.

    What is below is the program's own: its scope is delegated to it (systemd.resource-control(5)).
    """
    return _OWN_CONTAINER.search(str(path)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLayout:
    """The names of cgroups under one of the kubelet's two cgroup drivers.

    ``root`` is the kubelet's cgroupRoot (``/`` or ``/kubelet``, in the kubelet's own spelling);
    ``prefix`` is a cgroup that holds all of it and whose name is taken as it is.
    """

    driver: Literal["systemd", "cgroupfs"]
    root: CgroupPath = field(default_factory=CgroupPath)
    prefix: CgroupPath = field(default_factory=CgroupPath)

    def kubepods(self) -> CgroupPath:
        """Return the cgroup of all pods, which is the parent of Guaranteed ones."""
        return self._cgroup()

    def qos_parent(self, qos: QosClass) -> CgroupPath:
        """Return the cgroup in which the pods of a class are."""
        return self._cgroup(*_QOS_NAMES.get(qos, ()))

    def pod(self, pod: Pod, qos: QosClass) -> CgroupPath:
        """Return the cgroup of a pod, for a static pod that of its manifest's hash.

        Raises `InputError` where the UID has characters that the kubelet refuses, too.
        """
        uid = kubelet_uid(pod)
        if not _UID.fullmatch(uid):
            raise InputError(
                f"{uid!r} cannot be part of a cgroup's name: use up to 128 letters, digits, '-' and '.'",
                where=f"UID of pod {pod.full_name}",
            )
        return self._pod(uid, qos)

    def container(self, pod_path: CgroupPath, name: str) -> CgroupPath:
        """Return the cgroup of a container where the agent, not a runtime, makes it.

        Names of scopes are global: so one has the pod's UID, in which "-" is escaped as in the
        name of the pod's slice, so that it ends at the next "-".  Raises `InputError` where ``name``
        is no container name (a DNS label).
        """
        if not _CONTAINER.fullmatch(name):
            raise InputError(f"{name!r} is not a container name: use lower case, digits and '-'")
        if self.driver == "cgroupfs":
            return pod_path / name
        uid = pod_path.name.removesuffix(".slice").rpartition("-")[2].removeprefix("pod")
        return pod_path / f"numalet-{uid}-{name}.scope"

    def container_id(self, path: CgroupPath) -> str | None:
        """Return the id of the container whose cgroup a runtime made, None for every other."""
        return container_id(path)

    def uid_of(self, path: CgroupPath) -> PodUID | None:
        """Return the kubelet's UID of the pod whose cgroup this is, the reverse of `pod`.

        None for every other cgroup, those of containers included.
        """
        name = path.name
        if self.driver == "systemd":
            name = name.removesuffix(".slice").rpartition("-")[2].replace("_", "-")
        uid = PodUID(name.removeprefix("pod"))
        if not _UID.fullmatch(uid) or all(self._pod(uid, qos) != path for qos in QosClass):
            return None
        return uid

    def paths_of(self, uid: PodUID) -> tuple[CgroupPath, ...]:
        """Return where the cgroup of a pod may be of which only the kubelet's UID is known."""
        return tuple(self._pod(uid, qos) for qos in QosClass) if _UID.fullmatch(uid) else ()

    def _pod(self, uid: PodUID, qos: QosClass) -> CgroupPath:
        return self._cgroup(*_QOS_NAMES.get(qos, ()), f"pod{uid}")

    def _cgroup(self, *names: str) -> CgroupPath:
        path, slices = self.prefix, []
        for name in [*filter(None, self.root.relative.split("/")), "kubepods", *names]:
            # A slice is named after all those above it, joined by "-": so "-" is escaped.
            slices.append(name.replace("-", "_"))
            path /= name if self.driver == "cgroupfs" else f"{'-'.join(slices)}.slice"
        return path


def systemd_runs() -> bool:
    """Tell whether systemd is this machine's process 1 (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def single_host_layout(
    driver: Literal["auto", "systemd", "cgroupfs"], root: CgroupPath, *, systemd: bool
) -> CgroupLayout:
    """Return where the pods of a single host are: where a kubelet with cgroupRoot ``/numalet`` has them.

    Where no driver is named, that is slices if ``systemd`` manages the machine's cgroups.
    """
    if driver == "systemd" or (driver == "auto" and systemd):
        names = (SINGLE_HOST_SLICE.name.removesuffix(".slice"), root.relative)
        return CgroupLayout(driver="systemd", root=CgroupPath("/".join(filter(None, names))))
    return CgroupLayout(driver="cgroupfs", root=root, prefix=SINGLE_HOST_SLICE)


def detect_layout(cgroups: Cgroups, root: CgroupPath | None = None) -> CgroupLayout:
    """Find the kubelet's cgroups: by which driver, and where ``root`` (cgroupRoot) is not known.

    Of several the one in which processes run is taken: a kubelet whose driver was changed leaves
    the cgroups of the old one behind.  Raises `EnvironmentProblem` with what was found instead and
    what to do.
    """
    cure = "set cgroupDriver and cgroupRoot to what the kubelet's are"
    if root is None:
        found = list(_search(cgroups))
    else:
        both = [CgroupLayout(driver=driver, root=root) for driver in _DRIVERS]
        found = [layout for layout in both if cgroups.identity(layout.kubepods()) is not GONE]
    if not found:
        where = "" if root is None else f" below cgroupRoot /{root.relative.strip('/')}"
        raise EnvironmentProblem(
            f"no kubelet has made its cgroups (kubepods.slice or kubepods){where}",
            cure="start the kubelet first; where numalet sees only the cgroups of a container, mount"
            f" the host's /sys/fs/cgroup; or {cure}",
        )
    if len(found) > 1:
        used = [layout for layout in found if _is_populated(cgroups, layout.kubepods())]
        found = used or found
    if len(found) > 1:
        places = " and ".join(str(layout.kubepods()) for layout in found)
        raise EnvironmentProblem(f"{places} could each be the kubelet's", cure=cure)
    return found[0]


def _search(cgroups: Cgroups) -> Iterator[CgroupLayout]:
    """Yield every layout whose ``kubepods`` is there, except those inside of containers."""
    level = [CgroupPath()]
    for _ in range(_SEARCH_DEPTH):
        below = [child for path in level for child in cgroups.children(path)]
        level = []
        for path in below:
            layout = _layout_at(path)
            if layout is not None:
                yield layout
            elif container_id(path) is None and not path.name.endswith((".scope", ".service")):
                level.append(path)


def _layout_at(path: CgroupPath) -> CgroupLayout | None:
    """Return the layout whose ``kubepods`` is this cgroup."""
    if path.name.endswith("kubepods.slice"):
        above = filter(None, path.parent.relative.split("/"))
        names = (name.removesuffix(".slice").rpartition("-")[2] for name in above)
        root = CgroupPath("/".join(names).replace("_", "-"))
        layout = CgroupLayout(driver="systemd", root=root)
    else:
        layout = CgroupLayout(driver="cgroupfs", root=path.parent)
    return layout if layout.kubepods() == path else None


def _is_populated(cgroups: Cgroups, path: CgroupPath) -> bool:
    return says_populated(cgroups.read(path, EVENTS_FILE))
