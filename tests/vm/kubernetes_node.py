"""A node with a kubelet, runtimes and the agent, in a guest; and what the kernel says of its pods."""

import faulthandler
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .agent_process import AgentProcess, Status
from .kubelet_host import (
    CGROUPS,
    NOTES,
    CgroupfsDriver,
    Driver,
    HostedPod,
    KubeletHost,
    Raw,
    SystemdDriver,
    wait_until,
)
from .pod_api import PodApi
from .tracing import begin_journal, copy_journal

LONGEST_S = 400
"""A story that takes longer is stuck: then it is told where."""
PODS = Path(__file__).with_name("pods.yaml")
DRIVERS: dict[str, Callable[[], Driver]] = {"systemd": SystemdDriver, "cgroupfs": CgroupfsDriver}
BUSY = NOTES / "busy"
"""Containers that shall be busy wait until somebody opens it for writing."""
FILES = ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective", "cpu.max")


def raw_pods() -> dict[str, Raw]:
    """Return the pods of pods.yaml by name, anew each time."""
    return {raw["metadata"]["name"]: raw for raw in yaml.safe_load_all(PODS.read_text())}


@contextmanager
def node(driver: str, folder: Path) -> Iterator["Story"]:
    """Begin a node; in the end write what was told of it, and the kernel's journal, to ``folder``."""
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)
    begin_journal()
    api = PodApi()
    api.start()
    host = KubeletHost(api=api, driver=DRIVERS[driver]())
    story = Story(folder, host, AgentProcess(url=api.url))
    try:
        host.begin()
        os.mkfifo(BUSY)
        story.agent.start()
        story.agent.wait("the first list", lambda status: status["ready"])
        yield story
    finally:
        copy_journal(folder / "journal")
        shutil.copyfile(story.agent.log, folder / "agent.log")
        (folder / "observed.json").write_text(json.dumps(story.told))
        story.agent.end()
        api.close()


@dataclass(slots=True)
class Story:
    folder: Path
    host: KubeletHost
    agent: AgentProcess
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def pods(self) -> dict[str, HostedPod]:
        return self.host.pods

    def wait_until_placed(self) -> Status:
        """Wait until the agent knows all pods and has nothing left to write."""
        uids = {pod.uid for pod in self.pods.values()}

        def is_placed(status: Status) -> bool:
            known = {pod["uid"] for pod in status["pods"]}
            return bool(status["ready"]) and known == uids and not status["problems"]

        self.agent.wait("the placement of all pods", is_placed)
        return self.agent.wait_for_rest()

    def observe(self, stage: str) -> None:
        status = self.wait_until_placed()
        self.told[stage] = {
            "status": status,
            "at": time.monotonic(),
            "classes": self.classes(),
            "pods": {name: self.look_at(pod) for name, pod in self.pods.items()},
        }

    def classes(self) -> dict[str, str]:
        """Return the CPUs that the kernel lets each class of pods use; an empty one may have no file."""
        paths = {q: self.host.driver.pod_path(q, "any").parent for q in ("Burstable", "BestEffort")}
        files = {qos: path / "cpuset.cpus.effective" for qos, path in paths.items()}
        return {qos: file.read_text().strip() for qos, file in files.items() if file.exists()}

    def look_at(self, pod: HostedPod) -> dict[str, Any]:
        leaves = {name: container.leaf for name, container in pod.containers.items()}
        return {
            "path": str(pod.path.relative_to(CGROUPS)),
            "files": files_of(pod.path),
            "containers": {
                name: {
                    "leaf": str(leaf.relative_to(CGROUPS)),
                    "files": [files_of(cgroup) for cgroup in populated(leaf)],
                    "threads": [thread for cgroup in populated(leaf) for thread in threads(cgroup)],
                    "born": born(name),
                }
                for name, leaf in leaves.items()
            },
            "sandbox": threads_below(self.host.driver.leaf(pod.path, pod.sandbox)),
        }


def born(container: str) -> list[str]:
    """Return what a container's program saw when it began, once it has noted that."""
    note = NOTES / container
    wait_until(f"{note}", lambda: note.exists() and len(allowed(note.read_text())) > 1)
    return allowed(note.read_text())


def files_of(cgroup: Path) -> dict[str, str]:
    values = {name: (cgroup / name).read_text().strip() for name in FILES}
    return {"cgroup": cgroup.name, **values}


def populated(leaf: Path) -> list[Path]:
    """Return the cgroups of a container that hold processes: the leaf, or crun's inner one."""
    return [cgroup for cgroup in (leaf, leaf / "container") if has_processes(cgroup)]


def has_processes(cgroup: Path) -> bool:
    """Tell whether a cgroup has processes; one that is going has none."""
    try:
        return bool((cgroup / "cgroup.procs").read_text())
    except OSError:
        return False


def threads(cgroup: Path) -> list[list[str]]:
    """Return the CPUs and nodes that every thread of a cgroup may use; those that end are left out."""
    found = []
    for pid in (cgroup / "cgroup.threads").read_text().split():
        with suppress(OSError):
            found.append(allowed(Path(f"/proc/{pid}/status").read_text()))
    return found


def threads_below(leaf: Path) -> list[list[str]]:
    return [thread for cgroup in populated(leaf) for thread in threads(cgroup)]


def allowed(status: str) -> list[str]:
    return [line.split()[1] for line in status.splitlines() if "_allowed_list" in line]
