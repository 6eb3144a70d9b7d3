"""What-if: who would get which CPUs, or the reason why not; nothing is written."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config import AgentConfig, fill_in, load
from agent.core.admission import Rejected, admit
from agent.core.departures import POD_QUOTA
from agent.core.explain import PodVerdict, explain
from agent.core.pods import Pod, PodUID
from agent.core.startup import Rules, StartupRefused, start
from agent.core.state import NodeState
from agent.core.topology import NodeTopology, kubelet_view
from agent.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The outcome for some pods, in their order, and the state in which the last one left the node."""

    rules: Rules
    state: NodeState
    verdicts: tuple[PodVerdict, ...]

    @property
    def all_admitted(self) -> bool:
        """Tell whether no pod was rejected."""
        return all(verdict.admitted for verdict in self.verdicts)


def configure(path: Path | None, topology: NodeTopology) -> tuple[AgentConfig, Rules]:
    """Read a configuration and resolve it against a machine.

    Raises `InputError` for what is wrong in the file, and for what the kubelet's managers refuse on
    this machine, in the kubelet's own words.
    """
    config = fill_in(load(path), topology)
    policy = replace(config.policy, min_default_cpus=config.min_default_cpus)
    if config.pod_quota:
        policy = replace(policy, departures=policy.departures | {POD_QUOTA})
    try:
        return config, start(kubelet_view(topology), policy)
    except StartupRefused as refusal:
        where = str(path) if path is not None else "defaults"
        raise InputError(f"the {refusal.stage} refuses this: {refusal}", where=where) from refusal


def plan(rules: Rules, state: NodeState, pods: Iterable[Pod]) -> Planned:
    """Decide on pods one after the other, starting from ``state``."""
    pods = tuple(pods)
    rejections: dict[PodUID, tuple[str, str]] = {}
    for pod in pods:
        verdict = admit(rules, state, pod)
        state = verdict.state
        if isinstance(verdict, Rejected):
            rejections[pod.uid] = (verdict.reason, verdict.message)
    verdicts = tuple(explain(rules, state, pod, rejections.get(pod.uid)) for pod in pods)
    return Planned(rules=rules, state=state, verdicts=verdicts)
