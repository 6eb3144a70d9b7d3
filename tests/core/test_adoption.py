"""What runs is taken over from its cgroups where nothing else says who owns what."""

from collections.abc import Mapping

from hypothesis import given, settings

from agent.core.admission import Admitted, admit
from agent.core.adoption import Adopted, adopt_running
from agent.core.cgroups import CgroupPath, Seen
from agent.core.cpuset import CPUSet
from agent.core.desired import PodCgroups, container_mems, desired_values, node_shared
from agent.core.pods import Kind, Pod, PodUID
from agent.core.startup import Rules
from agent.core.state import NodeState
from tests.props.test_promises import Moment, moments
from tests.strategies import Step, container, histories, machine, pod, rules, rules_for

MACHINE = machine(sockets=2, cores_per_node=8, threads=1)
RULES = rules_for(MACHINE)
A = pod("a", container("db", "cpu=2 memory=1Gi"), container("side", "cpu=500m memory=1Gi"))
B = pod("b", container("db", "cpu=3 memory=1Gi"))
POOL = pod(
    "pool", container("db", "cpu=3 memory=1Gi"), container("proxy"), budget="cpu=4 memory=3Gi"
)


def placed(rules: Rules, *pods: Pod) -> NodeState:
    state = rules.initial_state()
    for one in pods:
        verdict = admit(rules, state, one)
        assert isinstance(verdict, Admitted), verdict
        state = verdict.state
    return state


def seen_of(rules: Rules, state: NodeState, one: Pod, *, without: Kind = Kind.INIT) -> Seen:
    """What the cgroups of a pod say that was enforced, its ordinary init containers having ended."""
    path = CgroupPath("pod")
    leaves = {path / c.name: c.name for c in one.containers if c.kind is not without}
    values = desired_values(rules, state, [PodCgroups(pod=one, path=path, leaves=leaves)], ())
    names: dict[CgroupPath, str | None] = {path: None, **leaves}
    everywhere = rules.topology.memory_nodes if rules.manages_memory else None
    mems = {name: values[at].mems or everywhere for at, name in names.items()}
    return Seen(
        cpus={n: cpus for at, n in names.items() if (cpus := values[at].cpus) is not None},
        mems={name: nodes for name, nodes in mems.items() if nodes is not None},
    )


def adopted(rules: Rules, state: NodeState, pods: Mapping[PodUID, Pod], live: NodeState) -> Adopted:
    seen = {uid: seen_of(rules, live, one) for uid, one in pods.items()}
    return adopt_running(rules, state, pods, seen, node_shared(rules, live))


@given(rules(), histories())
@settings(max_examples=150, deadline=None)
def test_with_nothing_remembered_every_running_container_keeps_its_cpus(
    rules: Rules, history: list[Step]
) -> None:
    now: Moment = list(moments(rules, history))[-1]

    after = adopted(rules, rules.initial_state(), now.pods, now.state)

    assert after.outdated == ()
    assert after.state.two_owners() == CPUSet()
    for uid, one in now.pods.items():
        if uid not in now.state.pods or not rules.manages_cpus:
            continue
        was, entry = now.state.pods[uid], after.state.pods.get(uid)
        if entry is None:  # nothing tells it from a rejected pod
            assert not was.held
            continue
        assert entry.pool == was.pool
        for c in one.containers:
            if c.kind is not Kind.INIT:
                assert entry.cpus.get(c.name) == was.cpus.get(c.name)
                assert container_mems(entry, c.name) == container_mems(was, c.name)
