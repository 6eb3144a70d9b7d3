"""What `numalet topology` shows in a guest is what QEMU was told to make."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.topology import Core
from agent.node.sysfs import read_topology
from agent.simulation.description import parse_description
from agent.simulation.machine import topology_of
from hack.lab.topology import TOPOLOGIES, GuestTopology

from .rig import Outcome, in_guest, side_by_side

pytestmark = pytest.mark.vm

MIB = 1 << 20
KERNEL_KEEPS = 0.15
"""At most so much of a node's memory the kernel keeps for itself and does not count in MemTotal."""


def told_cores(guest: GuestTopology) -> tuple[Core, ...]:
    """The cores, with one L3 cache a die."""
    threads: dict[tuple[int, int, int], list[int]] = {}
    for cpu, place in enumerate(guest.by_number()):
        threads.setdefault((place.socket, place.die, place.core), []).append(cpu)
    homes = {node.die: i for i, node in enumerate(guest.nodes)}
    cores = (
        Core(
            cpus=CPUSet(cpus),
            node=homes[socket, die],
            socket=socket,
            uncore=socket * guest.dies + die,
        )
        for (socket, die, _), cpus in threads.items()
    )
    return tuple(sorted(cores, key=lambda core: min(core.cpus)))


def told_distances(guest: GuestTopology) -> list[tuple[int, ...]]:
    ids = range(len(guest.nodes))
    return [tuple(guest.distance(a, b) for b in ids) for a in ids]


def told_hugepages(guest: GuestTopology) -> list[int]:
    return [node.hugepages for node in guest.nodes]


@pytest.fixture(scope="module")
def printed() -> dict[str, Future[Outcome]]:
    def visit(name: str) -> Outcome:
        return in_guest(TOPOLOGIES[name], "numalet topology -o json")

    return side_by_side(visit, TOPOLOGIES)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_numalet_shows_the_machine_that_qemu_was_told_to_make(
    name: str, printed: dict[str, Future[Outcome]], tmp_path: Path
) -> None:
    guest, outcome = TOPOLOGIES[name], printed[name].result().succeeded()
    assert not outcome.stderr  # no notes, and libnuma agrees

    shown = topology_of(parse_description(outcome.stdout, name="guest"), tmp_path, read_topology)

    assert shown.cores == told_cores(guest)
    assert shown.socket_count == guest.sockets
    assert [node.id for node in shown.nodes] == list(range(len(guest.nodes)))
    assert [node.distances for node in shown.nodes] == told_distances(guest)
    assert [node.hugepages[2048] for node in shown.nodes] == told_hugepages(guest)
    for node, told in zip(shown.nodes, guest.nodes, strict=True):
        told_bytes = told.memory_mib * MIB
        assert told_bytes * (1 - KERNEL_KEEPS) <= node.memory_bytes <= told_bytes
