"""Writes ``cpuset.mems`` where pages move for it: in a thread of its own, one write at a time.

What was seen on Linux 6.1 and 6.12 makes the rules here (cgroup2-facts section 3, and
``cpuset_write_resmask`` in kernel/cgroup/cpuset.c, which ends by waiting for all migrations):

* The write sets the new nodes at once, then moves the pages, and returns when they have moved.
  Nothing can interrupt it, no signal either: a process with such a write in flight stays until that
  ends, whatever its other threads do.  So a service's stop timeout must be longer.
* Meanwhile every other cpuset write on the machine takes effect at once, too, but returns only with
  the first.  So does moving a process to another cgroup, and that keeps mkdir, and so the start of
  containers, waiting as well.
* It succeeds also where the pages find no room.
"""

import errno
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from agent.core.cgroups import EVENTS_FILE, CgroupPath, says_populated
from agent.core.cpuset import NodeSet
from agent.core.memory_moves import Move, destination, mib
from agent.core.plan import MEMS_FILE
from agent.errors import CgroupError, EnvironmentProblem
from agent.memory_accounts import read_charge, read_growth
from agent.ports import GONE, Cgroups, Clock, Gone, NodeMemoryReader

log = structlog.get_logger(component="memory")

SMALL_BYTES = 16 << 20
"""So little moves in a moment; it need not wait for a large move to end."""

EFFECT_S = 2.0
"""For as long a write beside a move may take to have its effect; moments were seen."""

_EFFECT_POLL_S = 0.002
_STOP_POLL_S = 0.02
"""How often a wait for moves looks whether the agent is to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Where the moves of a pass are, when the wait for them is over.

    ``in_flight`` holds those that wait, too; ``problems`` are sentences about those that were not
    made; ``written`` counts writes that ended since the last pass.
    """

    in_flight: frozenset[CgroupPath] = frozenset()
    problems: Mapping[CgroupPath, str] = field(default_factory=dict)
    written: int = 0


class MemoryMover:
    """Makes writes to cpuset files of which nobody knows how long they take.

    Its thread lives only while there is something to move, and does not keep the interpreter alive.
    """

    def __init__(  # noqa: PLR0913 - all that a move depends on
        self,
        cgroups: Cgroups,
        memory: NodeMemoryReader,
        clock: Clock,
        *,
        on_moved: Callable[[CgroupPath], object],
        deadline_s: float = 2.0,
        margin_bytes: int = 0,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Move on ``cgroups``; ``on_moved`` is told by the thread of each cgroup that it wrote to.

        ``deadline_s`` is for how long a pass waits, and ``margin_bytes`` what stays free on a node.
        """
        self._cgroups = cgroups
        self._memory = memory
        self._clock = clock
        self._on_moved = on_moved
        self._deadline_s = deadline_s
        self._margin_bytes = margin_bytes
        self._stopping = stopping
        self._changed = threading.Condition()
        # All that follows is read and written with `_changed` held.
        self._thread: threading.Thread | None = None
        self._current: tuple[CgroupPath, NodeSet] | None = None
        self._since_s = 0.0
        """When the current move began, since the epoch."""
        self._is_overdue = False
        """Whether a pass has waited for the current move in vain."""
        self._waiting: dict[CgroupPath, NodeSet] = {}
        self._refused: dict[CgroupPath, tuple[NodeSet, str]] = {}
        self._written = 0
        self._moved_bytes = 0

    @property
    def moves(self) -> dict[CgroupPath, float | None]:
        """When each move began, in seconds since the epoch; None for those that wait."""
        with self._changed:
            moves: dict[CgroupPath, float | None] = dict.fromkeys(self._waiting)
            if self._current is not None:
                moves[self._current[0]] = self._since_s
            return moves

    @property
    def moved_bytes(self) -> int:
        """How much has moved since the start."""
        with self._changed:
            return self._moved_bytes

    def needs_care(self, path: CgroupPath, nodes: NodeSet) -> bool:
        """Tell whether pages move, or may move, when a cgroup gets these nodes.

        Pages that are charged elsewhere move, too, if a process here maps them, so that only an
        empty cgroup is sure to be quick.  One in flight needs care whatever it gets: the write that
        was begun must not come last.  Raises `CgroupError`.
        """
        with self._changed:
            is_busy = self._thread is not None
            if self._current is not None and self._current[0] == path:
                return True
        old = self._effective(path)
        leaves = any(destination(node, old, nodes) != node for node in old)
        if not leaves or not says_populated(self._cgroups.read(path, EVENTS_FILE)):
            return False
        return not is_busy or read_charge(self._cgroups, path).outside(nodes) > SMALL_BYTES

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        """Make a write by which no pages move, as `Cgroups.write` does.

        While pages of others move, its return is not waited for, only its effect.
        """
        with self._changed:
            is_busy = self._thread is not None
        if not is_busy or not file.startswith("cpuset."):
            return self._cgroups.write(path, file, value)
        ended: queue.SimpleQueue[Gone | CgroupError | None] = queue.SimpleQueue()

        def write() -> None:
            try:
                ended.put(self._cgroups.write(path, file, value))
            except CgroupError as error:
                ended.put(error)

        try:
            threading.Thread(target=write, name="cpuset", daemon=True).start()
        except RuntimeError as error:
            raise _no_thread(path, file, value) from error
        deadline = self._clock.monotonic_s() + EFFECT_S
        while self._clock.monotonic_s() < deadline:
            with suppress(queue.Empty):
                answer = ended.get(timeout=_EFFECT_POLL_S)
                if isinstance(answer, CgroupError):
                    raise answer
                return answer
            if self._cgroups.read(path, file) == value:
                return None
        raise CgroupError(f"{path}/{file}", errno.ETIME, f"write {value!r} to")

    def move(self, wanted: Mapping[CgroupPath, NodeSet]) -> Moves:
        """Give cgroups these nodes, in this order, and wait for it until the deadline.

        What was asked for before and has not begun is forgotten.  One that is in flight is not
        begun again; where another value is wanted now, that comes after it.
        """
        with self._changed:
            self._waiting = {p: n for p, n in wanted.items() if (p, n) != self._current}
            self._refused = {p: r for p, r in self._refused.items() if p in self._waiting}
            if self._waiting and self._thread is None:
                self._begin()
            self._wait()
            return self._outcome()

    def _begin(self) -> None:
        """Start the thread; where that cannot be, nothing moves in this pass."""
        thread = threading.Thread(target=self._run, name="memory", daemon=True)
        try:
            thread.start()  # it waits for the lock, which is held
        except RuntimeError:
            for path, nodes in self._waiting.items():
                self._refuse(path, nodes, str(_no_thread(path, MEMS_FILE, nodes.for_write())))
            self._waiting = {}
        else:
            self._thread = thread

    def forget_waiting(self) -> None:
        """Begin none of the moves that wait; that in flight cannot be stopped."""
        with self._changed:
            self._waiting = {}

    def _wait(self) -> None:
        """Wait until all is done, but not for a move that has been waited for already."""
        deadline = self._clock.monotonic_s() + self._deadline_s
        while self._thread is not None and not self._is_overdue and not self._stopping():
            left_s = deadline - self._clock.monotonic_s()
            if left_s <= 0:
                self._is_overdue = self._current is not None
                log.info("memory_moves", cgroups=[str(path) for path in self._moves_now()])
                return
            self._changed.wait(min(left_s, _STOP_POLL_S))

    def _moves_now(self) -> list[CgroupPath]:
        current = [] if self._current is None else [self._current[0]]
        return list(dict.fromkeys([*current, *self._waiting]))

    def _outcome(self) -> Moves:
        written, self._written = self._written, 0
        return Moves(
            in_flight=frozenset(self._moves_now()),
            problems={path: sentence for path, (_, sentence) in self._refused.items()},
            written=written,
        )

    def _run(self) -> None:
        """Make all moves that wait; the thread's whole life."""
        try:
            while (following := self._next()) is not None:
                self._try(*following)
        finally:
            with self._changed:
                if self._thread is threading.current_thread():  # a bug of ours ended it
                    self._retire()

    def _retire(self) -> None:
        self._thread = self._current = None
        self._changed.notify_all()

    def _next(self) -> tuple[CgroupPath, NodeSet] | None:
        with self._changed:
            if not self._waiting or self._stopping():
                # With the lock held: nobody may leave work to a thread that ends.
                self._retire()
                return None
            path = next(iter(self._waiting))
            self._current = path, self._waiting.pop(path)
            self._since_s, self._is_overdue = self._clock.now_s(), False
            return self._current

    def _try(self, path: CgroupPath, nodes: NodeSet) -> None:
        try:
            was_written = self._move(path, nodes)
        except EnvironmentProblem as error:
            self._refuse(path, nodes, str(error))
            return
        if was_written:
            with self._changed:
                self._written += 1
                self._refused.pop(path, None)
            self._on_moved(path)

    def _refuse(self, path: CgroupPath, nodes: NodeSet, sentence: str) -> None:
        """Keep why a move was not made; for the same move the first sentence, numbers and all."""
        with self._changed:
            if self._refused.get(path, (None,))[0] != nodes:
                self._refused[path] = nodes, sentence

    def _move(self, path: CgroupPath, nodes: NodeSet) -> bool:
        """Make one move if its pages have room; tell whether the write was made."""
        rooms, old = self._memory.read(), self._effective(path)
        sizes = sorted({kib for room in rooms.values() for kib in room.huge_bytes})
        before = read_charge(self._cgroups, path, sizes)
        growth = read_growth(self._cgroups, path, before)
        move = Move(old=old, new=nodes, charge=before, growth_bytes=growth)
        why_not = move.obstacle(rooms, self._margin_bytes)
        if why_not is not None:
            what = f"{path}/{MEMS_FILE} is not set to {nodes}"
            self._refuse(path, nodes, f"{what}: {why_not}; tried again in every pass")
            return False
        began_s = self._clock.monotonic_s()
        if self._cgroups.write(path, MEMS_FILE, nodes.for_write()) is GONE:
            return False
        took_s = self._clock.monotonic_s() - began_s
        left = read_charge(self._cgroups, path, sizes).outside(nodes)
        moved = max(0, before.outside(nodes) - left)
        with self._changed:
            self._moved_bytes += moved
        tell = log.warning if left > SMALL_BYTES else log.info
        tell(
            "memory_moved",
            cgroup=str(path),
            nodes=str(nodes),
            moved=mib(moved),
            left_behind=mib(left),
            seconds=round(took_s, 3),
        )
        return True

    def _effective(self, path: CgroupPath) -> NodeSet:
        text = self._cgroups.read(path, f"{MEMS_FILE}.effective")
        return NodeSet.parse(text) if isinstance(text, str) else NodeSet()


def _no_thread(path: CgroupPath, file: str, value: str) -> CgroupError:
    """Return what is wrong where no thread can be started: hundreds wait while a large move lasts."""
    cure = "raise pids.max of numalet's own cgroup (TasksMax= of its unit, podPidsLimit of the kubelet)"
    return CgroupError(
        f"{path}/{file}", errno.EAGAIN, f"start a thread to write {value!r} to", cure=cure
    )
