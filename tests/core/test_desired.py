"""What a cgroup says, bottom-up: containers, pods, quality-of-service parents."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings

from agent.core.admission import admit
from agent.core.cgroups import CgroupPath, CgroupValues, CpuMax
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.departures import POD_QUOTA
from agent.core.desired import (
    PodCgroups,
    PodValues,
    container_cpus,
    container_quota,
    desired_values,
    node_shared,
    pod_quota,
    quota,
)
from agent.core.pods import Container, Kind, Pod, PodUID
from agent.core.startup import STRICT_RESERVATION, Rules
from agent.core.state import NodeState, PodEntry
from tests.props.test_promises import moments
from tests.strategies import Step, container, histories, machine, pod, rules, rules_for

KUBEPODS = CgroupPath("kubepods")
BURSTABLE = KUBEPODS / "burstable"
BEST_EFFORT = KUBEPODS / "besteffort"

database = container("database", "cpu=4 memory=8Gi")
proxy = container("proxy", "cpu=100m memory=512Mi", "cpu=1500m memory=512Mi")
debug = container("debug", kind=Kind.EPHEMERAL)
mixed = pod("mixed", database, proxy, budget="cpu=6 memory=9Gi")


def on_two_sockets(**changes: object) -> Rules:
    """Sixteen CPUs a socket; 0-1 are reserved."""
    return rules_for(machine(sockets=2, cores_per_node=8), **changes)


def placed(rules: Rules, *pods: Pod) -> NodeState:
    state = rules.initial_state()
    for each in pods:
        state = admit(rules, state, each).state
    return state


def below(parent: CgroupPath, each: Pod, **extra: str | None) -> PodCgroups:
    """Put a pod below a parent, with a leaf for each container and those of ``extra``."""
    path = parent / each.uid
    names = [c.name for c in (*each.containers, *each.ephemeral_containers)]
    leaves: dict[CgroupPath, str | None] = {path / name: name for name in names}
    leaves |= {path / leaf: name for leaf, name in extra.items()}
    return PodCgroups(pod=each, path=path, leaves=leaves)


def values(rules: Rules, state: NodeState, *pods: PodCgroups) -> dict[str, CgroupValues]:
    """Return what is desired, by path below ``kubepods``."""
    desired = desired_values(rules, state, pods, (BURSTABLE, BEST_EFFORT))
    return {path.relative.removeprefix("kubepods/"): of for path, of in desired.items()}


def cpus(desired: dict[str, CgroupValues]) -> dict[str, str]:
    return {path: str(of.cpus) for path, of in desired.items()}


def test_a_container_has_its_slice_or_its_pods_shared_pool_and_the_pod_their_union() -> None:
    rules = on_two_sockets()
    assert cpus(values(rules, placed(rules, mixed), below(KUBEPODS, mixed))) == {
        "mixed": "2-7",
        "mixed/database": "2-5",
        "mixed/proxy": "6-7",
        "burstable": "0-1,8-31",
        "besteffort": "0-1,8-31",
    }


def test_a_parent_has_the_default_set_and_the_pools_of_the_pods_below_it() -> None:
    rules = on_two_sockets()
    other = pod("other", container("a", "cpu=2 memory=1Gi"))
    state = placed(rules, mixed, other)
    desired = cpus(values(rules, state, below(BURSTABLE, mixed), below(KUBEPODS, other)))
    assert desired["burstable"] == "0-7,10-31"
    assert desired["besteffort"] == "0-1,10-31"
    assert desired["other"] == "8-9"
    assert "" not in desired  # kubepods itself is not narrowed


def test_a_pod_that_holds_nothing_runs_on_the_default_set() -> None:
    rules = on_two_sockets()
    light = pod("light", container("a", "cpu=100m"))
    desired = values(rules, placed(rules, mixed, light), below(BURSTABLE, light))
    assert desired["burstable/light"].cpus == CPUSet.parse("0-1,8-31")
    assert desired["burstable/light/a"].cpus == CPUSet.parse("0-1,8-31")
    assert desired["burstable/light/a"].mems is None


def test_a_mixed_guaranteed_pod_without_a_budget_has_its_slices_and_the_default_set() -> None:
    rules = on_two_sockets()
    each = pod("each", container("a", "cpu=2 memory=1Gi"), container("b", "cpu=500m memory=1Gi"))
    desired = cpus(values(rules, placed(rules, each), below(KUBEPODS, each)))
    assert desired["each/a"] == "2-3"
    assert desired["each/b"] == "0-1,4-31"
    assert desired["each"] == "0-31"


def test_an_ephemeral_container_runs_on_the_default_set_which_its_pod_then_has_too() -> None:
    rules = on_two_sockets()
    debugged = replace(mixed, ephemeral_containers=(debug,))
    desired = values(rules, placed(rules, debugged), below(KUBEPODS, debugged))
    assert desired["mixed/debug"].cpus == CPUSet.parse("0-1,8-31")
    assert desired["mixed/debug"].cpu_max is None
    assert desired["mixed"].cpus == CPUSet.parse("0-31")
    assert desired["mixed"].mems is None
    assert desired["mixed/database"].cpus == CPUSet.parse("2-5")


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ((database, proxy), "6-7"),  # the pod shared pool
        ((container("all", "cpu=6 memory=9Gi"),), "2-7"),  # nothing is shared: the pool
        ((container("setup", "cpu=5 memory=1Gi", kind=Kind.INIT), proxy), "2-7"),
        ((container("sidecar", "cpu=1 memory=1Gi", kind=Kind.SIDECAR), proxy), "3-7"),
    ],
)
def test_a_container_whose_name_is_not_known_yet_never_gets_a_siblings_slice(
    containers: tuple[Container, ...], expected: str
) -> None:
    rules = on_two_sockets()
    each = pod("each", *containers, budget="cpu=6 memory=9Gi")
    desired = values(rules, placed(rules, each), below(KUBEPODS, each, sandbox=None))
    assert str(desired["each/sandbox"].cpus) == expected
    assert desired["each/sandbox"].mems is None
    assert desired["each/sandbox"].cpu_max is None


def test_an_unknown_container_of_a_pod_without_a_pool_gets_the_default_set() -> None:
    rules = on_two_sockets()
    each = pod("each", container("a", "cpu=2 memory=1Gi"), container("b", "cpu=500m memory=1Gi"))
    desired = values(rules, placed(rules, each), below(KUBEPODS, each, sandbox=None))
    assert str(desired["each/sandbox"].cpus) == "0-1,4-31"


def test_an_unknown_container_is_never_given_cpus_that_its_pod_does_not_have() -> None:
    rules = on_two_sockets()
    each = pod("each", container("a", "cpu=2 memory=1Gi"), container("b", "cpu=1 memory=1Gi"))
    desired = values(rules, placed(rules, each), below(KUBEPODS, each, sandbox=None))
    assert str(desired["each"].cpus) == str(desired["each/sandbox"].cpus) == "2-4"


def test_a_name_that_the_pod_does_not_have_yet_gets_what_one_without_a_name_does() -> None:
    rules = on_two_sockets()
    desired = values(
        rules, placed(rules, mixed), below(KUBEPODS, mixed, ghost="ghost", sandbox=None)
    )
    assert desired["mixed/ghost"] == desired["mixed/sandbox"] == CgroupValues(cpus=CPUSet([6, 7]))
    assert CPUSet([6, 7]) <= (desired["mixed"].cpus or CPUSet())


def test_memory_comes_from_the_nodes_of_its_blocks() -> None:
    rules = on_two_sockets()
    desired = values(rules, placed(rules, mixed), below(KUBEPODS, mixed))
    assert desired["mixed"].mems == NodeSet([0])
    assert desired["mixed/proxy"].mems == NodeSet([0])
    wide = pod("wide", container("a", "cpu=20 memory=20Gi"))
    desired = values(rules, placed(rules, wide), below(KUBEPODS, wide))
    assert desired["wide/a"].mems == desired["wide"].mems == NodeSet([0, 1])


def test_a_pod_has_no_nodes_as_soon_as_one_container_may_use_any() -> None:
    rules = on_two_sockets(topology_scope="container", memory_policy="Static")
    entry = PodEntry(cpus={"database": CPUSet([2])}, memory={"database": ()})
    state = replace(rules.initial_state(), pods={mixed.uid: entry})
    assert values(rules, state, below(KUBEPODS, mixed))["mixed"].mems is None


def test_of_reserved_cpus_that_somebody_has_come_to_hold_only_the_others_are_shared() -> None:
    """Fewer CPUs after a reboot, or SMT off: two are reserved again, one of which is held."""
    rules = rules_for(machine(cores_per_node=2), cpu_options={STRICT_RESERVATION: "true"})
    (reserved, *others) = rules.topology.cpus
    held = PodEntry(cpus={"own": CPUSet(others)})
    state = NodeState(default=CPUSet(), pods={PodUID("x"): held})
    more = replace(rules, reserved=CPUSet([reserved, others[0]]))
    assert node_shared(more, state) == CPUSet([reserved])
    assert node_shared(replace(rules, reserved=CPUSet()), state) == rules.topology.cpus


def test_with_strict_reservation_and_an_empty_default_set_the_reserved_cpus_are_shared() -> None:
    rules = rules_for(machine(cores_per_node=2), cpu_options={STRICT_RESERVATION: "true"})
    greedy = pod("greedy", container("a", "cpu=2 memory=1Gi"))
    state = placed(rules, greedy)
    assert state.default == CPUSet()
    assert node_shared(rules, state) == CPUSet([0, 1])
    assert values(rules, state, below(KUBEPODS, greedy))["besteffort"].cpus == CPUSet([0, 1])


def test_without_a_cpu_manager_no_cpu_set_is_desired() -> None:
    rules = on_two_sockets(cpu_policy="none")
    desired = values(rules, placed(rules, mixed), below(BURSTABLE, mixed))
    assert all(of.cpus is None for of in desired.values())
    assert desired["burstable/mixed/database"].mems == NodeSet([0])
    assert node_shared(rules, rules.initial_state()) == rules.topology.cpus


@pytest.mark.parametrize(
    ("milli", "expected"),
    [
        (None, "max 100000"),
        (0, "max 100000"),
        (1500, "150000 100000"),
        (1, "1000 100000"),
        (9, "1000 100000"),
        (10, "1000 100000"),
        (11, "1100 100000"),
    ],
)
def test_quotas_are_microseconds_of_a_tenth_of_a_second_and_never_below_the_kernels_least(
    milli: int | None, expected: str
) -> None:
    assert str(quota(milli)) == expected


def quotas(each: Pod, *, departures: frozenset[str] = frozenset()) -> dict[str, str]:
    rules = on_two_sockets(departures=departures)
    state = placed(rules, each)
    demand, entry = Demand(rules, each), state.pods.get(each.uid, PodEntry())
    of_containers = {c.name: str(container_quota(demand, entry, c)) for c in each.containers}
    return {"pod": str(pod_quota(demand, entry))} | of_containers


NO_LIMIT = "max 100000"


def test_a_pod_with_an_exclusive_slice_has_no_quota_but_its_sharing_members_keep_theirs() -> None:
    ours = quotas(mixed, departures=frozenset({POD_QUOTA}))
    assert ours == {"pod": NO_LIMIT, "database": NO_LIMIT, "proxy": "150000 100000"}


def test_without_the_departure_a_mixed_pod_keeps_the_quota_of_its_budget() -> None:
    assert quotas(mixed)["pod"] == "600000 100000"


def test_a_wholly_exclusive_pod_has_no_quota_anyway() -> None:
    alone = pod("alone", container("a", "cpu=2 memory=1Gi"))
    assert quotas(alone) == {"pod": NO_LIMIT, "a": NO_LIMIT}


def test_a_container_without_a_limit_has_that_of_its_pods_budget() -> None:
    shared = pod("shared", container("a"), container("b", "", "cpu=1"), budget="cpu=3 memory=4Gi")
    assert quotas(shared) == {"pod": "300000 100000", "a": "300000 100000", "b": "100000 100000"}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ((container("a", "cpu=100m", "cpu=500m"), container("b", "", "cpu=1")), "150000 100000"),
        ((container("a", "cpu=100m", "cpu=500m"), container("b")), NO_LIMIT),
        (
            (container("i", "", "cpu=3", kind=Kind.INIT), container("a", "", "cpu=1")),
            "300000 100000",
        ),
        (
            (container("s", "", "cpu=1", kind=Kind.SIDECAR), container("a", "", "cpu=1")),
            "200000 100000",
        ),
    ],
)
def test_without_a_budget_a_pods_quota_is_what_its_limits_need_at_a_time(
    containers: tuple[Container, ...], expected: str
) -> None:
    assert quotas(pod("p", *containers))["pod"] == expected


@given(rules(), histories())
@settings(max_examples=100, deadline=None)
def test_no_container_may_use_what_another_pod_holds(rules: Rules, history: list[Step]) -> None:
    for moment in moments(rules, history):
        if not rules.manages_cpus:
            continue
        cgroups = [below(BURSTABLE, each, sandbox=None) for each in moment.pods.values()]
        desired = desired_values(rules, moment.state, cgroups, (BURSTABLE,))
        for one, other in combinations(cgroups, 2):
            held = moment.state.pods.get(other.pod.uid, PodEntry()).held
            assert all((desired[leaf].cpus or CPUSet()).isdisjoint(held) for leaf in one.leaves)
        for each in cgroups:
            allowed = desired[each.path].cpus
            assert allowed is not None
            assert allowed <= (desired[BURSTABLE].cpus or CPUSet())
            for leaf in each.leaves:
                mine = desired[leaf].cpus
                assert mine
                assert mine <= allowed


def test_a_pod_that_is_not_in_the_state_shares() -> None:
    rules = on_two_sockets()
    state = rules.initial_state()
    for name in ("database", None):
        assert container_cpus(Demand(rules, mixed), state, name) == state.default


def test_cpu_max_is_written_as_the_kernel_reads_it() -> None:
    assert str(CpuMax(150_000)) == "150000 100000"
    assert str(CpuMax(5000, 10_000)) == "5000 10000"


@given(rules(), histories())
@settings(deadline=None)
def test_what_is_known_of_a_pod_is_what_would_be_worked_out_anew(
    rules: Rules, history: list[Step]
) -> None:
    known = PodValues()
    for moment in moments(rules, history):
        for ours in (True, False):
            pods = [below(BURSTABLE, each) for each in moment.pods.values()]
            anew = desired_values(rules, moment.state, pods, (BURSTABLE,), quota_is_ours=ours)
            assert anew == desired_values(
                rules, moment.state, pods, (BURSTABLE,), quota_is_ours=ours, of_pods=known
            )


def test_nothing_is_worked_out_twice_for_a_pod_that_stays_as_it_is() -> None:
    rules, known = on_two_sockets(), PodValues()
    other = pod("other", container("app", "cpu=1"))
    state, again = placed(rules, mixed), placed(rules, mixed)
    before = desired_values(rules, state, [below(KUBEPODS, mixed)], (), of_pods=known)
    both = [below(KUBEPODS, mixed), below(KUBEPODS, other)]
    after = desired_values(rules, again, both, (), of_pods=known)
    assert all(after[path] is of for path, of in before.items())
