"""No task of another pod runs on an exclusive CPU, while busy pods come and go: not for an instant."""

import json
import logging
from collections import Counter
from dataclasses import replace

import pytest

from agent.core.cpuset import CPUSet
from hack.lab.kernel import KERNELS
from hack.lab.topology import TOPOLOGIES

from .churn import KINDS, PODS
from .rig import in_guest
from .strangers import RESIDENT, Span, Told, meetings
from .tracing import read_journal

pytestmark = pytest.mark.vm

log = logging.getLogger(__name__)

GUEST = replace(TOPOLOGIES["2n"], threads=1, siblings_apart=False)
"""Few CPUs: each that is busy takes time from all others where they are emulated."""
BORN_INSIDE = ("best-effort", "burstable")
LEAST_RATE = 1.0
"""Pods a second: a quarter of what an emulated guest makes on a busy machine."""


@pytest.fixture(scope="module", params=KERNELS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("strangers")
    command = f"python -m tests.vm.churn {folder}"
    outcome = in_guest(GUEST, command, kernel=request.param, results=folder)
    log = folder / "agent.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    observed = json.loads((folder / "observed.json").read_text())
    pods = {int(key): value for key, value in observed.items() if key.isdecimal()}
    journal = read_journal(folder / "journal")
    allowed = [
        Span(pod=pod, cpus=CPUSet.parse(cpus), begin_s=begin, end_s=end)
        for pod, cpus, begin, end in observed["effective"]
    ]
    return Told(pods, allowed, journal, observed["seconds"])


def test_pods_came_and_went_and_were_busy(told: Told) -> None:
    kinds = Counter(pod["kind"] for pod in told.pods.values())
    seen = {use.pod for use in told.used()}

    assert len(told.pods) == PODS + 1
    assert told.rate > LEAST_RATE, f"{told.rate:.1f} pods came each second: that is no churn"
    assert kinds.keys() == {"resident", *(kind for kind, _, _ in KINDS)}
    assert len(seen) > len(told.pods) / 2
    assert {own.pod for own in told.owned()} > {RESIDENT}  # one CPU is left for who comes and goes
    ended_at = [pod["ended"] for pod in told.pods.values()]
    assert max(told.joined_at().values()) > min(ended_at), "all had come before one went"


def test_the_resident_pod_runs_on_its_own_cpus_and_on_no_others(told: Told) -> None:
    (own,) = (span for span in told.owned() if span.pod == RESIDENT)

    ran_on = CPUSet()
    for use in told.used():
        if use.pod == RESIDENT and use.begin_s > own.begin_s:
            ran_on |= use.cpus

    assert ran_on == own.cpus


def test_a_pod_that_is_born_below_a_class_never_runs_on_anybody_s_own_cpus(told: Told) -> None:
    strangers = [
        (own, use)
        for own, use in meetings(told.owned(), told.used())
        if told.pods[use.pod]["kind"] in BORN_INSIDE
    ]
    assert strangers == []


def test_nor_may_it_for_any_moment_that_was_looked_at(told: Told) -> None:
    allowed = [span for span in told.allowed if told.pods[span.pod]["kind"] in BORN_INSIDE]
    strangers = [
        (own, may)
        for own, may in meetings(told.owned(), allowed)
        if own.begin_s < may.begin_s and may.end_s < own.end_s
    ]

    assert len(allowed) > PODS
    assert strangers == []


def test_every_guaranteed_pod_is_confined_in_the_end(told: Told) -> None:
    """How late the others are is no matter for an emulated machine: it is 20 times too slow for them."""
    confined_at, joined_at = told.confined_at(), told.joined_at()
    unconfined = {number for number in told.at_the_top() if number not in confined_at}
    late_s = [confined_at[number] - joined_at[number] for number in told.at_the_top() - unconfined]
    log.info(
        "%.1f pods a second; %d of %d were late, at most %.2f s",
        told.rate, sum(late > 0 for late in late_s), len(late_s), max(late_s),
    )  # fmt: skip
    assert unconfined == set()


def test_a_guaranteed_pod_never_does_once_the_agent_has_seen_its_cgroup(told: Told) -> None:
    confined_at = told.confined_at()
    strangers = [
        (own, use)
        for own, use in meetings(told.owned(), told.used())
        if use.pod in told.at_the_top() and use.end_s > confined_at.get(use.pod, 0.0)
    ]
    assert strangers == []
