"""Makes cgroups say what they should: observe, plan, write, read back, and notice drift."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.contests import Contests, Target
from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.overwritten import Overwritten
from agent.core.plan import (
    CPU_MAX_FILE,
    CPUS_FILE,
    MEMORY_MAX_FILE,
    MEMS_FILE,
    Phase,
    Write,
    differences,
    file_values,
    plan_writes,
)
from agent.core.pods import PodUID
from agent.errors import CgroupError, StateFileError
from agent.measures import MemoryReport
from agent.memory_care import MemoryCare
from agent.memory_mover import Moves
from agent.observation import Observed, Observer
from agent.ports import GONE, Cgroups

FOREIGN_WRITE = "foreign_write"
QUOTA_REWRITTEN = "quota_rewritten"
"""By a kubelet or runtime, whose quota it is: at a container's birth, a resize, a daemon-reload."""
RECREATED = "recreated"
CONTROLLER_OFF = "controller_off"
"""The cpuset files have vanished: the controller was taken from the cgroup above."""
KERNEL = "kernel"
"""Our value stands, but the kernel grants less: a CPU went offline, or a parent was narrowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """What one pass did; ``drift`` lists (cause, sentence), ``problems`` what could not be made so.

    ``in_flight`` are cgroups whose memory moves, or waits to: neither drift nor a problem.
    ``enforced`` are the pods whose cgroups, as far as they are known, say what was decided.
    """

    writes: Mapping[str, int] = field(default_factory=dict)
    drift: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    in_flight: tuple[CgroupPath, ...] = ()
    memory_problems: frozenset[str] = frozenset()
    """Those ``problems`` that only more free memory can solve."""
    enforced: frozenset[PodUID] = frozenset()


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
        contests: Contests | None = None,
    ) -> None:
        """Enforce on ``cgroups``; ``memory_nodes`` are what a cgroup may use that is bound to none.

        Without ``memory_nodes`` such a cgroup keeps what its ``cpuset.mems`` says.  ``note`` is
        told of all values that a pass is about to overwrite; `StateFileError` from it stops the pass.
        Without ``care`` the pass waits for all pages that move.
        """
        self._cgroups = cgroups
        self.memory_nodes = memory_nodes
        self._stopping = stopping
        self._note = note
        self._online: CPUSet | None = None
        self._care = care
        self._write_file = cgroups.write if care is None else care.write
        self._quota_is_ours = quota_is_ours
        self._contests = contests or Contests(time.monotonic)
        self._settled: dict[CgroupPath, tuple[int, CgroupValues]] = {}
        self._awaited: set[CgroupPath] = set()
        # A runtime's weights and limits of memory are never written.
        self._observer = Observer(cgroups, amounts=quota_is_ours)

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
        observed = self._observer.look(active, problems)
        switched_off = self._observer.switched_off
        drift = self._switch_on(switched_off, problems)
        if switched_off:
            observed = self._observer.look(active, problems)
        wanted = self._wanted(relaxed, observed)
        drift += self._drift(relaxed, wanted, observed, {path.parent for path in switched_off})
        writes = self._write(wanted, observed, problems)
        moves, memory = Moves(), list[str]()
        if self._care is not None:
            memory += self._care.look(desired)
            relaxed = self._care.relaxed(desired)
            moves = self._place(self._care, relaxed, observed, problems)
            memory += moves.problems.values()
            writes += Counter({MEMS_FILE: moves.written})
        if writes or moves.in_flight:
            observed = self._observer.look(active, problems)
            # What somebody wrote meanwhile is drift, too; what is still as before was told above.
            since = self._drift(relaxed, self._wanted(relaxed, observed), observed, set())
            drift += [one for one in since if one not in drift]
        for path in (active - observed.keys()) | (self._settled.keys() - desired.keys()):
            self._settled.pop(path, None)
        self._contests.keep(desired)
        problems += (*memory, *self._verify(relaxed, observed, moves))
        return Enforced(
            writes=writes,
            drift=tuple(drift),
            problems=tuple(dict.fromkeys(problems)),
            in_flight=tuple(sorted(moves.in_flight)),
            memory_problems=frozenset(memory),
        )

    @property
    def settled(self) -> AbstractSet[CgroupPath]:
        """The cgroups of which it was verified that they say what is desired."""
        return self._settled.keys()

    @property
    def granted(self) -> AbstractSet[CgroupPath]:
        """The settled cgroups, and those for which only memory on its way is waited."""
        return self._settled.keys() | self._awaited

    def memory(self) -> MemoryReport:
        """Return how memory follows its cgroups."""
        return MemoryReport() if self._care is None else self._care.report()

    def _switch_on(self, paths: Iterable[CgroupPath], problems: list[str]) -> list[tuple[str, str]]:
        """Enable the cpuset controller again where it was taken away; returns where that is drift."""
        drift = []
        for path in sorted(paths):
            sentence = f"{path} has no cpuset files: the controller is off above it"
            if self._settled.pop(path, None) is not None:
                drift.append((CONTROLLER_OFF, sentence))
            try:
                self._cgroups.enable(path)
            except CgroupError as error:
                problems.append(f"{sentence}, and cannot be enabled: {error}")
        return drift

    def _verify(
        self, desired: Mapping[CgroupPath, CgroupValues], observed: Observed, moves: Moves
    ) -> Iterator[str]:
        """Yield where the kernel does not say what is desired; remember the others."""
        apart = moves.in_flight | moves.problems.keys()
        self._awaited.clear()
        for path, (identity, seen) in observed.items():
            want, is_apart = desired[path], any(path.is_below(one) for one in apart)
            mismatch = self._mismatch(path, replace(want, mems=None) if is_apart else want, seen)
            if mismatch is not None:
                yield mismatch
            elif any(path.is_below(one) for one in moves.in_flight):
                self._awaited.add(path)
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
            if settled is None or _differ(settled[1], want) or look(path):
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
        wanted = self._wanted(desired, observed)
        plan = [w for w in self._plan(wanted, observed) if w.phase is Phase.MEMS]
        writes, _ = self._uncontested(plan, wanted, observed, problems)
        if self._stopping() or not self._journalled(writes, observed, problems):
            return Moves()
        moves = care.place(writes)
        apart = moves.in_flight | moves.problems.keys()
        self._contests.written(
            _target(write, wanted, observed) for write in writes if write.path not in apart
        )
        return moves

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
        if want.keeps_rest or want.is_theirs:
            return want
        if want.mems is None and self.memory_nodes and have.mems not in (None, self.memory_nodes):
            return replace(want, mems=self.memory_nodes)
        return want

    def _write(
        self, desired: Mapping[CgroupPath, CgroupValues], observed: Observed, problems: list[str]
    ) -> Counter[str]:
        """Make the writes of one pass, and return how many there were of each file."""
        writes: Counter[str] = Counter()
        plan = self._plan(desired, observed)
        if self._care is not None:
            plan = [write for write in plan if write.phase < Phase.MEMS]
        plan, kept = self._uncontested(plan, desired, observed, problems)
        if not self._journalled(plan, observed, problems):
            return writes
        made = set()
        for write in plan:
            if self._stopping():
                break
            why_not = self._why_not(write, kept) or self._try(write, writes)
            if why_not is None:
                made.add(_target(write, desired, observed))
            else:
                problems.append(why_not)
                kept |= _kept(write, desired, observed)
        self._contests.written(made)
        return writes

    def _try(self, write: Write, writes: Counter[str]) -> str | None:
        """Make and count a write; returns why the kernel refuses it."""
        try:
            if self._write_file(write.path, write.file, write.value) is not GONE:
                writes[write.file] += 1
        except CgroupError as error:
            return str(error)
        return None

    def _uncontested(
        self,
        plan: Iterable[Write],
        desired: Mapping[CgroupPath, CgroupValues],
        observed: Observed,
        problems: list[str],
    ) -> tuple[list[Write], CPUSet]:
        """Leave out what is left to somebody else; returns the rest, and the CPUs used there."""
        rest, kept = [], CPUSet()
        for write in plan:
            why_not = self._contests.refusal(_target(write, desired, observed))
            if why_not is None:
                rest.append(write)
            else:
                problems.append(why_not)
                kept |= _kept(write, desired, observed)
        return rest, kept

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

    def _mismatch(self, path: CgroupPath, want: CgroupValues, seen: CgroupValues) -> str | None:
        """Say how what the kernel grants differs from what was decided, None where it does not."""
        for file, wanted, have in differences(want, seen):
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
        switched: AbstractSet[CgroupPath],
    ) -> Iterable[tuple[str, str]]:
        """Yield what somebody else changed since a value was verified and still is desired.

        Below cgroups whose controllers were ``switched`` off, values have been lost by that.
        """
        for path, (identity, seen) in observed.items():
            settled = self._settled.get(path)
            if settled is None or settled[1] != desired[path]:
                continue
            if settled[0] != identity:
                yield RECREATED, f"{path} was removed and made again"
                continue
            changed = differences(wanted[path], seen)
            for file, want, have in changed:
                is_theirs = file == CPU_MAX_FILE and not self._quota_is_ours
                cause = QUOTA_REWRITTEN if is_theirs else FOREIGN_WRITE
                cause = CONTROLLER_OFF if path.parent in switched else cause
                yield cause, f"{path}/{file} says {have!r} instead of {want!r}"
            mismatch = None if changed else self._mismatch(path, desired[path], seen)
            if mismatch is not None:
                yield KERNEL, mismatch


def _target(write: Write, desired: Mapping[CgroupPath, CgroupValues], observed: Observed) -> Target:
    return Target(
        path=write.path,
        file=write.file,
        identity=observed[write.path][0],
        value=_value(desired[write.path], write.file),
    )


def _kept(write: Write, desired: Mapping[CgroupPath, CgroupValues], observed: Observed) -> CPUSet:
    """Return the CPUs that a cgroup goes on using, though it should not, if a write is not made."""
    if write.file != CPUS_FILE:
        return CPUSet()
    return observed[write.path][1].effective_cpus - (desired[write.path].cpus or CPUSet())


def _differ(one: CgroupValues, other: CgroupValues) -> bool:
    return one is not other and one != other  # most are the very same


def _value(values: CgroupValues, file: str) -> str:
    value = file_values(values)[file]
    return "" if value is None else str(value)
