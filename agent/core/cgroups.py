"""Cgroups as values: where one is, and what its files say or should say."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.core.cpuset import CPUSet, NodeSet

PERIOD_US = 100_000
"""The period of CFS quotas that the kubelet sets (``QuotaPeriod``)."""

_LARGEST_PAGE_BYTES = 65_536


@dataclass(frozen=True, slots=True, order=True)
class CgroupPath:
    """A cgroup, as a path relative to the root of the hierarchy; the root is the empty path."""

    relative: str = ""

    def __hash__(self) -> int:
        """Return what is cheap: a pass looks paths up tens of thousands of times."""
        return hash(self.relative)

    def __truediv__(self, name: str) -> "CgroupPath":
        return CgroupPath(f"{self.relative}/{name}" if self.relative else name)

    @property
    def parent(self) -> "CgroupPath":
        """Return the cgroup above; the root is its own parent."""
        head, _, _ = self.relative.rpartition("/")
        return CgroupPath(head)

    @property
    def ancestors(self) -> Iterator["CgroupPath"]:
        """Yield the cgroups above, without the root, from the nearest one up."""
        above = self.parent
        while above.relative:
            yield above
            above = above.parent

    @property
    def name(self) -> str:
        """Return the last component."""
        return self.relative.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """Return how many levels below the root this is."""
        return self.relative.count("/") + 1 if self.relative else 0

    def is_below(self, other: "CgroupPath") -> bool:
        """Tell whether this cgroup is ``other`` or lies below it."""
        return (
            not other.relative
            or self.relative == other.relative
            or self.relative.startswith(other.relative + "/")
        )

    def __str__(self) -> str:
        return "/" + self.relative


@dataclass(frozen=True, slots=True)
class CpuMax:
    """The value of ``cpu.max``: ``quota_us`` is None for no limit."""

    quota_us: int | None = None
    period_us: int = PERIOD_US

    def __str__(self) -> str:
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}"


@dataclass(frozen=True, slots=True)
class MemoryMax:
    """The value of ``memory.max``: ``limit_bytes`` is None for no limit."""

    limit_bytes: int | None = None

    @classmethod
    def of(cls, limit_bytes: int | None) -> "MemoryMax":
        """Return a limit in whole pages of any size that Linux has, as the kernel rounds it too."""
        if not limit_bytes:
            return cls()
        return cls(max(limit_bytes // _LARGEST_PAGE_BYTES, 1) * _LARGEST_PAGE_BYTES)

    def __str__(self) -> str:
        return "max" if self.limit_bytes is None else str(self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupValues:
    """What the files of one cgroup should say, or say; None where a file is not ours, or is unset.

    ``effective_cpus`` and ``effective_mems`` are only ever observed.
    """

    cpus: CPUSet | None = None
    mems: NodeSet | None = None
    cpu_max: CpuMax | None = None
    cpu_weight: int | None = None
    memory_max: MemoryMax | None = None
    keeps_rest: bool = False
    """Nobody knows what else the cgroup should say: what it says is left."""
    is_theirs: bool = False
    """All else is another CPU manager's: what it says is left, but what was overwritten given back."""
    effective_cpus: CPUSet = field(default_factory=CPUSet)
    effective_mems: NodeSet = field(default_factory=NodeSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the cgroups of a running pod say, by container; None is the pod itself.

    Who is not there, or says nothing, is left out.
    """

    cpus: Mapping[str | None, CPUSet] = field(default_factory=dict)
    mems: Mapping[str | None, NodeSet] = field(default_factory=dict)

    @property
    def all_cpus(self) -> CPUSet:
        """Every CPU that something in the pod may use."""
        cpus = CPUSet()
        for one in self.cpus.values():
            cpus |= one
        return cpus


EVENTS_FILE = "cgroup.events"
"""Written by the kernel when the first process comes or the last one ends, also further below."""

CONTROLLERS_FILE = "cgroup.subtree_control"
"""Written, by systemd above all, when the cpuset files of the cgroups below come or go."""


def says_populated(events: object) -> bool:
    """Tell whether a text of `EVENTS_FILE` says that something runs in the cgroup or below.

    Anything but a text is the answer of a cgroup that has gone.
    """
    return isinstance(events, str) and "populated 1" in events.splitlines()
