"""The firmware's list of CPUs in the order in which Linux shall number them.

QEMU lists siblings side by side; most servers list the first threads of all cores before the second
ones.  Linux numbers CPUs as they are listed, and takes a table from its initramfs in place of the
firmware's (Documentation/admin-guide/acpi/initrd_table_override).  Adding the CPUs to a running
guest in the wanted order does not work since Linux 6.9, which knows no CPU that was not there at boot.
"""

import struct

from hack.lab import cpio
from hack.lab.topology import GuestTopology, Thread

_LAPIC_ADDRESS = 0xFEE0_0000
_PC_AT_COMPATIBLE = 1
_ENABLED = 1
_LEVEL_ACTIVE_HIGH = 0x0D
_REVISION = 2
"""One above QEMU's own: Linux takes newer tables only."""


def as_initrd(guest: GuestTopology) -> bytes:
    """Return an archive to put before the initramfs of such a guest; empty where QEMU's order is right."""
    if not guest.siblings_apart:
        return b""
    return cpio.archive({"kernel/firmware/acpi/apic.aml": table(guest)})


def table(guest: GuestTopology) -> bytes:
    """Return the MADT (ACPI 6.5, section 5.2.12) of QEMU 7.2's q35 with its CPUs in our order."""
    body = struct.pack("<II", _LAPIC_ADDRESS, _PC_AT_COMPATIBLE)
    in_qemu = {place: i for i, place in enumerate(sorted(guest.by_number()))}
    for place in guest.by_number():
        body += struct.pack("<BBBBI", 0, 8, in_qemu[place], _apic_id(guest, place), _ENABLED)
    body += struct.pack("<BBBBII", 1, 12, 0, 0, 0xFEC0_0000, 0)  # the I/O APIC
    body += struct.pack("<BBBBIH", 2, 10, 0, 0, 2, 0)  # the timer's interrupt is on pin 2
    for interrupt in (5, 9, 10, 11):
        body += struct.pack("<BBBBIH", 2, 10, 0, interrupt, interrupt, _LEVEL_ACTIVE_HIGH)
    body += struct.pack("<BBBHB", 4, 6, 0xFF, 0, 1)  # every CPU has its NMI on pin 1
    return _with_header(body)


def _apic_id(guest: GuestTopology, place: Thread) -> int:
    """Return a CPU's APIC id: each level has as many bits as its largest number needs."""
    number = 0
    for value, count in zip(
        place, (guest.sockets, guest.dies, guest.cores, guest.threads), strict=True
    ):
        number = number << (count - 1).bit_length() | value
    return number


def _with_header(body: bytes) -> bytes:
    length = 36 + len(body)
    header = struct.pack(
        "<4sIBB6s8sI4sI", b"APIC", length, 1, 0, b"BOCHS ", b"BXPC    ", _REVISION, b"BXPC", 1
    )
    whole = bytearray(header + body)
    whole[9] = -sum(whole) % 256  # all bytes add up to 0
    return bytes(whole)
