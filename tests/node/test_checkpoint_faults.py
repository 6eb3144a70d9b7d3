import errno
import os
from pathlib import Path

import pytest

from agent.node.checkpoint import COPIES, CheckpointNotSaved
from agent.node.durable import Disk
from tests.node.fragile_disks import (
    NEW,
    OLD,
    OPERATIONS,
    FragileDisk,
    PowerCut,
    RefusingDisk,
    names_in,
    store,
)


@pytest.mark.parametrize("lossy", [True, False], ids=["lossy", "kept"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_at_any_operation_leaves_the_old_state_or_the_new(
    tmp_path: Path, operation: int, *, lossy: bool
) -> None:
    store(tmp_path).save(OLD)
    disk = FragileDisk(operation)

    with pytest.raises(PowerCut):
        store(tmp_path, disk).save(NEW)
    if lossy:
        disk.cut_power(tmp_path)

    after = store(tmp_path)
    assert after.load().remembered in (OLD, NEW)
    after.save(NEW)
    assert store(tmp_path).load().remembered == NEW


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_crash_during_the_first_save_leaves_nothing_or_the_new_state(
    tmp_path: Path, operation: int
) -> None:
    disk = FragileDisk(operation)
    with pytest.raises(PowerCut):
        store(tmp_path, disk).save(NEW)
    disk.cut_power(tmp_path)
    loaded = store(tmp_path).load()
    assert loaded.remembered in (None, NEW)
    assert loaded.notes == ()


def test_what_was_saved_outlives_a_power_cut_right_after(tmp_path: Path) -> None:
    disk = FragileDisk(len(OPERATIONS))
    store(tmp_path, disk).save(NEW)
    disk.cut_power(tmp_path)
    assert names_in(tmp_path) == sorted(COPIES)
    assert store(tmp_path).load().remembered == NEW


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_that_refuses_is_reported_and_leaves_a_whole_state(
    tmp_path: Path, operation: int, number: int
) -> None:
    store(tmp_path).save(OLD)
    refused = store(tmp_path, RefusingDisk(operation, number))

    with pytest.raises(CheckpointNotSaved) as caught:
        refused.save(NEW)

    path = tmp_path / COPIES[operation // 4]
    cure = {errno.ENOSPC: "free space", errno.EIO: "look at the kernel's log"}[number]
    assert (caught.value.path, caught.value.errno) == (path, number)
    assert f"cannot save {path}: {errno.errorcode[number]} (" in str(caught.value)
    assert cure in str(caught.value)
    assert names_in(tmp_path) == sorted(COPIES)
    assert store(tmp_path).load().remembered in (OLD, NEW)
    assert refused.save(NEW)
    assert not refused.save(NEW)
    assert store(tmp_path).load().remembered == NEW


def test_a_state_that_was_refused_halfway_is_never_mistaken_for_saved(tmp_path: Path) -> None:
    # the first copy has NEW already when the second is refused; going back to OLD must be written
    last = store(tmp_path, RefusingDisk(8 + 4, errno.ENOSPC))
    last.save(OLD)
    with pytest.raises(CheckpointNotSaved):
        last.save(NEW)
    assert last.save(OLD)
    assert store(tmp_path).load().remembered == OLD


def test_a_folder_that_was_removed_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotSaved, match=r"ENOENT .*; the state folder was removed"):
        store(tmp_path / "gone").save(OLD)


def test_a_disk_that_writes_little_by_little_is_asked_again(tmp_path: Path) -> None:
    class Slow(Disk):
        def write(self, fd: int, data: memoryview) -> int:
            return super().write(fd, data[:7])

    store(tmp_path, Slow()).save(OLD)
    assert store(tmp_path).load().remembered == OLD


def test_a_file_system_that_cannot_sync_folders_is_good_enough(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()  # fsync of a pipe is EINVAL
    Disk().fsync_folder(write_end)
    os.close(write_end)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Disk().fsync_folder(write_end)
    os.close(read_end)
