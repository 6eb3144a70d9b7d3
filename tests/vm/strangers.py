"""What a churn's journal says of who was on whose CPUs, and when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agent.core.cpuset import CPUSet

from .churn import LIFE_S
from .tracing import FileWrite, Traced, file_writes

AGENT = "numalet"
RESIDENT = 0
RESERVED_CPU = 0
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
    allowed: list[Span]
    journal: list[Traced]
    seconds: float

    @property
    def rate(self) -> float:
        """Pods that came each second, until the last one did."""
        return (len(self.pods) - 1) / (self.seconds - LIFE_S)

    def at_the_top(self) -> set[int]:
        """Return the Guaranteed pods that come and go: they are born where all CPUs are."""
        kinds = ("guaranteed", "exclusive")
        return {number for number, pod in self.pods.items() if pod["kind"] in kinds}

    @property
    def writes(self) -> list[FileWrite]:
        made = (w for w in file_writes(self.journal) if w.file == "cpuset.cpus")
        return [write for write in made if write.comm == AGENT]

    def owned(self) -> Iterator[Span]:
        """Yield what is somebody's own: from the agent's word in the kernel to the pod's end.

        The whole pool of a pod-level pod is; of the others the CPUs of an exclusive container.  A pod
        that is not known yet is on the default CPU set, which alone has the reserved CPU.
        """
        owners = {
            name: number
            for number, pod in self.pods.items()
            for name in ([f"pod{pod['uid']}"] if number == RESIDENT else pod.get("leaves", []))
            if pod["kind"] in ("resident", "exclusive")
        }
        for write in self.writes:
            name = write.cgroup.rpartition("/")[2]
            if name in owners and RESERVED_CPU not in CPUSet.parse(write.value):
                pod = owners.pop(name)
                yield Span(
                    pod=pod,
                    cpus=CPUSet.parse(write.value),
                    begin_s=write.at_s,
                    end_s=self.pods[pod]["ended"],
                )

    def used(self) -> Iterator[Span]:
        """Yield which pod's task was on which CPU, from the moment in which it has joined.

        It joins by itself: the CPU of that entry is the one that it goes on with.
        """
        running: dict[int, tuple[int, float]] = {}
        joined: dict[str, int] = {}
        for entry in self.journal:
            if entry.event == "sched_switch":
                if entry.cpu in running:
                    pod, since_s = running.pop(entry.cpu)
                    yield Span(pod=pod, cpus=CPUSet([entry.cpu]), begin_s=since_s, end_s=entry.at_s)
                if entry.fields["next_pid"] in joined:
                    running[entry.cpu] = joined[entry.fields["next_pid"]], entry.at_s
            elif (joins := self._joins(entry)) is not None:
                joined[entry.fields["pid"]] = joins
                running[entry.cpu] = joins, entry.at_s
        for cpu, (pod, since_s) in running.items():
            yield Span(pod=pod, cpus=CPUSet([cpu]), begin_s=since_s, end_s=FOR_EVER)

    def joined_at(self) -> dict[int, float]:
        """Return when the first process of each pod was in its cgroup."""
        first: dict[int, float] = {}
        for entry in self.journal:
            if (joins := self._joins(entry)) is not None:
                first.setdefault(joins, entry.at_s)
        return first

    def _joins(self, entry: Traced) -> int | None:
        """Return the pod whose container's cgroup a process joins."""
        if entry.event != "cgroup_attach_task":
            return None
        leaf = entry.fields["dst_path"].rpartition("/")[2]
        owners = (n for n, pod in self.pods.items() if leaf in pod.get("leaves", ()))
        return next(owners, None)

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
