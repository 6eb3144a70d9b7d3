"""Prometheus metrics, computed from the last snapshot at each scrape.

Nothing is counted here, so no series outlives what it is about.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agent import __version__
from agent.core.cpuset import CPUSet
from agent.core.isolation import Isolation
from agent.core.pods import MILLI
from agent.measures import ConfinementReport
from agent.ports import Snapshot
from agent.report.outbound import OutboundNumbers

ADMITTED = "admitted"

Values = Iterable[tuple[tuple[str, ...], float]]
_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


class OwnUse(NamedTuple):
    """How to learn what the agent itself uses."""

    rss_bytes: Callable[[], int]
    cpu_s: Callable[[], float]
    outbound: Callable[[], OutboundNumbers] | None = None
    source_silent_s: Callable[[], float] | None = None
    pass_age_s: Callable[[], float] | None = None


class SnapshotCollector(Collector):
    """Turns the current snapshot into metrics."""

    def __init__(self, current: Callable[[], Snapshot], own: OwnUse) -> None:
        self._current = current
        self._own = own

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        snapshot = self._current()
        version = (((__version__,), 1),)
        yield _gauges("build_info", "Version of the agent.", version, "version")
        yield _gauge("resident_memory_bytes", "Memory of the agent.", self._own.rss_bytes())
        yield _counter("cpu_seconds", "CPU time of the agent.", self._own.cpu_s())
        yield from _verdicts(snapshot)
        yield from _assignments(snapshot)
        yield from _memory(snapshot)
        yield from _memory_moves(snapshot)
        yield from _memory_pressure(snapshot)
        yield from _confinement(snapshot.confinement)
        yield from _health(snapshot)
        if self._own.source_silent_s is not None:
            text = "For how long the source has said nothing."
            yield _gauge("source_silence_seconds", text, self._own.source_silent_s())
        if self._own.pass_age_s is not None:
            text = "How long ago the last pass over the cgroups ended."
            yield _gauge("last_pass_age_seconds", text, self._own.pass_age_s())
        yield from _counters(snapshot)
        if self._own.outbound is not None:
            yield from _outbound(self._own.outbound())


def _verdicts(snapshot: Snapshot) -> Iterator[Metric]:
    verdicts = snapshot.verdicts
    admitted = sum(v.admitted for v in verdicts)
    by_verdict = ((("admitted",), admitted), (("rejected",), len(verdicts) - admitted))
    levels = Counter(c.verdict for v in verdicts for c in v.containers)
    yield _gauges("pods", "Pods known to the agent.", by_verdict, "verdict")
    yield _gauges(
        "containers",
        "Containers by how far they are isolated.",
        (((level.value,), levels[level]) for level in Isolation),
        "verdict",
    )


def _assignments(snapshot: Snapshot) -> Iterator[Metric]:
    verdicts, topology = snapshot.verdicts, snapshot.rules.topology
    exclusive = CPUSet()
    for c in (c for v in verdicts for c in v.containers):
        exclusive |= c.cpus if c.verdict is Isolation.EXCLUSIVE else CPUSet()
    yield _gauge(
        "cpu_manager_shared_pool_size_millicores",
        "CPUs of the default CPU set.",
        len(snapshot.state.default) * MILLI,
    )
    yield _gauge(
        "cpu_manager_exclusive_cpu_allocation_count",
        "CPUs that belong to one container alone.",
        len(exclusive),
    )
    yield _gauges(
        "cpu_manager_allocation_per_numa",
        "CPUs that belong to pods, by NUMA node.",
        (
            ((str(node),), sum((v.pool.bits & bits).bit_count() for v in verdicts))
            for node, bits in topology.cpu_bits_by_node.items()
        ),
        "numa_node",
    )


def _memory(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauges(
        "memory_manager_free_bytes",
        "Memory not assigned, by NUMA node and type.",
        (
            ((str(node), name), table.free)
            for node, memory in snapshot.state.memory.items()
            for name, table in memory.tables.items()
        ),
        "numa_node",
        "type",
    )


def _memory_moves(snapshot: Snapshot) -> Iterator[Metric]:
    memory = snapshot.memory
    ages_s = [snapshot.taken_at_s - since for since in memory.moves.values() if since is not None]
    yield _gauge("memory_moves_in_flight", "Cgroups whose memory moves.", len(ages_s))
    yield _gauge(
        "memory_moves_waiting",
        "Cgroups whose memory is to move after that of others.",
        len(memory.moves) - len(ages_s),
    )
    yield _gauge(
        "memory_move_age_seconds", "For how long memory has been moving.", max(ages_s, default=0)
    )
    yield _counter("memory_moved_bytes", "Memory moved to its NUMA nodes.", memory.moved_bytes)
    yield _gauge(
        "memory_left_behind_bytes",
        "Memory that lies on other NUMA nodes than it should.",
        memory.left_behind_bytes,
    )


def _memory_pressure(snapshot: Snapshot) -> Iterator[Metric]:
    memory = snapshot.memory
    yield _gauges(
        "memory_headroom_bytes",
        "What NUMA nodes would have left if all that is bound to them grew to its limit.",
        (((nodes,), size) for nodes, size in memory.headroom_bytes.items()),
        "numa_nodes",
    )
    yield _gauge(
        "memory_shortages", "Sets of NUMA nodes with too little left.", len(memory.shortages)
    )
    yield _gauge(
        "memory_widened", "Cgroups that are not bound because of a shortage.", len(memory.widened)
    )


def _confinement(report: ConfinementReport) -> Iterator[Metric]:
    windows = HistogramMetricFamily(
        "numalet_confinement_window_seconds",
        "From the making of a cgroup until it is confined.",
        labels=["cgroup"],
    )
    for kind, one in report.windows.items():
        bounds = (*map(str, one.bounds_s), "+Inf")
        windows.add_metric(
            [kind], list(zip(bounds, accumulate(one.counts), strict=True)), one.sum_s
        )
    yield windows
    yield _filled(
        CounterMetricFamily(
            "numalet_confined_cgroups",
            "New cgroups, by what ran in them before they were confined.",
            labels=["cgroup", "found"],
        ),
        report.found.items(),
    )
    yield _counter(
        "cgroup_watch_troubles",
        "How often new cgroups may not have been noticed at once (inotify).",
        report.watch_troubles,
    )


def _health(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge(
        "device_waiting_pods", "Pods whose devices are not known yet.", len(snapshot.waiting)
    )
    yield _gauge("ready", "1 once pods are known, and all was enforced.", snapshot.ready)
    missing = "Pods whose cgroups are not there yet, or do not say what was decided."
    yield _gauge("unenforced_pods", missing, len(snapshot.unenforced))
    yield _gauge("observe_only", "1 where nothing is written.", snapshot.observe)
    yield _gauge("source_healthy", "1 while the source answers.", snapshot.source.healthy)
    yield _gauge("rejected_inputs", "Inputs that are wrong now.", len(snapshot.rejected_inputs))
    yield _gauge("demands_refused", "Pods that ask for more in vain.", len(snapshot.complaints))
    yield _gauge("problems", "Values that could not be enforced.", len(snapshot.problems))
    others = (((name,), 1) for name in snapshot.other_managers)
    yield _gauges("other_cpu_manager", "1 for each other CPU manager here.", others, "name")


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    requests = sum(snapshot.decisions.values())
    rejections = {reason: n for reason, n in snapshot.decisions.items() if reason != ADMITTED}
    yield _counter("topology_manager_admission_requests", "Pods decided on.", requests)
    yield _counters_by("admission_rejections", "Pods rejected.", rejections, "reason")
    yield _counters_by("cgroup_writes", "Values written to cgroups.", snapshot.writes, "file")
    yield _counters_by("drift", "Values that somebody else changed.", snapshot.drift, "cause")
    yield _counter("checkpoints", "States written to disk.", snapshot.checkpoints)


def _outbound(numbers: OutboundNumbers) -> Iterator[Metric]:
    yield _gauge("outbound_pending", "Messages to the API server that wait.", numbers.pending)
    yield _filled(
        CounterMetricFamily(
            "numalet_outbound_messages",
            "What became of messages to the API server.",
            labels=["kind", "outcome"],
        ),
        numbers.outcomes.items(),
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"numalet_{name}", text, value=value)


def _gauges(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"numalet_{name}", text, labels=labels), values)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"numalet_{name}", text, value=value)


def _counters_by(name: str, text: str, values: Mapping[str, int], label: str) -> Metric:
    family = CounterMetricFamily(f"numalet_{name}", text, labels=[label])
    return _filled(family, (((key,), number) for key, number in values.items()))


def _filled(family: _Family, values: Values) -> _Family:
    for key, number in values:
        family.add_metric(key, number)
    return family


def exposition(current: Callable[[], Snapshot], own: OwnUse) -> Callable[[], bytes]:
    """Return a function that renders all metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    # Describing at registration would scrape before there is a snapshot.
    registry.register(SnapshotCollector(current, own))
    return lambda: generate_latest(registry)
