import os
import shutil
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from agent.core.cpuset import CPUSet
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.errors import EnvironmentProblem, InputError, TopologyError
from agent.node.sysfs import read_topology
from agent.simulation.description import (
    Description,
    dump_description,
    load_description,
    parse_description,
)
from agent.simulation.machine import describe, read_machine, sysfs_files, topology_of, write_sysfs
from tests.machines.ordinary import Ordinary, ordinary_machines

CHECKOUT = Path(__file__).resolve().parents[2]
TOPOLOGIES = CHECKOUT / "tests/data/topologies"
MINIMAL = "schema: numalet-topology/v1\nname: x\ncpu: {online: 0-3}\n"


def topology(description: Description) -> NodeTopology:
    with TemporaryDirectory() as folder:
        return topology_of(description, Path(folder), read_topology)


@settings(max_examples=50, deadline=None)
@given(ordinary_machines())
def test_an_ordinary_machine_is_read_back_exactly_as_described(machine: Ordinary) -> None:
    assert topology(machine.description) == machine.topology


@settings(max_examples=30, deadline=None)
@given(ordinary_machines())
def test_describing_what_was_read_and_reading_it_again_changes_nothing(machine: Ordinary) -> None:
    description = describe(machine.topology, name="again")
    again = topology(description)

    assert again == machine.topology
    assert describe(again, name="again") == description


@settings(max_examples=60, deadline=None)
@given(ordinary_machines())
def test_a_dumped_description_is_parsed_to_the_same(machine: Ordinary) -> None:
    for description in (machine.description, describe(machine.topology, name="again")):
        assert parse_description(dump_description(description), name="dump") == description


def test_the_example_is_two_sockets_of_sixteen_cores_with_64_gib_each() -> None:
    example = load_description(CHECKOUT / "deploy/examples/machine-2s-16c.yaml")

    assert topology(example) == NodeTopology(
        nodes=(
            NumaNode(id=0, memory_bytes=64 << 30, distances=(10, 20)),
            NumaNode(id=1, memory_bytes=64 << 30, distances=(20, 10)),
        ),
        cores=tuple(
            Core(cpus=CPUSet([cpu]), node=cpu // 16, socket=cpu // 16, uncore=cpu // 16)
            for cpu in range(32)
        ),
        socket_count=2,
    )


def test_what_is_not_known_is_filled_in_from_the_packages() -> None:
    found = topology(parse_description(MINIMAL + "packages: {0: 0-1, 1: 2-3}\n", name="m.yaml"))

    assert [node.memory_bytes for node in found.nodes] == [64 << 30, 64 << 30]
    assert [node.distances for node in found.nodes] == [(10, 20), (20, 10)]
    assert found.cpu_bits_by_node == found.cpu_bits_by_socket == {0: 0b0011, 1: 0b1100}
    assert [core.uncore for core in found.cores] == [0, 0, 1, 1]


def test_packages_that_are_not_known_follow_the_numa_nodes_that_have_cpus() -> None:
    text = MINIMAL + "nodes: {0: {cpus: 0-1}, 4: {cpus: ''}, 8: {cpus: 2-3}}\n"

    assert topology(parse_description(text, name="m.yaml")).cpu_bits_by_socket == {0: 3, 8: 12}


def test_a_machine_of_which_only_the_cpus_are_known_is_one_socket_and_one_node() -> None:
    found = topology(parse_description(MINIMAL, name="m.yaml"))

    assert (found.socket_count, str(found.node_ids), str(found.cpus)) == (1, "0", "0-3")


def test_a_machine_without_node_directory_has_its_memory_in_meminfo(tmp_path: Path) -> None:
    description = parse_description(MINIMAL + "nodes: {}\n", name="m.yaml")

    assert topology_of(description, tmp_path, read_topology).nodes[0].memory_bytes == 64 << 30
    assert not (tmp_path / "sys/devices/system/node").exists()


def test_offline_cpus_have_a_folder_without_topology() -> None:
    text = MINIMAL.replace("0-3", "0-1") + "packages: {0: 0-1, missing: 2-3}\n"
    files = sysfs_files(parse_description(text, name="m.yaml"))

    assert files["devices/system/cpu/offline"] == "2-3"
    assert files["devices/system/cpu/cpu3/online"] == "0"
    assert not [path for path in files if path.startswith("devices/system/cpu/cpu3/topology")]
    assert "devices/system/cpu/cpu0/online" not in files


def test_sets_are_written_as_lists_and_as_masks_of_32_bits() -> None:
    text = MINIMAL.replace("0-3", "0-39") + "threads: {kind: list, groups: ['0,36']}\n"
    files = sysfs_files(parse_description(text, name="m.yaml"))

    assert files["devices/system/cpu/cpu36/topology/core_cpus_list"] == "0,36"
    assert files["devices/system/cpu/cpu36/topology/core_cpus"] == "00000010,00000001"
    assert files["devices/system/node/node0/cpumap"] == "000000ff,ffffffff"


def test_books_and_drawers_are_shown_where_they_are_given() -> None:
    files = sysfs_files(parse_description(MINIMAL + "books: {7: 0-1}\n", name="m.yaml"))

    assert files["devices/system/cpu/cpu1/topology/book_id"] == "7"
    assert "devices/system/cpu/cpu2/topology/book_id" not in files
    assert "devices/system/cpu/cpu1/topology/drawer_id" not in files


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("colour: red", "m.yaml:4: colour: is not a key that is known here"),
        ("cpu_types: {p: x}", "m.yaml:4: cpu_types.p: 'x' in 'x' is not a CPU number or range"),
        ("nodes: {0: {cpus: 0-3, mem_gib: 1}}", "m.yaml:4: nodes[0].mem_gib: is not a key"),
        ("nodes: {0: {cpus: 0-3, mem_kib: 1, mem_mib: 1}}", "m.yaml:4: nodes[0]: mem_kib and"),
        ("nodes: {-1: {cpus: 0-3}}", "m.yaml:4: nodes[-1]"),
        ("nodes: {0: {cpus: 0-3, hugepages: {2M: 1}}}", "m.yaml:4: nodes[0].hugepages[2M]"),
        ("nodes: {0: {cpus: true}}", "m.yaml:4: nodes[0].cpus: write a list of ids such as 0-3,8"),
        ("packages: {first: 0-3}", "m.yaml:4: packages.first"),
        ("packages: {0: 0-3, 1: 3}", "m.yaml:1: packages: CPU 3 is named twice"),
        ("packages: {0: 0-2}", "m.yaml:1: packages: CPU 3 is online but in no package"),
        ("nodes: {0: {cpus: 0-1}, 00: {cpus: 2-3}}", "m.yaml:4: nodes[00]"),
        ("l3: [{cpus: 0-3, size: 8 MB}]", "m.yaml:4: l3[0].size"),
        ("l3: [{cpus: 0-1}, {cpus: 1-2}]", "m.yaml:1: l3: CPU 1 is named twice"),
        ("threads: {kind: offset, offset: 2}", "m.yaml:4: threads.offset.threads_per_core"),
        ("threads: {kind: pairs}", "m.yaml:4: threads"),
        ("name: twice", "m.yaml:4: the key 'name' is repeated"),
    ],
)
def test_a_mistake_in_a_description_is_named_with_file_line_and_key(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(MINIMAL + line + "\n")

    with pytest.raises(InputError) as caught:
        load_description(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", f"{MINIMAL}---\n{MINIMAL}"])
def test_a_file_holds_exactly_one_description(text: str) -> None:
    with pytest.raises(InputError, match="exactly one"):
        parse_description(text, name="m.yaml")


def test_the_files_of_two_machines_are_never_mixed(tmp_path: Path) -> None:
    description = parse_description(MINIMAL, name="m.yaml")
    write_sysfs(description, tmp_path)

    with pytest.raises(InputError, match="empty folder"):
        write_sysfs(description, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EnvironmentProblem, match=r"cannot write .*file"):
        write_sysfs(parse_description(MINIMAL, name="m.yaml"), tmp_path / "file")


def test_cores_that_follow_no_rule_are_described_one_by_one() -> None:
    cores = tuple(
        Core(cpus=CPUSet.parse(cpus), node=0, socket=0, uncore=0) for cpus in ("0,3", "1-2", "4")
    )
    odd = NodeTopology(
        nodes=(NumaNode(id=0, memory_bytes=1 << 30, distances=(10,)),), cores=cores, socket_count=1
    )

    assert topology(describe(odd, name="odd")) == odd


def test_the_tree_of_a_description_is_in_memory_where_there_is_room_and_never_stays() -> None:
    seen: list[Path] = []

    def read(root: Path, *, meminfo: Path) -> NodeTopology:
        assert meminfo.is_file()
        seen.append(root)
        return read_topology(root, meminfo=meminfo)

    machine = read_machine(TOPOLOGIES / "ampere-altra-2s.yaml", read)

    (root,) = seen
    assert len(machine.cpus) == 160
    assert not root.parent.exists()
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= 256 << 20
    assert root.is_relative_to(memory if has_room else tempfile.gettempdir())


def test_a_machine_that_makes_no_sense_is_told_by_its_description_not_by_a_temporary_file() -> None:
    broken = TOPOLOGIES / "broken-overlapping-nodes.yaml"

    with pytest.raises(TopologyError) as caught:
        read_machine(broken, read_topology)

    assert str(caught.value).startswith(
        f"{broken} describes no sound machine: "
        "/sys/devices/system/node/node1/cpulist claims CPUs 0-7 of other NUMA nodes: "
    )
