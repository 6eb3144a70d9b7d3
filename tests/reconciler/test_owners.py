"""Nothing is written that gives a CPU to two."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.state import NodeState
from agent.errors import InvariantBroken
from agent.ports import PodsListed, Remembered
from tests.reconciler.rig import World, exclusive_pod, two_sockets

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)


def test_no_cpu_of_a_placed_node_has_two_owners(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.agent.handle(PodsListed((A, B)))

    assert world.snapshots[-1].state.two_owners() == CPUSet()


def test_a_state_with_two_owners_is_neither_saved_nor_enforced(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.agent.handle(PodsListed((A, B)))
    sound = world.remembered()
    assert sound is not None
    broken = _with_cpus_of_a_given_to_b(sound.state)
    assert str(broken.two_owners()) == "1-2"
    world.store().save(replace(sound, state=broken))
    agent = world.start()
    world.kernel.writes.clear()

    with pytest.raises(InvariantBroken, match="CPUs 1-2 have two owners"):
        agent.handle(PodsListed((A, B)))

    assert world.kernel.writes == []
    assert _remembered(world).state == broken


def _with_cpus_of_a_given_to_b(state: NodeState) -> NodeState:
    stolen = replace(state.pods[B.uid], cpus=state.pods[A.uid].cpus)
    return replace(state, pods={**state.pods, B.uid: stolen})


def _remembered(world: World) -> Remembered:
    remembered = world.remembered()
    assert remembered is not None
    return remembered
