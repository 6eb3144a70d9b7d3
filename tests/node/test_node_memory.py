"""What NUMA nodes have left, read from files as Linux 6.1 shows them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.core.memory_moves import NodeRoom
from agent.errors import EnvironmentProblem
from agent.node.node_memory import NodeMemory

KIB = 1024
MEMINFO = """\
Node {node} MemTotal:        1030772 kB
Node {node} MemFree:          {free} kB
Node {node} MemUsed:           41936 kB
Node {node} Active:             1208 kB
Node {node} Inactive:            768 kB
Node {node} Active(anon):        228 kB
Node {node} Inactive(anon):        0 kB
Node {node} Active(file):        980 kB
Node {node} Inactive(file):      768 kB
Node {node} Unevictable:           0 kB
Node {node} Dirty:               {dirty} kB
Node {node} Writeback:             4 kB
Node {node} FilePages:          1748 kB
Node {node} Mapped:              816 kB
Node {node} Shmem:                 0 kB
Node {node} HugePages_Total:    64
Node {node} HugePages_Free:     60
"""


def write_node(
    root: Path, node: int, *, free: int, dirty: int = 0, huge: Mapping[int, int] | None = None
) -> None:
    folder = root / f"devices/system/node/node{node}"
    for kib, pages in (huge or {}).items():
        size = folder / f"hugepages/hugepages-{kib}kB"
        size.mkdir(parents=True)
        (size / "free_hugepages").write_text(f"{pages}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meminfo").write_text(MEMINFO.format(node=node, free=free, dirty=dirty))


def test_each_node_has_free_memory_clean_pages_of_files_and_huge_pages(tmp_path: Path) -> None:
    write_node(tmp_path, 0, free=988_836, dirty=44, huge={2048: 60, 1 << 20: 1})
    write_node(tmp_path, 8, free=5)
    assert NodeMemory(tmp_path).read() == {
        0: NodeRoom(
            free_bytes=988_836 * KIB,
            cache_bytes=(980 + 768 - 44 - 4) * KIB,
            huge_bytes={2048: 60 << 21, 1 << 20: 1 << 30},
        ),
        8: NodeRoom(free_bytes=5 * KIB, cache_bytes=(980 + 768 - 4) * KIB),
    }


def test_more_dirty_pages_than_pages_of_files_leave_none_that_are_clean(tmp_path: Path) -> None:
    write_node(tmp_path, 0, free=1, dirty=9999)
    assert NodeMemory(tmp_path).read()[0].cache_bytes == 0


def test_a_machine_without_node_folders_has_no_nodes(tmp_path: Path) -> None:
    assert NodeMemory(tmp_path).read() == {}


def test_a_file_that_is_missing_is_named_with_a_cure(tmp_path: Path) -> None:
    (tmp_path / "devices/system/node/node0").mkdir(parents=True)
    with pytest.raises(
        EnvironmentProblem, match=r"cannot read .*node0/meminfo: No such file.*mount"
    ):
        NodeMemory(tmp_path).read()
