"""How to decide: the policies and options of the kubelet's three managers, as configured."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.cpuset import CPUSet
from agent.core.pods import Amounts

DEFAULT_GATES: Mapping[str, bool] = {
    "PodLevelResources": True,
    "PodLevelResourceManagers": True,
    "CPUManagerPolicyOptions": True,
    "CPUManagerPolicyAlphaOptions": True,
    "CPUManagerPolicyBetaOptions": True,
}
"""numalet exists to offer what these gates hold back; a configuration may still turn them off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a KubeletConfiguration says about CPU, memory and topology; texts as written there.

    ``node_reservation`` is kube + system reservation + hard eviction, in milli-CPUs and bytes;
    ``reserved_memory`` lists NUMA node ids with bytes by type; of a node that is listed twice the
    last counts, though start-up adds both up (as the kubelet does).  ``departures`` names the departures of
    `agent.core.departures` that are switched on.  Of the default CPU set ``min_default_cpus`` always
    stay.
    """

    topology_policy: str = "best-effort"
    topology_scope: str = "pod"
    topology_options: Mapping[str, str] = field(default_factory=dict)
    cpu_policy: str = "static"
    cpu_options: Mapping[str, str] = field(default_factory=dict)
    reserved_cpus: CPUSet = field(default_factory=CPUSet)
    node_reservation: Amounts = field(default_factory=dict)
    memory_policy: str = "Static"
    reserved_memory: tuple[tuple[int, Amounts], ...] = ()
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    departures: frozenset[str] = frozenset()
    min_default_cpus: int = 0
    fence: CPUSet = field(default_factory=CPUSet)
    """The CPUs that another CPU manager leaves to numalet; empty where it has all.

    Promised: only these are given; every set that numalet writes above containers has all others (but
    those reserved strictly); everybody else, his containers too, is kept off what is given; and what
    he writes to containers that numalet gave nothing stays.

    Not promised: that he keeps off these CPUs, and off numalet's pods, which he has to be told; that
    what he writes to the cgroups of pods and QoS classes stays; a part of the memory: both count all.
    """

    def gate(self, name: str) -> bool:
        """Tell whether a feature gate is on."""
        return self.feature_gates.get(name, DEFAULT_GATES.get(name, False))
