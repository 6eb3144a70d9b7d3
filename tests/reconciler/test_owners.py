"""Nothing is written that gives a CPU to two."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.pods import Pod
from agent.errors import InvariantBroken
from agent.ports import PodsListed
from agent.reconciler import Reconciler
from tests.reconciler.rig import World, exclusive_pod, two_sockets

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)


def test_no_cpu_of_a_placed_node_has_two_owners(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.agent.handle(PodsListed((A, B)))

    assert world.snapshots[-1].state.two_owners() == CPUSet()


class Confused(Reconciler):
    """An agent with the worst of bugs: it gives the second pod the CPUs of the first."""

    def _decide(self, pod: Pod, known: Pod | None) -> None:
        super()._decide(pod, known)
        entries = self._state.pods
        if len(entries) == 2:
            first, second = entries
            stolen = replace(entries[second], cpus=entries[first].cpus)
            self._state = replace(self._state, pods={**entries, second: stolen})


def test_a_decision_with_two_owners_is_neither_saved_nor_enforced(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.listed(A)
    saved = world.remembered()
    agent = world.start(Confused)
    world.kernel.writes.clear()

    with pytest.raises(InvariantBroken, match="CPUs 1-2 have two owners"):
        agent.handle(PodsListed((A, B)))

    assert world.kernel.writes == []
    assert world.remembered() == saved
