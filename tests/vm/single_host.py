"""A single host's whole story, told in a guest: `python -m tests.vm.single_host RESULTS`.

The daemon places the sample pod, somebody interferes, the daemon is killed and started again, the
pod goes.  What the kernel and the daemon say at each stage is written to RESULTS/observed.json, for
`test_single_host` to judge on the host.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import EnvironmentProblem
from agent.report.status_client import ask

CGROUPS = Path("/sys/fs/cgroup")
SLICE = CGROUPS / "numalet.slice"
SOCKET = Path("/run/numalet/status.sock")
EXAMPLES = Path("deploy/examples")
MANIFEST = "latency-critical-db.yaml"
FILES = (
    "cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective", "cpu.max",
)  # fmt: skip
BUSY, IDLE = "while :; do :; done", "exec sleep 1000"
COMMANDS = {"database": IDLE, "envoy-proxy": IDLE, "log-collector": BUSY}
PATIENCE_S = 60.0

Status = dict[str, Any]


@dataclass(slots=True)
class Story:
    folder: Path
    daemon: "subprocess.Popen[bytes] | None" = None
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    stages: dict[str, object] = field(default_factory=dict)

    @property
    def manifest(self) -> Path:
        return self.folder / "pods" / MANIFEST

    @property
    def pod(self) -> Path:
        return next(SLICE.glob("kubepods/pod*"))

    def prepare(self) -> None:
        self.manifest.parent.mkdir()
        shutil.copy(EXAMPLES / "pods" / MANIFEST, self.manifest)
        text = (EXAMPLES / "config.yaml").read_text()
        (self.folder / "config.yaml").write_text(text + "driftInterval: 1s\n")

    def start_daemon(self) -> None:
        config, pods = self.folder / "config.yaml", self.manifest.parent
        command: list[str | Path] = ["numalet", "run", "--config", config, "--pods", pods]
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(command, stdout=log, stderr=log)

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def stop_daemon(self) -> int:
        assert self.daemon is not None
        self.daemon.terminate()
        return self.daemon.wait(PATIENCE_S)

    def start_processes(self) -> None:
        for name, command in COMMANDS.items():
            join = f"echo $$ >{self.pod / name}/cgroup.procs"
            self.processes[name] = subprocess.Popen(["sh", "-c", f"{join} && {command}"])
        for name, process in self.processes.items():
            joined = self.pod / name / "cgroup.procs"
            self.wait("its place", lambda _: f"{process.pid}" in joined.read_text().split())  # noqa: B023 - used at once

    def end_processes(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def wait(self, what: str, until: Callable[[Status], bool]) -> None:
        """Ask the daemon again and again until it says what is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        status: Status = {}
        while time.monotonic() < deadline:
            with suppress(EnvironmentProblem):
                status = ask(SOCKET)
                if until(status):
                    return
            time.sleep(0.1)
        raise TimeoutError(f"{what} did not come about; the last status: {json.dumps(status)}")

    def wait_for_passes(self, count: int) -> None:
        """Let the daemon look at the cgroups so many times."""
        for _ in range(count):
            before = ask(SOCKET)["takenAt"]
            self.wait("another pass", lambda status: status["takenAt"] > before)  # noqa: B023 - used at once

    def observe(self, stage: str) -> None:
        answers = self.daemon is not None and self.daemon.poll() is None
        self.stages[stage] = {
            "status": ask(SOCKET) if answers else None,
            "processes": {name: look_at(p.pid) for name, p in self.processes.items()},
            "cgroups": {
                str(path.parent.relative_to(CGROUPS)): {
                    name: (path.parent / name).read_text().strip() for name in FILES
                }
                for path in sorted(SLICE.glob("**/cpuset.cpus"))
            },
        }


def look_at(pid: int) -> dict[str, str]:
    """What the kernel lets a process use; field 22 of stat is when it started."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {
        "cpus": said["Cpus_allowed_list"],
        "mems": said["Mems_allowed_list"],
        "identity": f"{pid} {stat[22 - 3]}",
    }


def is_placed(status: Status) -> bool:
    admitted = [pod["admitted"] for pod in status["pods"]]
    return bool(status["ready"]) and admitted == [True] and not status["problems"]


def tell(story: Story) -> None:
    story.prepare()
    story.start_daemon()
    story.wait("the pod's placement", is_placed)
    story.start_processes()
    story.wait_for_passes(2)
    story.observe("placed")

    target = story.pod / "database/cpuset.cpus"
    target.write_text("0-15")
    story.wait("the repair", lambda status: status["drift"].get("foreign_write", 0) > 0)
    said = subprocess.run(["numalet", "status", "-o", "json"], capture_output=True, check=True)
    story.stages["command"] = json.loads(said.stdout)
    story.observe("repaired")

    story.kill_daemon()
    story.observe("killed")
    story.start_daemon()
    story.wait("the second start", is_placed)
    story.wait_for_passes(2)
    story.observe("restarted")

    story.manifest.unlink()
    story.wait_for_passes(4)
    story.observe("held")
    story.end_processes()
    story.processes.clear()
    story.wait("the release", lambda status: not status["pods"])
    story.observe("released")
    story.stages["exit"] = story.stop_daemon()


def main() -> None:
    story = Story(Path(sys.argv[1]))
    try:
        tell(story)
    finally:
        (story.folder / "observed.json").write_text(json.dumps(story.stages))


if __name__ == "__main__":
    main()
