"""The DaemonSet on a node, told in a guest: `python -m tests.vm.daemon_set RESULTS`.

RESULTS has the image's file system (rootfs.tar) and what the host wrote: the DaemonSet's pod, its
configuration, and the image's.  The guest gets a node's cgroups, state files and bundles, and a pod
with processes; runc starts the agent as containerd would.  What the kernel and the agents say goes to
RESULTS/observed.json.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inotify_simple import INotify, flags  # type: ignore[import-untyped] # publishes no types

from agent.report.status_client import ask

from .node_api import PORT
from .oci import Cri

CGROUPS = Path("/sys/fs/cgroup")
KUBEPODS = CGROUPS / "kubepods.slice"
BURSTABLE = KUBEPODS / "kubepods-burstable.slice"
BUNDLES = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
KUBELET = Path("/var/lib/kubelet")
UID = "11111111-2222-3333-4444-555555555555"
POD = KUBEPODS / f"kubepods-pod{UID.replace('-', '_')}.slice"
IDS = {name: digit * 64 for name, digit in (("main", "a"), ("sidecar", "b"), ("late", "c"))}
QUOTAS = {"main": "200000 100000", "sidecar": "50000 100000"}
POD_QUOTA = "300000 100000"
"""What the kubelet and the runtime wrote: their limits."""
FILES = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpu.max")
STATES = {
    "cpu_manager_state": '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
    "memory_manager_state": '{"policyName":"None","machineState":{},"checksum":4236770233}',
}
ROOTFS = Path("/image")
PATIENCE_S = 120.0

Json = dict[str, Any]


def sh(*words: str | Path, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.2)


def database_pod() -> Json:
    """A pod as the API server shows it; no status tells the containers' ids."""
    amounts = [{"cpu": "3", "memory": "128Mi"}, {"cpu": "2", "memory": "64Mi"}]
    pod, main = ({"requests": amount, "limits": amount} for amount in amounts)
    sidecar = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "500m"}}
    return {
        "metadata": {
            "name": "db", "namespace": "default", "uid": UID, "resourceVersion": "99",
        },
        "spec": {
            "resources": pod,
            "containers": [
                {"name": "main", "resources": main},
                {"name": "sidecar", "resources": sidecar},
                {"name": "late"},
            ],
        },
        "status": {"phase": "Running", "qosClass": "Guaranteed"},
    }  # fmt: skip


def make_node() -> None:
    for folder in (CGROUPS, KUBEPODS, BURSTABLE, KUBEPODS / "kubepods-besteffort.slice", POD):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("+cpuset +cpu +memory")
    (POD / "cpu.max").write_text(POD_QUOTA)
    KUBELET.mkdir(parents=True)
    for name, text in STATES.items():
        (KUBELET / name).write_text(text)
    BUNDLES.mkdir(parents=True)


def start_container(name: str) -> None:
    """Do what a runtime does: the bundle, the scope, a process in it."""
    bundle, scope = BUNDLES / IDS[name], POD / f"cri-containerd-{IDS[name]}.scope"
    bundle.mkdir(mode=0o700)
    annotations = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": name,
        "io.kubernetes.cri.sandbox-uid": UID,
        "io.kubernetes.cri.sandbox-id": "d" * 64,
    }
    (bundle / "config.json").write_text(json.dumps({"annotations": annotations}))
    scope.mkdir()
    if name in QUOTAS:
        (scope / "cpu.max").write_text(QUOTAS[name])
    subprocess.Popen(["sh", "-c", f"echo $$ >{scope}/cgroup.procs && exec sleep 10000"])


def values() -> dict[str, dict[str, str]]:
    return {
        str(path.parent.relative_to(CGROUPS)): {
            file: (path.parent / file).read_text().strip() for file in FILES
        }
        for path in sorted((*POD.glob("**/cpuset.cpus"), *KUBEPODS.glob("*t.slice/cpuset.cpus")))
    }


@dataclass(kw_only=True)
class Agent:
    """One container of a pod, in a network namespace of its own; an API server can be in there."""

    name: str
    results: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        return self.results / f"{self.name}.log"

    @property
    def run(self) -> Path:
        """The emptyDir of the socket."""
        return Path("/tmp/volumes", self.name)

    def inside(self, *words: str | Path) -> list[str | Path]:
        return ["ip", "netns", "exec", self.name, *words]

    def serve_api(self) -> None:
        sh(*self.inside("ip", "link", "set", "lo", "up"))
        server = self.inside(sys.executable, "-m", "tests.vm.node_api", self.results)
        api = subprocess.Popen(server, stdout=subprocess.PIPE)
        assert api.stdout is not None
        assert api.stdout.readline(), "no API server"

    def create(self, default: Json, container: Json, pod: Json) -> None:
        sh("ip", "netns", "add", self.name)
        self.run.mkdir(parents=True)
        cri = Cri(
            default=default,
            rootfs=ROOTFS,
            image=json.loads((self.results / "image.json").read_text()),
            folders={"config": self.results / "config", "run": self.run},
            service_account=self.results,
            network=Path("/run/netns", self.name),
            environment={
                "NODE_NAME": "node-a",
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(PORT),
            },
        )
        scope = f"kubepods-burstable-pod{self.name.replace('-', '_')}.slice"
        cgroup = f"/{BURSTABLE.relative_to(CGROUPS)}/{scope}/cri-containerd-{self.name}.scope"
        cri.bundle(Path("/tmp/bundles", self.name), pod, container, cgroup=cgroup)

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = ["runc", "run", "--bundle", f"/tmp/bundles/{self.name}", self.name]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str) -> str:
        """Return the answer of a probe, empty where there is none or it says no."""
        return sh(
            *self.inside("busybox", "wget", "-q", "-O", "-", f"http://127.0.0.1:9402{path}"),
            check=False,
        )

    def status(self) -> Json:
        """Return what `numalet status -o json` prints in the container."""
        return ask(self.run / "status.sock")

    def kernel_view(self) -> Json:
        """What the kernel lets the agent's process do, and what it sees."""
        (pid,) = json.loads(sh("runc", "ps", "--format", "json", self.name))
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return {
            **dict(line.split(":\t", 1) for line in lines if ":\t" in line),
            "mounts": Path(f"/proc/{pid}/mountinfo").read_text(),
        }

    def stop(self) -> int:
        sh("runc", "kill", self.name, "TERM")
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)


def containerd_default() -> Json:
    """Return the specification that containerd makes for a container without any capability."""
    for folder in ("/run/containerd", "/var/lib/containerd"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    daemon = subprocess.Popen(["containerd"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        answers = ["ctr", "version"]
        until(
            "containerd",
            lambda: subprocess.run(answers, capture_output=True, check=False).returncode == 0,
        )
        kept = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP"
        kept += " NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
        drops = [word for name in kept.split() for word in ("--cap-drop", f"CAP_{name}")]
        made = ("ctr", "containers", "create", "--seccomp", *drops, "--rootfs", "/", "it", "true")
        sh(*made)
        spec: Json = json.loads(sh("ctr", "containers", "info", "it"))["Spec"]
        return spec
    finally:
        daemon.terminate()
        daemon.wait()


@dataclass(kw_only=True)
class Story:
    results: Path
    stages: Json = field(default_factory=dict)

    def tell(self) -> None:
        default = containerd_default()
        self.stages["seccomp"] = default["linux"]["seccomp"]["defaultAction"]
        make_node()
        ROOTFS.mkdir()
        sh("tar", "-C", ROOTFS, "-xf", self.results / "rootfs.tar")
        (self.results / "pods.json").write_text(json.dumps([database_pod()]))
        start_container("main")
        start_container("sidecar")
        self.stages["before"] = values()
        pod = json.loads((self.results / "daemon-set.json").read_text())
        release = json.loads((self.results / "release.json").read_text())
        first, second, last = (
            Agent(name=name, results=self.results) for name in ("agent-a", "agent-b", "agent-c")
        )
        last.create(default, release["initContainers"][0], release)
        for agent in (first, second):
            agent.create(default, pod["containers"][0], pod)
            agent.serve_api()

        first.start()
        until("the first agent", lambda: first.get("/readyz") == "ok\n")
        self.observe("placed", first)
        self.roll_out(first, second)
        start_container("late")
        late = POD / f"cri-containerd-{IDS['late']}.scope/cpuset.cpus"
        until("the late container's CPUs", lambda: late.read_text().strip() != "")
        self.observe("late", second)
        self.stages["command"] = sh("runc", "exec", second.name, "numalet", "status")
        self.stages["doctor"] = self.doctor(second)
        online = Path("/sys/devices/system/cpu/cpu7/online")
        online.write_text("0")
        until("the news of a CPU", lambda: "hardware_changed" in second.log.read_text())
        self.stages["news"] = [
            line for line in second.log.read_text().splitlines() if "hardware_changed" in line
        ]
        online.write_text("1")
        self.stages["stopped"] = second.stop()
        last.start()
        self.stages["release"] = last.wait()
        self.stages["after"] = values()

    def roll_out(self, first: Agent, second: Agent) -> None:
        """Let the second agent wait for the first one, and watch every file meanwhile."""
        with INotify() as watch:
            for path in values():
                for file in ("cpuset.cpus", "cpuset.mems", "cpu.max"):
                    watch.add_watch(CGROUPS / path / file, flags.MODIFY)
            second.start()
            until("that it waits", lambda: "waiting_for_lock" in second.log.read_text())
            until("that it answers", lambda: second.get("/healthz") != "")
            self.stages["waiting"] = {
                "healthz": second.get("/healthz"),
                "readyz": second.get("/readyz"),
                "first": first.get("/readyz"),
            }
            self.stages["first"] = first.stop()
            until("the second agent", lambda: second.get("/readyz") == "ok\n")
            self.stages["changes"] = len(watch.read(timeout=2000))
        self.observe("taken over", second)

    def doctor(self, agent: Agent) -> list[Json]:
        """Return the findings of a check-up from inside."""
        words = ("--root", "/host", "--config", "/etc/numalet/config.yaml", "-o", "json")
        said = sh("runc", "exec", agent.name, "numalet", "doctor", *words, check=False)
        findings: list[Json] = json.loads(said)["findings"]
        return findings

    def observe(self, stage: str, agent: Agent) -> None:
        self.stages[stage] = {
            "values": values(),
            "status": agent.status(),
            "kernel": agent.kernel_view(),
            "metrics": agent.get("/metrics"),
        }


def main() -> None:
    story = Story(results=Path(sys.argv[1]))
    try:
        story.tell()
    finally:
        (story.results / "observed.json").write_text(json.dumps(story.stages))


if __name__ == "__main__":
    main()
