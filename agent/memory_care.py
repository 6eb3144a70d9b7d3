"""``cpuset.mems`` written with care: who must wait, what does not fit, who runs short."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import NodeSet
from agent.core.plan import Write
from agent.errors import CgroupError
from agent.measures import MemoryReport
from agent.memory_mover import MemoryMover, Moves
from agent.memory_watch import MemoryWatch
from agent.ports import GONE, Gone


class MemoryCare:
    """All that stands between a plan and the pages that move for it."""

    def __init__(self, mover: MemoryMover, watch: MemoryWatch) -> None:
        self._mover = mover
        self._watch = watch

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        """Make a write by which no pages move; see `MemoryMover.write`."""
        return self._mover.write(path, file, value)

    def look(self, desired: Mapping[CgroupPath, CgroupValues]) -> tuple[str, ...]:
        """Look at what is bound, and at what the NUMA nodes have; return what went wrong."""
        return self._watch.look(desired)

    def relaxed(
        self, desired: Mapping[CgroupPath, CgroupValues]
    ) -> Mapping[CgroupPath, CgroupValues]:
        """Return the values that hold while NUMA nodes are short of memory."""
        return self._watch.relaxed(desired)

    def place(self, writes: Iterable[Write]) -> Moves:
        """Make writes of ``cpuset.mems``: those that move nothing at once, the others apart.

        Called in every pass, also without writes: what is not asked for any more is forgotten.
        """
        slow: dict[CgroupPath, NodeSet] = {}
        problems: dict[CgroupPath, str] = {}
        written = 0
        for write in writes:
            nodes = NodeSet.parse(write.value)
            try:
                if not self._mover.needs_care(write.path, nodes):
                    written += self.write(write.path, write.file, write.value) is not GONE
                else:
                    slow[write.path] = nodes
            except CgroupError as error:
                problems[write.path] = str(error)
        moves = self._mover.move(slow)
        return replace(
            moves, problems={**problems, **moves.problems}, written=moves.written + written
        )

    def stop(self) -> None:
        """Begin no more moves before the next `place`; waits for nothing."""
        self._mover.forget_waiting()

    def moves(self) -> list[float | None]:
        """Return since when memory moves, as `MemoryReport.moves`; from any thread."""
        return list(self._mover.moves.values())

    def report(self) -> MemoryReport:
        """Return how memory fares, for those who ask the agent."""
        return replace(
            self._watch.report(), moves=self._mover.moves, moved_bytes=self._mover.moved_bytes
        )
