"""Who else places containers on this node, as far as it can be seen from here."""

from pathlib import Path

from agent.core.checkup_rivals import kubelet, managers
from agent.core.findings import Finding, Level
from agent.errors import EnvironmentProblem
from agent.node import procfs
from agent.node.inspection import inspect


def rivals(root: Path, state_dir: Path) -> tuple[Finding, ...]:
    """Return a finding for each other CPU manager, by its state files and processes.

    ``root`` is where the node's own / is; ``state_dir`` a path of this process.
    """
    try:
        processes = procfs.processes()
    except EnvironmentProblem:
        processes = ()
    facts = inspect(root, state_dir=state_dir, pods=(), processes=processes)
    found = (*kubelet(facts), *managers(facts))
    return tuple(finding for finding in found if finding.level is Level.PROBLEM)
