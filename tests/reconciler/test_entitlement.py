"""Who may not have CPUs of his own runs on the default CPU set, and it is said why."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.entitlement import NOT_SELECTED, UNBACKED_BUDGET, Entitlement
from agent.core.pods import CPU, MEMORY, Container, Pod, Resources
from agent.core.startup import start
from agent.ports import PodChanged, PodGone, Snapshot, Tick
from tests.reconciler.rig import (
    BURSTABLE,
    KUBEPODS,
    World,
    annotated_pod,
    equal,
    exclusive_pod,
    two_sockets,
)
from tests.reconciler.test_runtime_cgroups import KubeletWorld
from tests.strategies import GI

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


def held(snapshot: Snapshot) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}


IN_PROD = replace(CHOSEN, namespace="prod", runtime_class="kata-x")
UNBACKED_IN_PROD = replace(annotated_pod("a", 4), namespace="prod")


@pytest.mark.parametrize(
    ("strict", "wide", "pod"),
    [
        (Entitlement(namespaces=frozenset({"canary"})), Entitlement(), IN_PROD),
        (Entitlement(labels={"tier": "slow"}), Entitlement(labels={"tier": "fast"}), IN_PROD),
        (Entitlement(unsupported_classes=("kata*",)), Entitlement(), IN_PROD),
        (
            Entitlement(unbacked_namespaces=frozenset()),
            Entitlement(unbacked_namespaces=frozenset({"prod"})),
            UNBACKED_IN_PROD,
        ),
    ],
    ids=["namespaces", "labels", "runtime class", "unbacked"],
)
def test_a_configuration_that_lets_more_pods_in_holds_for_those_rejected_before(
    tmp_path: Path, strict: Entitlement, wide: Entitlement, pod: Pod
) -> None:
    world = World(two_sockets(), tmp_path, entitlement=strict)
    assert list(world.listed(pod).rejections) == ["a"]

    world.entitlement = wide
    world.start()
    snapshot = world.listed(pod)

    assert (list(snapshot.state.pods), snapshot.rejections) == (["a"], {})


def test_a_smaller_least_default_set_holds_for_those_rejected_before(tmp_path: Path) -> None:
    rules = two_sockets()
    strict = start(rules.topology, replace(rules.policy, min_default_cpus=15))
    world = World(strict, tmp_path)
    assert list(world.listed(CHOSEN).rejections) == ["a"]
    world.rules = rules
    world.start()
    assert held(world.listed(CHOSEN)) == {"a": "1-2"}


def test_who_was_rejected_and_is_about_to_go_is_given_nothing_any_more(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, entitlement=Entitlement(labels={"tier": "slow"}))
    world.listed(CHOSEN)
    world.kernel.add_task(KUBEPODS / "poda" / "c0")
    world.entitlement = Entitlement()
    world.start()
    assert held(world.listed()) == {}


@pytest.mark.parametrize(
    ("pod", "tight"),
    [
        (IN_PROD, Entitlement(namespaces=frozenset({"canary"}))),
        (IN_PROD, Entitlement(labels={"tier": "slow"})),
        (UNBACKED_IN_PROD, Entitlement(unbacked_namespaces=frozenset())),
        (
            replace(UNBACKED_IN_PROD, labels={"tier": "fast"}),
            Entitlement(unbacked_namespaces=frozenset(), labels={"tier": "fast"}),
        ),
    ],
    ids=["namespaces", "labels", "unbacked", "unbacked and labels"],
)
def test_who_runs_keeps_what_he_has_under_a_configuration_that_lets_fewer_pods_in(
    tmp_path: Path, pod: Pod, tight: Entitlement
) -> None:
    world = World(two_sockets(), tmp_path, entitlement=replace(tight, namespaces=frozenset()))
    world.entitlement = Entitlement(labels=pod.labels)
    world.start()
    before = held(world.listed(pod, exclusive_pod("other", 1)))
    world.entitlement = tight
    world.start()
    world.kernel.writes.clear()

    assert held(world.listed(pod, exclusive_pod("other", 1)))["a"] == before["a"]
    snapshot = world.handle(PodGone(exclusive_pod("other", 1).uid), PodChanged(pod), Tick())

    assert held(snapshot) == {"a": before["a"]}
    assert snapshot.rejections == {}


def database(cpus: int, side_milli: int) -> Pod:
    """A pod whose budget of 6 CPUs stands in its annotation."""
    side = Resources(requests={CPU: side_milli, MEMORY: GI})
    return replace(
        annotated_pod("db", 6),
        app_containers=(
            Container(name="c0", resources=equal(cpus * 1000)),
            Container(name="side", resources=side),
        ),
    )


def test_who_resizes_his_containers_down_keeps_no_more_than_they_request(tmp_path: Path) -> None:
    world = KubeletWorld(two_sockets(), tmp_path)
    world.entitlement = Entitlement(unbacked_namespaces=frozenset())
    world.start()
    path = world.pod(BURSTABLE / "poddb")
    c0, side = world.container(path, "c0"), world.container(path, "side")
    assert held(world.listed(database(5, 1000))) == {"db": "1-6"}

    snapshot = world.handle(PodChanged(database(2, 1200)))

    assert held(snapshot) == {"db": "1-2,6"}
    assert [world.cpus(p) for p in (path, c0, side)] == ["1-2,6", "1-2", "6"]
    assert snapshot.complaints["db"].reason == UNBACKED_BUDGET  # type: ignore[index]

    snapshot = world.handle(PodChanged(database(1, 100)))

    assert held(snapshot) == {"db": "1"}
    assert [world.cpus(p) for p in (c0, side)] == ["1", "0,2-15"]
    world.start()
    assert held(world.listed(database(1, 100))) == {"db": "1"}

    snapshot = world.handle(PodChanged(database(5, 1000)))

    assert (held(snapshot), snapshot.complaints) == ({"db": "1-6"}, {})
    assert [world.cpus(p) for p in (c0, side)] == ["1-5", "6"]


def test_who_has_nothing_left_that_is_backed_gives_it_back_and_it_is_said(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, entitlement=Entitlement(unbacked_namespaces=frozenset()))
    world.listed(database(5, 1000))
    small = replace(database(1, 100), app_containers=(Container(name="c0", resources=equal(100)),))

    snapshot = world.handle(PodChanged(small))

    assert held(snapshot) == {}
    assert snapshot.rejections[small.uid].reason == UNBACKED_BUDGET
    assert held(world.handle(PodChanged(database(5, 1000)))) == {"db": "1-6"}


def test_who_is_chosen_no_more_gives_up_what_it_asks_for_no_longer(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, entitlement=Entitlement(labels={"tier": "fast"}))
    world.listed(replace(exclusive_pod("a", 4), labels={"tier": "fast"}))
    assert held(world.handle(PodChanged(exclusive_pod("a", 4)))) == {"a": "1-4"}
    assert held(world.handle(PodChanged(exclusive_pod("a", 2)))) == {"a": "1-2"}
    assert held(world.handle(PodChanged(exclusive_pod("a", 4)))) == {"a": "1-2"}
