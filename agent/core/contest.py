"""A value that somebody else keeps overwriting: when to stop giving it back, and for how long."""

from dataclasses import dataclass, replace

MOST_REPAIRS = 20
"""So often within `WITHIN_S` a value is written again: more than any number of daemon-reloads needs."""
WITHIN_S = 300.0
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What is known of one value; all times are seconds of a clock that is never set back.

    ``repaired_s`` are the repairs of late, ``pauses`` how many pauses there were in a row.
    """

    repaired_s: tuple[float, ...] = ()
    pauses: int = 0
    paused_until_s: float = float("-inf")

    def repaired(self, now_s: float) -> "Contest":
        """Note that the value had to be written again, which may begin a pause.

        The first repair after a pause begins the next one, twice as long; who has left the value
        alone for `WITHIN_S` begins anew.
        """
        last_s = max((*self.repaired_s, self.paused_until_s))
        if now_s - last_s > WITHIN_S:
            return Contest(repaired_s=(now_s,))
        recent = (*(at_s for at_s in self.repaired_s if now_s - at_s <= WITHIN_S), now_s)
        if not self.pauses and len(recent) < MOST_REPAIRS:
            return replace(self, repaired_s=recent)
        paused = Contest(repaired_s=recent, pauses=self.pauses + 1)
        return replace(paused, paused_until_s=now_s + paused.pause_s)

    @property
    def pause_s(self) -> float:
        """How long the last pause is, or was; 0 where there was none."""
        return min(FIRST_PAUSE_S * 2 ** (self.pauses - 1), LONGEST_PAUSE_S) if self.pauses else 0.0

    def is_paused(self, now_s: float) -> bool:
        """Tell whether the value is to be left to the other one."""
        return now_s < self.paused_until_s
