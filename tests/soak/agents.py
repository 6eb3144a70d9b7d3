"""The agent as a DaemonSet's pod has it, and as the service of a single host."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.vm.agent_process import NODE, AgentProcess

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""As in the image and in the unit."""


@dataclass(kw_only=True)
class InCluster(AgentProcess):
    """Finds the API server by its environment, with a token and a certificate in a folder."""

    authority: Path

    def start(self) -> None:
        SERVICE_ACCOUNT.mkdir(parents=True, exist_ok=True)
        (SERVICE_ACCOUNT / "token").write_text("secret")
        (SERVICE_ACCOUNT / "ca.crt").write_text(self.authority.read_text())
        server = urlsplit(self.url)
        environment = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        _run(self, ["--pods", "kubernetes", "--node-name", NODE], environment)


@dataclass(kw_only=True)
class OnFolder(AgentProcess):
    """Has its pods from a folder of manifests."""

    pods: Path
    url: str = ""

    def start(self) -> None:
        _run(self, ["--pods", str(self.pods)], {})


def _run(agent: AgentProcess, options: list[str], environment: Mapping[str, str]) -> None:
    agent.folder.mkdir(exist_ok=True)
    config = agent.folder / "config.yaml"
    config.write_text(agent.config)
    with agent.log.open("ab") as log:
        agent.process = subprocess.Popen(
            ["numalet", "run", "--config", str(config), *options],
            env={**os.environ, **MALLOC, **environment},
            stdout=log,
            stderr=log,
        )
