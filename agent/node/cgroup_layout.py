"""Where the kubelet puts a pod's cgroup, and which pod a cgroup belongs to.

Mirrors ``NewCgroupName``, ``ToSystemd`` and ``ToCgroupfs`` (pkg/kubelet/cm/
cgroup_manager_linux.go) and ``GetPodContainerName`` (pod_container_manager_linux.go) of
Kubernetes v1.36.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, PodUID, QosClass
from agent.errors import InputError

_CONFIG_HASH = "kubernetes.io/config.hash"
_CONFIG_MIRROR = "kubernetes.io/config.mirror"
_QOS_NAMES = {QosClass.BURSTABLE: ("burstable",), QosClass.BEST_EFFORT: ("besteffort",)}
_UID = re.compile(r"[A-Za-z0-9.-]{1,128}")
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def kubelet_uid(pod: Pod) -> PodUID:
    """Return the UID that the kubelet knows a pod by.

    That of a static pod is the hash of its manifest; the API server shows a mirror pod, which has
    a UID of its own and the hash in an annotation.
    """
    if _CONFIG_MIRROR in pod.annotations:
        return PodUID(pod.annotations.get(_CONFIG_HASH, pod.uid))
    return pod.uid


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

        Raises `InputError` where ``name`` is no container name (a DNS label).
        """
        if not _CONTAINER.fullmatch(name):
            raise InputError(f"{name!r} is not a container name: use lower case, digits and '-'")
        return pod_path / (f"{name}.scope" if self.driver == "systemd" else name)

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

    def _pod(self, uid: PodUID, qos: QosClass) -> CgroupPath:
        return self._cgroup(*_QOS_NAMES.get(qos, ()), f"pod{uid}")

    def _cgroup(self, *names: str) -> CgroupPath:
        path, slices = self.prefix, []
        for name in [*filter(None, self.root.relative.split("/")), "kubepods", *names]:
            # A slice is named after all those above it, joined by "-": so "-" is escaped.
            slices.append(name.replace("-", "_"))
            path /= name if self.driver == "cgroupfs" else f"{'-'.join(slices)}.slice"
        return path
