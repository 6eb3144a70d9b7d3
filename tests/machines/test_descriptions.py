"""Every described machine through its sysfs tree and the reader, against what its file expects."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.topology import NodeTopology
from agent.errors import TopologyError
from agent.node.sysfs import read_isolated, read_online, read_topology, survey
from agent.simulation.description import Description, load_description
from agent.simulation.machine import describe, topology_of
from tests.machines.opinions import Opinion

TOPOLOGIES = Path(__file__).parents[1] / "data/topologies"
BROKEN = "broken-overlapping-nodes"
SOUND = sorted(path.stem for path in TOPOLOGIES.glob("*.yaml") if path.stem != BROKEN)
ODD = (
    "amd-2s-4-packages-sparse-node-ids",
    "arm-a64fx-no-socket",
    "grace-1s-9-nodes",
    "power9-2s-gpu-memory-nodes",
    "s390-no-node-dir-package-minus-one",
    "threadripper-3960x-memoryless-nodes",
    "x86-2s-node0-offline",
    "x86-hybrid-6p-8e",
    "x86-offline-cpus-no-topology-dir",
    "xeon-2s-snc2-irregular-lists",
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A description, the folder with its ``sys`` and ``proc``, and what was read from them."""

    description: Description
    folder: Path
    topology: NodeTopology


Machines = Callable[[str], Machine]


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    """Return a described machine by name; its tree is written once."""
    made: dict[str, Machine] = {}

    def machine(name: str) -> Machine:
        if name not in made:
            description = load_description(TOPOLOGIES / f"{name}.yaml")
            folder = tmp_path_factory.mktemp("machine")
            topology = topology_of(description, folder, read_topology)
            made[name] = Machine(description=description, folder=folder, topology=topology)
        return made[name]

    return machine


def usable_nodes(topology: NodeTopology) -> list[int]:
    return [node for node in topology.cpu_bits_by_node if node in topology.memory_nodes]


@pytest.mark.parametrize("name", SOUND)
def test_a_described_machine_is_read_as_its_file_expects(name: str, machines: Machines) -> None:
    machine = machines(name)
    topology, expect = machine.topology, machine.description.expect
    cores = [core.cpus for core in topology.cores]
    found: dict[str, object] = {
        "allocatable_nodes": usable_nodes(topology),
        "online_cpu_count": len(topology.cpus),
        "online_cpus": str(read_online(machine.folder / "sys")),
        "cores": len(cores),
        "l3_groups": len(topology.cpu_bits_by_uncore),
        "packages": topology.socket_count,
        "cpu_nodes": list(topology.cpu_bits_by_node),
        "memory_nodes": list(topology.memory_nodes),
        "full_cores": [str(core) for core in cores if len(core) > 1],
        "half_cores": [str(core) for core in cores if len(core) == 1],
    }
    expected = {key: value for key, value in expect.items() if key in found}

    assert expected
    assert {key: found[key] for key in expected} == expected
    isolated = machine.description.cpu.isolated or CPUSet()
    assert read_isolated(machine.folder / "sys") == isolated


@pytest.mark.parametrize("name", ODD)
def test_describing_what_was_read_and_reading_it_again_changes_nothing(
    name: str, machines: Machines, tmp_path: Path
) -> None:
    first = machines(name).topology

    assert topology_of(describe(first, name=name), tmp_path, read_topology) == first


def test_overlapping_numa_nodes_are_refused_with_the_file_the_cpus_and_a_cure(
    machines: Machines,
) -> None:
    with pytest.raises(TopologyError, match=r"node1/cpulist claims CPUs 0-7 .* numa=off"):
        machines(BROKEN)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("x86-2s-node0-offline", "CPU 4,6,8,10,12,14,16,18,20 is online but belongs to no"),
        ("epyc-7451-2s-nps4", "distances of NUMA node 0-7 are not shown: 10 to itself and 20"),
        ("arm-a64fx-no-socket", "package of CPU 0-47 is not shown: socket 0 assumed"),
        ("grace-2s-34-nodes", "memory of NUMA node 2-33 is not shown: taken as none"),
    ],
)
def test_what_had_to_be_assumed_or_left_out_is_said(
    name: str, note: str, machines: Machines
) -> None:
    notes = survey(machines(name).folder / "sys").notes

    assert [text for text in notes if note in text]


def test_an_ordinary_machine_has_no_notes(machines: Machines) -> None:
    assert survey(machines("xeon-2s-snc2-irregular-lists").folder / "sys").notes == ()


def test_cpus_of_an_offline_numa_node_are_left_out(machines: Machines) -> None:
    found = machines("x86-2s-node0-offline").topology

    assert found.cpus == CPUSet.parse("5,7,9,11,13,15,17,19")


def test_distances_that_are_not_shown_are_10_and_20(machines: Machines) -> None:
    found = machines("epyc-7451-2s-nps4").topology

    assert found.nodes[2].distances == (20, 20, 10, 20, 20, 20, 20, 20)


def test_the_nearest_memory_only_nodes_are_those_the_table_says(machines: Machines) -> None:
    machine = machines("xeon-2s-snc2-pmem-8-nodes")
    topology = machine.topology
    far = topology.node_ids - NodeSet(topology.cpu_bits_by_node)

    nearest = {
        str(node): min(far, key=lambda other: topology.distance(node, other) or 0)
        for node in topology.cpu_bits_by_node
    }
    assert nearest == machine.description.expect["closest_mem_only_node"]


# hwloc keeps the CPUs of an offline NUMA node, the kubelet does not.
@pytest.mark.parametrize("name", sorted(set(SOUND) - {"x86-2s-node0-offline"}))
def test_lstopo_reads_the_same_machine_from_our_tree(name: str, machines: Machines) -> None:
    program = shutil.which("lstopo-no-graphics")
    if program is None:
        pytest.skip("lstopo-no-graphics is not installed (Debian package hwloc-nox)")
    machine = machines(name)

    theirs = Opinion.lstopo(program, machine.folder)
    assert Opinion.ours(machine.topology).compared_with(theirs) == theirs
