"""The composition root: builds the rooms, wires them, and runs the daemon."""

import contextlib
import os
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import structlog

from agent.config import AgentConfig
from agent.core.cgroups import CgroupPath
from agent.core.entitlement import Entitlement
from agent.core.pods import Pod, PodUID
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.core.topology import NodeTopology
from agent.errors import (
    EnvironmentProblem,
    LockedError,
    NumaletError,
    StateFileError,
)
from agent.logs import configure_logs
from agent.managed_node import Node
from agent.node import cgroup_layout, kubelet_state
from agent.node.bundles import Bundles
from agent.node.cgroup_layout import CgroupLayout
from agent.node.cgroup_watch import CgroupWatch
from agent.node.cgroupfs import CgroupFs
from agent.node.checkpoint import CheckpointStore, topology_fingerprint
from agent.node.hotplug import HotplugWatch
from agent.node.journal import Journal
from agent.node.numalib import cross_check
from agent.node.procfs import boot_id, own_cpu_s, own_rss_bytes
from agent.node.rivals import rivals
from agent.node.state_folder import StateFolderLock
from agent.node.sysfs import read_topology
from agent.ports import Cgroups, CgroupsChanged, Clock, Event, Post, Snapshot, Stop
from agent.reconciler import Reconciler
from agent.report.http import HttpServer
from agent.report.metrics import OwnUse, exposition
from agent.report.notify import ServiceManager
from agent.report.status import StatusServer
from agent.simulation.kernel import SimulatedKernel
from agent.simulation.machine import read_machine
from agent.sources.api_access import load_client
from agent.sources.kubernetes import PodWatch
from agent.sources.manifests import ManifestFolder
from agent.sources.pod_model import parse_pod
from agent.whatif import configure

CGROUP_ROOT = Path("/sys/fs/cgroup")
KUBERNETES: Final = "kubernetes"
SIMULATED_DRIFT_INTERVAL_S = 1.0
"""A person who edits a file of the simulation wants to see the answer soon."""

log = structlog.get_logger(component="app")


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
    before_pass: Callable[[], object] = lambda: None


class KubeletStateFiles:
    """Keeps the kubelet's two state files up to date, for other tools."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self._folder = folder
        self._rules = rules
        self._written: NodeState | None = None

    def keep(self, state: NodeState) -> None:
        """Write both files if the state is another one; a failure is logged, and tried again."""
        if state is self._written:
            return
        files = kubelet_state.render(self._rules, state)
        try:
            if not self._say(files):
                kubelet_state.write(self._folder, files)
        except StateFileError as error:
            log.warning("kubelet_state_files", what=str(error))
        else:
            self._written = state

    def _say(self, files: dict[str, str]) -> bool:
        try:
            return kubelet_state.read(self._folder) == tuple(files.values())
        except StateFileError:
            return False


class Latest:
    """The last published snapshot: written by one thread, read by all."""

    def __init__(self, first: Snapshot) -> None:
        self._snapshot = first

    def put(self, snapshot: Snapshot) -> None:
        """Replace it."""
        self._snapshot = snapshot

    def get(self) -> Snapshot:
        """Return it."""
        return self._snapshot


def simulated_topology(description: Path) -> NodeTopology:
    """Return the machine that a description file tells of, read back from a sysfs tree of it."""
    return read_machine(description, read_topology)


def run(options: RunOptions) -> None:
    """Run the daemon until SIGTERM or SIGINT; with ``once`` until everything is placed.

    Raises `agent.errors.NumaletError` for what a person has to mend before it can run.
    """
    with contextlib.ExitStack() as stack:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        stop = _stop_on_signals(events, stack)
        place, config, rules = _place(options, stack)
        configure_logs(config.log_format, config.log_level)
        for sentence in config.warnings:
            log.warning("configuration", what=sentence)
        if config.filled_in:
            log.info("filled_in", what="; ".join(config.filled_in))
        lock = StateFolderLock(config.state_dir)
        if not _acquire(lock, stop if options.wait_for_lock else None):
            return
        stack.callback(lock.release)
        options.on_start(place, config)
        _serve(options, place, config, rules, events, stop, stack)


def _acquire(lock: StateFolderLock, stop: threading.Event | None) -> bool:
    """Take the lock; with ``stop`` say who has it, and wait until he ends or we are to stop."""
    try:
        return lock.acquire()
    except LockedError as error:
        if stop is None:
            raise
        log.warning("waiting_for_lock", what=str(error))
    return lock.acquire(wait_until=stop)


def _stop_on_signals(
    events: "queue.SimpleQueue[Event]", stack: contextlib.ExitStack
) -> threading.Event:
    """Let SIGTERM and SIGINT end the loop, and every wait before it."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.set()
        events.put(Stop(signal.Signals(number).name))

    for number in (signal.SIGTERM, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, on_signal))
    return stop


def _place(options: RunOptions, stack: contextlib.ExitStack) -> tuple[Place, AgentConfig, Rules]:
    if options.simulate is not None:
        return _simulated_place(options, options.simulate, stack)
    topology = read_topology()
    config, rules = configure(options.config, topology)
    cgroups = CgroupFs(CGROUP_ROOT)
    observe = options.observe or config.observe
    if not observe:
        cgroups.check()
    mode = KUBERNETES if options.pods == KUBERNETES else "host"
    place = Place(mode=mode, topology=topology, cgroups=cgroups, cgroup_root=CGROUP_ROOT)
    return place, config, rules


def _simulated_place(
    options: RunOptions, description: Path, stack: contextlib.ExitStack
) -> tuple[Place, AgentConfig, Rules]:
    """Build a node without hardware; its files, and its state unless configured, are temporary."""
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
        before_pass=kernel.absorb,
    )
    config = replace(
        config, drift_interval_s=min(config.drift_interval_s, SIMULATED_DRIFT_INTERVAL_S)
    )
    return place, config, rules


def _serve(  # noqa: PLR0913, PLR0917 - everything that was built comes together here
    options: RunOptions,
    place: Place,
    config: AgentConfig,
    rules: Rules,
    events: "queue.SimpleQueue[Event]",
    stop: threading.Event,
    stack: contextlib.ExitStack,
) -> None:
    clock = SystemClock()
    service_manager = ServiceManager(os.environ)
    store = CheckpointStore(
        config.state_dir, clock, boot_id=boot_id(), topology=topology_fingerprint(place.topology)
    )
    loaded = store.load()
    for note in loaded.notes:
        log.warning("checkpoint", what=note)
    others = _others(place, config)
    node = Node(
        rules=rules,
        entitlement=config.entitlement if place.mode == KUBERNETES else Entitlement(),
        standing_problems=others,
        cgroups=place.cgroups,
        layout=_layout(place, config),
        reread=None
        if place.mode == "simulated"
        else lambda: configure(options.config, read_topology())[1],
        names=Bundles() if place.mode == KUBERNETES else None,
        watcher=_watch_cgroups(place, events, stack),
        journal=_journal(config),
        store=store,
        clock=clock,
        mode=place.mode,
        cgroup_root=str(place.cgroup_root),
        observe=options.observe or config.observe or loaded.newer_version or bool(others),
        drift_interval_s=service_manager.at_most_s(config.drift_interval_s),
        before_pass=place.before_pass,
        stopping=stop.is_set,
        on_idle=KubeletStateFiles(config.state_dir, rules).keep,
    )
    latest: Latest

    def publish(snapshot: Snapshot) -> None:
        latest.put(snapshot)
        service_manager.tell(snapshot)
        options.on_snapshot(snapshot)
        if options.once and (snapshot.ready or snapshot.problems):
            events.put(Stop("--once"))

    reconciler = Reconciler(node, loaded.remembered, publish)
    latest = Latest(reconciler.snapshot())
    _start_reports(config, node, latest, stack)
    if place.mode != "simulated":
        _watch_hardware(place.topology, events, stack)
    running = loaded.remembered.pods if loaded.remembered else {}
    source = _source(options, events.put, clock, running)
    source.start()
    stack.callback(source.close)
    stack.callback(service_manager.stopping)
    reconciler.run(events)
    problems = latest.get().problems
    if options.once and problems:
        raise NumaletError("; ".join(problems))


def _source(
    options: RunOptions, post: Post, clock: Clock, running: Mapping[PodUID, Pod]
) -> ManifestFolder | PodWatch:
    if options.pods == KUBERNETES:
        return PodWatch(
            api=load_client(options.kubeconfig),
            node_name=options.node_name or socket.gethostname(),
            post=post,
            parse=parse_pod,
            clock=clock,
        )
    return ManifestFolder(options.pods, post, running=running)


def _others(place: Place, config: AgentConfig) -> tuple[str, ...]:
    """Say who else places containers here; nothing is enforced over them unless that is forced."""
    if place.mode == "simulated":
        return ()
    found = rivals(Path("/"), config.state_dir)
    for finding in found:
        log.warning("other_cpu_manager", what=finding.sentence, enforced=config.coexistence)
    if config.coexistence == "force":
        return ()
    return tuple(
        f"numalet only observes, since {f.sentence}: {f.cure}, or set coexistence: force"
        for f in found
    )


def _journal(config: AgentConfig) -> Journal:
    journal = Journal(config.state_dir, boot_id=boot_id())
    problem = journal.load()
    if problem:
        log.warning("journal", what=problem)
    return journal


def _watch_cgroups(
    place: Place, events: "queue.SimpleQueue[Event]", stack: contextlib.ExitStack
) -> CgroupWatch | None:
    """Notice at once what changes in real cgroups; a simulation's change only when asked."""
    if place.mode == "simulated":
        return None
    watch = CgroupWatch(
        place.cgroup_root,
        on_change=lambda path: events.put(CgroupsChanged(path)),
        on_degraded=lambda what: log.warning("cgroup_watch_degraded", what=what),
    )
    stack.callback(watch.close)
    return watch


def _layout(place: Place, config: AgentConfig) -> CgroupLayout:
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


def _start_reports(
    config: AgentConfig, node: Node, latest: Latest, stack: contextlib.ExitStack
) -> None:
    cgroups_of = node.tree().of if node.names is None else None
    status = StatusServer(config.status_socket, latest.get, cgroups_of)
    status.start()
    stack.callback(status.close)
    metrics = exposition(latest.get, OwnUse(own_rss_bytes, own_cpu_s))
    http = HttpServer(config.metrics_address, metrics, latest.get)
    http.start()
    stack.callback(http.close)


def _watch_hardware(
    topology: NodeTopology, events: "queue.SimpleQueue[Event]", stack: contextlib.ExitStack
) -> None:
    """Follow hotplug, and compare the topology with libnuma's opinion; neither is needed to run."""
    second_opinion = cross_check(topology)
    for sentence in second_opinion.differences:
        log.warning("libnuma_differs", what=sentence)
    hotplug = HotplugWatch(events.put)
    try:
        hotplug.start()
    except EnvironmentProblem as problem:
        log.warning("no_hotplug_events", what=str(problem))
    else:
        stack.callback(hotplug.close)
