"""One life of a single host between two boots: `python -m tests.vm.reboot RESULTS`.

The state folder and the manifests are in RESULTS, and so outlive the guest.  In the first life a pod
comes after another one that then goes, so that it has other CPUs than a fresh start would give it.
What the agent and the kernel say in the end of each life is appended to RESULTS/lives.json.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.errors import EnvironmentProblem
from agent.report.status_client import ask

from .single_host import CGROUPS, SOCKET

PATIENCE_S = 60.0
CONFIG = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: "0"
---
apiVersion: numalet.io/v1alpha1
kind: AgentConfiguration
stateDir: {folder}/state
driftInterval: 1s
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - name: app
    resources: {{limits: {{cpu: "2", memory: 64Mi}}}}
"""

Status = dict[str, Any]


def wait(what: str, until: Callable[[Status], bool]) -> Status:
    deadline = time.monotonic() + PATIENCE_S
    status: Status = {}
    while time.monotonic() < deadline:
        with suppress(EnvironmentProblem):
            status = ask(SOCKET)
            if until(status):
                return status
        time.sleep(0.1)
    raise TimeoutError(f"{what} did not come about; the last status: {json.dumps(status)}")


def has(*names: str) -> Callable[[Status], bool]:
    """Tell whether a status has these pods, and nothing is left to do."""

    def holds(status: Status) -> bool:
        known = {pod["name"] for pod in status["pods"] if pod["admitted"]}
        return bool(status["ready"]) and known == set(names) and not status["problems"]

    return holds


def live(folder: Path) -> Status:
    pods, lives = folder / "pods", folder / "lives.json"
    told = json.loads(lives.read_text()) if lives.exists() else []
    if not told:
        for name in ("first", "second"):
            (pods / f"{name}.yaml").write_text(POD.format(name=name))
            wait(name, lambda status, name=name: name in {p["name"] for p in status["pods"]})  # type: ignore[misc] # mypy knows no default of a lambda
        (pods / "first.yaml").unlink()
    status = wait("the pod that stays", has("second"))
    ((container,),) = (pod["containers"] for pod in status["pods"])
    cgroup = CGROUPS / container["cgroup"].lstrip("/")
    life = {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(),
        "decided": container["cpus"],
        "effective": (cgroup / "cpuset.cpus.effective").read_text().strip(),
    }
    lives.write_text(json.dumps([*told, life]))
    return status


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pods").mkdir(exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder=folder))
    command: list[str | Path] = ["numalet", "run", "--config", config, "--pods", folder / "pods"]
    with (folder / "agent.log").open("ab") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    live(folder)
    agent.kill()  # a machine that loses its power says nothing to anybody
    agent.wait()


if __name__ == "__main__":
    main()
