"""What-if: who would get which CPUs, or the reason why not; nothing is written."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config import AgentConfig, fill_in, load
from agent.core.admission import Rejected, admit, refuse
from agent.core.checkup_cgroups import assignable
from agent.core.departures import POD_QUOTA
from agent.core.entitlement import Entitlement
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
    """Read a configuration and resolve it against a machine; raises as `resolve`, and for the file."""
    return resolve(load(path), path, topology)


def resolve(
    loaded: AgentConfig, path: Path | None, topology: NodeTopology
) -> tuple[AgentConfig, Rules]:
    """Resolve a configuration that was read from ``path`` against a machine.

    Raises `InputError` for what the kubelet's managers refuse on this machine, in the kubelet's own
    words.
    """
    config = fill_in(loaded, topology)
    policy = replace(config.policy, min_default_cpus=config.min_default_cpus)
    if config.pod_quota:
        policy = replace(policy, departures=policy.departures | {POD_QUOTA})
    where = str(path) if path is not None else "defaults"
    try:
        rules = start(kubelet_view(topology), policy)
    except StartupRefused as refusal:
        raise InputError(f"the {refusal.stage} refuses this: {refusal}", where=where) from refusal
    if policy.fence and not assignable(rules):
        why = (
            f"coexistence: the fence {policy.fence} has no CPU of this machine that is not reserved"
        )
        raise InputError(why, where=where)
    absent = policy.fence - topology.cpus
    if absent:
        what = (
            f"{where}: coexistence: this machine has no CPUs {absent} (yet), which the fence names"
        )
        config = replace(config, warnings=(*config.warnings, what))
    return config, rules


def plan(
    rules: Rules,
    state: NodeState,
    pods: Iterable[Pod],
    entitlement: Entitlement = Entitlement(),  # noqa: B008 - immutable
) -> Planned:
    """Decide on pods one after the other, starting from ``state``."""
    pods = tuple(replace(pod, own_kernel=entitlement.own_kernel(pod)) for pod in pods)
    rejections: dict[PodUID, tuple[str, str]] = {}
    for pod in pods:
        refusal = entitlement.refusal(pod)
        verdict = admit(rules, state, pod) if refusal is None else refuse(state, *refusal)
        state = verdict.state
        if isinstance(verdict, Rejected):
            rejections[pod.uid] = (verdict.reason, verdict.message)
    verdicts = tuple(explain(rules, state, pod, rejections.get(pod.uid)) for pod in pods)
    return Planned(rules=rules, state=state, verdicts=verdicts)
