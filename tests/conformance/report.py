"""What a run over scenario files shows: a line a theme, the first differences, the sum."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.conformance.replay import Outcome, replay
from tests.conformance.scenario import Json

SHOWN = 20
"""So many of the scenarios that differ are shown with both answers."""

_LONGEST = 2000
_COLUMNS = ("exact", "departed", "failed")


@dataclass(slots=True)
class Theme:
    """The scenarios of one theme, counted by verdict, and the departures by name."""

    verdicts: Counter[str] = field(default_factory=Counter)
    departures: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one scenario."""
        self.verdicts[outcome.verdict] += 1
        if outcome.verdict == "departed":
            self.departures.update(outcome.departures)


class Report:
    """Counts outcomes and tells them as text."""

    def __init__(self) -> None:
        self.themes: dict[str, Theme] = {}
        self.failures: list[tuple[str, Outcome]] = []

    def run(self, scenarios: Iterable[Json]) -> None:
        """Replay scenarios and count how they end."""
        for scenario in scenarios:
            outcome = replay(scenario)
            self.themes.setdefault(scenario["theme"], Theme()).add(outcome)
            if outcome.difference is not None:
                self.failures.append((scenario["id"], outcome))

    @property
    def failed(self) -> int:
        """How many scenarios failed."""
        return len(self.failures)

    def lines(self) -> Iterator[str]:
        """Yield the report; its last line is ``N passed, N failed``."""
        yield _row("theme", "scenarios", *_COLUMNS, "departures")
        total = Theme()
        for name, theme in self.themes.items():
            yield _theme_row(name, theme)
            total.verdicts += theme.verdicts
            total.departures += theme.departures
        yield _theme_row("total", total)
        for scenario_id, outcome in self.failures[:SHOWN]:
            yield from _shown(scenario_id, outcome)
        yield f"{total.verdicts.total() - self.failed} passed, {self.failed} failed"


def _theme_row(name: str, theme: Theme) -> str:
    departures = ", ".join(f"{name} {n}" for name, n in sorted(theme.departures.items()))
    counts = [theme.verdicts[column] for column in _COLUMNS]
    return _row(name, theme.verdicts.total(), *counts, departures)


def _row(name: str, *cells: object) -> str:
    *counts, departures = cells
    return f"{name:28}{''.join(f'{count:>10}' for count in counts)}  {departures}".rstrip()


def _shown(scenario_id: str, outcome: Outcome) -> Iterator[str]:
    found = outcome.difference
    assert found is not None
    yield f"\n{scenario_id}, {found.step}: {found.path}"
    yield f"  kubelet: {_text(found.kubelet)}"
    yield f"  numalet: {_text(found.ours)}"


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
