"""No task of another pod runs on an exclusive CPU, while busy pods come and go: not for an instant."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent.core.cpuset import CPUSet
from hack.lab.kernel import KERNELS
from hack.lab.topology import TOPOLOGIES

from .churn import COMM, KINDS, PODS
from .rig import in_guest
from .tracing import FileWrite, Traced, file_writes, read_journal

pytestmark = pytest.mark.vm

AGENT = "numalet"
GUEST = replace(TOPOLOGIES["2n"], threads=1, siblings_apart=False)
"""Few CPUs: each that is busy takes time from all others where they are emulated."""
RESIDENT = 0
BORN_INSIDE = ("best-effort", "burstable")
FOR_EVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A pod has, or uses, CPUs for a while."""

    pod: int
    cpus: CPUSet
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a churn."""

    pods: dict[int, dict[str, Any]]
    effective: list[tuple[int, str]]
    journal: list[Traced]

    @property
    def writes(self) -> list[FileWrite]:
        made = (w for w in file_writes(self.journal) if w.file == "cpuset.cpus")
        return [write for write in made if write.comm == AGENT]

    def owned(self) -> Iterator[Span]:
        """Yield what is somebody's own: from the agent's word in the kernel to the pod's end.

        The whole pool of a pod-level pod is; of the others the CPUs of an exclusive container.
        """
        owners = {
            name: number
            for number, pod in self.pods.items()
            for name in ([f"pod{pod['uid']}"] if number == RESIDENT else pod.get("leaves", []))
            if pod["kind"] in ("resident", "exclusive")
        }
        default_set = CPUSet()
        for write in self.writes:
            name = write.cgroup.rpartition("/")[2]
            if name == "besteffort":
                default_set = CPUSet.parse(write.value)
            if name in owners and default_set.isdisjoint(CPUSet.parse(write.value)):
                pod = owners.pop(name)
                yield Span(
                    pod=pod,
                    cpus=CPUSet.parse(write.value),
                    begin_s=write.at_s,
                    end_s=self.pods[pod]["ended"],
                )

    def used(self) -> Iterator[Span]:
        """Yield which pod's task was on which CPU."""
        running: dict[int, tuple[int, float]] = {}
        for entry in self.journal:
            if entry.event != "sched_switch":
                continue
            if entry.cpu in running:
                pod, since_s = running.pop(entry.cpu)
                yield Span(pod=pod, cpus=CPUSet([entry.cpu]), begin_s=since_s, end_s=entry.at_s)
            if entry.fields["next_comm"].startswith(COMM):
                pod = int(entry.fields["next_comm"].removeprefix(COMM))
                running[entry.cpu] = pod, entry.at_s
        for cpu, (pod, since_s) in running.items():
            yield Span(pod=pod, cpus=CPUSet([cpu]), begin_s=since_s, end_s=FOR_EVER)

    def confined_at(self) -> dict[int, float]:
        """Return when the agent first wrote to the cgroup of each pod."""
        numbers = {f"pod{pod['uid']}": number for number, pod in self.pods.items()}
        first: dict[int, float] = {}
        for write in self.writes:
            name = write.cgroup.rpartition("/")[2]
            if name in numbers:
                first.setdefault(numbers[name], write.at_s)
        return first


def meetings(owned: Iterable[Span], used: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    """Yield each task that was on a CPU of another pod, with whose it was."""
    spans = sorted(owned, key=lambda span: span.begin_s)
    for use in used:
        for own in spans:
            if own.begin_s >= use.end_s:
                break
            is_met = own.pod != use.pod and own.end_s > use.begin_s
            if is_met and not own.cpus.isdisjoint(use.cpus):
                yield own, use


@pytest.fixture(scope="module", params=KERNELS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("strangers")
    command = f"python -m tests.vm.churn {folder}"
    outcome = in_guest(GUEST, command, kernel=request.param, results=folder)
    log = folder / "agent.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    observed = json.loads((folder / "observed.json").read_text())
    pods = {int(key): value for key, value in observed.items() if key.isdecimal()}
    return Told(pods, observed["effective"], read_journal(folder / "journal"))


def test_pods_came_and_went_and_were_busy(told: Told) -> None:
    kinds = Counter(pod["kind"] for pod in told.pods.values())
    seen = {use.pod for use in told.used()}

    assert len(told.pods) == PODS + 1
    assert kinds.keys() == {"resident", *(kind for kind, _, _ in KINDS)}
    assert len(seen) > len(told.pods) / 2
    assert {own.pod for own in told.owned()} > {RESIDENT}


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
    (own,) = (span for span in told.owned() if span.pod == RESIDENT)
    allowed = [
        CPUSet.parse(cpus)
        for number, cpus in told.effective
        if told.pods[number]["kind"] in BORN_INSIDE
    ]

    assert len(allowed) > PODS
    assert all(cpus.isdisjoint(own.cpus) for cpus in allowed)


def test_a_guaranteed_pod_never_does_once_the_agent_has_seen_its_cgroup(told: Told) -> None:
    confined_at = told.confined_at()
    strangers = [
        (own, use)
        for own, use in meetings(told.owned(), told.used())
        if told.pods[use.pod]["kind"] in ("guaranteed", "exclusive")
        and use.end_s > confined_at.get(use.pod, FOR_EVER)
    ]
    assert strangers == []
