"""What is overwritten is on disk before it is overwritten, and survives whatever ends the agent."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.overwritten import Overwritten
from agent.errors import StateFileError
from agent.node.journal import JOURNAL_FILE, Journal
from tests.node.fragile_disks import RefusingDisk, UnsyncedDisk

POD = CgroupPath("kubepods/poda")


def entry(value: str, file: str = "cpuset.cpus", identity: int = 7) -> Overwritten:
    return Overwritten(path=POD, identity=identity, file=file, value=value)


def journal(folder: Path, boot_id: str = "boot") -> Journal:
    journal = Journal(folder, boot_id=boot_id, disk=UnsyncedDisk())
    assert journal.load() == ""
    return journal


def test_what_is_noted_is_there_after_a_restart(tmp_path: Path) -> None:
    journal(tmp_path).note([entry(""), entry("100000 100000", "cpu.max")])
    assert journal(tmp_path).entries == (entry(""), entry("100000 100000", "cpu.max"))


def test_of_a_set_the_first_value_counts_and_of_a_quota_the_last(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.note([entry("0-7"), entry("100000 100000", "cpu.max")])
    kept.note([entry("3"), entry("200000 100000", "cpu.max")])
    assert kept.entries == (entry("0-7"), entry("200000 100000", "cpu.max"))


def test_on_a_single_host_the_first_quota_counts_too_since_all_later_ones_are_our_own(
    tmp_path: Path,
) -> None:
    path = CgroupPath("numalet.slice/numalet-poda.slice/numalet-poda-c0.scope")
    first, second = (
        replace(entry(v, "cpu.max"), path=path) for v in ("max 100000", "150000 100000")
    )
    journal(tmp_path).note([first])
    kept = journal(tmp_path)
    kept.note([second])
    assert kept.entries == (first,)


def test_a_cgroup_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.note([entry("0-7")])
    kept.note([entry("", identity=8)])
    assert kept.entries == (entry("", identity=8),)


def test_after_another_boot_nothing_is_left(tmp_path: Path) -> None:
    journal(tmp_path).note([entry("0-7")])
    assert journal(tmp_path, boot_id="another").entries == ()


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    journal(tmp_path).note([entry("0-7")])
    same = Journal(tmp_path, boot_id="boot", disk=RefusingDisk(0, errno.EIO))
    same.load()
    same.note([entry("0-7")])
    same.forget(lambda _entry: False)


def test_what_cannot_be_noted_is_an_error_and_is_not_known(tmp_path: Path) -> None:
    full = Journal(tmp_path, boot_id="boot", disk=RefusingDisk(0, errno.ENOSPC))
    with pytest.raises(StateFileError, match="No space left on device; nothing is overwritten"):
        full.note([entry("0-7")])
    assert full.entries == ()


def test_what_was_given_back_is_forgotten(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.note([entry("0-7"), entry("max 100000", "cpu.max")])
    kept.forget(lambda one: one.file == "cpu.max")
    assert journal(tmp_path).entries == (entry("0-7"),)


@pytest.mark.parametrize("text", ["", "{", '{"version":2,"boot_id":"boot","values":[]}', "[]"])
def test_a_journal_that_cannot_be_used_is_set_aside_and_told(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL_FILE).write_text(text)
    broken = Journal(tmp_path, boot_id="boot", disk=UnsyncedDisk())
    aside = tmp_path / f"{JOURNAL_FILE}.damaged-boot"
    assert broken.load().endswith(f"set aside as {aside.name}")
    assert aside.read_text() == text
    (sentence,) = journal(tmp_path).lost()  # the next one knows, too
    assert sentence.startswith(f"{aside} could not be used")
    assert Journal(tmp_path, boot_id="another").lost() == ()  # which has undone all
    assert broken.entries == ()
    broken.note([entry("0-7")])
    assert journal(tmp_path).entries == (entry("0-7"),)
