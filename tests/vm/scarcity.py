"""A node where things are scarce, told in a guest: `python -m tests.vm.scarcity RESULTS`.

One of its two NUMA nodes has huge pages, which two pods want; then inotify has too little of each of
the things that it can run out of, one after the other, and each time a pod comes.  What the kernel and
the agent say is written to RESULTS/observed.json, for `test_scarcity` to judge on the host.
"""

import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from .kubelet_host import NOTES, HostedPod, Raw, wait_until
from .kubernetes_node import Story, node, raw_pods

INOTIFY = Path("/proc/sys/fs/inotify")
LIMITS = {
    "max_user_watches": (1, "guaranteed"),
    "max_queued_events": (1, "latency-critical-db"),
    "max_user_instances": (0, "burstable"),
}
"""How much there is, and who comes then."""
METRICS = "http://127.0.0.1:9402/metrics"
HUGE = """
apiVersion: v1
kind: Pod
metadata: {name: tables, namespace: default, uid: 0b3f8e54-6f0c-4c3e-9b39-1a8f3f1d0011}
spec:
  containers:
  - name: pages
    command:
    - python3
    - -c
    - |
      import mmap, pathlib, shutil, time
      shutil.copyfile("/proc/self/status", "/tmp/pages")
      HUGE_TLB, SIZE, PAGE = 0x40000, 32 << 20, 2 << 20
      pages = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | HUGE_TLB)
      for at in range(0, SIZE, PAGE):
          pages[at] = 1
      pathlib.Path("/tmp/touched").touch()
      time.sleep(1e6)
    resources:
      requests: {cpu: "1", memory: 64Mi, hugepages-2Mi: 32Mi}
      limits: {cpu: "1", memory: 64Mi, hugepages-2Mi: 32Mi}
status: {phase: Pending, qosClass: Guaranteed}
---
apiVersion: v1
kind: Pod
metadata: {name: too-many, namespace: default, uid: 0b3f8e54-6f0c-4c3e-9b39-1a8f3f1d0012}
spec:
  containers:
  - name: waits
    command: [sh, -c, "grep allowed_list /proc/self/status >/tmp/waits; exec sleep 1000000"]
    resources:
      requests: {cpu: "1", memory: 64Mi, hugepages-2Mi: 112Mi}
      limits: {cpu: "1", memory: 64Mi, hugepages-2Mi: 112Mi}
status: {phase: Pending, qosClass: Guaranteed}
"""
"""64 huge pages of 2 MiB are there: 48 of them are left to the second pod, which wants 56."""


@contextmanager
def at_most(limit: str, value: int) -> Iterator[None]:
    """Let the kernel have no more of something for inotify."""
    file = INOTIFY / limit
    before = file.read_text()
    file.write_text(f"{value}\n")
    try:
        yield
    finally:
        file.write_text(before)


def come(story: Story, raw: Raw, limit: str, value: int) -> None:
    """Let the agent start and a pod come while a limit is low; tell what was logged and counted.

    The agent cannot run meanwhile: the kernel's queue has to hold all that happens.
    """
    story.agent.kill()
    logged = story.agent.log.stat().st_size
    with at_most(limit, value):
        story.agent.start()
        story.wait_until_placed()
        assert story.agent.process is not None
        os.kill(story.agent.process.pid, signal.SIGSTOP)
        story.host.start(raw)
        os.kill(story.agent.process.pid, signal.SIGCONT)
        story.observe(limit)
    story.told[limit]["log"] = story.agent.log.read_bytes()[logged:].decode()
    story.told[limit]["troubles"] = troubles()


def troubles() -> float:
    """Return how often the agent says that it may have missed something."""
    with urllib.request.urlopen(METRICS) as answer:
        text = answer.read().decode()
    (count,) = re.findall(r"^numalet_cgroup_watch_troubles_total (\S+)$", text, re.MULTILINE)
    return float(count)


def huge_pages(pod: HostedPod) -> list[str]:
    """Return where the huge pages of a pod's program are, as proc_pid_numa_maps(5) says it."""
    wait_until("its huge pages", (NOTES / "touched").exists)
    maps = Path(f"/proc/{pod.containers['pages'].pid}/numa_maps").read_text().splitlines()
    (row,) = (line.split() for line in maps if " huge " in line)
    return [word for word in row if word.startswith("N")]


def tell(story: Story) -> None:
    pods = raw_pods()
    for raw in yaml.safe_load_all(HUGE):
        story.host.start(raw)
    story.observe("huge pages")
    story.told["pages by node"] = huge_pages(story.pods["tables"])

    for limit, (value, name) in LIMITS.items():
        come(story, pods[name], limit, value)
    story.told["exit"] = story.agent.stop()


def main() -> None:
    with node("cgroupfs", Path(sys.argv[1])) as story:
        tell(story)


if __name__ == "__main__":
    main()
