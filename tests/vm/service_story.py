"""The story of a single host's service, told in a guest: `python -m tests.vm.service_story RESULTS TREE`.

TREE is what `make install DESTDIR=TREE` made on the host.  It is put in its place, started as at
boot, given a pod and two programs, and then disturbed.  What systemd, the kernel and the agent say
at each stage is written to RESULTS/observed.json, for `test_service` to judge on the host.
"""

import json
import os
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
from tests.vm.single_host import CGROUPS, SLICE, SOCKET, look_at

FILES = (
    "cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpu.max", "cpu.weight", "memory.max",
)  # fmt: skip
UNIT = "numalet.service"
UNIT_FOLDER = "usr/local/lib/systemd/system"
NUMALET = "/usr/local/bin/numalet"
LIBRARY, LIBRARY_ITSELF = Path("/usr/local/lib/numalet"), Path("/srv/numalet")
INSTALLED = (
    NUMALET,
    f"{LIBRARY}",
    *(f"/{UNIT_FOLDER}/{name}" for name in (UNIT, "numalet-kubepods-.slice.d")),
    f"/etc/systemd/system/multi-user.target.wants/{UNIT}",
)
KEPT = ("/etc/numalet/config.yaml", "/etc/numalet/pods/db.yaml", "/var/lib/numalet")
PATIENCE_S = 180.0
WATCHDOG_S = 10
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  resources:
    requests: {cpu: "3", memory: 300Mi}
    limits: {cpu: "3", memory: 300Mi}
  containers:
  - name: database
    resources:
      requests: {cpu: "2", memory: 200Mi}
      limits: {cpu: "2", memory: 200Mi}
  - name: side
    resources:
      requests: {cpu: 100m, memory: 64Mi}
      limits: {cpu: 1500m, memory: 64Mi}
"""

Status = dict[str, Any]


def run(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"status": done.returncode, "out": done.stdout, "err": done.stderr}


def wait(what: str, until: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        if time.monotonic() > deadline:
            journal = run("journalctl", "--no-pager", "-u", UNIT)["out"]
            raise TimeoutError(f"{what} did not come about\n{journal}")
        time.sleep(0.1)


def status() -> Status | None:
    with suppress(EnvironmentProblem):
        return ask(SOCKET)
    return None


def is_settled() -> bool:
    said = status()
    return said is not None and bool(said["ready"]) and not said["problems"]


def wait_for_passes(count: int) -> None:
    """Let the agent look at the cgroups so many times."""
    for _ in range(count):
        before = (status() or {})["takenAt"]
        wait("another pass", lambda: (status() or {})["takenAt"] > before)  # noqa: B023 - used at once


@dataclass(slots=True)
class Story:
    folder: Path
    programs: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)

    def install(self, tree: Path) -> None:
        shutil.copytree(tree / "etc/numalet", "/etc/numalet")
        shutil.copytree(tree / UNIT_FOLDER, f"/{UNIT_FOLDER}")
        shutil.copy(tree / NUMALET[1:], NUMALET, follow_symlinks=False)
        # Too large to copy where the CPU is emulated; the link can be taken away.
        LIBRARY_ITSELF.mkdir()
        run("mount", "--bind", f"{tree}{LIBRARY}", f"{LIBRARY_ITSELF}")
        LIBRARY.symlink_to(LIBRARY_ITSELF)
        Path("/etc/numalet/pods/db.yaml").write_text(MANIFEST)
        config = Path("/etc/numalet/config.yaml")
        config.write_text(config.read_text().replace("logLevel", "driftInterval: 1s\nlogLevel"))
        run("systemctl", "daemon-reload")

    def execute(self, name: str) -> None:
        """Start a program that first notes where it may run; wait until it has.

        An agent that is emulated may answer too late once: then it is asked again.
        """
        born = self.folder / f"born-{name}"
        line = f"cat /proc/self/status >{born}; exec sleep 10000"
        command = [NUMALET, "exec", f"db/{name}", "--", "sh", "-c", line]

        def runs() -> bool:
            program = self.programs.get(name)
            if program is None or program.poll() is not None:
                program = self.programs[name] = subprocess.Popen(command)
            return Path(f"/proc/{program.pid}/comm").read_text() == "sleep\n"

        wait(f"the program in {name}", runs)
        lines = born.read_text().splitlines()
        said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        self.stages[f"born {name}"] = said["Cpus_allowed_list"], said["Mems_allowed_list"]

    def observe(self, stage: str) -> None:
        self.stages[stage] = {
            "status": status(),
            "programs": {name: look_at(program.pid) for name, program in self.programs.items()},
            "cgroups": {
                str(path.parent.relative_to(CGROUPS)): {
                    name: (path.parent / name).read_text().strip() for name in FILES
                }
                for path in sorted(SLICE.glob("**/cpuset.cpus"))
            },
        }

    def end_programs(self) -> None:
        for program in self.programs.values():
            program.kill()
            program.wait()
        self.programs.clear()


def main_pid() -> str:
    return str(run("systemctl", "show", "--property=MainPID", "--value", UNIT)["out"])


def units() -> list[str]:
    listed = run("systemctl", "list-units", "--no-legend", "--plain", "numalet*")["out"]
    return [line.split()[0] for line in listed.splitlines()]


def tell(story: Story) -> None:
    """Tell all of it, one part after the other."""
    start(story)
    reload(story)
    die(story)
    take_away(story)
    uninstall(story)


def start(story: Story) -> None:
    told = story.stages
    told["verify"] = run("systemd-analyze", "verify", UNIT)
    told["security"] = run("systemd-analyze", "security", "--no-pager", UNIT)["out"]
    told["enabled before"] = (CGROUPS / "cgroup.subtree_control").read_text().split()
    run("systemctl", "enable", UNIT)
    told["boot"] = run("systemctl", "start", "multi-user.target")
    wait("the start", is_settled)
    wait("READY=1", lambda: run("systemctl", "is-active", UNIT)["status"] == 0)
    told["unit"] = run("systemctl", "show", "--property=StatusText,ActiveState,Result", UNIT)["out"]
    story.observe("placed")

    for name in ("database", "side"):
        story.execute(name)
    told["membership"] = {
        name: Path(f"/proc/{program.pid}/cgroup").read_text().strip()
        for name, program in story.programs.items()
    }
    told["scopes"] = {
        name: run("systemctl", "show", "--property=Delegate", Path(path).name)["out"].strip()
        for name, path in told["membership"].items()
    }
    wait_for_passes(2)
    wait("the repair", is_settled)
    story.observe("running")
    told["again"] = run(NUMALET, "exec", "db/database", "--", "true")


def reload(story: Story) -> None:
    """Let systemd reset what it thinks is its own; from the next start on its patience is short."""
    folder = Path(f"/run/systemd/system/{UNIT}.d")
    folder.mkdir()
    (folder / "watchdog.conf").write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}s\n")
    before = foreign_writes()
    run("systemctl", "daemon-reload")
    run("systemctl", "show", "--property=Version")  # it answers once all is done
    wait("the drift", lambda: foreign_writes() > before)
    wait_for_passes(2)
    wait("the repair", is_settled)
    story.observe("reloaded")


def foreign_writes() -> int:
    return int((status() or {"drift": {}})["drift"].get("foreign_write", 0))


def die(story: Story) -> None:
    """End the service in all ways, the last of which is for good; each time another one takes over."""
    run("systemctl", "restart", UNIT)
    wait("the restart", is_settled)
    story.observe("restarted")
    hang(story)
    story.observe("hung")
    before = main_pid()
    run("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
    wait_for_another(before)
    story.observe("killed")
    story.stages["doctor"] = run(NUMALET, "doctor", "-o", "json")
    run("systemctl", "stop", UNIT)
    story.observe("stopped")


def hang(story: Story) -> None:
    """Let a read of the service never end until the watchdog notices."""
    before = main_pid()
    (file,) = SLICE.glob("**/*-database.scope/cpuset.cpus")
    pipe = "/run/nobody-writes"
    os.mkfifo(pipe)
    story.stages["covered"] = run("mount", "--bind", pipe, f"{file}")["status"]
    wait("the end of the process", lambda: main_pid() != before)
    story.stages["uncovered"] = run("umount", "--lazy", f"{file}")["status"]
    wait_for_another(before)


def wait_for_another(former: str) -> None:
    """Wait until another process than the former has looked at the cgroups twice."""
    wait("another process", lambda: main_pid() not in (former, "0\n") and is_settled())
    wait_for_passes(2)


def take_away(story: Story) -> None:
    """Release beside running programs, begin again, and end the programs."""
    told = story.stages
    told["release beside programs"] = run(NUMALET, "release")
    story.observe("given back")
    run("systemctl", "start", UNIT)
    wait("the start", is_settled)
    story.observe("taken again")

    story.end_programs()
    wait("the end of the scopes", lambda: not any("-pod" in unit for unit in units()))
    wait("new cgroups", lambda: len(list(SLICE.glob("*/*/*.scope"))) == 2)
    wait_for_passes(2)
    wait("the repair", is_settled)
    story.observe("ended")
    told["exit"] = run(NUMALET, "exec", "default/db/side", "--", "sh", "-c", "exit 7")
    wait("the end of the last scope", lambda: not any("-pod" in unit for unit in units()))


def uninstall(story: Story) -> None:
    """Take it off the machine while it runs, and with it all that it made."""
    told = story.stages
    told["installed"] = [name for name in INSTALLED if os.path.lexists(name)]
    told["uninstall"] = run("make", "uninstall")
    told["after that"] = {
        "files": [name for name in (*INSTALLED, *KEPT) if os.path.lexists(name)],
        "folders": [path.name for path in SLICE.glob("**/*") if path.is_dir()],
        "values": [path.read_text().strip() for path in SLICE.glob("**/cpuset.cpus")],
        "units": units(),
    }


def main() -> None:
    story = Story(Path(sys.argv[1]))
    try:
        story.install(Path(sys.argv[2]))
        tell(story)
    finally:
        (story.folder / "journal").write_text(run("journalctl", "--no-pager")["out"])
        (story.folder / "observed.json").write_text(json.dumps(story.stages))


if __name__ == "__main__":
    main()
