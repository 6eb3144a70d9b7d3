"""Who may not have CPUs of his own runs on the default CPU set, and it is said why."""

from dataclasses import replace
from pathlib import Path

from agent.core.entitlement import NOT_SELECTED, UNBACKED_BUDGET, Entitlement
from agent.ports import PodChanged
from tests.reconciler.rig import BURSTABLE, KUBEPODS, annotated_pod, exclusive_pod, two_sockets
from tests.reconciler.test_runtime_cgroups import KubeletWorld

CHOSEN = replace(exclusive_pod("a", 2), labels={"tier": "fast"})
OTHER = exclusive_pod("b", 2)
GREEDY = replace(annotated_pod("pool", 6), labels={"tier": "fast"})


def test_only_the_chosen_pods_are_placed_and_no_pod_has_more_than_was_counted(
    tmp_path: Path,
) -> None:
    world = KubeletWorld(two_sockets(), tmp_path)
    world.entitlement = Entitlement(labels={"tier": "fast"}, unbacked_namespaces=frozenset())
    world.start()
    for path in (KUBEPODS / "poda", KUBEPODS / "podb", BURSTABLE / "podpool"):
        world.pod(path)

    snapshot = world.listed(CHOSEN, OTHER, GREEDY)

    assert {uid: why.reason for uid, why in snapshot.rejections.items()} == {
        "b": NOT_SELECTED,
        "pool": UNBACKED_BUDGET,
    }
    assert world.cpus(KUBEPODS / "poda") == "1-2"
    assert world.cpus(KUBEPODS / "podb") == "0,3-15"
    assert world.cpus(BURSTABLE / "podpool") == "0,3-15"

    world.handle(PodChanged(replace(OTHER, labels={"tier": "fast"})))

    assert world.cpus(KUBEPODS / "podb") == "3-4"


def test_a_pod_that_runs_keeps_its_cpus_when_it_is_chosen_no_more(tmp_path: Path) -> None:
    world = KubeletWorld(two_sockets(), tmp_path)
    world.entitlement = Entitlement(labels={"tier": "fast"})
    world.start()
    world.listed(CHOSEN)
    snapshot = world.handle(PodChanged(replace(CHOSEN, labels={})))
    assert list(snapshot.state.pods) == ["a"]
