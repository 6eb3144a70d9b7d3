"""What the kernel makes of a text that is written into a cgroup file: a value, or an errno.

Every rule was seen on Linux 6.1 and 6.12 (cgroup2-facts sections 1 and 4); the sources are
``bitmap_parselist`` (lib/bitmap-str.c), ``update_cpumask`` and ``update_nodemask``
(kernel/cgroup/cpuset.c), ``cpu_max_write`` (kernel/sched/core.c) and ``page_counter_memparse``
(mm/page_counter.c).  Refusals are raised as `OSError`, as the ``os`` module does.
"""

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent.core.cpuset import CPUSet, NodeSet

DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
    "cpu": {"cpu.max": "max 100000", "cpu.weight": "100"},
    "memory": {"memory.max": "max"},
}
"""The controllers in the kernel's order, and what their files say in a new cgroup."""

LONGEST_WRITE = 4096
LONGEST_WRITES = {"cpuset.cpus": 100 + 6 * 8192, "cpuset.mems": 100 + 6 * 1024}
"""Bytes of one write(2), by file; more are E2BIG (``kernfs_fop_write_iter``; ``max_write_len`` in
kernel/cgroup/cpuset.c, with NR_CPUS and MAX_NUMNODES of distribution kernels for x86-64)."""

_POSSIBLE_NODES = 1024  # MAX_NUMNODES of distribution kernels for x86-64
_MIN_US, _MAX_PERIOD_US = 1_000, 1_000_000
_MAX_QUOTA_US = (1 << 44) - 1  # max_bw_runtime_us: 64 bits less BW_SHIFT
_MAX_WEIGHT = 10_000
_PAGE_BYTES = 4096
_MAX_PAGES = (2**63 - 1) // _PAGE_BYTES  # PAGE_COUNTER_MAX

_N = r"(\d+|N)"
_REGION = re.compile(rf"{_N}|(?:((?i:all))|{_N}-{_N})(?::{_N}/{_N})?", re.ASCII)
_CPU_MAX = re.compile(r"\s*(\S{1,20})\s*(\d*)", re.ASCII)
_INTEGER = r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*"
_WEIGHT = re.compile(rf"\+?({_INTEGER})\n?")
_SIZE = re.compile(rf"({_INTEGER})?([KMGTPE]?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible:
    """What may be named: CPU numbers below ``cpus``, online or not, and NUMA nodes."""

    cpus: int
    nodes: NodeSet


def refusal(number: int) -> OSError:
    """Return the exception for an errno, for the caller to raise."""
    return OSError(number, os.strerror(number))


def accepted(file: str, text: str, current: str, possible: Possible) -> str:
    """Return what ``file``, one of `DEFAULTS`, says after ``text`` was written over ``current``.

    Raises `OSError` with the errno that write(2) gives.
    """
    match file:
        case "cpuset.cpus":
            return str(CPUSet.from_bits(_list_bits(text.strip(), possible.cpus)))
        case "cpuset.mems":
            return _mems(text.strip(), possible.nodes)
        case "cpu.max":
            return _cpu_max(text, current)
        case "cpu.weight":
            return _cpu_weight(text)
        case _:
            return _memory_max(text.strip())


def _list_bits(text: str, size: int) -> int:
    # A newline ends the list when it follows a number, and is a space elsewhere.
    line = re.split(r"(?<![,\s])\n", text, maxsplit=1)[0]
    bits = 0
    for region in re.split(r"[,\s]+", line):
        if region:
            bits |= _region_bits(region, size)
    return bits


def _region_bits(region: str, size: int) -> int:
    match = _REGION.fullmatch(region)
    if match is None:
        raise refusal(errno.EINVAL)
    single, every, first, last, used, group = match.groups()
    start = 0 if every else _region_number(single or first, size)
    end = size - 1 if every else _region_number(single or last, size)
    taken = _region_number(used, size) if used else end + 1
    stride = _region_number(group, size) if group else end + 1
    if start > end or stride == 0 or taken > stride:
        raise refusal(errno.EINVAL)
    if end >= size:
        raise refusal(errno.ERANGE)
    return sum(1 << i for i in range(start, end + 1) if (i - start) % stride < taken)


def _region_number(text: str, size: int) -> int:
    if text == "N":
        return size - 1
    digits = text.lstrip("0") or "0"
    # Python refuses to read a text with thousands of digits.
    if len(digits) > len(str(1 << 32)) or int(digits) >> 32:
        raise refusal(errno.EOVERFLOW)
    return int(digits)


def _mems(text: str, nodes: NodeSet) -> str:
    wanted = NodeSet.from_bits(_list_bits(text, _POSSIBLE_NODES))
    if not wanted <= nodes:
        raise refusal(errno.EINVAL)
    return str(wanted)


def _cpu_max(text: str, current: str) -> str:
    match = _CPU_MAX.match(text)
    if match is None:
        raise refusal(errno.EINVAL)
    word, digits = match.groups()
    period = int(digits or current.split()[1])
    quota = re.match(r"\d+", word, re.ASCII)
    if not _MIN_US <= period <= _MAX_PERIOD_US:
        raise refusal(errno.EINVAL)
    if word == "max":
        return f"max {period}"
    if quota is None or not _MIN_US <= int(quota[0]) <= _MAX_QUOTA_US:
        raise refusal(errno.EINVAL)
    return f"{int(quota[0])} {period}"


def _cpu_weight(text: str) -> str:
    match = _WEIGHT.fullmatch(text)
    if match is None:
        raise refusal(errno.EINVAL)
    weight = _c_integer(match[1])
    if not 1 <= weight <= _MAX_WEIGHT:
        raise refusal(errno.ERANGE)
    return str(weight)


def _memory_max(text: str) -> str:
    match = _SIZE.fullmatch(text)
    if text == "max":
        return text
    if match is None:
        raise refusal(errno.EINVAL)
    # No digits count as 0, and numbers wrap at 64 bits.
    number = _c_integer(match[1] or "0") << 10 * " KMGTPE".index(match[2].upper() or " ")
    pages = number % 2**64 // _PAGE_BYTES
    return "max" if pages >= _MAX_PAGES else str(pages * _PAGE_BYTES)


def _c_integer(digits: str) -> int:
    """Read an integer as C does in base 0: ``0x`` is hexadecimal, a leading ``0`` octal."""
    if digits.lower().startswith("0x"):
        return int(digits, 16)
    return int(digits, 8 if digits.startswith("0") else 10)
