"""``numalet topology`` and ``numalet run --print-config``: what there is, and what holds."""

import json
from pathlib import Path

import pytest
import yaml

from agent.config import describe, load
from agent.place import simulated_topology
from tests.cli.rig import EXAMPLES, MACHINE, PROJECT, SAMPLES, TINY, Cli

TOPOLOGIES = PROJECT / "tests/data/topologies"


def test_the_map_shows_every_node(numalet: Cli) -> None:
    ended = numalet("topology", "--simulate", MACHINE)
    assert (ended.status, ended.err) == (0, "")
    assert [line.rstrip() for line in ended.out.splitlines()] == [
        "32 CPUs 0-31, 32 cores, 2 sockets, 2 NUMA nodes",
        "NODE  CPUS   SOCKET  CACHES  MEMORY  HUGEPAGES  DISTANCES",
        "0     0-15   0       1       64Gi    -          10 20",
        "1     16-31  1       1       64Gi    -          20 10",
    ]


@pytest.mark.parametrize(
    "description",
    [
        TINY,
        TOPOLOGIES / "s390-lpar-drawers-books.yaml",
        TOPOLOGIES / "x86-2s-node0-offline.yaml",
        TOPOLOGIES / "vm-3-nodes-equal-distance.yaml",
    ],
    ids=lambda path: path.stem,
)
@pytest.mark.parametrize("output", ["yaml", "json"])
def test_what_is_printed_is_a_description_of_the_same_machine(
    numalet: Cli, tmp_path: Path, description: Path, output: str
) -> None:
    printed = tmp_path / f"machine.{output}"
    printed.write_text(numalet("topology", "--simulate", description, "-o", output).out)
    assert simulated_topology(printed) == simulated_topology(description)


def test_json_is_on_one_line_of_standard_output_alone(numalet: Cli) -> None:
    ended = numalet("topology", "--simulate", TINY, "-o", "json")
    assert (ended.err, ended.out.count("\n")) == ("", 1)
    assert json.loads(ended.out)["schema"] == "numalet-topology/v1"


def test_no_column_is_cut_where_a_program_reads_it(numalet: Cli, tmp_path: Path) -> None:
    many = range(1, 100)
    nodes = {0: {"cpus": "0-3", "mem_mib": 1024}} | {i: {"cpus": "", "mem_mib": 1} for i in many}
    for i, node in nodes.items():
        node["distance"] = [10 if i == j else 255 for j in nodes]
    wide = {**yaml.safe_load(TINY.read_text()), "nodes": nodes}
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump(wide))
    ended = numalet("topology", "--simulate", tmp_path / "wide.yaml")
    assert "…" not in ended.out
    assert "\x1b" not in ended.out
    assert [line.split()[-1] for line in ended.out.splitlines()[2:]] == ["255"] * 99 + ["10"]


def origins(out: str) -> dict[str, tuple[str, str]]:
    """Read the table by the places of its columns."""
    header, *lines = out.splitlines()
    value, origin = header.index("VALUE"), header.index("FROM")
    return {
        line[:value].strip(): (line[value:origin].strip(), line[origin:].strip()) for line in lines
    }


def test_each_value_is_shown_with_where_it_came_from(numalet: Cli) -> None:
    config = SAMPLES / "kubelet-config.yaml"
    ended = numalet("run", "--print-config", "--simulate", MACHINE, "--config", config)
    assert (ended.status, ended.err) == (0, "")
    found = origins(ended.out)
    assert found["cpuManagerPolicyOptions"] == ("full-pcpus-only=true", f"{config}:8")
    assert found["reservedMemory"] == ("node 0: memory=1Gi", f"{config}:14")
    assert found["driftInterval"] == ("10s", "default")
    assert found.keys() == {key for key, _, _ in describe(load(config))}


def test_what_was_filled_in_says_why(numalet: Cli) -> None:
    config = SAMPLES / "kubelet-config-minimal.yaml"
    ended = numalet("run", "--print-config", "--simulate", MACHINE, "--config", config)
    found = origins(ended.out)
    assert found["topologyManagerScope"] == (
        "pod",
        "filled in: none was named, and a kubelet would take container",
    )
    assert found["reservedSystemCPUs"] == (
        "0",
        "filled in: no CPU was reserved, so the first core is",
    )
    assert found["reservedMemory"] == (
        "node 0: memory=100Mi",
        "filled in: no NUMA node was named for what is reserved",
    )


def test_keys_of_the_kubelet_that_are_not_read_are_a_warning(numalet: Cli, tmp_path: Path) -> None:
    config = tmp_path / "kubelet.yaml"
    kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    config.write_text(kubelet + "maxPods: 110\ncpuManagerPolicyy: none\n")
    ended = numalet("run", "--print-config", "--simulate", TINY, "--config", config)
    assert ended.status == 0
    assert ended.err.splitlines() == [
        f"numalet: warning: {config}:4: cpuManagerPolicyy is not read; is cpuManagerPolicy meant?",
        f"numalet: warning: {config}:1: keys that are not read: maxPods",
    ]
    assert "\x1b" not in ended.out


def test_the_example_configuration_says_nothing_that_is_not_read(numalet: Cli) -> None:
    ended = numalet(
        "run", "--print-config", "--simulate", MACHINE, "--config", EXAMPLES / "config.yaml"
    )
    assert (ended.status, ended.err) == (0, "")
    assert origins(ended.out)["logLevel"][1].endswith("config.yaml:20")


def test_the_version_is_printed(numalet: Cli) -> None:
    ended = numalet("--version")
    assert (ended.status, ended.out) == (0, "numalet 0.1.0\n")


def test_without_a_command_there_is_help(numalet: Cli) -> None:
    ended = numalet()
    assert "Usage: numalet" in ended.out + ended.err
