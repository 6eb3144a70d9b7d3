"""The daemon in a process of its own, and a person who looks at its files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import EnvironmentProblem
from agent.report.status_client import ask
from tests.cli.rig import EXAMPLES, MACHINE, PROJECT
from tests.report.rig import free_port, until

COMMAND = (sys.executable, "-c", "from agent.cli import main; main()")
OURS = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n"


@dataclass
class Home:
    """What outlives a daemon: configuration, manifests and state."""

    folder: Path
    port: int = field(default_factory=free_port)
    machine: Path = MACHINE

    def __post_init__(self) -> None:
        self.pods, self.state = self.folder / "pods", self.folder / "state"
        self.pods.mkdir()
        # What a killed daemon leaves behind goes with the home.
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        kubelet = (EXAMPLES / "config.yaml").read_text().partition("---")[0]
        self.config = self.folder / "config.yaml"
        self.config.write_text(
            f"{kubelet}---\n{OURS}stateDir: {self.state}\nstatusSocket: {self.folder}/s\n"
            f"metricsAddress: 127.0.0.1:{self.port}\nlogFormat: json\ndriftInterval: 1m\n"
        )

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @contextmanager
    def daemon(self, *options: str) -> Iterator["Daemon"]:
        """Start a daemon, and kill it in the end if it still runs."""
        environment = os.environ | {"TMPDIR": str(self.temporary)}
        log = self.folder / f"log-{len(list(self.folder.iterdir()))}"
        out = log.with_suffix(".out")
        where = ("--simulate", self.machine, "--pods", self.pods, "--config", self.config)
        with log.open("wb") as stderr, out.open("wb") as stdout:
            process = subprocess.Popen(
                [*COMMAND, "run", *where, *options],
                cwd=PROJECT,
                env=environment,
                stdout=stdout,
                stderr=stderr,
            )
        try:
            yield Daemon(self, process, log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    home: Home
    process: "subprocess.Popen[bytes]"
    log: Path

    def status(self) -> dict[str, Any]:
        return ask(self.home.socket)

    def until_ready(self) -> dict[str, Any]:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return bool(self.status()["ready"])
            except EnvironmentProblem:
                return False

        until(is_ready, timeout_s=30)
        return self.status()

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["name"]: pod for pod in self.status()["pods"]}

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def printed(self) -> str:
        return self.log.with_suffix(".out").read_text()

    def cgroup(self, pod: dict[str, Any]) -> Path:
        """Return the folder of a pod's cgroup."""
        (folder,) = Path(self.status()["cgroupRoot"]).rglob(f"pod{pod['uid']}")
        return folder

    def files(self) -> dict[Path, str]:
        """Return what all files of all cgroups say."""
        root = Path(self.status()["cgroupRoot"])
        return {path: path.read_text() for path in root.rglob("*") if path.is_file()}

    def end(self, number: signal.Signals = signal.SIGTERM, *, within_s: float = 2.0) -> int:
        """Ask it to end, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=within_s)
