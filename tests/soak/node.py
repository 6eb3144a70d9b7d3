"""A node of a cluster, in a guest: `python -m tests.soak.node RESULTS SECONDS PODS_A_SECOND`.

Plays a kubelet with the cgroupfs driver and a runtime, as far as that reaches cgroups and bundles:
250 pods run when the agent starts, and then one after the other is replaced by a new one.  Every
container has a process, and so has every sandbox; they are moved from pods that end to those that
begin.  What there is to judge is written to RESULTS/kubernetes.json.
"""

import json
import secrets
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.sources.api_server import Certificate
from tests.vm import kubelet_host
from tests.vm.agent_process import CALM_CONFIG, AgentProcess
from tests.vm.kubelet_host import CgroupfsDriver, HostedPod, enable, oci_config

from .agents import InCluster
from .api import SoakApi
from .pods import CONTAINERS, Pods
from .samples import Sampler

PODS = 250
PROCESSES = PODS * (CONTAINERS + 1)
IDLE = kubelet_host.CGROUPS / "idle"
"""Where processes wait for the next pod."""
TELLING = "placementAnnotation: true\nnodeResourceTopology: true\n"
DELETED = "2026-11-29T18:02:19Z"


@dataclass(slots=True)
class Running:
    """A pod with its processes, by cgroup."""

    pod: HostedPod
    leaves: dict[Path, int]


@dataclass(slots=True)
class Node:
    """All pods of the node, the oldest first."""

    api: SoakApi
    driver: CgroupfsDriver = field(default_factory=CgroupfsDriver)
    pods: Pods = field(default_factory=Pods)
    running: deque[Running] = field(default_factory=deque)
    idle: list[int] = field(default_factory=list)
    came: int = 0

    def begin(self) -> None:
        """Make what is above all pods, and the processes."""
        kubelet_host.BUNDLES.mkdir(parents=True)
        self.driver.begin()
        IDLE.mkdir()
        for _ in range(PROCESSES):
            self.idle.append(subprocess.Popen(["sleep", "infinity"]).pid)
            _move(self.idle[-1], IDLE)

    def replace(self) -> None:
        """Let the oldest pod end, and a new one come."""
        self.end()
        self.start()

    def start(self) -> None:
        """Do what a kubelet and a runtime do for a pod, up to its status."""
        raw = self.pods.pod(self.came)
        self.came += 1
        path = self.driver.pod_path(raw["status"]["qosClass"], raw["metadata"]["uid"])
        running = Running(HostedPod(raw=raw, path=path), {})
        self.running.append(running)
        self.api.put(raw)
        self.driver.make_pod(path, None)
        enable(path)
        running.pod.sandbox = self._start_one(running, None)
        ids = {c["name"]: self._start_one(running, c) for c in running.pod.all_containers()}
        running.pod.raw = self.pods.started(raw, ids)
        self.api.put(running.pod.raw)

    def end(self) -> None:
        """Do what they do when the oldest pod is deleted."""
        running = self.running.popleft()
        pod = running.pod
        pod.raw["metadata"]["deletionTimestamp"] = DELETED
        self.api.put(pod.raw)
        for leaf, pid in running.leaves.items():
            _move(pid, IDLE)
            leaf.rmdir()
            shutil.rmtree(kubelet_host.BUNDLES / leaf.name)
            self.idle.append(pid)
        pod.raw["status"]["phase"] = "Failed"
        self.api.put(pod.raw)
        self.driver.remove_pod(pod.path)
        self.api.remove(pod.raw)

    def _start_one(self, running: Running, container: dict[str, object] | None) -> str:
        """Start a container, or the sandbox; returns its id."""
        container_id = secrets.token_hex(32)
        leaf = self.driver.leaf(running.pod.path, container_id)
        bundle = kubelet_host.BUNDLES / container_id
        bundle.mkdir()
        config = oci_config(running.pod, container_id, container, ["sleep"], str(leaf))
        (bundle / "config.json").write_text(json.dumps(config))
        leaf.mkdir()
        running.leaves[leaf] = self.idle.pop()
        _move(running.leaves[leaf], leaf)
        return container_id


def _move(pid: int, cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(pid))


def live(
    agent: AgentProcess,
    replace: Callable[[], None],
    *,
    seconds: float,
    per_s: float,
    results: Path,
) -> dict[str, Any]:
    """Start an agent beside pods that are there, replace them at a rate, and return what it cost.

    A rate that cannot be kept is as high as it can be.
    """
    began = time.monotonic()
    try:
        agent.start()
        agent.wait("the first list", lambda status: status["ready"])
        agent.wait_for_rest()
        assert agent.process is not None
        sampler, replaced = Sampler(agent.process), 0
        while sampler.now_s < seconds:
            sampler.look(replaced)
            replace()
            replaced += 1
            time.sleep(max(0.0, replaced / per_s - sampler.now_s))
        sampler.look(replaced)
        status = agent.wait_for_rest()
        return {
            "samples": sampler.told(),
            "replaced": replaced,
            "seconds": time.monotonic() - began,
            "problems": status["problems"],
            "log_lines": len(agent.log.read_bytes().splitlines()),
            "exit": agent.stop(),
        }
    finally:
        shutil.copyfile(agent.log, results / f"{type(agent).__name__}.log")
        agent.end()


def main() -> None:
    """Live through it."""
    results, seconds, per_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    certificate = Certificate(results / "ca.crt", results / "server.key")
    api = SoakApi(certificate)
    api.start()
    node = Node(api)
    agent = InCluster(url=api.url, authority=certificate.certificate, config=CALM_CONFIG + TELLING)
    try:
        node.begin()
        for _ in range(PODS):
            node.start()
        told = live(agent, node.replace, seconds=seconds, per_s=per_s, results=results)
        told["traffic"] = asdict(api.traffic())
        (results / "kubernetes.json").write_text(json.dumps(told))
    finally:
        api.close()


if __name__ == "__main__":
    main()
