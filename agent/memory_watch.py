"""Watches whether what is bound to NUMA nodes may come to be killed for want of memory there."""

from collections.abc import Mapping
from dataclasses import replace

import structlog

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import NodeSet
from agent.core.memory_moves import sum_outside
from agent.core.memory_pressure import Bound, Headroom, headrooms, short_sets, widened
from agent.errors import CgroupError, EnvironmentProblem
from agent.measures import MemoryReport
from agent.memory_accounts import read_charge, read_growth
from agent.ports import Cgroups, Clock, NodeMemoryReader

log = structlog.get_logger(component="memory")

FRESH_S = 1.0
"""For so long a look is good: the kernel sums what is charged up over all CPUs for each reader."""


class MemoryWatch:
    """Remembers the last look, so that a shortage does not come and go, and is told of once."""

    def __init__(
        self,
        cgroups: Cgroups,
        memory: NodeMemoryReader,
        clock: Clock,
        *,
        margin_bytes: int = 256 << 20,
        soft: bool = False,
    ) -> None:
        """Keep ``margin_bytes`` on each node; ``soft`` unbinds who is in need."""
        self._cgroups = cgroups
        self._memory = memory
        self._clock = clock
        self._margin_bytes = margin_bytes
        self._soft = soft
        self._nodes: dict[CgroupPath, NodeSet] = {}
        self._looked_at_s = 0.0
        self._problems: tuple[str, ...] = ()
        self._bound: list[Bound] = []
        self._short: dict[NodeSet, str] = {}
        """The sets of nodes that are too small, and the sentence with which each was told of."""
        self._widened: frozenset[CgroupPath] = frozenset()
        self._headrooms: tuple[Headroom, ...] = ()

    def look(self, desired: Mapping[CgroupPath, CgroupValues]) -> tuple[str, ...]:
        """Look at all cgroups that are to be bound; return what could not be read."""
        nodes = {path: values.mems for path, values in desired.items() if values.mems is not None}
        now_s = self._clock.monotonic_s()
        if nodes != self._nodes or now_s - self._looked_at_s >= FRESH_S:
            self._nodes, self._looked_at_s = nodes, now_s
            self._problems = self._look()
        return self._problems

    def _look(self) -> tuple[str, ...]:
        # All numbers are read anew, and together: what a pod just took is not to count twice.
        self._bound = [self._read(path, nodes) for path, nodes in self._nodes.items()]
        try:
            self._headrooms = headrooms(self._bound, self._memory.read(), self._margin_bytes)
        except EnvironmentProblem as error:
            return (str(error),)
        short = short_sets(self._headrooms, self._short)
        self._tell(short)
        self._widen(widened(self._bound, short) if self._soft else frozenset())
        return ()

    def relaxed(
        self, desired: Mapping[CgroupPath, CgroupValues]
    ) -> Mapping[CgroupPath, CgroupValues]:
        """Return the values without the nodes of those that are bound no longer."""
        unbound = self._widened & desired.keys()
        return {**desired, **{path: replace(desired[path], mems=None) for path in unbound}}

    def report(self) -> MemoryReport:
        """Return what was found, without the moves."""
        above = {one.path.parent for one in self._bound}
        return MemoryReport(
            left_behind_bytes=sum(
                sum_outside(one.movable, one.nodes) for one in self._bound if one.path not in above
            ),
            headroom_bytes={str(h.nodes): h.left_bytes for h in self._headrooms},
            shortages={str(nodes): sentence for nodes, sentence in self._short.items()},
            widened=tuple(sorted(self._widened)),
        )

    def _read(self, path: CgroupPath, nodes: NodeSet) -> Bound:
        try:
            charge = read_charge(self._cgroups, path)
            growth = read_growth(self._cgroups, path, charge)
        except CgroupError:
            # Who enforces says so; one that cannot be read must not blind us for the others.
            return Bound(path=path, nodes=nodes)
        return Bound(path=path, nodes=nodes, movable=charge.movable, growth_bytes=growth)

    def _tell(self, short: frozenset[NodeSet]) -> None:
        former = self._short
        sentences = {h.nodes: str(h) for h in self._headrooms if h.nodes in short}
        self._short = {nodes: former.get(nodes, text) for nodes, text in sentences.items()}
        for nodes, sentence in self._short.items():
            if nodes not in former:
                log.warning("memory_short", what=sentence)
        for nodes in former.keys() - self._short.keys():
            log.info("memory_short_no_longer", nodes=str(nodes))

    def _widen(self, wide: frozenset[CgroupPath]) -> None:
        for path in sorted(wide - self._widened):
            log.warning(
                "memory_widened", cgroup=str(path), why="its NUMA nodes are short of memory"
            )
        for path in sorted(self._widened - wide):
            log.info("memory_narrowed", cgroup=str(path))
        self._widened = wide
