"""Where the daemon works: a machine and its cgroups, real or simulated, and how it is configured."""

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from agent.config import AgentConfig, load
from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.findings import Finding, Level
from agent.core.node_facts import KubeletFacts
from agent.core.startup import Rules
from agent.core.topology import NodeTopology
from agent.hardware import Hardware
from agent.node import cgroup_layout, procfs
from agent.node.cgroup_layout import CgroupLayout
from agent.node.cgroupfs import CGROUPS, CgroupFs
from agent.node.node_memory import NodeMemory
from agent.node.rivals import rivals
from agent.node.sysfs import read_online, read_possible, read_topology
from agent.ports import Cgroups, NodeMemoryReader, Snapshot
from agent.whatif import configure, resolve

KUBERNETES: Final = "kubernetes"
SIMULATED_DRIFT_INTERVAL_S = 1.0
"""A person who edits a file of the simulation wants to see the answer soon."""


class SystemClock:
    """The machine's own clocks."""

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds of a clock that is never set back."""
        return time.monotonic()


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of ``numalet run``; ``on_snapshot`` is told of every snapshot.

    ``pods`` is a folder of manifests, or `KUBERNETES`.
    """

    pods: Path | Literal["kubernetes"]
    node_name: str = ""
    kubeconfig: Path | None = None
    config: Path | None = None
    simulate: Path | None = None
    observe: bool = False
    once: bool = False
    wait_for_lock: bool = False
    on_start: Callable[["Place", AgentConfig], None] = lambda _place, _config: None
    on_snapshot: Callable[[Snapshot], None] = lambda _snapshot: None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the daemon works: a machine and its cgroups, real or simulated."""

    mode: str
    topology: NodeTopology
    cgroups: Cgroups
    cgroup_root: Path
    memory: NodeMemoryReader
    before_pass: Callable[[], object] = lambda: None
    hardware: Hardware | None = None
    possible: CPUSet | None = None


def simulated_topology(description: Path) -> NodeTopology:
    """Return the machine that a description file tells of, read back from a sysfs tree of it."""
    from agent.simulation.machine import read_machine  # noqa: PLC0415 - 1 MiB that no daemon needs

    return read_machine(description, read_topology)


def find_place(
    options: RunOptions, stack: contextlib.ExitStack
) -> tuple[Place, AgentConfig, Rules]:
    """Return where to work, and what holds there; raises `agent.errors.NumaletError`.

    What is made for it goes with ``stack``.
    """
    if options.simulate is not None:
        return _simulated_place(options, options.simulate, stack)
    loaded = load(options.config)
    host = loaded.host_root
    procfs.use_proc_root(host / "proc")
    read = partial(read_topology, host / "sys")
    topology = read()
    config, rules = resolve(loaded, options.config, topology)
    cgroups = CgroupFs(host / CGROUPS)
    observe = options.observe or config.observe
    if not observe:
        cgroups.check()
    mode = KUBERNETES if options.pods == KUBERNETES else "host"
    place = Place(
        mode=mode,
        topology=topology,
        cgroups=cgroups,
        cgroup_root=cgroups.root,
        memory=NodeMemory(host / "sys"),
        possible=read_possible(host / "sys"),
        hardware=Hardware(
            read,
            lambda now: resolve(loaded, options.config, now)[1],
            partial(read_online, host / "sys"),
        ),
    )
    return place, config, rules


def _simulated_place(
    options: RunOptions, description: Path, stack: contextlib.ExitStack
) -> tuple[Place, AgentConfig, Rules]:
    """Build a node without hardware; its files, and its state unless configured, are temporary."""
    from agent.simulation.kernel import SimulatedKernel  # noqa: PLC0415 - as above

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="numalet-")))
    topology = simulated_topology(description)
    config, rules = configure(options.config, topology)
    if config.origins["stateDir"] == "default":
        config = replace(config, state_dir=folder / "state")
    if config.origins["statusSocket"] == "default":
        config = replace(config, status_socket=folder / "status.sock")
    kernel = SimulatedKernel(topology, folder / "cgroup")
    place = Place(
        mode="simulated",
        topology=topology,
        cgroups=kernel,
        cgroup_root=folder / "cgroup",
        memory=kernel.memory,
        before_pass=kernel.absorb,
    )
    config = replace(
        config, drift_interval_s=min(config.drift_interval_s, SIMULATED_DRIFT_INTERVAL_S)
    )
    return place, config, rules


def layout_of(place: Place, config: AgentConfig) -> CgroupLayout:
    """On Kubernetes the kubelet's is found, unless it is configured."""
    root = CgroupPath(config.cgroup_root.strip("/"))
    if place.mode == "host":
        by_systemd = cgroup_layout.systemd_runs()
        return cgroup_layout.single_host_layout(config.cgroup_driver, root, systemd=by_systemd)
    if place.mode == KUBERNETES and config.cgroup_driver == "auto":
        is_given = config.origins["cgroupRoot"] != "default"
        return cgroup_layout.detect_layout(place.cgroups, root if is_given else None)
    driver = "cgroupfs" if config.cgroup_driver == "auto" else config.cgroup_driver
    return CgroupLayout(driver=driver, root=root)


def other_managers(
    place: Place, config: AgentConfig, answer: KubeletFacts | None = None
) -> tuple[Finding, ...]:
    """Return findings on who else places containers here; see `agent.node.rivals.rivals`."""
    return () if place.mode == "simulated" else rivals(config.host_root, answer)


def why_only_observing(found: tuple[Finding, ...], config: AgentConfig) -> tuple[str, ...]:
    """Say who keeps numalet from enforcing: all others, unless it is forced or keeps to a fence."""
    if config.coexistence != "observe":
        return ()
    return tuple(
        f"numalet only observes, since {f.sentence}: {f.cure}, or set coexistence to force, or to a"
        " fence of CPUs that it leaves alone"
        for f in found
        if f.level is Level.PROBLEM
    )
