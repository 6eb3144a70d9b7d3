"""What the daemon says while a great deal of memory moves: `python -m tests.vm.memory_daemon RESULTS`.

A pod runs before the agent does, with its memory on node 0, where fewer CPUs are left than it asks for.
While its pages are on their way the agent is looked at, and told to end.  Another one that may let pods
out of their nodes follows, and the pod's limit is raised beyond what its node has.  What they and the
kernel say is written to RESULTS/observed.json, for `test_memory_moves` to judge on the host.
"""

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .agent_process import CONFIG, PATIENCE_S, AgentProcess
from .kubelet_host import BUNDLES, CgroupfsDriver, HostedPod, Raw, enable, oci_config
from .pod_api import PodApi

MIB = 1 << 20
USED_MIB = 2000
OUTGROWN_MIB = 20_000
"""More than the 10 GiB that a node has."""
RESERVED = "0-3,8-10"
"""All but one of the CPUs of node 0."""
LIMITS = {"cpu": "2", "memory": "4Gi"}
POD: Raw = {
    "metadata": {"name": "cache", "namespace": "default", "uid": "0b3f8e54-6f0c-4c3e-9b39-1a8f3f1d0077"},
    "spec": {"containers": [{"name": "own", "resources": {"requests": LIMITS, "limits": LIMITS}}]},
    "status": {"phase": "Running", "qosClass": "Guaranteed"},
}  # fmt: skip
PASSES = 3
MEMORY_USER = Path("tests/cgroups/memory_user.py")
SERVER = "http://127.0.0.1:9402"


def begin(driver: CgroupfsDriver) -> Path:
    """Do what a kubelet and a runtime do for the pod, and return the cgroup of its container."""
    path = driver.pod_path("Guaranteed", POD["metadata"]["uid"])
    pod, container_id = HostedPod(raw=POD, path=path), secrets.token_hex(32)
    driver.make_pod(pod.path, None)
    enable(pod.path)
    (container,) = pod.all_containers()
    (BUNDLES / container_id).mkdir(parents=True)
    config = oci_config(pod, container_id, container, [], "")
    (BUNDLES / container_id / "config.json").write_text(json.dumps(config))
    leaf = pod.path / container_id
    leaf.mkdir()
    return leaf


def use_memory(leaf: Path) -> None:
    """Start the container's program, and wait until it has all of its memory."""
    command = [sys.executable, str(MEMORY_USER), str(USED_MIB * MIB)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    (leaf / "cgroup.procs").write_text(f"{program.pid}")
    assert program.stdin is not None
    assert program.stdout is not None
    with program.stdin as go:
        go.write(b"go\n")
    assert program.stdout.readline() == b"used\n"


def look() -> dict[str, Any]:
    """Return what probes and Prometheus are told."""
    said = {name: get(f"/{name}") for name in ("healthz", "metrics")}
    (count,) = re.findall(r"^numalet_memory_moves_in_flight (\S+)$", said["metrics"], re.MULTILINE)
    return {"healthz": said["healthz"], "in flight": float(count)}


def get(path: str) -> str:
    with urllib.request.urlopen(f"{SERVER}{path}") as answer:
        return str(answer.read().decode())


def outgrow(agent: AgentProcess, leaf: Path, api: PodApi) -> dict[str, Any]:
    """Let the pod ask for more than its node has, with an agent that may let it out."""
    agent.config += "mems: soft\n"
    agent.start()
    agent.wait("a first pass", lambda status: status["pods"])
    bound = memory(leaf)["mems"]
    (leaf / "memory.max").write_text(str(OUTGROWN_MIB * MIB))
    status = agent.wait("the way out", lambda status: status["memory"]["widened"])
    wait_until(lambda: said_short(api))
    gauge = re.findall(r"^numalet_memory_shortages (\S+)$", get("/metrics"), re.MULTILINE)
    found = {"status": status["memory"], "gauge": gauge, "events": said_short(api)}
    return {**found, "bound": bound, "mems": memory(leaf)["mems"], "exit": agent.stop()}


def said_short(api: PodApi) -> list[Any]:
    return [event for event in api.events if event["reason"] == "MemoryShort"]


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)


def memory(leaf: Path) -> dict[str, Any]:
    """Return the nodes that a cgroup is bound to, and the anonymous MiB that it has on each."""
    row = (leaf / "memory.numa_stat").read_text().splitlines()[0]
    charged = [int(size) // MIB for size in re.findall(r"N\d=(\d+)", row)]
    return {"mems": (leaf / "cpuset.mems.effective").read_text().strip(), "charged": charged}


def tell(agent: AgentProcess, leaf: Path, api: PodApi) -> dict[str, Any]:
    (leaf / "cpuset.mems").write_text("0")
    use_memory(leaf)
    told: dict[str, Any] = {"before": memory(leaf)}
    agent.start()
    agent.wait("the first list", lambda status: status["pods"])
    agent.wait("pages on their way", lambda _: look()["in flight"])
    passes = [agent.wait("a pass", lambda _: True)["takenAt"]]
    while len(passes) < PASSES:
        passes.append(agent.wait("a pass", lambda now: now["takenAt"] > passes[-1])["takenAt"])
    told["on their way"] = {**look(), **memory(leaf)}
    told["exit"] = agent.stop()
    told["after"] = memory(leaf)
    told["outgrown"] = outgrow(agent, leaf, api)
    return told


def main() -> None:
    folder = Path(sys.argv[1])
    api, driver = PodApi(), CgroupfsDriver()
    driver.begin()
    leaf = begin(driver)
    api.put(POD)
    api.start()
    config = CONFIG.replace('reservedSystemCPUs: "0"', f'reservedSystemCPUs: "{RESERVED}"')
    agent = AgentProcess(url=api.url, config=config)
    try:
        (folder / "observed.json").write_text(json.dumps(tell(agent, leaf, api)))
    finally:
        shutil.copyfile(agent.log, folder / "agent.log")
        agent.end()
        api.close()


if __name__ == "__main__":
    main()
