"""The agent under test, as a process of its own beside the player of its kubelet."""

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import EnvironmentProblem
from agent.report.status_client import ask

SOCKET = Path("/run/numalet/status.sock")
FOLDER = Path("/run/agent")
NODE = "node-a"
PATIENCE_S = 120.0
CALM_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
reservedSystemCPUs: "0"
---
apiVersion: numalet.io/v1alpha1
kind: AgentConfiguration
logFormat: json
"""
CONFIG = f"{CALM_CONFIG}driftInterval: 1s\n"

Status = dict[str, Any]


@dataclass(kw_only=True)
class AgentProcess:
    """`numalet run --pods kubernetes` against an API server on loopback; files go to ``folder``.

    That should be the guest's own: a line of the log takes 20 ms where it goes to a shared folder.
    """

    url: str
    folder: Path = FOLDER
    config: str = CONFIG
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        config, kubeconfig = self.folder / "config.yaml", self.folder / "kubeconfig"
        config.write_text(self.config)
        kubeconfig.write_text(_kubeconfig(self.url))
        command: list[str | Path] = ["numalet", "run", "--pods", "kubernetes"]
        command += ["--config", config, "--kubeconfig", kubeconfig, "--node-name", NODE]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill it if it lives."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def wait(self, what: str, until: Callable[[Status], object]) -> Status:
        """Ask the agent again and again until it says what is waited for."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_S
        status: Status = {}
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(EnvironmentProblem):
                status = ask(SOCKET)
                if until(status):
                    return status
            time.sleep(0.1)
        raise TimeoutError(f"{what} did not come about; the last status: {json.dumps(status)}")

    def wait_for_rest(self) -> Status:
        """Wait until two looks at the cgroups have led to no write; the first may have begun before."""

        def later(before: Status) -> Callable[[Status], bool]:
            return lambda now: now["takenAt"] > before["takenAt"]

        status, quiet = ask(SOCKET), 0
        while quiet < len(["perhaps begun before", "begun since"]):
            following = self.wait("another look", later(status))
            quiet = quiet + 1 if following["writes"] == status["writes"] else 0
            status = following
        return status


def _kubeconfig(url: str) -> str:
    """JSON is YAML."""
    return json.dumps(
        {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "users": [{"name": "it", "user": {"token": "secret"}}],
        }
    )
