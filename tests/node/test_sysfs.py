from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet
from agent.errors import EnvironmentProblem, TopologyError
from agent.node.sysfs import read_isolated, read_online, read_topology, survey

CPU = "devices/system/cpu"
NODE = "devices/system/node"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cores(siblings: list[str], socket: str = "0\n") -> dict[str, str]:
    """Return the topology files of the CPUs 0, 1, …, each with its list of siblings."""
    files = {f"{CPU}/online": f"0-{len(siblings) - 1}\n"}
    for cpu, text in enumerate(siblings):
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = f"{text}\n"
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = socket
    return files


PAIRS = cores(["0,2", "1,3", "0,2", "1,3"]) | {
    f"{NODE}/node0/cpulist": "0,2\n",
    f"{NODE}/node1/cpulist": "1,3\n",
}


def l3(cpu: int, **files: str) -> dict[str, str]:
    return {
        f"{CPU}/cpu{cpu}/cache/index{index}/{name}": f"{text}\n"
        for index, level in ((0, "1"), (3, "3"))
        for name, text in ({"level": level} | files).items()
    }


def test_threads_share_a_core_as_core_cpus_list_says(tmp_path: Path) -> None:
    topology = read_topology(write(tmp_path, PAIRS))

    assert [str(core.cpus) for core in topology.cores] == ["0,2", "1,3"]
    assert [core.node for core in topology.cores] == [0, 1]


def test_an_older_kernel_shows_thread_siblings_and_masks_only(tmp_path: Path) -> None:
    files = {f"{CPU}/online": "0-33"} | {f"{NODE}/node0/cpumap": "00000003,ffffffff"}
    for cpu, mask in (
        (0, "00000002,00000001"),
        (33, "00000002,00000001"),
        (1, "00000000,00000002"),
    ):
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings"] = mask
    topology = read_topology(write(tmp_path, files))

    assert str(topology.cores[0].cpus) == "0,33"
    assert len(topology.cores) == 33


def test_without_a_list_of_online_cpus_each_cpus_own_file_counts(tmp_path: Path) -> None:
    # CPU 0 cannot be taken offline and has no such file.
    write(tmp_path, {f"{CPU}/cpu{cpu}/online": text for cpu, text in ((1, "0"), (2, "1"))})
    (tmp_path / CPU / "cpu0").mkdir()
    (tmp_path / CPU / "cpuidle").mkdir()

    assert str(read_online(tmp_path)) == "0,2"


def test_padding_with_nul_bytes_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, PAIRS | {f"{CPU}/online": "0-3\n\0\0", f"{NODE}/node0/distance": "10 21\n\0"})

    assert read_topology(tmp_path).nodes[0].distances == (10, 21)


def test_the_uncore_cache_is_the_id_of_the_first_cache_above_level_2(tmp_path: Path) -> None:
    write(tmp_path, PAIRS | l3(0, id="7") | l3(1, id="9"))

    assert [core.uncore for core in read_topology(tmp_path).cores] == [7, 9]


def test_a_cache_without_id_is_named_by_the_lowest_cpu_that_shares_it(tmp_path: Path) -> None:
    write(tmp_path, PAIRS | l3(0, shared_cpu_list="0-1") | l3(1, shared_cpu_map="0000000a"))

    assert [core.uncore for core in read_topology(tmp_path).cores] == [0, 1]


def test_without_an_l3_cache_the_socket_stands_in(tmp_path: Path) -> None:
    files = PAIRS | {f"{CPU}/cpu1/topology/physical_package_id": "5"}

    assert [core.uncore for core in read_topology(write(tmp_path, files)).cores] == [0, 5]


def test_memory_and_hugepages_are_those_of_the_numa_node(tmp_path: Path) -> None:
    pages = f"{NODE}/node1/hugepages"
    files = PAIRS | {
        f"{NODE}/node1/meminfo": "Node 1 MemTotal:       1024 kB\nNode 1 MemFree:   1 kB\n",
        f"{pages}/hugepages-2048kB/nr_hugepages": "12\n",
        f"{pages}/hugepages-1048576kB/nr_hugepages": "0\n",
    }
    node = read_topology(write(tmp_path, files)).nodes[1]

    assert node.memory_bytes == 1024 * 1024
    assert node.hugepages == {2048: 12, 1048576: 0}


def test_without_node_directories_node_0_has_everything(tmp_path: Path) -> None:
    root = tmp_path / "sys"
    write(root, cores(["0", "1"]) | {"kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3"})
    write(tmp_path, {"proc/meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\n"})
    topology = read_topology(root)

    assert topology.cpu_bits_by_node == {0: 0b11}
    assert topology.nodes[0].memory_bytes == 2048 * 1024
    assert topology.nodes[0].hugepages == {2048: 3}
    assert topology.distance(0, 0) == 10


def test_a_machine_that_shows_no_memory_anywhere_is_told_of(tmp_path: Path) -> None:
    found = survey(write(tmp_path, cores(["0"])), meminfo=tmp_path / "nowhere")

    assert found.topology.memory_nodes == type(found.topology.memory_nodes)()
    assert any("taken as without memory" in note for note in found.notes)


def test_a_cpu_without_topology_files_is_a_core_of_its_own_in_socket_0(tmp_path: Path) -> None:
    found = survey(write(tmp_path, {f"{CPU}/online": "0-1\n"}))

    assert [str(core.cpus) for core in found.topology.cores] == ["0", "1"]
    assert any("package of CPU 0-1 is not shown" in note for note in found.notes)


def test_a_core_never_reaches_into_another_numa_node(tmp_path: Path) -> None:
    files = cores(["0-1", "0-1"]) | {f"{NODE}/node{n}/cpulist": f"{n}\n" for n in range(2)}

    assert [str(core.cpus) for core in read_topology(write(tmp_path, files)).cores] == ["0", "1"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=8))
def test_every_cpu_is_in_exactly_one_core_whatever_the_sibling_lists_say(
    siblings: list[set[int]],
) -> None:
    with TemporaryDirectory() as folder:
        topology = read_topology(write(Path(folder), cores([str(CPUSet(s)) for s in siblings])))

    assert topology.cpus == CPUSet(range(len(siblings)))
    assert sum(len(core.cpus) for core in topology.cores) == len(siblings)


def test_isolated_cpus_are_read_where_there_are_any(tmp_path: Path) -> None:
    assert read_isolated(tmp_path) == CPUSet()
    assert str(read_isolated(write(tmp_path, {f"{CPU}/isolated": "4-7,60\n"}))) == "4-7,60"


def test_a_folder_that_is_no_sysfs_is_told_apart_from_a_machine(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"is .* the root of a sysfs tree"):
        read_topology(tmp_path / "nowhere")


def test_numa_nodes_without_any_online_cpu_are_refused(tmp_path: Path) -> None:
    files = cores(["0"]) | {f"{NODE}/node0/cpulist": "4-7\n"}

    with pytest.raises(TopologyError, match=r"no NUMA node of .* has online CPUs"):
        read_topology(write(tmp_path, files))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{CPU}/online", "0-x"),
        (f"{CPU}/online", "0-99999999"),
        (f"{CPU}/cpu1/topology/physical_package_id", "zero"),
        (f"{CPU}/cpu1/topology/core_cpus_list", "3-1"),
        (f"{NODE}/node1/distance", "10 far"),
        (f"{NODE}/node1/meminfo", "Node 1 MemFree: 5 kB"),
        (f"{NODE}/node1/hugepages/hugepages-2048kB/nr_hugepages", "?"),
        (f"{NODE}/node1/cpulist", "\xff\xfe"),
        (f"{CPU}/cpu1/cache/index3/level", "L3"),
        (f"{CPU}/online", "0," * 40_000),
    ],
)
def test_a_file_without_sense_is_named(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, PAIRS | {name: text})

    with pytest.raises(TopologyError, match=name):
        read_topology(tmp_path)


def test_a_bad_mask_is_named(tmp_path: Path) -> None:
    files = cores(["0"]) | {f"{NODE}/node0/cpumap": "1,2"}

    with pytest.raises(TopologyError, match="node0/cpumap"):
        read_topology(write(tmp_path, files))


@pytest.mark.parametrize("name", [f"{CPU}/online", f"{NODE}/node0/cpulist"])
def test_a_file_that_cannot_be_read_is_the_machines_problem(tmp_path: Path, name: str) -> None:
    write(tmp_path, {key: text for key, text in PAIRS.items() if key != name})
    (tmp_path / name).mkdir(parents=True)

    with pytest.raises(EnvironmentProblem, match=f"cannot read .*{name}"):
        read_topology(tmp_path)
