"""What a machine needs and no file says is filled in, and told."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import AgentConfig, fill_in, load
from agent.core.cpuset import CPUSet
from agent.core.topology import NodeTopology, NumaNode
from agent.kubelet_config import eviction_bytes

from .machines import GI, machine, two_nodes

KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
MI = 1 << 20
SCOPE = "topologyManagerScope pod: none was named, and a kubelet would take container"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def filled(file: Path, text: str, topology: NodeTopology) -> AgentConfig:
    file.write_text(KUBELET + text)
    return fill_in(load(file), topology)


def test_without_a_file_the_first_whole_core_and_100mi_are_reserved() -> None:
    config = fill_in(load(None), two_nodes())

    assert config.policy.reserved_cpus == CPUSet([0, 4])
    assert config.policy.node_reservation == {"cpu": 2000, "memory": 100 * MI}
    assert config.policy.reserved_memory == ((0, {"memory": 100 * MI}),)
    assert config.origins["reservedSystemCPUs"].startswith("filled in: no CPU was reserved")
    assert config.filled_in == (
        SCOPE,
        "reservedSystemCPUs 0,4: no CPU was reserved, so the first core is",
        "reservedMemory node 0: memory=100Mi: no NUMA node was named for what is reserved",
    )


def test_what_the_file_says_is_left_alone(file: Path) -> None:
    config = filled(
        file,
        "topologyManagerScope: container\nreservedSystemCPUs: 1,3\n"
        "systemReserved: {cpu: 500m, memory: 924Mi}\n"
        "reservedMemory:\n- {numaNode: 1, limits: {memory: 1Gi}}\n",
        two_nodes(),
    )

    assert config.policy.reserved_cpus == CPUSet([1, 3])
    assert config.policy.node_reservation == {"cpu": 2000, "memory": GI}
    assert config.policy.reserved_memory == ((1, {"memory": GI}),)
    assert config.filled_in == ()


def test_an_amount_of_cpu_without_a_set_leaves_the_choice_to_the_pick_rules(file: Path) -> None:
    config = filled(file, "kubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 1}\n", two_nodes())

    assert config.policy.reserved_cpus == CPUSet()
    assert config.policy.node_reservation["cpu"] == 1500


def test_managers_that_are_off_get_nothing(file: Path) -> None:
    off = "cpuManagerPolicy: none\nmemoryManagerPolicy: None\ntopologyManagerPolicy: none\n"
    config = filled(file, off, two_nodes())

    assert config.policy.reserved_cpus == CPUSet()
    assert config.policy.reserved_memory == ()
    assert config.policy.node_reservation == {"memory": 100 * MI}
    assert config.filled_in == ()


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_a_scope_that_is_not_named_is_pod_and_said(file: Path, policy: str) -> None:
    config = filled(file, f"topologyManagerPolicy: {policy}\n", two_nodes())

    assert config.policy.topology_scope == "pod"
    assert config.filled_in[0] == SCOPE
    assert config.origins["topologyManagerScope"] == (
        "filled in: none was named, and a kubelet would take container"
    )


def test_a_scope_that_is_named_is_not_filled_in(file: Path) -> None:
    config = filled(file, "topologyManagerScope: pod\n", two_nodes())

    assert SCOPE not in config.filled_in
    assert config.origins["topologyManagerScope"] == f"{file}:3"


def test_memory_is_reserved_where_there_is_memory() -> None:
    nodes = (
        NumaNode(id=0, memory_bytes=0),
        NumaNode(id=1, memory_bytes=50 * MI),
        NumaNode(id=8, memory_bytes=GI),
    )

    config = fill_in(load(None), machine(*nodes))

    assert config.policy.reserved_memory == ((8, {"memory": 100 * MI}),)


def test_huge_pages_are_reserved_where_they_are_and_do_not_count_as_memory(file: Path) -> None:
    huge = NumaNode(id=0, memory_bytes=GI, hugepages={2048: 500})  # 24 MiB are left
    plain = NumaNode(id=1, memory_bytes=GI)

    config = filled(file, "systemReserved: {hugepages-2Mi: 4Mi}\n", machine(huge, plain))

    assert dict(config.policy.reserved_memory) == {
        0: {"hugepages-2Mi": 4 * MI},
        1: {"memory": 100 * MI},
    }
    assert config.policy.node_reservation["hugepages-2Mi"] == 4 * MI


def test_one_node_gets_one_entry_for_all_it_keeps(file: Path) -> None:
    node = NumaNode(id=0, memory_bytes=4 * GI, hugepages={2048: 500})

    config = filled(file, "systemReserved: {hugepages-2Mi: 4Mi}\n", machine(node))

    assert config.policy.reserved_memory == ((0, {"hugepages-2Mi": 4 * MI, "memory": 100 * MI}),)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("", 100 * MI),
        ("evictionHard: {memory.available: 5%}\n", int(32 * GI * 0.05)),
        ("evictionHard: {memory.available: 1Gi, nodefs.available: 10%}\n", GI),
        ("evictionHard: {nodefs.available: 10%}\nkubeReserved: {memory: 1Gi}\n", GI),
        (
            "evictionHard: {nodefs.available: 10%}\nmergeDefaultEvictionSettings: true\n",
            100 * MI,
        ),
        ("systemReserved: {memory: 1Gi}\nkubeReserved: {memory: 1Gi}\n", 2 * GI + 100 * MI),
    ],
)
def test_the_reservation_of_memory_is_kube_system_and_eviction(
    file: Path, text: str, memory: int
) -> None:
    config = filled(file, text, two_nodes())

    # a percentage is a 32-bit float: 5 % is a little more than a twentieth
    assert config.policy.node_reservation["memory"] == pytest.approx(memory, rel=1e-7)


def test_static_memory_without_any_reservation_gets_the_usual_100mi(file: Path) -> None:
    config = filled(file, "evictionHard: {nodefs.available: 10%}\n", two_nodes())

    assert config.policy.node_reservation["memory"] == 100 * MI
    assert config.policy.reserved_memory == ((0, {"memory": 100 * MI}),)
    assert config.origins["systemReserved"] == "filled in: no memory was reserved"


@pytest.mark.parametrize("text", ["", "evictionHard: {}\n", "kubeReserved: {memory: 1Gi}\n"])
def test_filling_in_twice_is_the_same_as_once(file: Path, text: str) -> None:
    once = filled(file, text, two_nodes())

    assert fill_in(once, two_nodes()) == once


def test_another_machine_has_another_first_core() -> None:
    config = load(None)
    topology = two_nodes()
    without_cpu_0 = replace(topology, cores=topology.cores[1:])

    assert fill_in(config, without_cpu_0).policy.reserved_cpus == CPUSet([1, 5])


@pytest.mark.parametrize(
    ("threshold", "expected"),
    # as a 32-bit float, 5% is 0.0500000007450581 and 10% is 0.100000001490116
    [("100Mi", 100 * MI), ("5%", 1717986944), ("10%", 3435973888), ("0%", 0), ("100%", 0)],
)
def test_a_threshold_is_an_amount_or_a_share_of_the_machine(threshold: str, expected: int) -> None:
    assert eviction_bytes(threshold, 32 * GI) == expected
