"""What other programs make of a machine's files: hwloc's lstopo."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from agent.core.topology import NodeTopology

Sets = frozenset[int]  # of CPU bits


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """A machine in the words that both programs share; CPU sets are integers of bits."""

    cores: Sets
    packages: Sets
    l3: Sets
    nodes: dict[int, tuple[int, int]]  # id -> CPU bits, bytes of memory
    distances: dict[tuple[int, int], int]

    @classmethod
    def ours(cls, topology: NodeTopology) -> "Opinion":
        ids = list(topology.node_ids)
        return cls(
            cores=frozenset(topology.core_bits.values()),
            packages=frozenset(topology.cpu_bits_by_socket.values()),
            l3=frozenset(topology.cpu_bits_by_uncore.values()),
            nodes={
                node.id: (topology.cpu_bits_by_node.get(node.id, 0), node.memory_bytes)
                for node in topology.nodes
            },
            distances={(a, b): topology.distance(a, b) or 0 for a in ids for b in ids},
        )

    def compared_with(self, other: "Opinion") -> "Opinion":
        """Return this opinion without what the other does not speak of.

        hwloc shows no cache where there is none, no table that is not there or has one entry, and
        for a node without CPUs the CPUs near to it.
        """
        return Opinion(
            cores=self.cores,
            packages=self.packages if other.packages else frozenset(),
            l3=self.l3 if other.l3 else frozenset(),
            nodes={
                node: (bits or other.nodes.get(node, (0, 0))[0], memory)
                for node, (bits, memory) in self.nodes.items()
            },
            distances={pair: d for pair, d in self.distances.items() if pair in other.distances},
        )

    @classmethod
    def lstopo(cls, program: str, folder: Path) -> "Opinion":
        """Ask lstopo about the folder that has ``sys`` and ``proc`` in it."""
        found = subprocess.run(
            [program, "--input", folder, "--if", "fsroot", "--disallowed", "--of", "xml", "-"],
            env={**os.environ, "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1", "HWLOC_HIDE_ERRORS": "2"},
            capture_output=True,
            check=True,
            timeout=60,
        )
        tree = ET.fromstring(found.stdout)
        return cls(
            cores=_sets(tree, "Core"),
            packages=_sets(tree, "Package"),
            l3=_sets(tree, "L3Cache"),
            nodes={
                int(node.attrib["os_index"]): (
                    _bits(node.attrib["cpuset"]),
                    int(node.get("local_memory", 0)),
                )
                for node in _objects(tree, "NUMANode")
            },
            distances=_distances(tree),
        )


def _objects(tree: ET.Element, kind: str) -> Iterator[ET.Element]:
    return (item for item in tree.iter("object") if item.get("type") == kind)


def _sets(tree: ET.Element, kind: str) -> Sets:
    return frozenset(_bits(item.attrib["cpuset"]) for item in _objects(tree, kind))


def _bits(mask: str) -> int:
    """Read hwloc's masks: words of 32 bits, highest first; an empty one is 0."""
    bits = 0
    for word in mask.split(","):
        bits = bits << 32 | int(word or "0", 16)
    return bits


def _distances(tree: ET.Element) -> dict[tuple[int, int], int]:
    for table in tree.iter("distances2"):
        if table.get("name") == "NUMALatency":
            ids = _numbers(table, "indexes")
            values = iter(_numbers(table, "u64values"))
            return {(a, b): next(values) for a in ids for b in ids}
    return {}


def _numbers(table: ET.Element, tag: str) -> list[int]:
    return [int(word) for part in table.iter(tag) for word in (part.text or "").split()]
