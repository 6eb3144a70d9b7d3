"""What is wrong at the moment: logged once when it begins, and problems when they are over."""

from collections import Counter
from collections.abc import Sequence

import structlog

from agent.core.pods import Pod, PodUID
from agent.core.state import NodeState
from agent.errors import InvariantBroken
from agent.ports import InputRejected, Rejection, SourceState

log = structlog.get_logger(component="reconciler")

TOLD_OF_ONE_CAUSE = 10
"""So many lines of one kind are logged in one pass."""


def check_owners(state: NodeState) -> None:
    """Let nothing be written, neither to disk nor to a cgroup, that gives a CPU to two."""
    twice = state.two_owners()
    if twice:
        raise InvariantBroken(
            f"CPUs {twice} have two owners; nothing was written, the cgroups stay as they are: "
            "please report this with the output of `numalet state show -o json`"
        )


class Conditions:
    """All that a person might have to mend."""

    def __init__(self) -> None:
        self.inputs: dict[str, str] = {}
        """By file or object what cannot be read, and why."""
        self.complaints: dict[PodUID, tuple[Pod, Rejection]] = {}
        """Pods as their source wants them, and why they cannot be so."""
        self.source = SourceState(healthy=False, detail="no list of pods yet")
        self.problems: tuple[str, ...] = ()

    def note_source(self, source: SourceState) -> None:
        """Remember how the source of pods is."""
        if source != self.source:
            self.source = source
            tell = log.info if source.healthy else log.warning
            tell("source", healthy=source.healthy, detail=source.detail)

    def note_list(self) -> None:
        """Remember that the source has sent a complete list."""
        if not self.source.healthy:
            self.note_source(SourceState(healthy=True, detail="the list of pods is complete"))

    def note_problems(self, problems: tuple[str, ...]) -> None:
        """Remember these sentences instead of the former ones."""
        former, self.problems = self.problems, problems
        for problem in problems:
            if problem not in former:
                log.error("problem", what=problem)
        for problem in former:
            if problem not in problems:
                log.info("problem_solved", what=problem)

    def note_drift(self, drift: Sequence[tuple[str, str]]) -> None:
        """Log causes and sentences; of many with one cause, as after a daemon-reload, the first only."""
        counts = Counter[str]()
        for cause, sentence in drift:
            counts[cause] += 1
            if counts[cause] <= TOLD_OF_ONE_CAUSE:
                log.warning("drift", cause=cause, what=sentence)
        for cause, count in counts.items():
            if count > TOLD_OF_ONE_CAUSE:
                log.warning(
                    "drift", cause=cause, what=f"and {count - TOLD_OF_ONE_CAUSE} like these"
                )

    def note_input(self, told: InputRejected) -> None:
        """Remember an input that cannot be read, or that it can be read again."""
        if not told.reason:
            self.inputs.pop(told.where, None)
        elif self.inputs.get(told.where) != told.reason:
            self.inputs[told.where] = told.reason
            log.warning("input_rejected", where=told.where, reason=told.reason)

    def refusals(self) -> dict[PodUID, Rejection]:
        """Return why pods do not get what they ask for."""
        return {uid: why for uid, (_, why) in self.complaints.items()}

    def complain(self, pod: Pod, reason: str, message: str) -> None:
        """Remember that a pod does not get what it asks for, and keeps what it has."""
        complaint = (pod, Rejection(reason, message))
        if self.complaints.get(pod.uid) != complaint:
            self.complaints[pod.uid] = complaint
            log.warning("demand_refused", pod=pod.full_name, reason=reason, message=message)
