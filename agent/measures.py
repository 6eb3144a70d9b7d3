"""What is measured while the agent works, as parts of the snapshot."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.cgroups import CgroupPath


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """How memory follows its cgroups, and what is left on the NUMA nodes that these are bound to.

    ``moves`` maps each cgroup whose pages move to when that began, in seconds since the epoch, and
    to None where it waits for another.  ``moved_bytes`` count since the start of the process;
    ``left_behind_bytes`` lie now on other nodes than they should.  ``headroom_bytes`` is by list of
    nodes, ``shortages`` are sentences by list of nodes, ``widened`` who is bound no longer because of
    them.
    """

    moves: Mapping[CgroupPath, float | None] = field(default_factory=dict)
    moved_bytes: int = 0
    left_behind_bytes: int = 0
    headroom_bytes: Mapping[str, int] = field(default_factory=dict)
    shortages: Mapping[str, str] = field(default_factory=dict)
    widened: tuple[CgroupPath, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A histogram: how many durations were at most so long, and how long all were together.

    ``counts`` belong to ``bounds_s``, each without those before; the last one is for all longer ones.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float = 0.0

    @classmethod
    def of(cls, bounds_s: tuple[float, ...]) -> "Windows":
        """Return an empty one; ``bounds_s`` ascend."""
        return cls(bounds_s=bounds_s, counts=(0,) * (len(bounds_s) + 1))

    def with_one(self, duration_s: float) -> "Windows":
        """Return it with one duration more."""
        place = bisect_left(self.bounds_s, duration_s)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Windows(bounds_s=self.bounds_s, counts=counts, sum_s=self.sum_s + duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinementReport:
    """How new cgroups were confined since the start; see `agent.confinement`.

    ``windows`` are from mkdir to confined, by kind (``pod``, ``container``); ``found`` counts, by kind
    and by what ran in them before, ``watch_troubles`` how often changes may not have been noticed.
    """

    windows: Mapping[str, Windows] = field(default_factory=dict)
    found: Mapping[tuple[str, str], int] = field(default_factory=dict)
    watch_troubles: int = 0
