"""Makes cgroups say what they should: observe, plan, write, read back, and notice drift."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.core.cgroups import CgroupPath, CgroupValues, CpuMax, MemoryMax
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.overwritten import Overwritten
from agent.core.plan import (
    CPU_MAX_FILE,
    CPU_WEIGHT_FILE,
    CPUS_FILE,
    MEMORY_MAX_FILE,
    MEMS_FILE,
    Phase,
    Write,
    file_values,
    plan_writes,
)
from agent.errors import CgroupError, StateFileError
from agent.memory_care import MemoryCare
from agent.memory_mover import Moves
from agent.ports import GONE, Cgroups, MemoryReport

FOREIGN_WRITE = "foreign_write"
QUOTA_REWRITTEN = "quota_rewritten"
"""By a kubelet or runtime, whose quota it is: at a container's birth, a resize, a daemon-reload."""
RECREATED = "recreated"
KERNEL = "kernel"
"""Our value stands, but the kernel grants less: a CPU went offline, or a parent was narrowed."""

Observed = Mapping[CgroupPath, tuple[int, CgroupValues]]
"""What cgroups say, each with the identity of its directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """What one pass did; ``drift`` lists (cause, sentence), ``problems`` what could not be made so.

    ``in_flight`` are cgroups whose memory moves, or waits to: neither drift nor a problem.
    """

    writes: Mapping[str, int] = field(default_factory=dict)
    drift: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    in_flight: tuple[CgroupPath, ...] = ()


class Enforcer:
    """Enforces desired values on one hierarchy; remembers only what it has verified."""

    def __init__(  # noqa: PLR0913 - what it is told, asks and respects
        self,
        cgroups: Cgroups,
        memory_nodes: NodeSet | None = None,
        *,
        stopping: Callable[[], bool] = lambda: False,
        note: Callable[[Sequence[Overwritten]], None] = lambda _entries: None,
        care: MemoryCare | None = None,
        quota_is_ours: bool = True,
    ) -> None:
        """Enforce on ``cgroups``; ``memory_nodes`` are what a cgroup may use that is bound to none.

        Without ``memory_nodes`` such a cgroup keeps what its ``cpuset.mems`` says.  ``note`` is
        told of all values that a pass is about to overwrite; `StateFileError` from it stops the pass.
        Without ``care`` the pass waits for all pages that move.
        """
        self._cgroups = cgroups
        self._memory_nodes = memory_nodes
        self._stopping = stopping
        self._note = note
        self._online: CPUSet | None = None
        self._care = care
        self._write_file = cgroups.write if care is None else care.write
        self._quota_is_ours = quota_is_ours
        self._settled: dict[CgroupPath, tuple[int, CgroupValues]] = {}
        self._without_files: set[CgroupPath] = set()
        """As the last look at everything found; what is young has none, for a moment."""
        self._missing_files: set[CgroupPath] = set()

    def enforce(
        self,
        desired: Mapping[CgroupPath, CgroupValues],
        online: CPUSet | None = None,
        look: Callable[[CgroupPath], bool] | None = None,
    ) -> Enforced:
        """Write what differs, in the safe order, and verify; of ``online`` CPUs the kernel grants some.

        With ``look`` only those cgroups are read for which it is true, or that are not known to say
        what is desired.

        A cgroup that vanishes meanwhile is left out; a write that the kernel refuses is a problem,
        and the other writes are made all the same, except that nobody grows onto CPUs that somebody
        could not be made to give up.
        """
        self._online = online
        problems: list[str] = []
        relaxed = desired if self._care is None else self._care.relaxed(desired)
        active = self._active(relaxed, look)
        observed = self._observe(active, problems)
        if look is None:
            self._without_files = {path for path in active if path in self._missing_files}
        wanted = self._wanted(relaxed, observed)
        drift = tuple(self._drift(relaxed, wanted, observed))
        writes = self._write(wanted, observed, problems)
        moves = Moves()
        if self._care is not None:
            problems += self._care.look(desired)
            relaxed = self._care.relaxed(desired)
            moves = self._place(self._care, relaxed, observed, problems)
            writes += Counter({MEMS_FILE: moves.written})
        if writes or moves.in_flight:
            observed = self._observe(active, problems)
        for path in (active - observed.keys()) | (self._settled.keys() - desired.keys()):
            self._settled.pop(path, None)
        problems += self._verify(relaxed, observed, moves)
        return Enforced(
            writes=writes,
            drift=drift,
            problems=tuple(dict.fromkeys(problems)),
            in_flight=tuple(sorted(moves.in_flight)),
        )

    def memory(self) -> MemoryReport:
        """Return how memory follows its cgroups."""
        return MemoryReport() if self._care is None else self._care.report()

    def _verify(
        self, desired: Mapping[CgroupPath, CgroupValues], observed: Observed, moves: Moves
    ) -> Iterator[str]:
        """Yield where the kernel does not say what is desired; remember the others."""
        apart = moves.in_flight | moves.problems.keys()
        yield from moves.problems.values()
        for path, (identity, seen) in observed.items():
            want, is_apart = desired[path], any(path.is_below(one) for one in apart)
            mismatch = self._mismatch(path, replace(want, mems=None) if is_apart else want, seen)
            if mismatch is not None:
                yield mismatch
            if mismatch is None and not is_apart:
                self._settled[path] = (identity, want)
            else:
                # So that the same condition is drift once, not in every pass.
                self._settled.pop(path, None)

    def _active(
        self,
        desired: Mapping[CgroupPath, CgroupValues],
        look: Callable[[CgroupPath], bool] | None,
    ) -> AbstractSet[CgroupPath]:
        """Return the cgroups to be read, with those above them, by which moves are planned."""
        if look is None:
            return desired.keys()
        active = set()
        for path, want in desired.items():
            settled = self._settled.get(path)
            if settled is None or settled[1] != want or look(path):
                active.add(path)
                active.update(above for above in path.ancestors if above in desired)
        return active

    def _place(
        self,
        care: MemoryCare,
        desired: Mapping[CgroupPath, CgroupValues],
        observed: Observed,
        problems: list[str],
    ) -> Moves:
        """Bind cgroups to their NUMA nodes, after all else."""
        plan = self._plan(self._wanted(desired, observed), observed)
        writes = [write for write in plan if write.phase is Phase.MEMS]
        if self._stopping() or not self._journalled(writes, observed, problems):
            return Moves()
        return care.place(writes)

    def _wanted(
        self, desired: Mapping[CgroupPath, CgroupValues], observed: Observed
    ) -> dict[CgroupPath, CgroupValues]:
        return {path: self._unbound(desired[path], seen) for path, (_, seen) in observed.items()}

    @staticmethod
    def _plan(desired: Mapping[CgroupPath, CgroupValues], observed: Observed) -> list[Write]:
        return plan_writes(desired, {path: seen for path, (_, seen) in observed.items()})

    def _unbound(self, want: CgroupValues, have: CgroupValues) -> CgroupValues:
        """Give all nodes back where a list is left of what a pod was before, or of somebody else.

        The list cannot be emptied while processes run (cgroup2-facts section 1).
        """
        if want.keeps_rest:
            return want
        if want.mems is None and self._memory_nodes and have.mems not in (None, self._memory_nodes):
            return replace(want, mems=self._memory_nodes)
        return want

    def _write(
        self, desired: Mapping[CgroupPath, CgroupValues], observed: Observed, problems: list[str]
    ) -> Counter[str]:
        """Make the writes of one pass, and return how many there were of each file."""
        writes: Counter[str] = Counter()
        kept = CPUSet()  # what cgroups still use, though they should not
        plan = self._plan(desired, observed)
        if self._care is not None:
            plan = [write for write in plan if write.phase < Phase.MEMS]
        if not self._journalled(plan, observed, problems):
            return writes
        for write in plan:
            if self._stopping():
                break
            why_not = self._why_not(write, kept)
            if why_not is not None:
                problems.append(why_not)
                continue
            try:
                if self._write_file(write.path, write.file, write.value) is not GONE:
                    writes[write.file] += 1
            except CgroupError as error:
                problems.append(str(error))
                if write.file == CPUS_FILE:
                    wanted = desired[write.path].cpus or CPUSet()
                    kept |= observed[write.path][1].effective_cpus - wanted
        return writes

    def _journalled(self, plan: Iterable[Write], observed: Observed, problems: list[str]) -> bool:
        """Remember what a plan overwrites; tell whether it may be carried out."""
        try:
            self._note(list(self._overwritten(plan, observed)))
        except StateFileError as error:
            problems.append(str(error))
            return False
        return True

    def _why_not(self, write: Write, kept: CPUSet) -> str | None:
        """Say what speaks against a write, None where nothing does."""
        if Phase.SHRINK < write.phase < Phase.QUOTA:
            claimed = kept & CPUSet.parse(write.value)
            return f"{write.path} does not get CPUs {claimed}: others use them" if claimed else None
        return self._above_limit(write) if write.file == MEMORY_MAX_FILE else None

    def _above_limit(self, write: Write) -> str | None:
        """Say that more is charged than a new limit allows: the kernel would kill for it."""
        charged = self._cgroups.read(write.path, "memory.current")
        if not isinstance(charged, str) or write.value == "max" or int(charged) <= int(write.value):
            return None
        return (
            f"{write.path}/{write.file} is not lowered to {write.value}: {charged} bytes are in use,"
            " and the kernel would kill for the difference; tried again in every pass"
        )

    def _overwritten(self, plan: Iterable[Write], observed: Observed) -> Iterator[Overwritten]:
        """Yield what others wrote, or nobody did, and these writes will overwrite."""
        for write in plan:
            identity, seen = observed[write.path]
            settled = self._settled.get(write.path)
            had = _value(seen, write.file)
            if settled and settled[0] == identity and _value(settled[1], write.file) == had:
                continue  # our own
            yield Overwritten(path=write.path, identity=identity, file=write.file, value=had)

    def _observe(self, paths: Iterable[CgroupPath], problems: list[str]) -> Observed:
        """Read what cgroups say; those that have vanished are left out."""
        observed = {}
        self._missing_files = set()
        for path in paths:
            try:
                values, identity = self._read(path), self._cgroups.identity(path)
            except CgroupError as error:
                problems.append(str(error))
                continue
            if values is not None and isinstance(identity, int):
                observed[path] = (identity, values)
            elif isinstance(identity, int):
                self._missing_files.add(path)
                if path in self._without_files and self._is_populated(path):
                    problems.append(f"{path} has no cpuset files: the controller is off above it")
        return observed

    def _is_populated(self, path: CgroupPath) -> bool:
        """Tell whether anything runs below: a young cgroup has no cpuset files for a moment."""
        return "populated 1" in str(self._cgroups.read(path, "cgroup.events"))

    def _read(self, path: CgroupPath) -> CgroupValues | None:
        texts = [
            self._cgroups.read(path, file)
            for file in (
                CPUS_FILE,
                MEMS_FILE,
                CPU_MAX_FILE,
                CPU_WEIGHT_FILE,
                MEMORY_MAX_FILE,
                CPUS_FILE + ".effective",
                MEMS_FILE + ".effective",
            )
        ]
        cpus, mems, cpu_max, weight, memory_max, effective_cpus, effective_mems = (
            text if isinstance(text, str) else None for text in texts
        )
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

    def _mismatch(self, path: CgroupPath, want: CgroupValues, seen: CgroupValues) -> str | None:
        """Say how what the kernel grants differs from what was decided, None where it does not."""
        for file, wanted, have in _differences(want, seen):
            return f"{path}/{file} says {have!r} instead of {wanted!r}"
        cpus = want.cpus if want.cpus is None or self._online is None else want.cpus & self._online
        if cpus is not None and cpus != seen.effective_cpus:
            return f"{path} may use CPUs {seen.effective_cpus} instead of {cpus}"
        if want.mems is not None and want.mems != seen.effective_mems:
            return f"{path} may use NUMA nodes {seen.effective_mems} instead of {want.mems}"
        return None

    def _drift(
        self,
        desired: Mapping[CgroupPath, CgroupValues],
        wanted: Mapping[CgroupPath, CgroupValues],
        observed: Observed,
    ) -> Iterable[tuple[str, str]]:
        """Yield what somebody else changed since a value was verified and still is desired."""
        for path, (identity, seen) in observed.items():
            settled = self._settled.get(path)
            if settled is None or settled[1] != desired[path]:
                continue
            if settled[0] != identity:
                yield RECREATED, f"{path} was removed and made again"
                continue
            changed = _differences(wanted[path], seen)
            for file, want, have in changed:
                is_theirs = file == CPU_MAX_FILE and not self._quota_is_ours
                cause = QUOTA_REWRITTEN if is_theirs else FOREIGN_WRITE
                yield cause, f"{path}/{file} says {have!r} instead of {want!r}"
            mismatch = None if changed else self._mismatch(path, desired[path], seen)
            if mismatch is not None:
                yield KERNEL, mismatch


def _value(values: CgroupValues, file: str) -> str:
    value = file_values(values)[file]
    return "" if value is None else str(value)


def parse_cpu_max(text: str) -> CpuMax:
    """Read the kernel's rendering of ``cpu.max``: ``max 100000`` or ``50000 100000``."""
    quota, period = text.split()
    return CpuMax(None if quota == "max" else int(quota), int(period))


def parse_memory_max(text: str) -> MemoryMax:
    """Read the kernel's rendering of ``memory.max``: ``max`` or a number of bytes."""
    return MemoryMax(None if text == "max" else int(text))


def _differences(want: CgroupValues, have: CgroupValues) -> list[tuple[str, str, str]]:
    wanted, seen = file_values(want), file_values(have)
    return [
        (file, str(wanted[file]), "" if seen[file] is None else str(seen[file]))
        for file in wanted
        if wanted[file] is not None and wanted[file] != seen[file]
    ]
