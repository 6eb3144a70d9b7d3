"""The life of a node with a kubelet, told in a guest: `python -m tests.vm.runtimes DRIVER RESULTS [more]`.

DRIVER is systemd or cgroupfs.  Pods come, restart and go, with runc and crun; with ``more`` the agent
is killed and started again meanwhile, and a pod is containerd's.  What the kernel and the agent say at
each stage is written to RESULTS/observed.json, the kernel's journal to RESULTS/journal, for
`test_runtimes` to judge on the host.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from .containerd import Containerd
from .kubelet_host import CGROUPS, Raw, wait_until
from .kubernetes_node import BUSY, Story, born, node, populated, raw_pods

KILLS = 2
LONGEST_LIFE_S = 6.0
LONGEST_EVENT_S = 2.0
JOURNAL = Path("/var/lib/numalet/journal.json")
BUSY_TICKS = 10
LOOKS = 100
"""So often it is looked where a busy loop runs."""
DEBUG = {
    "name": "debug",
    "command": ["sh", "-c", "grep allowed_list /proc/self/status >/tmp/debug; exec sleep 1000000"],
}


def field_of_stat(pid: int, number: int) -> int:
    """Return a field of proc_pid_stat(5) behind the name in parentheses."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number - 3])


def let_go(pids: Collection[int]) -> bool:
    """Let programs go that wait, and tell whether all of them have been busy (field 14)."""
    with suppress(OSError), os.fdopen(os.open(BUSY, os.O_WRONLY | os.O_NONBLOCK), "w") as gate:
        gate.write("go\n")
    return all(field_of_stat(pid, 14) > BUSY_TICKS for pid in pids)


def where_they_run(processes: dict[str, int]) -> dict[str, list[int]]:
    """Look often where busy processes run (field 39), and stop them: they take time from all others."""
    cpus: dict[str, set[int]] = {name: set() for name in processes}
    for _ in range(LOOKS):
        for name, pid in processes.items():
            cpus[name].add(field_of_stat(pid, 39))
        time.sleep(0.01)
    for pid in processes.values():
        os.kill(pid, signal.SIGSTOP)
    return {name: sorted(seen) for name, seen in cpus.items()}


def tell(story: Story, *, more: bool) -> None:
    host, agent, told = story.host, story.agent, story.told
    for name, raw in raw_pods().items():
        host.runtime = "runc" if name == "guaranteed" else "crun"
        host.start(raw)
    wait_until("the end of the short container", lambda: not populated(leaf_of(story, "blink")))
    told["blink"] = born("blink")
    host.delete(story.pods["short"])
    story.observe("placed")
    loops = {"latency-critical-db": "log-collector", "annotated": "helper"}
    busy = {name: story.pods[pod].containers[name].pid for pod, name in loops.items()}
    wait_until("busy loops", lambda: let_go(busy.values()))
    told["busy loops"] = where_they_run(busy)

    if more:
        kill_often(story)
        story.observe("killed")
    host.restart(story.pods["latency-critical-db"], "database")
    story.observe("restarted")
    host.runtime = "runc"
    with killed_meanwhile(story) if more else nullcontext():
        host.debug(story.pods["guaranteed"], DEBUG)
    story.observe("debugged")
    host.runtime = "crun"
    with killed_meanwhile(story) if more else nullcontext():
        host.delete(story.pods["annotated"])
    story.observe("deleted")
    if more:
        containerd = Containerd()
        containerd.begin()
        containerd.start(host, reborn(raw_pods()["annotated"]))
        story.observe("containerd")
    told["exit"] = agent.stop()
    told["journalled"] = [path for path, *_ in json.loads(JOURNAL.read_text())["values"]]
    told["gone"] = [path for path in told["journalled"] if not (CGROUPS / path).exists()]


def reborn(raw: Raw) -> Raw:
    """Return a pod as it is made again under its name: another one."""
    metadata = raw["metadata"] | {"uid": "0b3f8e54-6f0c-4c3e-9b39-1a8f3f1d0006"}
    return raw | {"metadata": metadata, "status": {"qosClass": raw["status"]["qosClass"]}}


def leaf_of(story: Story, container: str) -> Path:
    return next(
        pod.containers[container].leaf for pod in story.pods.values() if container in pod.containers
    )


def kill_often(story: Story) -> None:
    """Kill the agent at any instant of its life, which is mostly its start, and start it again."""
    story.told["killed at"] = time.monotonic()
    lives = [random.uniform(0, LONGEST_LIFE_S) for _ in range(KILLS)]
    story.told["lives"] = lives
    for life_s in (0.0, *lives):
        time.sleep(life_s)
        story.agent.kill()
        story.agent.start()


@contextmanager
def killed_meanwhile(story: Story) -> Iterator[None]:
    """Kill the agent at some instant of what happens, and start it again after that."""
    life_s = random.uniform(0, LONGEST_EVENT_S)
    story.told.setdefault("lives", []).append(life_s)
    killer = threading.Timer(life_s, story.agent.kill)
    killer.start()
    try:
        yield
    finally:
        killer.join()
        story.agent.start()


def main() -> None:
    driver, folder, *more = sys.argv[1:]
    with node(driver, Path(folder)) as story:
        tell(story, more=bool(more))


if __name__ == "__main__":
    main()
