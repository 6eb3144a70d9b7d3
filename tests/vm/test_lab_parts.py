"""The parts of the lab that need no guest."""

import os
import time
from pathlib import Path

import pytest

from hack.lab import madt, packages
from hack.lab.errors import EmulationError, LabError, UnavailableError
from hack.lab.guest import STANDS_STILL_S, check_alive, read_status
from hack.lab.topology import TOPOLOGIES

QEMU_S_OWN = bytes.fromhex(
    "0000e0fe 01000000"
    "00080000 01000000 00080101 01000000 00080202 01000000 00080303 01000000"
    "00080404 01000000 00080505 01000000 00080606 01000000 00080707 01000000"
    "010c0000 0000c0fe 00000000 020a0000 02000000 0000020a 00050500 00000d00"
    "020a0009 09000000 0d00020a 000a0a00 00000d00 020a000b 0b000000 0d000406 ff000001"
)
"""/sys/firmware/acpi/tables/APIC of a guest with 2 sockets, 2 cores, 2 threads, after the header."""


def test_the_table_of_cpus_is_qemu_s_own_where_the_order_is() -> None:
    assert madt.table(TOPOLOGIES["memory-less"])[36:] == QEMU_S_OWN


def test_the_table_of_cpus_lists_first_threads_first_where_siblings_are_apart() -> None:
    table = madt.table(TOPOLOGIES["2n"])

    apic_ids = [table[44 + 8 * i + 3] for i in range(8)]

    assert apic_ids == [0, 2, 4, 6, 1, 3, 5, 7]
    assert sum(table) % 256 == 0
    assert sorted(table[44:108]) == sorted(QEMU_S_OWN[8:72])


def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UnavailableError, match="apt-get install qemu-system-x86' as root"):
        packages.need(packages.EMULATOR)


@pytest.mark.parametrize(
    ("last_words", "is_tried_again"),
    [
        ("Oops: int3: 0000 [#1]", True),
        ("watchdog: BUG: soft lockup - CPU#2 stuck for 26s! [numalet:255]", True),
        ("Kernel panic - not syncing: Attempted to kill init!", False),
    ],
)
def test_only_a_guest_that_emulation_failed_is_tried_again(
    tmp_path: Path, last_words: str, *, is_tried_again: bool
) -> None:
    (tmp_path / "console.log").write_text(f"boot\n{last_words}\n")

    with pytest.raises(LabError, match="ended without a status") as failed:
        read_status(tmp_path)

    assert isinstance(failed.value, EmulationError) is is_tried_again


def test_a_guest_that_no_longer_says_that_it_lives_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    check_alive(tmp_path)  # it has not begun
    alive = tmp_path / "control/alive"
    alive.touch()
    check_alive(tmp_path)
    long_ago_s = time.time() - STANDS_STILL_S - 1
    os.utime(alive, (long_ago_s, long_ago_s))

    with pytest.raises(EmulationError, match="stands still"):
        check_alive(tmp_path)
