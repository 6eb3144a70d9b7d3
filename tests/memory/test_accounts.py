"""What is charged to a cgroup, read from files as Linux 6.1 and 6.12 show them."""

from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.memory_moves import Charge
from agent.memory_accounts import read_charge, read_growth
from agent.node.cgroupfs import CgroupFs

POD = CgroupPath("pod")
MIB = 1 << 20
NUMA_STAT = """\
anon N0=4804608 N1=8192
file N0=10485760 N1=1048576
kernel_stack N0=49152 N1=0
pagetables N0=1138688 N1=0
shmem N0=4194304 N1=0
file_mapped N0=2097152 N1=4096
file_dirty N0=0 N1=0
swapcached N0=0 N1=0
anon_thp N0=2097152 N1=0
inactive_anon N0=4800512 N1=8192
slab_reclaimable N0=218584 N1=0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/memory.numa_stat").write_text(NUMA_STAT)
    return tmp_path / "pod"


def charge(folder: Path, *page_sizes_kib: int) -> Charge:
    return read_charge(CgroupFs(folder.parent), POD, page_sizes_kib)


def test_anonymous_memory_and_mapped_pages_of_files_move(folder: Path) -> None:
    assert charge(folder).movable == {0: 4804608 + 2097152, 1: 8192 + 4096}


def test_pages_of_files_can_be_dropped_but_not_shared_memory(folder: Path) -> None:
    assert charge(folder).droppable_bytes == 10485760 + 1048576 - 4194304


@pytest.mark.parametrize(("kib", "name"), [(64, "64KB"), (2048, "2MB"), (1 << 20, "1GB")])
def test_huge_pages_are_in_a_file_for_each_size(folder: Path, kib: int, name: str) -> None:
    (folder / f"hugetlb.{name}.numa_stat").write_text("total=6291456 N0=4194304 N1=2097152\n")
    assert charge(folder, kib).huge == {kib: {0: 4194304, 1: 2097152}}


def test_where_nothing_counts_memory_nothing_is_charged(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    cgroups = CgroupFs(tmp_path)
    assert read_charge(cgroups, POD, [2048]) == Charge(huge={2048: {}})
    assert read_growth(cgroups, POD, Charge()) is None


@pytest.mark.parametrize(
    ("limit", "current", "droppable", "growth"),
    [("100", "70", 0, 30), ("100", "70", 20, 50), ("100", "120", 0, 0), ("max", "70", 0, None)],
)
def test_growth_is_what_the_limit_leaves_and_pages_of_files_give_way(
    folder: Path, limit: str, current: str, droppable: int, growth: int | None
) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    found = read_growth(CgroupFs(folder.parent), POD, Charge(droppable_bytes=droppable))
    assert found == growth
