"""Pods that come and go many times a second, all of them busy: `python -m tests.vm.churn RESULTS`.

Plays a kubelet with the cgroupfs driver and a runtime that does nothing but put a process into a
cgroup: what real ones need longer for is where the time would go.  The kernel's journal, which has
every switch to a task of these pods, is written to RESULTS/journal, and what there is to know of the
pods to RESULTS/observed.json, for `test_strangers` to judge on the host.
"""

import faulthandler
import heapq
import json
import secrets
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from .agent_process import AgentProcess
from .kubelet_host import BUNDLES, CgroupfsDriver, Raw, enable, oci_config
from .kubelet_host import HostedPod as Pod
from .pod_api import PodApi
from .tracing import begin_journal, copy_journal

PODS = 90
PODS_A_SECOND = 20
"""As far as the guest can: one that is emulated on a busy machine makes four or five."""
LIFE_S = 5.0
"""Shorter than it takes until the last one comes: pods come while others go."""
LONGEST_S = 150
"""Who takes longer is stuck: then it is told where."""
KUBELET_S = 0.45
"""From a pod's cgroup to its first process: the least that was recorded of a kubelet in a guest."""
COMM = "pod-"
"""With the number of the pod: the name of a busy process (comm of proc(5), 15 letters at most)."""
PROGRAM = """
$0 = $ARGV[1];
open(my $procs, ">", "$ARGV[0]/cgroup.procs") or die; print $procs $$; close($procs) or die;
while (1) { select(undef, undef, undef, 0.05); for (1 .. 100) {} }
"""
"""Has its name, by which it is traced, before it joins a cgroup, and then is busy again and again: whoever
wakes up goes to any CPU that he may use and that is idle.  One that never slept would take all the time
of the others where CPUs are emulated."""


def _resources(cpu: str, memory: str = "4Mi") -> Raw:
    amounts = {"cpu": cpu, "memory": memory}
    return {"requests": amounts, "limits": amounts}


RESIDENT: Raw = {
    "metadata": {"name": "pod-0", "namespace": "default", "uid": str(uuid.UUID(int=0))},
    "spec": {
        "resources": _resources("2", "16Mi"),
        "containers": [{"name": "own", "resources": _resources("1")}, {"name": "shared"}],
    },
    "status": {"phase": "Pending", "qosClass": "Guaranteed"},
}
"""A pod that stays, with a budget of two CPUs: one container has one of them to itself."""

KINDS: tuple[tuple[str, str, Raw], ...] = (
    ("best-effort", "BestEffort", {}),
    ("burstable", "Burstable", {"requests": {"cpu": "100m", "memory": "4Mi"}}),
    ("exclusive", "Guaranteed", _resources("1")),
    ("best-effort", "BestEffort", {}),
    ("guaranteed", "Guaranteed", _resources("500m")),
)
"""The pods' kinds in turn: name, class, resources of the one container."""


@dataclass(slots=True)
class Busy:
    """A pod that runs, or is to run."""

    pod: Pod
    leaves: list[Path] = field(default_factory=list)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)


@dataclass(slots=True)
class Churn:
    api: PodApi
    driver: CgroupfsDriver
    told: dict[str, Any] = field(default_factory=dict)
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=count)
    alive: dict[int, Busy] = field(default_factory=dict)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.due, (when, next(self.order), what))

    def come(self, number: int) -> None:
        """Let a pod come; its end is arranged."""
        kind, qos, resources = KINDS[number % len(KINDS)]
        container = {"name": "busy", "resources": resources}
        metadata = {"name": f"pod-{number}", "namespace": "default", "uid": str(uuid.uuid4())}
        raw: Raw = {"metadata": metadata, "spec": {"containers": [container]}}
        busy = self.admit(raw | {"status": {"phase": "Pending", "qosClass": qos}})
        is_born_inside = qos != "Guaranteed"
        self.told[str(number)] = {"kind": kind, "uid": busy.pod.uid}
        self.alive[number] = busy
        now = time.monotonic()
        self.at(now if is_born_inside else now + KUBELET_S, lambda: self.start(busy, number))
        self.at(now + LIFE_S, lambda: self.end(busy, number))

    def admit(self, raw: Raw) -> Busy:
        pod = Pod(
            raw=raw, path=self.driver.pod_path(raw["status"]["qosClass"], raw["metadata"]["uid"])
        )
        self.api.put(raw)
        self.driver.make_pod(pod.path, None)
        return Busy(pod)

    def start(self, busy: Busy, number: int) -> None:
        """Start a busy process for each container."""
        enable(busy.pod.path)
        for container in busy.pod.all_containers():
            container_id = secrets.token_hex(32)
            leaf = busy.pod.path / container_id
            (BUNDLES / container_id).mkdir()
            config = oci_config(busy.pod, container_id, container, [], "")
            (BUNDLES / container_id / "config.json").write_text(json.dumps(config))
            leaf.mkdir()
            command = ["perl", "-e", PROGRAM, str(leaf), f"{COMM}{number}"]
            busy.processes.append(subprocess.Popen(command))
            busy.leaves.append(leaf)
        self.told[str(number)]["leaves"] = [leaf.name for leaf in busy.leaves]

    def end(self, busy: Busy, number: int) -> None:
        self.told[str(number)]["ended"] = time.monotonic()
        self.alive.pop(number, None)
        for process in busy.processes:
            process.kill()
            process.wait()
        for cgroup in (*busy.leaves, busy.pod.path):
            cgroup.rmdir()
        self.api.remove(busy.pod.raw)

    def look(self) -> None:
        """Note what the kernel lets the containers use that have processes."""
        for number, busy in self.alive.items():
            for leaf in busy.leaves:
                if "populated 1" in (leaf / "cgroup.events").read_text():
                    began = time.monotonic()
                    effective = (leaf / "cpuset.cpus.effective").read_text().strip()
                    look = (number, effective, began, time.monotonic())
                    self.told.setdefault("effective", []).append(look)

    def run(self) -> None:
        """Let pods come at their rate, as far as this guest can keep up, and end them all."""
        began = time.monotonic()
        for number in range(1, PODS + 1):
            self.at(began + number / PODS_A_SECOND, lambda number=number: self.come(number))  # type: ignore[misc] # mypy knows no default of a lambda
            self.at(began + number / PODS_A_SECOND, self.look)
        while self.due:
            when, _, what = heapq.heappop(self.due)
            time.sleep(max(0.0, when - time.monotonic()))
            what()
        self.told["seconds"] = time.monotonic() - began


def main() -> None:
    folder = Path(sys.argv[1])
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)
    begin_journal(
        ("sched/sched_switch", f'next_comm ~ "{COMM}*" || prev_comm ~ "{COMM}*"'), megabytes=8
    )
    BUNDLES.mkdir(parents=True)
    api, driver = PodApi(), CgroupfsDriver()
    api.start()
    driver.begin()
    agent = AgentProcess(url=api.url)
    churn = Churn(api, driver)
    try:
        agent.start()
        agent.wait("the first list", lambda status: status["ready"])
        churn.told["0"] = {"kind": "resident", "uid": RESIDENT["metadata"]["uid"]}
        busy = churn.admit(RESIDENT)
        churn.start(busy, 0)
        agent.wait("the resident", lambda status: status["pods"] and not status["problems"])
        agent.wait_for_rest()
        churn.run()
        agent.wait("the end of all others", lambda status: len(status["pods"]) == 1)
        churn.told["status"] = agent.wait_for_rest()
        churn.end(busy, 0)
    finally:
        copy_journal(folder / "journal")
        shutil.copyfile(agent.log, folder / "agent.log")
        (folder / "observed.json").write_text(json.dumps(churn.told))
        agent.end()
        api.close()


if __name__ == "__main__":
    main()
