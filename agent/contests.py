"""Which values are left alone for a while, since somebody else keeps overwriting them."""

from collections.abc import Callable, Container

from agent.core.cgroups import CgroupPath
from agent.core.contest import Contest
from agent.core.plan import Write


class Contests:
    """Remembers what was written where, as long as the cgroups are there."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Begin; ``now_s`` returns seconds of a clock that is never set back."""
        self._now_s = now_s
        self._written: dict[tuple[CgroupPath, str], tuple[int, str, Contest]] = {}

    def refusal(self, write: Write, identity: int) -> str | None:
        """Say why a value is not to be written now, None where it may be."""
        last = self._written.get((write.path, write.file))
        if last is None or last[:2] != (identity, write.value):
            return None
        contest = last[2]
        if not contest.is_paused(self._now_s()):
            return None
        return (
            f"{write.path}/{write.file} is left as it is for {contest.pause_s:.0f} s: somebody else"
            f" overwrote {write.value!r} each time it was written, {len(contest.repaired_s)} times in"
            " the last five minutes; find out who manages CPUs here (numalet doctor), and stop it or"
            " exempt its pods"
        )

    def written(self, write: Write, identity: int) -> None:
        """Note that a value was written; the same one once more is a repair."""
        last = self._written.get((write.path, write.file))
        if last is not None and last[:2] == (identity, write.value):
            contest = last[2].repaired(self._now_s())
        else:
            contest = Contest()
        self._written[write.path, write.file] = identity, write.value, contest

    def keep(self, paths: Container[CgroupPath]) -> None:
        """Forget all cgroups but these."""
        self._written = {key: one for key, one in self._written.items() if key[0] in paths}
