"""The composition root: builds the rooms, wires them, and runs the daemon."""

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

import structlog

from agent.coexistence import rival_watch, telling_of_others
from agent.config import AgentConfig
from agent.confinement import Confinement
from agent.core.cgroups import CgroupPath
from agent.core.entitlement import Entitlement
from agent.core.pods import Pod, PodUID
from agent.core.startup import Rules
from agent.core.topology import NodeTopology
from agent.device_source import find_pod_resources, with_devices
from agent.errors import (
    EnvironmentProblem,
    LockedError,
    NumaletError,
)
from agent.exported_state import KubeletStateFiles
from agent.logs import configure_logs
from agent.managed_node import Node
from agent.memory_care import MemoryCare
from agent.memory_mover import MemoryMover
from agent.memory_watch import MemoryWatch
from agent.node.bundles import Bundles, known_folders
from agent.node.cgroup_watch import CgroupWatch
from agent.node.checkpoint import CheckpointStore, topology_fingerprint
from agent.node.eviction_times import EvictionTimesFile
from agent.node.hotplug import HotplugWatch
from agent.node.journal import Journal
from agent.node.numalib import cross_check
from agent.node.procfs import boot_id, has_program, own_cpu_s, own_rss_bytes
from agent.node.state_folder import StateFolderLock
from agent.place import (
    KUBERNETES,
    Place,
    RunOptions,
    SystemClock,
    find_place,
    layout_of,
)
from agent.ports import CgroupsChanged, Clock, Event, Post, Snapshot, Stop
from agent.reconciler import Reconciler
from agent.report.events import PodEvents, ShortageEvents
from agent.report.evictions import Evictions
from agent.report.http import HttpServer
from agent.report.liveness import Liveness
from agent.report.metrics import OwnUse, exposition
from agent.report.noderesourcetopology import TopologyExport, load_fingerprint
from agent.report.notify import ServiceManager
from agent.report.outbound import Outbound
from agent.report.outbox import Teller
from agent.report.placement import PlacementAnnotations
from agent.report.status import StatusServer
from agent.sources.api_access import load_client
from agent.sources.api_requests import ApiRequests
from agent.sources.api_rules import parse_served
from agent.sources.kubernetes import PodWatch
from agent.sources.manifests import ManifestFolder

log = structlog.get_logger(component="app")


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


def run(options: RunOptions) -> None:
    """Run the daemon until SIGTERM or SIGINT; with ``once`` until everything is placed.

    Raises `agent.errors.NumaletError` for what a person has to mend before it can run.
    """
    with contextlib.ExitStack() as stack:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        stop = _stop_on_signals(events, stack)
        place, config, rules = find_place(options, stack)
        configure_logs(config.log_format, config.log_level)
        for sentence in config.warnings:
            log.warning("configuration", what=sentence)
        if config.filled_in:
            log.info("filled_in", what="; ".join(config.filled_in))
        lock = StateFolderLock(config.state_dir)
        if not _acquire(lock, stop if options.wait_for_lock else None, config.metrics_address):
            return
        stack.callback(lock.release)
        options.on_start(place, config)
        _serve(options, place, config, rules, events, stop, stack)


def _acquire(lock: StateFolderLock, stop: threading.Event | None, address: str) -> bool:
    """Take the lock; with ``stop`` say who has it, and wait until he ends or we are to stop.

    Who waits is alive, but not ready: in a cluster he has an address of his own, and says so there.
    """
    try:
        return lock.acquire()
    except LockedError as error:
        if stop is None:
            raise
        log.warning("waiting_for_lock", what=str(error))
    with contextlib.ExitStack() as stack:
        try:
            waiting = HttpServer(address, lambda: b"", lambda: None)
        except EnvironmentProblem as problem:  # the other one listens there, on the same host
            log.info("not_listening", what=str(problem))
        else:
            waiting.start()
            stack.callback(waiting.close)
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
    rivals = rival_watch(options, place, config, clock)
    kubelet = find_pod_resources(config) if options.pods == KUBERNETES else None
    confinement = Confinement(place.cgroups, clock.monotonic_s, has_program)
    on_made: list[Callable[[CgroupPath], None]] = [confinement.made]
    node = Node(
        rules=rules,
        entitlement=config.entitlement if place.mode == KUBERNETES else Entitlement(),
        others=rivals.look(),
        cgroups=place.cgroups,
        layout=layout_of(place, config),
        hardware=place.hardware,
        possible=place.possible,
        names=Bundles(known_folders(config.host_root)) if place.mode == KUBERNETES else None,
        hears_of_devices=kubelet is not None,
        watcher=_watch_cgroups(place, events, confinement, on_made, stack),
        confinement=confinement,
        journal=_journal(config),
        care=_care(place, config, events, stop, clock),
        store=store,
        clock=clock,
        mode=place.mode,
        cgroup_root=str(place.cgroup_root),
        observe=options.observe or config.observe or loaded.newer_version,
        drift_interval_s=service_manager.at_most_s(config.drift_interval_s),
        before_pass=place.before_pass,
        stopping=stop.is_set,
        on_idle=KubeletStateFiles(config.state_dir, rules).keep,
    )
    latest: Latest
    outbound: Outbound | None = None

    def publish(snapshot: Snapshot) -> None:
        latest.put(snapshot)
        if outbound is not None:
            outbound.publish(snapshot)
        service_manager.tell(snapshot)
        options.on_snapshot(snapshot)
        if options.once and ((snapshot.ready and not snapshot.waiting) or snapshot.problems):
            events.put(Stop("--once"))

    reconciler = Reconciler(node, loaded.remembered, publish)
    latest = Latest(reconciler.snapshot())
    if place.mode == KUBERNETES:
        outbound = _start_telling(options, config, clock, latest.get(), stack)
    running = loaded.remembered.pods if loaded.remembered else {}
    post: Post = events.put
    if kubelet is not None:
        post = with_devices(kubelet, node, config, post, on_made, stack)
    source = _source(options, post, clock, running)
    _start_reports(config, node, latest, outbound, source, stack)
    if place.mode != "simulated":
        _watch_hardware(place.topology, events, stack)
    rivals.start(events.put, telling_of_others(options, config, clock, outbound))
    stack.callback(rivals.close)
    source.start()
    stack.callback(source.close)
    stack.callback(service_manager.stopping)
    reconciler.run(events)
    problems = latest.get().problems
    if options.once and problems:
        raise NumaletError("; ".join(problems))


def _start_telling(
    options: RunOptions,
    config: AgentConfig,
    clock: Clock,
    before: Snapshot,
    stack: contextlib.ExitStack,
) -> Outbound:
    """Start the one thread that writes to the API server."""
    telling, node_name = config.telling, options.node_name or socket.gethostname()
    tellers: list[Teller] = []
    if telling.events:
        tellers.append(PodEvents(node_name, before, annotated=telling.placement_annotation))
        tellers.append(ShortageEvents(node_name))
    if telling.placement_annotation:
        tellers.append(PlacementAnnotations())
    if telling.on_rejection == "evict":
        times, most = EvictionTimesFile(config.state_dir), telling.evictions_per_hour
        tellers.append(Evictions(clock, most_per_hour=most, times=times))
    if telling.node_resource_topology:
        tellers.append(TopologyExport(node_name, load_fingerprint()))
    outbound = Outbound(ApiRequests(load_client(options.kubeconfig), clock), tellers, clock)
    outbound.start()
    stack.callback(outbound.close)
    return outbound


def _source(
    options: RunOptions, post: Post, clock: Clock, running: Mapping[PodUID, Pod]
) -> ManifestFolder | PodWatch:
    if options.pods == KUBERNETES:
        return PodWatch(
            api=load_client(options.kubeconfig),
            node_name=options.node_name or socket.gethostname(),
            post=post,
            parse=parse_served,
            clock=clock,
        )
    return ManifestFolder(options.pods, post, running=running)


def _journal(config: AgentConfig) -> Journal:
    journal = Journal(config.state_dir, boot_id=boot_id())
    problem = journal.load()
    if problem:
        log.warning("journal", what=problem)
    return journal


def _watch_cgroups(
    place: Place,
    events: "queue.SimpleQueue[Event]",
    confinement: Confinement,
    on_made: Iterable[Callable[[CgroupPath], None]],
    stack: contextlib.ExitStack,
) -> CgroupWatch | None:
    """Notice at once what changes in real cgroups; a simulation's change only when asked.

    All in ``on_made`` are told of each new one, also who is added before the first is watched.
    """
    if place.mode == "simulated":
        return None

    def on_degraded(what: str) -> None:
        confinement.degraded()
        log.warning("cgroup_watch_degraded", what=what)

    def on_each_made(path: CgroupPath) -> None:
        for tell in on_made:
            tell(path)

    watch = CgroupWatch(
        place.cgroup_root,
        on_change=lambda path: events.put(CgroupsChanged(path)),
        on_degraded=on_degraded,
        on_made=on_each_made,
    )
    stack.callback(watch.close)
    return watch


def _care(
    place: Place,
    config: AgentConfig,
    events: "queue.SimpleQueue[Event]",
    stop: threading.Event,
    clock: Clock,
) -> MemoryCare:
    mover = MemoryMover(
        place.cgroups,
        place.memory,
        clock,
        on_moved=lambda path: events.put(CgroupsChanged(path)),
        deadline_s=config.mems_deadline_s,
        margin_bytes=config.memory_margin_bytes,
        stopping=stop.is_set,
    )
    watch = MemoryWatch(
        place.cgroups,
        place.memory,
        clock,
        margin_bytes=config.memory_margin_bytes,
        soft=config.mems == "soft",
    )
    return MemoryCare(mover, watch)


def _start_reports(  # noqa: PLR0913, PLR0917 - everybody who is asked for numbers
    config: AgentConfig,
    node: Node,
    latest: Latest,
    outbound: Outbound | None,
    source: ManifestFolder | PodWatch,
    stack: contextlib.ExitStack,
) -> None:
    cgroups_of = node.tree().of if node.names is None else None
    status = StatusServer(
        config.status_socket,
        latest.get,
        cgroups_of,
        lambda: None if outbound is None else outbound.numbers(),
    )
    status.start()
    stack.callback(status.close)
    liveness = Liveness(
        latest.get,
        node.clock,
        drift_interval_s=node.drift_interval_s,
        moves=node.care.moves if node.care is not None else tuple,
    )
    metrics = exposition(
        latest.get,
        OwnUse(
            own_rss_bytes,
            own_cpu_s,
            outbound.numbers if outbound is not None else None,
            source.silent_s if isinstance(source, PodWatch) else None,
            liveness.age_s,
        ),
    )
    http = HttpServer(config.metrics_address, metrics, latest.get, liveness.complaint)
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
