"""Pods, rules and decisions in few words."""

from collections.abc import Mapping

from agent.core.admission import Admitted, Rejected, admit
from agent.core.cpuset import CPUSet
from agent.core.pods import CPU, MEMORY, Amounts, Container, Kind, Pod, PodUID, Resources
from agent.core.policy import Policy
from agent.core.startup import Rules, start
from agent.core.state import NodeState
from agent.core.topology import NodeTopology
from tests.strategies import GI, HUGE

KEPT = {MEMORY: GI}
"""What is reserved of the first NUMA node's memory."""


def asking(cpus: float, *, gib: float = 1, huge: int = 0) -> Resources:
    """Return requests that are limits too; ``huge`` is bytes of 2Mi pages."""
    amounts = {CPU: int(cpus * 1000), MEMORY: int(gib * GI), HUGE: huge}
    found = {name: amount for name, amount in amounts.items() if amount}
    return Resources(requests=found, limits=found)


def init(name: str, cpus: float, *, gib: float = 1) -> Container:
    return Container(name=name, kind=Kind.INIT, resources=asking(cpus, gib=gib))


def sidecar(name: str, cpus: float, *, gib: float = 1, huge: int = 0) -> Container:
    return Container(name=name, kind=Kind.SIDECAR, resources=asking(cpus, gib=gib, huge=huge))


def app(name: str, cpus: float, *, gib: float = 1, huge: int = 0) -> Container:
    return Container(name=name, resources=asking(cpus, gib=gib, huge=huge))


def sharing(name: str, kind: Kind = Kind.APP, requests: Amounts | None = None) -> Container:
    """Return a container that is not exclusive."""
    asked = requests or {}
    return Container(name=name, kind=kind, resources=Resources(requests=asked, limits=asked))


def pod(*containers: Container, budget: Resources | None = None, uid: str = "pod") -> Pod:
    return Pod(
        uid=PodUID(uid),
        name=uid,
        budget=budget,
        init_containers=tuple(c for c in containers if c.kind is not Kind.APP),
        app_containers=tuple(c for c in containers if c.kind is Kind.APP),
    )


def rules(  # noqa: PLR0913 - what the departures depend on
    topology: NodeTopology,
    *departures: str,
    policy: str = "none",
    scope: str = "container",
    memory: bool = True,
    reserved: str = "0",
    cpu_options: Mapping[str, str] | None = None,
    topology_options: Mapping[str, str] | None = None,
) -> Rules:
    kept = KEPT if memory else {}
    cpus = CPUSet.parse(reserved)
    return start(
        topology,
        Policy(
            topology_policy=policy,
            topology_scope=scope,
            topology_options=topology_options or {},
            cpu_options=cpu_options or {},
            reserved_cpus=cpus,
            node_reservation={CPU: len(cpus) * 1000, **kept},
            memory_policy="Static" if memory else "None",
            reserved_memory=((topology.nodes[0].id, kept),) if memory else (),
            departures=frozenset(departures),
        ),
    )


def admitted(rules: Rules, pod: Pod, state: NodeState | None = None) -> Admitted:
    decision = admit(rules, state or rules.initial_state(), pod)
    assert isinstance(decision, Admitted), decision
    return decision


def rejected(rules: Rules, pod: Pod, state: NodeState | None = None) -> Rejected:
    decision = admit(rules, state or rules.initial_state(), pod)
    assert isinstance(decision, Rejected), decision
    return decision
