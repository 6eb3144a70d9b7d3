"""Whether an agent passed: from what it cost at each moment, and what it said."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .samples import Sample

MIB = 1024.0
"""KiB in one."""
MOST_GROWTH = 1.02
"""Of the highest value in the last third over that in the one before: Python takes 1 MiB at a time."""
FDS_OF_REQUESTS = 2
"""Connections that are open by chance at a moment."""
MOST_EVENTS, MOST_ANNOTATIONS = 2, 1
"""Of one pod: it was rejected, and placed later; what was placed does not change any more."""
TOPOLOGY_INTERVAL_S = 5.0
LOG_LINES_OF_A_POD = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that was promised."""

    passed: bool
    sentence: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.sentence}"


def on_costs(samples: Iterable[Sample], *, most_mib: float) -> Iterator[Verdict]:
    """Judge memory, descriptors, threads and metrics.

    The first third is left to what is made once; the other two are compared.
    """
    samples = list(samples)
    until_s = samples[-1].at_s
    before = [one for one in samples if until_s / 3 <= one.at_s < until_s * 2 / 3]
    last = [one for one in samples if one.at_s >= until_s * 2 / 3]
    highest = max(one.rss_kib for one in samples) / MIB
    yield Verdict(highest < most_mib, f"RSS at most {highest:.1f} MiB, to be under {most_mib:g}")
    was, now = (max(one.rss_kib for one in third) / MIB for third in (before, last))
    yield Verdict(
        now <= was * MOST_GROWTH,
        f"RSS does not grow: at most {was:.1f} MiB in the second third, {now:.1f} in the last",
    )
    new = {name for one in last for name in one.series} - {n for one in before for n in one.series}
    count = max(len(one.series) for one in samples)
    yield Verdict(not new, f"{count} metric series, {len(new)} new in the last third {sorted(new)}")
    for what, spare in (("threads", 0), ("fds", FDS_OF_REQUESTS)):
        was, now = (max(getattr(one, what) for one in third) for third in (before, last))
        yield Verdict(now <= was + spare, f"{what}: {was} in the second third, {now} in the last")


def on_words(told: Mapping[str, Any], *, pods: int) -> Iterator[Verdict]:
    """Judge what was said to the API server and in the log, while so many pods were there."""
    traffic = told.get("traffic")
    if traffic is not None:
        most = traffic["most_events_of_a_pod"]
        yield Verdict(
            most <= MOST_EVENTS and not traffic["repeated_events"],
            f"{traffic['events']} events about {pods} pods, at most {most} about one,"
            f" {traffic['repeated_events']} told twice",
        )
        most = traffic["most_annotations_of_a_pod"]
        yield Verdict(
            most <= MOST_ANNOTATIONS,
            f"{traffic['annotations']} annotations of {pods} pods, at most {most} of one",
        )
        written, seconds = traffic["topologies"], told["seconds"]
        yield Verdict(
            0 < written <= seconds / TOPOLOGY_INTERVAL_S + 2,
            f"the NodeResourceTopology was written {written} times in {seconds:.0f} s",
        )
    each = told["log_lines"] / pods
    yield Verdict(each <= LOG_LINES_OF_A_POD, f"{each:.1f} lines of the log a pod")
    yield Verdict(not told["problems"], f"problems in the end: {told['problems'] or 'none'}")
    yield Verdict(told["exit"] == 0, f"exit status {told['exit']}")


def table(samples: Iterable[Sample]) -> Iterator[str]:
    """Yield a table of one sample a minute."""
    yield "  second   pods replaced   RSS MiB   anonymous   CPU s   threads   fds   series   waiting"
    due_s = 0.0
    for one in samples:
        if one.at_s >= due_s:
            due_s += 60.0
            yield (
                f"{one.at_s:8.0f} {one.pods_replaced:15d} {one.rss_kib / MIB:9.1f}"
                f" {one.anon_kib / MIB:11.1f} {one.cpu_s:7.1f} {one.threads:9d} {one.fds:5d}"
                f" {len(one.series):8d} {one.pending:9d}"
            )
