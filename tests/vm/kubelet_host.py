"""Plays a kubelet and its container runtime: everything of them that reaches cgroups, and nothing else.

Pods are objects of the API, with a ``command`` for each container.  Order and values are those that
were recorded of kubelet 1.36, containerd and runc: the pod is in the API, then its cgroup is made and
given its quota, then comes the sandbox, then one container after another, whose bundle is complete
before its cgroup is made; and only when all of them run does the pod's status name them.
"""

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.core.quantity import milli_cpu, whole_bytes

from .pod_api import PodApi

CGROUPS = Path("/sys/fs/cgroup")
BUNDLES = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
ROOT = Path("/run/rootfs")
"""The root of every container: that of the guest, read-only."""
NOTES = Path("/run/notes")
"""Where programs in containers may write."""
COMPLAINTS = Path("/run/complaints")
"""What all programs wrote to their standard error."""
TO_PROGRAM_S = 0.9
"""From a container's cgroup to its program: the median that was recorded in such a guest.  A runtime
alone is faster than with containerd and a kubelet before it."""
SUMS, SUMS_S = 200_000, 0.25
"""So many squares are added up in this time where the host of such a guest does nothing else."""
PATIENCE_S = 120.0
PERIOD_US = 100_000
ALL_CPUS_MASK = 0xFF
"""A kubelet gives all CPUs of the machine to kubepods.slice by name: here eight."""
SANDBOX = ["sleep", "1000000"]

Raw = dict[str, Any]


def run(*command: str | Path) -> None:
    """Run a program; what it leaves running holds no pipe of ours open."""
    with COMPLAINTS.open("a+") as complaints:
        nothing = subprocess.DEVNULL
        done = subprocess.run(
            command, stdin=nothing, stdout=nothing, stderr=complaints, check=False
        )
        if done.returncode:
            complaints.seek(0)
            raise RuntimeError(f"{command}: status {done.returncode}\n{complaints.read()[-2000:]}")


def slowness() -> float:
    """Return how many times slower this guest is now than it can be: a real kubelet would be so, too."""
    begun = time.monotonic()
    sum(number * number for number in range(SUMS))
    return max(1.0, (time.monotonic() - begun) / SUMS_S)


def wait_until(what: str, comes_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not comes_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about")
        time.sleep(0.02)


@dataclass(kw_only=True)
class HostedPod:
    """A pod of this node; ``containers`` are those that were started last, by name."""

    raw: Raw
    path: Path
    sandbox: str = ""
    containers: dict[str, "HostedContainer"] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def spec(self) -> Raw:
        spec = self.raw["spec"]
        assert isinstance(spec, dict)
        return spec

    def all_containers(self) -> list[Raw]:
        return [
            container
            for kind in ("containers", "ephemeralContainers")
            for container in self.spec.get(kind, [])
        ]


@dataclass(frozen=True, kw_only=True)
class HostedContainer:
    """A container that runs, or has run; ``pid`` is that of its first process."""

    id: str
    pid: int
    leaf: Path


class Driver(Protocol):
    """How a kubelet makes cgroups."""

    runtime_flags: Sequence[str]

    def begin(self) -> None:
        """Make kubepods and the cgroups of the classes."""
        ...

    def pod_path(self, qos: str, uid: str) -> Path: ...

    def make_pod(self, path: Path, milli: int | None) -> None:
        """Make a pod's cgroup, then limit it."""
        ...

    def remove_pod(self, path: Path) -> None: ...

    def oci_path(self, pod: Path, container_id: str) -> str:
        """Return linux.cgroupsPath of a bundle."""
        ...

    def leaf(self, pod: Path, container_id: str) -> Path: ...


class SystemdDriver:
    """Slices and scopes; the calls are those of opencontainers/runc, libcontainer/cgroups/systemd."""

    runtime_flags: Sequence[str] = ("--systemd-cgroup",)

    def begin(self) -> None:
        self._start("kubepods.slice", ("AllowedCPUs", "ay", "1", f"{ALL_CPUS_MASK}"))
        for qos in ("burstable", "besteffort"):
            self._start(f"kubepods-{qos}.slice")

    def pod_path(self, qos: str, uid: str) -> Path:
        parts, path = ["kubepods", *_qos_names(qos), f"pod{uid.replace('-', '_')}"], CGROUPS
        for depth in range(1, len(parts) + 1):
            path /= "-".join(parts[:depth]) + ".slice"
        return path

    def make_pod(self, path: Path, milli: int | None) -> None:
        self._start(path.name)
        wait_until(f"{path}", path.exists)
        for above in reversed(path.parents[: len(path.relative_to(CGROUPS).parts)]):
            enable(above)  # CreateCgroupPath; systemd takes back what it does not know of
        quota = "18446744073709551615" if milli is None else str(milli * 1000)
        manager = "SetUnitProperties", "sba(sv)", path.name, "true"
        self._call(*manager, "2", "CPUQuotaPerSecUSec", "t", quota, "CPUWeight", "t", "100")

    def remove_pod(self, path: Path) -> None:
        run("systemctl", "stop", path.name)

    def oci_path(self, pod: Path, container_id: str) -> str:
        return f"{pod.name}:cri-containerd:{container_id}"

    def leaf(self, pod: Path, container_id: str) -> Path:
        return pod / f"cri-containerd-{container_id}.scope"

    def _start(self, unit: str, *properties: tuple[str, ...]) -> None:
        words = [word for one in properties for word in one]
        head = "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "replace"
        self._call(*head, str(len(properties)), *words, "0")

    def _call(self, *words: str) -> None:
        name = "org.freedesktop.systemd1"
        run("busctl", "call", name, "/org/freedesktop/systemd1", f"{name}.Manager", *words)


class CgroupfsDriver:
    """Plain directories; every controller is enabled above them."""

    runtime_flags: Sequence[str] = ()

    def begin(self) -> None:
        for path in (CGROUPS, CGROUPS / "kubepods"):
            path.mkdir(exist_ok=True)
            enable(path)
        for qos in ("burstable", "besteffort"):
            (CGROUPS / "kubepods" / qos).mkdir(exist_ok=True)
            enable(CGROUPS / "kubepods" / qos)

    def pod_path(self, qos: str, uid: str) -> Path:
        return CGROUPS.joinpath("kubepods", *_qos_names(qos), f"pod{uid}")

    def make_pod(self, path: Path, milli: int | None) -> None:
        path.mkdir()
        if milli is not None:
            (path / "cpu.max").write_text(f"{milli * PERIOD_US // 1000} {PERIOD_US}")

    def remove_pod(self, path: Path) -> None:
        path.rmdir()

    def oci_path(self, pod: Path, container_id: str) -> str:
        return f"/{self.leaf(pod, container_id).relative_to(CGROUPS)}"

    def leaf(self, pod: Path, container_id: str) -> Path:
        return pod / container_id


def enable(path: Path) -> None:
    controllers = (path / "cgroup.controllers").read_text().split()
    (path / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _qos_names(qos: str) -> list[str]:
    return [] if qos == "Guaranteed" else [qos.lower()]


@dataclass(kw_only=True)
class KubeletHost:
    """The node; ``runtime`` is the program that new containers are made with."""

    api: PodApi
    driver: Driver
    runtime: str = "crun"
    pods: dict[str, HostedPod] = field(default_factory=dict)

    def begin(self) -> None:
        for folder in (BUNDLES, ROOT, NOTES):
            folder.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", "/", ROOT)
        self.driver.begin()

    def admit(self, raw: Raw) -> HostedPod:
        """Take a pod in, as far as its cgroup."""
        metadata = raw["metadata"]
        path = self.driver.pod_path(raw["status"]["qosClass"], metadata["uid"])
        pod = self.pods[metadata["name"]] = HostedPod(raw=raw, path=path)
        self.api.put(raw)
        self.driver.make_pod(path, _pod_limit(pod))
        return pod

    def start(self, raw: Raw) -> HostedPod:
        """Take a pod in and start all that belongs to it."""
        return self.populate(self.admit(raw))

    def populate(self, pod: HostedPod) -> HostedPod:
        """Start all that belongs to a pod that was taken in."""
        pod.sandbox = secrets.token_hex(32)
        self._start(pod, pod.sandbox, None, SANDBOX)
        for container in pod.all_containers():
            self.start_container(pod, container)
        self.report(pod)
        return pod

    def start_container(self, pod: HostedPod, container: Raw) -> HostedContainer:
        container_id = secrets.token_hex(32)
        (NOTES / container["name"]).unlink(missing_ok=True)  # of a former life
        started = self._start(pod, container_id, container, container["command"])
        pod.containers[container["name"]] = started
        return started

    def debug(self, pod: HostedPod, container: Raw) -> None:
        """Add an ephemeral container, as kubectl debug does."""
        pod.spec.setdefault("ephemeralContainers", []).append(container)
        self.api.put(pod.raw)
        self.start_container(pod, container)
        self.report(pod)

    def restart(self, pod: HostedPod, name: str) -> None:
        """Start a container again after its program has ended: under another id."""
        self.end_container(pod.containers[name])
        (container,) = (one for one in pod.all_containers() if one["name"] == name)
        self.start_container(pod, container)
        self.report(pod)

    def end_container(self, container: HostedContainer) -> None:
        """Kill what is left of a container and remove its cgroup and bundle."""
        self._runtime("delete", "--force", container.id)
        wait_until(f"the end of {container.leaf}", lambda: not container.leaf.exists())
        shutil.rmtree(BUNDLES / container.id)

    def delete(self, pod: HostedPod) -> None:
        """Do what follows from a pod's deletion."""
        pod.raw["metadata"]["deletionTimestamp"] = "2026-11-29T18:02:19Z"
        self.api.put(pod.raw)
        for container in pod.containers.values():
            self.end_container(container)
        pod.raw["status"]["phase"] = "Failed"
        self.api.put(pod.raw)
        self._runtime("delete", "--force", pod.sandbox)
        self.driver.remove_pod(pod.path)
        self.api.remove(pod.raw)
        del self.pods[pod.raw["metadata"]["name"]]

    def _start(
        self, pod: HostedPod, container_id: str, container: Raw | None, command: list[str]
    ) -> HostedContainer:
        bundle = BUNDLES / container_id
        bundle.mkdir()
        path = self.driver.oci_path(pod.path, container_id)
        config = oci_config(pod, container_id, container, command, path)
        (bundle / "config.json").write_text(json.dumps(config))
        begun = time.monotonic()
        self._runtime(
            "create", "--bundle", str(bundle), "--pid-file", f"{bundle}/pid", container_id
        )
        if container is not None:
            time.sleep(max(0.0, begun + TO_PROGRAM_S * slowness() - time.monotonic()))
        self._runtime("start", container_id)
        pid = int((bundle / "pid").read_text())
        return HostedContainer(
            id=container_id, pid=pid, leaf=self.driver.leaf(pod.path, container_id)
        )

    def _runtime(self, *words: str) -> None:
        run(self.runtime, *self.driver.runtime_flags, *words)

    def report(self, pod: HostedPod) -> None:
        """Say in the pod's status what runs; an id is there only now."""
        statuses = [
            {"name": name, "containerID": f"containerd://{one.id}", "state": {"running": {}}}
            for name, one in pod.containers.items()
        ]
        pod.raw["status"] |= {"phase": "Running", "containerStatuses": statuses}
        self.api.put(pod.raw)


def _limit(resources: Mapping[str, Mapping[str, str]], name: str) -> str | None:
    return resources.get("limits", {}).get(name)


def _pod_limit(pod: HostedPod) -> int | None:
    """Return the quota of the pod in milli-CPUs, as kubelets work it out."""
    budget = _limit(pod.spec.get("resources", {}), "cpu")
    if budget is not None:
        return milli_cpu(budget)
    limits = [_limit(c.get("resources", {}), "cpu") for c in pod.spec["containers"]]
    return None if None in limits else sum(milli_cpu(limit) for limit in limits if limit)


def oci_config(
    pod: HostedPod, container_id: str, container: Raw | None, command: list[str], path: str
) -> Raw:
    """Return the config.json of a bundle: what matters here of what containerd writes."""
    metadata, own = pod.raw["metadata"], (container or {}).get("resources", {})
    cpu = _limit(own, "cpu") or _limit(pod.spec.get("resources", {}), "cpu")
    memory = _limit(own, "memory")
    key = "io.kubernetes.cri"
    annotations = {
        f"{key}.container-type": "sandbox" if container is None else "container",
        f"{key}.sandbox-id": pod.sandbox or container_id,
        f"{key}.sandbox-name": metadata["name"],
        f"{key}.sandbox-namespace": metadata["namespace"],
        f"{key}.sandbox-uid": metadata["uid"],
    }
    limits: Raw = {"cpu": {"shares": 1024}}
    if container is not None:
        annotations[f"{key}.container-name"] = container["name"]
        if cpu:
            limits["cpu"] |= {"quota": milli_cpu(cpu) * PERIOD_US // 1000, "period": PERIOD_US}
        if memory:
            limits["memory"] = {"limit": whole_bytes(memory)}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": command,
            "env": ["PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"],
            "cwd": "/",
        },
        "root": {"path": str(ROOT), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]},
            {"destination": "/tmp", "type": "bind", "source": str(NOTES), "options": ["bind"]},
        ],
        "annotations": annotations,
        "linux": {
            "resources": limits,
            "cgroupsPath": path,
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
        },
    }
