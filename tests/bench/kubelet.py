"""The recorded scenarios: our times beside those of the kubelet, and the goals."""

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.scenario import read_scenarios
from tests.conformance.timing import Times, times

DATA = Path(__file__).parents[1] / "data" / "bench"
LAST = 5
"""The figure of a scenario is the median over its last pods."""

GOALS = {"n2x16": 1.0, "n2x64s": 0.5, "n8x32s": 0.1}
"""Machine -> at most so much of the kubelet's time; other machines are shown for information."""

REJECTION_GOAL_US = 200

_ROW = re.compile(r"\| *(n\d+x\S+) *\| *\d+ *\| *\d+ *\| *(\d+) *\|")


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario: microseconds of the kubelet, of ours, and of ours with the checkpoint."""

    scenario: str
    kubelet_us: float
    us: float
    us_with_checkpoint: float

    @property
    def goal(self) -> float | None:
        """At most so much of the kubelet's time."""
        return GOALS.get(self.scenario.partition("-")[0])

    @property
    def met(self) -> str:
        """Whether the goal is met, judged with the checkpoint, as the kubelet writes files too."""
        if self.goal is None:
            return ""
        most = self.goal * self.kubelet_us
        if self.us_with_checkpoint <= most:
            return "yes"
        return "without checkpoint" if self.us <= most else "NO"


def kubelet_times() -> dict[str, float]:
    """Return the kubelet's microseconds by scenario, as README.md beside the scenarios has them."""
    text = (DATA / "README.md").read_text(encoding="utf-8")
    return {match[1]: float(match[2]) for match in _ROW.finditer(text)}


def measure(folder: Path) -> Iterator[tuple[str, Times]]:
    """Yield the times of every recorded scenario; checkpoints go below ``folder``."""
    for scenario in read_scenarios(DATA / "scenarios.jsonl.gz"):
        yield scenario["id"], times(scenario, folder)


def row(scenario: str, found: Times, kubelet_us: float) -> Row | None:
    """Return the figures of a scenario, None unless its last pods are all admitted."""
    if not all(found.admitted[-LAST:]):
        return None
    return Row(
        scenario,
        kubelet_us,
        statistics.median(found.us[-LAST:]),
        statistics.median(found.us_with_checkpoint[-LAST:]),
    )


def rejections(found: Times) -> list[float]:
    """Return the microseconds of every decision that rejected its pod."""
    return [us for us, admitted in zip(found.us, found.admitted, strict=True) if not admitted]
