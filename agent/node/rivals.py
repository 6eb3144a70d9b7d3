"""Who else places containers on this node, as far as it can be seen from here."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

from agent.core.checkup_rivals import WATCHED, kubelet, managers, processes, second_numalet
from agent.core.findings import Finding, Level
from agent.core.node_facts import KubeletFacts, Others
from agent.errors import EnvironmentProblem
from agent.node import kubelet_state, procfs


def rivals(root: Path, answer: KubeletFacts | None = None) -> tuple[Finding, ...]:
    """Return findings on each other CPU manager, and on what cannot be seen of them.

    ``root`` is where the node's own / is; ``answer`` is what the kubelet says of itself, if it does.
    Called by a numalet that holds its lock; costs a millisecond for a hundred processes.
    """
    try:
        running = procfs.processes_named(WATCHED)
    except EnvironmentProblem:
        running = ()  # which the first check has a sentence for
    others = Others(processes=running, kubelet=kubelet_state.policies(root, running))
    own_pid = procfs.own_pid()
    lockers = None if own_pid is None else procfs.lock_holders()
    return (
        *processes(others),
        _on_kubelet(others, answer),
        *managers(others),
        *second_numalet(others, own_pid, lockers),
    )


def _on_kubelet(others: Others, answer: KubeletFacts | None) -> Finding:
    """Return what is worse of both: the files may be old, and so may the answer."""
    answered = () if answer is None else kubelet(replace(others, kubelet=_at(others, answer)))
    found = tuple(chain(answered, kubelet(others)))
    return next((finding for finding in found if finding.level is Level.PROBLEM), found[0])


def _at(others: Others, answer: KubeletFacts) -> KubeletFacts:
    return replace(answer, folder=others.kubelet.folder)
