"""Which values are left alone for a while, since somebody else keeps overwriting them."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from agent.core.cgroups import CgroupPath
from agent.core.contest import Contest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a file of one very cgroup is to say in the end, however many writes lead there."""

    path: CgroupPath
    file: str
    identity: int
    value: str


class Contests:
    """Remembers what was written where, as long as the cgroups are there."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Begin; ``now_s`` returns seconds of a clock that is never set back."""
        self._now_s = now_s
        self._written: dict[tuple[CgroupPath, str], tuple[Target, Contest]] = {}

    def refusal(self, target: Target) -> str | None:
        """Say why a value is not to be written now, None where it may be."""
        last, contest = self._written.get((target.path, target.file), (None, Contest()))
        if last != target or not contest.is_paused(self._now_s()):
            return None
        return (
            f"{target.path}/{target.file} is left as it is for {contest.pause_s:.0f} s: somebody else"
            f" overwrote {target.value!r} each time it was written, {len(contest.repaired_s)} times"
            " in the last five minutes; find out who manages CPUs here (numalet doctor), and stop it"
            " or exempt its pods"
        )

    def written(self, targets: Iterable[Target]) -> None:
        """Note what one pass has written; the same once more is a repair."""
        for target in targets:
            last, contest = self._written.get((target.path, target.file), (None, Contest()))
            contest = contest.repaired(self._now_s()) if last == target else Contest()
            self._written[target.path, target.file] = target, contest

    def keep(self, paths: Container[CgroupPath]) -> None:
        """Forget all cgroups but these."""
        self._written = {key: one for key, one in self._written.items() if key[0] in paths}
