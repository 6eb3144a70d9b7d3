"""Which container a cgroup holds, from what its runtime wrote down before making it.

A new cgroup has only an id, and the pod's status names it seconds later.  By then the program has
sized its threads by the CPUs that it saw.  The runtime's own file is complete earlier: containerd
writes the bundle before it starts the shim (``NewBundle`` in core/runtime/v2/bundle.go), CRI-O and
dockerd before ``StartContainer``.

This process is root's: an id, which comes from the name of a directory, never leads outside of the
folder.  A pod's author can have annotations copied into these files; so only keys are read that the
runtime sets itself, and what is said of another pod than the cgroup's must not be believed.
"""

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.core.pods import PodUID

Runtime = Literal["containerd", "cri-o", "docker"]

_ID = re.compile(r"[0-9a-f]{64}")
_LARGEST_FILE = 1 << 20
"""In bytes; a bundle's config.json has 5 to 30 thousand.  What is longer is cut, and then no JSON."""
_SHIM_SANDBOXES = "io.containerd.sandbox.controller.v1.shim"
"""Beside the folder of tasks: where containerd 2 keeps sandboxes of a runtime with ``sandboxer = shim``."""
_OWN_KERNEL = re.compile(r"kata|runsc|gvisor|firecracker")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFolder:
    """Where a runtime keeps one folder for each container, named by its id."""

    runtime: Runtime
    path: Path


KNOWN_FOLDERS = (
    BundleFolder(
        runtime="containerd", path=Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
    ),
    BundleFolder(
        runtime="containerd", path=Path("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io")
    ),
    BundleFolder(runtime="cri-o", path=Path("/run/containers/storage/overlay-containers")),
    BundleFolder(runtime="docker", path=Path("/var/lib/docker/containers")),
)
"""Where they are unless somebody moved them; k3s and RKE2 bring a containerd of their own."""


def known_folders(host_root: Path) -> tuple[BundleFolder, ...]:
    """Return where runtimes keep their bundles, if the node's own / is at ``host_root``."""
    return tuple(
        BundleFolder(runtime=known.runtime, path=host_root / known.path.relative_to("/"))
        for known in KNOWN_FOLDERS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleName:
    """What a runtime says of a container.

    ``container`` is its name in the pod, None for the pod's sandbox; ``pod_uid`` is the UID as the
    kubelet knows it (for a static pod the hash), to be compared with that in the cgroup's path;
    ``runtime`` is the shim's or handler's name (``runc``, ``kata-qemu``), empty where nobody says.
    """

    container: str | None
    pod_uid: PodUID
    runtime: str = ""

    @property
    def has_own_kernel(self) -> bool:
        """Tell whether the processes are a virtual machine's or gVisor's, and none of this kernel.

        The container's CPUs are then not what a cgroup of its own says.
        """
        return _OWN_KERNEL.search(self.runtime) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The file of a runtime, and the keys in it; never those of another runtime.

    CRI-O copies a pod's annotations into the same map, containerd's keys included.
    """

    file: tuple[str, ...]
    kind: str
    name: str
    pod_uid: str
    sandbox_id: str
    handler: str = ""


_KEYS: Mapping[Runtime, _Keys] = {
    # DefaultCRIAnnotations, internal/cri/annotations/annotations.go
    "containerd": _Keys(
        file=("config.json",),
        kind="io.kubernetes.cri.container-type",
        name="io.kubernetes.cri.container-name",
        pod_uid="io.kubernetes.cri.sandbox-uid",
        sandbox_id="io.kubernetes.cri.sandbox-id",
    ),
    # SpecAddAnnotations, internal/factory/container/container.go: the labels, which come last, are
    # the kubelet's.  cri-o.ContainerName is only on sandboxes, and cri-o.Name is a compound.
    "cri-o": _Keys(
        file=("userdata", "config.json"),
        kind="io.kubernetes.cri-o.ContainerType",
        name="io.kubernetes.container.name",
        pod_uid="io.kubernetes.pod.uid",
        sandbox_id="io.kubernetes.cri-o.SandboxID",
        handler="io.kubernetes.cri-o.RuntimeHandler",
    ),
    # The labels that cri-dockerd sets; dockerd's bundle has nothing of Kubernetes.
    "docker": _Keys(
        file=("config.v2.json",),
        kind="io.kubernetes.docker.type",
        name="io.kubernetes.container.name",
        pod_uid="io.kubernetes.pod.uid",
        sandbox_id="io.kubernetes.sandbox.id",
    ),
}
_SANDBOXES = ("sandbox", "podsandbox")
_CONTAINERS = ("container",)


class _Docker(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    labels: dict[str, str] | None = Field(default=None, alias="Labels")


class _File(BaseModel):
    """What is read of an OCI bundle's ``config.json`` or of dockerd's ``config.v2.json``."""

    model_config = ConfigDict(extra="ignore", strict=True)
    annotations: dict[str, str] | None = None
    docker: _Docker = Field(default=_Docker(), alias="Config")


class Bundles:
    """The names of containers, by id; what was found is remembered.  For one thread."""

    def __init__(self, folders: Sequence[BundleFolder] = KNOWN_FOLDERS) -> None:
        self._folders = folders
        self._names: dict[str, BundleName] = {}

    def present(self) -> tuple[BundleFolder, ...]:
        """Return the folders that are there and may be read; without any, no name will be found."""
        return tuple(at for at in self._folders if os.access(at.path, os.R_OK | os.X_OK))

    def name_of(self, container_id: str) -> BundleName | None:
        """Return what the runtime says of a container, None where it says nothing usable (yet).

        Whatever is missing, half-written, too large, no file, behind a symbolic link or not of this
        shape is None, and looked at again the next time.
        """
        if container_id not in self._names:
            name = next(self._find(container_id), None)
            if name is None:
                return None
            self._names[container_id] = name
        return self._names[container_id]

    def forget_others(self, container_ids: Collection[str]) -> None:
        """Forget every container but these."""
        self._names = {id_: name for id_, name in self._names.items() if id_ in container_ids}

    def _find(self, container_id: str) -> Iterator[BundleName]:
        for folder in self._folders:
            keys = _KEYS[folder.runtime]
            told = _told(folder, container_id)
            kind, pod_uid = told.get(keys.kind), told.get(keys.pod_uid)
            container = told.get(keys.name)
            if not pod_uid or not (kind in _SANDBOXES or (kind in _CONTAINERS and container)):
                continue
            yield BundleName(
                container=None if kind in _SANDBOXES else container,
                pod_uid=PodUID(pod_uid),
                runtime=_runtime(folder, container_id, told),
            )


def _runtime(folder: BundleFolder, container_id: str, told: Mapping[str, str]) -> str:
    """Return the runtime of a container: of its own shim, or else of its sandbox."""
    keys = _KEYS[folder.runtime]
    sandbox_id = told.get(keys.sandbox_id, container_id)
    shim = _shim(folder.path, container_id) or _shim(folder.path, sandbox_id)
    shim = shim or _shim(folder.path.parents[1] / _SHIM_SANDBOXES / folder.path.name, sandbox_id)
    return shim or _told(folder, sandbox_id).get(keys.handler, "")


def _told(folder: BundleFolder, container_id: str) -> Mapping[str, str]:
    content = _read(folder.path, container_id, *_KEYS[folder.runtime].file)
    try:
        file = _File.model_validate_json(content or b"")
    except ValidationError:
        return {}
    return file.annotations or file.docker.labels or {}


def _shim(folder: Path, container_id: str) -> str:
    """Return the name in ``shim-binary-path``, which containerd writes before the cgroup is made.

    ``/usr/bin/containerd-shim-runc-v2`` is ``runc``.  A container that joins its sandbox's shim may
    have no such file.
    """
    path = _read(folder, container_id, "shim-binary-path") or b""
    name = path.decode(errors="replace").strip().rpartition("/")[2]
    return re.sub(r"-v\d+$", "", name.removeprefix("containerd-shim-"))


def _read(folder: Path, container_id: str, *names: str) -> bytes | None:
    """Return the content of a file in a container's folder, None where that cannot be had.

    Each name is opened in the directory before it, never through a symbolic link, and never waits.
    """
    if not _ID.fullmatch(container_id):
        return None
    try:
        with ExitStack() as stack:
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, place)
            for name in (container_id, *names):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                place = os.open(name, flags, dir_fd=place)
                stack.callback(os.close, place)
            is_file = stat.S_ISREG(os.fstat(place).st_mode)
            return os.read(place, _LARGEST_FILE) if is_file else None
    except OSError:
        return None
