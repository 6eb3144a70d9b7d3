import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import StateFileError
from agent.node.eviction_times import EVICTIONS_FILE, EvictionTimesFile
from tests.scratch import scratch_folder

from .fragile_disks import RefusingDisk, UnsyncedDisk


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_what_is_saved_is_loaded_by_the_next_one(times_s: Sequence[float]) -> None:
    with scratch_folder() as folder:
        EvictionTimesFile(Path(folder), disk=UnsyncedDisk()).save(times_s)
        assert EvictionTimesFile(Path(folder)).load() == tuple(times_s)


def test_the_first_agent_finds_none(tmp_path: Path) -> None:
    assert EvictionTimesFile(tmp_path).load() == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":2,"evicted_at_s":[]}', '{"version":1,"evicted_at_s":[NaN]}']
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / EVICTIONS_FILE).write_text(text)
    with pytest.raises(StateFileError, match=rf"{EVICTIONS_FILE} cannot be used .*next hour"):
        EvictionTimesFile(tmp_path).load()


def test_a_full_disk_is_told_of_and_the_old_file_stays(tmp_path: Path) -> None:
    EvictionTimesFile(tmp_path, disk=UnsyncedDisk()).save([1.0])
    full = EvictionTimesFile(tmp_path, disk=RefusingDisk(0, errno.ENOSPC))
    with pytest.raises(StateFileError, match=r"cannot save .*No space left.*no pod is evicted"):
        full.save([1.0, 2.0])
    assert full.load() == (1.0,)
