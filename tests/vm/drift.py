"""What happens to the agent's values on a node with systemd: `python -m tests.vm.drift RESULTS`.

Systemd, a runtime, a stranger and the hardware interfere, one after the other.  What was done when,
and what the agent and the kernel say afterwards, is written to RESULTS/observed.json, the kernel's
journal to RESULTS/journal, for `test_drift` to judge on the host.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.core.cpuset import CPUSet
from agent.report.status_client import ask

from .agent_process import SOCKET, AgentProcess, Status
from .kubelet_host import PATIENCE_S, run
from .kubernetes_node import Story, node, raw_pods

CPU = Path("/sys/devices/system/cpu")
NAMES = ("guaranteed", "latency-critical-db", "burstable")
LATE = "annotated"
"""A pod whose programs run before the agent sees its cgroups."""
REWRITES = 5
"""So often a stubborn program goes on after it has been left alone."""


def interfere(story: Story, what: str, how: Callable[[], object]) -> None:
    """Do something, and tell when, and what came of it."""
    before: Status = ask(SOCKET)
    began = time.monotonic()
    how()
    run("systemctl", "show", "--property=Version")  # it answers once all is done
    story.observe(what)
    after = story.told[what]["status"]["drift"]
    causes = {cause: count - before["drift"].get(cause, 0) for cause, count in after.items()}
    story.told[what] |= {
        "began": began,
        "causes": {cause: count for cause, count in causes.items() if count},
    }


def rewrite(file: Path, value: str, log: Path) -> None:
    """Write a value again and again, as a program does that thinks the file is its own."""
    deadline = time.monotonic() + PATIENCE_S
    while "is left as it is" not in log.read_text() and time.monotonic() < deadline:
        file.write_text(value)
        time.sleep(0.1)
    for _ in range(REWRITES):
        file.write_text(value)


def tell(story: Story) -> None:
    pods = raw_pods()
    story.host.runtime = "runc"
    first, *others = (pods[name] for name in NAMES)
    pod = story.host.admit(first)
    story.told["without a scope"] = {
        "status": story.wait_until_placed(),
        "controllers": (pod.path / "cgroup.controllers").read_text().split(),
    }
    story.host.populate(pod)
    for raw in others:
        story.host.start(raw)
    story.observe("placed")
    database = story.pods["latency-critical-db"].containers["database"].leaf
    app = story.pods["guaranteed"].containers["app"].leaf
    cpus = database / "cpuset.cpus"

    interfere(story, "daemon-reload", lambda: run("systemctl", "daemon-reload"))
    interfere(story, "daemon-reexec", lambda: run("systemctl", "daemon-reexec"))
    properties = "set-property", "--runtime"
    interfere(
        story, "set-property", lambda: run("systemctl", *properties, app.name, "CPUWeight=50")
    )
    interfere(story, "another program", lambda: cpus.write_text("0-7"))
    mems = database / "cpuset.mems"
    interfere(story, "another node", lambda: mems.write_text("0-1"))
    controllers = story.pods["latency-critical-db"].path / "cgroup.subtree_control"
    interfere(story, "a controller switched off", lambda: controllers.write_text("-cpuset"))
    told_of = story.agent.log.stat().st_size
    interfere(story, "a stubborn program", lambda: rewrite(cpus, "0-7", story.agent.log))
    story.told["a stubborn program"]["log"] = story.agent.log.read_bytes()[told_of:].decode()
    container = story.pods["guaranteed"].containers["app"].id
    update = "runc", "--systemd-cgroup", "update", "--cpuset-cpus=0-7", container
    interfere(story, "runtime update", lambda: run(*update))
    interfere(story, "reload after that", lambda: run("systemctl", "daemon-reload"))

    decided = {pod["name"]: pod for pod in story.told["placed"]["status"]["pods"]}
    pool = CPUSet.parse(decided["latency-critical-db"]["cpuPool"])
    for cpu in pool:
        (CPU / f"cpu{cpu}" / "online").write_text("0")
    story.agent.wait("the drift", lambda status: status["drift"].get("cpu_offline"))
    story.told["offline"] = {
        "status": story.agent.wait_for_rest(),
        "pods": {name: story.look_at(pod) for name, pod in story.pods.items()},
    }
    for cpu in pool:
        (CPU / f"cpu{cpu}" / "online").write_text("1")
    story.observe("online")
    with stopped(story.agent):
        story.host.start(pods[LATE])
    story.observe("late")
    story.told["exit"] = story.agent.stop()


@contextmanager
def stopped(agent: AgentProcess) -> Iterator[None]:
    """Keep the agent from running meanwhile."""
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.process.send_signal(signal.SIGCONT)


def main() -> None:
    with node("systemd", Path(sys.argv[1])) as story:
        tell(story)


if __name__ == "__main__":
    main()
