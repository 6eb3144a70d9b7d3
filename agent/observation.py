"""Reads what cgroups say."""

from collections.abc import Iterable, Mapping
from functools import cache

from agent.core.cgroups import (
    EVENTS_FILE,
    CgroupPath,
    CgroupValues,
    CpuMax,
    MemoryMax,
    says_populated,
)
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.plan import (
    CPU_MAX_FILE,
    CPU_WEIGHT_FILE,
    CPUS_FILE,
    MEMORY_MAX_FILE,
    MEMS_FILE,
)
from agent.errors import CgroupError
from agent.ports import Cgroups

Observed = Mapping[CgroupPath, tuple[int, CgroupValues]]
"""What cgroups say, each with the identity of its directory."""

_FILES = (
    CPUS_FILE,
    MEMS_FILE,
    CPUS_FILE + ".effective",
    MEMS_FILE + ".effective",
    CPU_MAX_FILE,
)
_AMOUNTS = (CPU_WEIGHT_FILE, MEMORY_MAX_FILE)


class Observer:
    """Looks at cgroups."""

    def __init__(self, cgroups: Cgroups, *, amounts: bool = True) -> None:
        """Look at ``cgroups``; without ``amounts`` not at weights and limits of memory."""
        self._cgroups = cgroups
        self._files = (*_FILES, *_AMOUNTS) if amounts else _FILES
        self.switched_off: frozenset[CgroupPath] = frozenset()
        """Cgroups of the last look that have no cpuset files though something runs in them.

        A young one has none for a moment, before its first process.
        """

    def look(self, paths: Iterable[CgroupPath], problems: list[str]) -> Observed:
        """Read what cgroups say; those that have vanished, or have no cpuset files, are left out."""
        observed: dict[CgroupPath, tuple[int, CgroupValues]] = {}
        switched_off = set()
        parse = cache(_values)  # most cgroups say the same
        for path in paths:
            try:
                values, identity = parse(*self._read(path)), self._cgroups.identity(path)
                if not isinstance(identity, int):
                    continue
                if values is not None:
                    observed[path] = (identity, values)
                elif says_populated(self._cgroups.read(path, EVENTS_FILE)):
                    switched_off.add(path)
            except CgroupError as error:
                problems.append(str(error))
        self.switched_off = frozenset(switched_off)
        return observed

    def _read(self, path: CgroupPath) -> list[str | None]:
        texts = (self._cgroups.read(path, file) for file in self._files)
        return [text if isinstance(text, str) else None for text in texts]


def _values(  # noqa: PLR0913, PLR0917 - one a file, in the order of `_FILES` and `_AMOUNTS`
    cpus: str | None,
    mems: str | None,
    effective_cpus: str | None,
    effective_mems: str | None,
    cpu_max: str | None,
    weight: str | None = None,
    memory_max: str | None = None,
) -> CgroupValues | None:
    """Return what the texts of a cgroup's files say, None where it has no cpuset files."""
    if cpus is None or mems is None or effective_cpus is None or effective_mems is None:
        return None
    return CgroupValues(
        cpus=CPUSet.parse(cpus) or None,
        mems=NodeSet.parse(mems) or None,
        cpu_max=None if cpu_max is None else parse_cpu_max(cpu_max),
        cpu_weight=None if weight is None else int(weight),
        memory_max=None if memory_max is None else parse_memory_max(memory_max),
        effective_cpus=CPUSet.parse(effective_cpus),
        effective_mems=NodeSet.parse(effective_mems),
    )


def parse_cpu_max(text: str) -> CpuMax:
    """Read the kernel's rendering of ``cpu.max``: ``max 100000`` or ``50000 100000``."""
    quota, period = text.split()
    return CpuMax(None if quota == "max" else int(quota), int(period))


def parse_memory_max(text: str) -> MemoryMax:
    """Read the kernel's rendering of ``memory.max``: ``max`` or a number of bytes."""
    return MemoryMax(None if text == "max" else int(text))
