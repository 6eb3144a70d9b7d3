"""What a placed pod keeps that is to get no more, and asks for less than it was placed by."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.admission import Admitted, admit
from agent.core.backing import shrunk
from agent.core.claims import BUDGET_ANNOTATION, aggregate
from agent.core.cpuset import CPUSet
from agent.core.entitlement import Entitlement
from agent.core.pods import CPU, MEMORY, Container, Pod, PodUID, Resources
from agent.core.state import NodeState
from tests.reconciler.rig import equal, exclusive_pod, two_sockets
from tests.strategies import GI

RULES = two_sockets()
CLOSED = Entitlement(unbacked_namespaces=frozenset())


def database(cpus: int, side_milli: int, *, memory: int = 2, claimed: int = 6) -> Pod:
    """A pod with an annotated budget, an exclusive container, and one that shares the rest."""
    side = Resources(requests={CPU: side_milli, MEMORY: (memory - 1) * GI})
    return Pod(
        uid=PodUID("p"),
        name="p",
        budget=equal(claimed * 1000, 2),
        annotations={BUDGET_ANNOTATION: "{}"},
        app_containers=(
            Container(name="db", resources=equal(cpus * 1000)),
            Container(name="side", resources=side),
        ),
    )


def placed(pod: Pod) -> NodeState:
    verdict = admit(RULES, RULES.initial_state(), pod)
    assert isinstance(verdict, Admitted)
    return verdict.state


def after(state: NodeState, pod: Pod) -> NodeState:
    return shrunk(RULES, state, pod, CLOSED.counted(pod))


def held(state: NodeState) -> dict[str | None, str]:
    entry = state.pods.get(PodUID("p"))
    if entry is None:
        return {}
    slices: dict[str | None, str] = {name: str(cpus) for name, cpus in entry.cpus.items()}
    return slices if entry.pool is None else slices | {None: str(entry.pool)}


def test_the_pool_shrinks_to_whole_cpus_that_are_backed() -> None:
    state = placed(database(5, 1000))
    assert held(state) == {None: "1-6", "db": "1-5", "side": "6"}
    assert held(after(state, database(2, 1900))) == {None: "1-2,6", "db": "1-2", "side": "6"}


def test_without_a_rest_for_those_who_share_there_is_no_pool_and_who_is_exclusive_stays() -> None:
    state = after(placed(database(5, 1000)), database(5, 500))
    assert held(state) == {"db": "1-5"}
    assert state.default == CPUSet.parse("0,6-15")


def test_once_it_is_backed_again_there_is_a_pool_again() -> None:
    state = after(placed(database(5, 1000)), database(5, 500))
    back = Entitlement().counted(database(5, 1000))
    assert held(shrunk(RULES, state, back, back)) == {"db": "1-5"}  # it is to get no more


def test_who_has_no_whole_cpu_left_holds_nothing() -> None:
    small = replace(
        database(1, 100),
        app_containers=(Container(name="db", resources=equal(500)),),
    )
    state = after(placed(database(5, 1000)), small)
    assert state == RULES.initial_state()


def test_memory_that_is_not_backed_is_given_up() -> None:
    state = placed(database(5, 1000))
    less = after(state, database(5, 1000, memory=1))
    assert held(less) == {"db": "1-5"}  # no memory is left for those who share
    free = [sum(node.tables[MEMORY].free for node in s.memory.values()) for s in (state, less)]
    assert free[1] - free[0] == GI


def test_who_asks_for_more_keeps_what_he_has() -> None:
    state = placed(database(5, 1000))
    for more in (database(9, 500, claimed=30), database(30, 1000, claimed=40)):
        assert after(state, more) == state


def test_a_pod_without_an_annotated_budget_gives_up_what_it_asks_for_no_longer() -> None:
    state = placed(exclusive_pod("p", 5))
    assert held(after(state, exclusive_pod("p", 2))) == {"c0": "1-2"}
    assert after(state, exclusive_pod("p", 9)) == state


@given(st.integers(1, 8), st.integers(0, 4000), st.integers(1, 12))
def test_no_pod_holds_more_than_is_counted_and_deciding_twice_changes_nothing(
    cpus: int, side: int, claimed: int
) -> None:
    before, pod = placed(database(5, 1000)), database(cpus, side, claimed=claimed)
    state = after(before, pod)
    entry = state.pods.get(pod.uid)
    if entry is not None:
        backed = aggregate(pod, lambda resources: resources.requests)[CPU]
        assert len(entry.held) * 1000 <= backed
        assert entry.held <= before.pods[pod.uid].held
        assert after(state, pod) == state
    assert not state.two_owners()
