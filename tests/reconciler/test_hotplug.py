"""CPUs that go offline and come back: nobody loses what he holds, and nobody gets strangers."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.explain import explain
from agent.core.pods import Pod
from agent.ports import HardwareChanged, Snapshot
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    World,
    annotated_pod,
    exclusive_pod,
    shared_pod,
    two_sockets,
)
from tests.reconciler.test_runtime_cgroups import KubeletWorld

A, ONE, POOL, SHARED = (
    exclusive_pod("a", 2),
    exclusive_pod("one", 1),
    annotated_pod("pool", 3),
    shared_pod("s"),
)
PODS = (A, ONE, POOL, SHARED)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(two_sockets(), tmp_path)
    world.listed(*PODS)
    assert held(world.snapshots[-1]) == {"a": "1-2", "one": "3", "pool": "4-6"}
    return world


def held(snapshot: Snapshot) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in snapshot.state.pods.items()}


def told(snapshot: Snapshot, pod: Pod) -> tuple[str, str]:
    """Return where people are told that a pod's only container runs, and why."""
    (container,) = explain(snapshot.rules, snapshot.state, pod).containers
    return str(container.cpus), container.reason


def online(world: World, cpus: str) -> Snapshot:
    """Let exactly these CPUs be online, and the agent hear of it."""
    there = CPUSet.parse(cpus)
    world.kernel.set_online(there)
    cores = tuple(c for c in two_sockets().topology.cores if c.cpus & there)
    world.machine = replace(world.rules.topology, cores=cores)
    return world.handle(HardwareChanged("cpu offline"))


def test_of_a_slice_that_is_partly_offline_the_rest_is_used_and_nothing_is_written_for_it(
    world: World,
) -> None:
    world.kernel.writes.clear()
    snapshot = online(world, "0,2-15")
    assert world.effective(KUBEPODS / "poda" / "c0") == CPUSet([2])
    assert held(snapshot)["a"] == "1-2"
    cpus, reason = told(snapshot, A)
    assert (cpus, reason.rpartition("; ")[2]) == (
        "2",
        "CPUs 1 of its own 1-2 are offline",
    )
    assert world.kernel.writes == []
    assert snapshot.problems == ()
    assert snapshot.drift == {"cpu_offline": 1}


def test_a_container_without_any_cpu_left_runs_on_the_default_set_and_never_beside_others(
    world: World,
) -> None:
    snapshot = online(world, "0-2,4-15")
    shared = world.effective(BEST_EFFORT / "pods" / "c0")
    assert world.effective(KUBEPODS / "podone" / "c0") == shared == CPUSet.parse("0,7-15")
    assert snapshot.problems == ()
    cpus, reason = told(snapshot, ONE)
    assert cpus == str(shared)
    assert reason.endswith(
        "CPUs 3 of its own 3 are offline, and it runs on shared ones until they are back"
    )


def test_a_member_of_a_pool_stays_in_the_pool(world: World) -> None:
    online(world, "0-3,6-15")
    assert world.effective(BURSTABLE / "podpool" / "c0") == CPUSet([6])


def test_without_its_pool_neither_a_sandbox_nor_a_member_is_beside_the_pods_own_slice(
    tmp_path: Path,
) -> None:
    kubelet = KubeletWorld(two_sockets(), tmp_path)
    path = kubelet.pod(BURSTABLE / "podpool")
    sandbox, own, member = (kubelet.container(path, name) for name in (None, "c0", "side"))
    kubelet.listed(annotated_pod("pool", 3))
    assert kubelet.effective(own) == CPUSet([1, 2])
    snapshot = online(kubelet, "0-2,4-15")
    assert kubelet.effective(own) == CPUSet([1, 2])
    assert kubelet.effective(sandbox) == kubelet.effective(member) == CPUSet.parse("0,4-15")
    assert snapshot.problems == ()


def test_what_comes_back_is_where_it_was(world: World) -> None:
    before = {
        path: world.effective(path / "c0") for path in (KUBEPODS / "poda", KUBEPODS / "podone")
    }
    online(world, "0,4-15")
    snapshot = online(world, "0-15")
    assert {path: world.effective(path / "c0") for path in before} == before
    assert held(snapshot) == {"a": "1-2", "one": "3", "pool": "4-6"}
    assert str(snapshot.state.default) == "0,7-15"


def test_a_cpu_that_is_offline_is_given_to_nobody(world: World) -> None:
    online(world, "0-6,8-15")
    snapshot = world.listed(*PODS, exclusive_pod("new", 1))
    assert held(snapshot)["new"] == "8"


def test_where_the_configuration_no_longer_fits_that_is_told_and_nobody_gets_what_has_gone(
    world: World,
) -> None:
    world.refuses = "reservedSystemCPUs: CPU 0 is offline"
    snapshot = online(world, "1-2,4-14")
    (problem,) = snapshot.problems
    assert problem == (
        "after cpu offline the machine no longer fits: reservedSystemCPUs: CPU 0 is offline;"
        " nobody gets what has gone; bring the CPUs back, or change the configuration and restart numalet"
    )
    assert held(snapshot) == {"a": "1-2", "one": "3", "pool": "4-6"}
    shared = world.effective(BEST_EFFORT / "pods" / "c0")
    assert world.effective(KUBEPODS / "podone" / "c0") == shared == CPUSet.parse("7-14")
    snapshot = world.listed(*PODS, exclusive_pod("new", 7))
    assert held(snapshot)["new"] == "8-14"
    world.refuses = ""
    assert online(world, "0-15").problems == ()


def test_a_reserved_cpu_that_comes_back_before_the_others_is_reserved_still(world: World) -> None:
    world.rules = replace(world.rules, reserved=CPUSet([0, 7, 15]))
    world.start()
    world.listed(*PODS)
    world.refuses = "reservedSystemCPUs: CPU 0 is offline"
    assert str(online(world, "1-6,8-14").rules.reserved) == ""
    assert str(online(world, "1-14").rules.reserved) == "7"
    snapshot = world.listed(*PODS, exclusive_pod("new", 7))
    assert held(snapshot)["new"] == "8-14"


def test_a_cpu_that_has_gone_without_a_word_is_given_to_nobody(world: World) -> None:
    there = CPUSet.parse("0-6,8-15")
    world.kernel.set_online(there)
    cores = tuple(c for c in world.rules.topology.cores if c.cpus & there)
    world.machine = replace(world.rules.topology, cores=cores)
    snapshot = world.listed(*PODS, exclusive_pod("new", 1))
    assert held(snapshot)["new"] == "8"


def test_a_start_reads_the_machine_once_more_since_nobody_listened_before(world: World) -> None:
    world.machine = replace(
        world.rules.topology,
        nodes=tuple(
            replace(n, memory_bytes=n.memory_bytes * 2) for n in world.rules.topology.nodes
        ),
    )
    world.start()
    snapshot = world.listed(*PODS)
    assert snapshot.rules.topology == world.machine
    total = {i: node.tables["memory"].total for i, node in snapshot.state.memory.items()}
    assert total == {node.id: node.memory_bytes for node in world.machine.nodes}


def test_what_an_ended_pod_held_comes_back_as_far_as_it_is_online(world: World) -> None:
    online(world, "0,2-15")
    snapshot = world.listed(ONE, POOL, SHARED)
    assert str(snapshot.state.default) == "0,2,7-15"
    assert str(online(world, "0-15").state.default) == "0-2,7-15"


def test_after_a_boot_with_fewer_cpus_a_slice_has_those_that_are_left(world: World) -> None:
    cores = tuple(c for c in world.rules.topology.cores if not c.cpus & CPUSet([2, 15]))
    world.rules = replace(world.rules, topology=replace(world.rules.topology, cores=cores))
    (world.folder / "cgroup").rename(world.folder / "before")
    world.boot()
    world.start()
    snapshot = world.listed(*PODS)
    assert (snapshot.problems, snapshot.ready, held(snapshot)["a"]) == ((), True, "1-2")
    assert world.text(KUBEPODS / "poda" / "c0", "cpuset.cpus") == "1"
