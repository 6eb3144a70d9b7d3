"""Immutable sets of ids, each held in one integer, with the Linux list format both ways.

Bit *i* of ``bits`` says whether id *i* is in the set.  That makes union, intersection and size
single machine operations on sets of hundreds of CPUs, and hashing and equality exact.
The list format is the one of the kernel's ``cpulist`` and ``cpuset.cpus`` files
(Documentation/core-api/kernel-api: ``bitmap_parselist``).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Self

MAX_ID = 65_535
"""Larger ids are refused: no kernel has them, and one typing error must not cost gigabytes."""

_ITEM = re.compile(r"(\d+)(?:-(\d+)(?::(\d+)/(\d+))?)?", re.ASCII)


class IdSetError(ValueError):
    """A text is not a list of ids, or an empty set was to be written."""


class IdSet:
    """A set of small non-negative integers; see `CPUSet` and `NodeSet` for the two kinds."""

    __slots__ = ("bits",)
    bits: int
    noun = "id"

    def __init__(self, ids: Iterable[int] = ()) -> None:
        bits = 0
        for i in ids:
            bits |= 1 << i
        object.__setattr__(self, "bits", bits)

    @classmethod
    def from_bits(cls, bits: int) -> Self:
        """Return the set whose members are the positions of the one bits of ``bits`` (>= 0)."""
        new = object.__new__(cls)
        object.__setattr__(new, "bits", bits)
        return new

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a Linux list such as ``0-3,8`` or ``0-10:2/4`` (2 of every 4).

        White space around items and empty items are accepted, as the kernel does.
        Raises `IdSetError`, naming the item, for anything else.
        """
        bits = 0
        for item in re.split(r"[,\s]", text):
            if item:
                bits |= cls._parse_item(item, text)
        return cls.from_bits(bits)

    @classmethod
    def _parse_item(cls, item: str, text: str) -> int:
        match = _ITEM.fullmatch(item)
        if match is None:
            raise IdSetError(f"{item!r} in {text!r} is not a {cls.noun} number or range like 0-3")
        first, last, used, group = (int(g) if g is not None else None for g in match.groups())
        assert first is not None
        last = first if last is None else last
        if last < first:
            raise IdSetError(f"range {item!r} in {text!r} runs backwards: write {last}-{first}")
        if last > MAX_ID:
            raise IdSetError(f"{cls.noun} number {last} in {text!r} is above {MAX_ID}")
        if used is None or group is None:
            return (1 << last + 1) - (1 << first)
        if not 0 < used <= group:
            raise IdSetError(
                f"stride {item!r} in {text!r} must be used/group with 0 < used <= group"
            )
        return sum(1 << i for i in range(first, last + 1) if (i - first) % group < used)

    def for_write(self) -> str:
        """Return the list to write into a cgroup file.

        Raises `IdSetError` for the empty set: the kernel would take it as "whatever the parent
        has", or refuse it with ENOSPC; neither is ever what was decided.
        """
        if not self.bits:
            raise IdSetError(f"an empty set of {self.noun}s must never be written to a cgroup")
        return str(self)

    def __str__(self) -> str:
        """Return the canonical list: sorted, ranges merged, empty text for the empty set."""
        parts, bits, base = [], self.bits, 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            bits >>= skip
            base += skip
            run = (~bits & (bits + 1)).bit_length() - 1
            parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            bits >>= run
            base += run
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, i: int) -> bool:
        return i >= 0 and bool(self.bits >> i & 1)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.bits == self.bits

    def __hash__(self) -> int:
        return hash(self.bits)

    def __and__(self, other: Self) -> Self:
        return self.from_bits(self.bits & other.bits)

    def __or__(self, other: Self) -> Self:
        return self.from_bits(self.bits | other.bits)

    def __sub__(self, other: Self) -> Self:
        return self.from_bits(self.bits & ~other.bits)

    def __xor__(self, other: Self) -> Self:
        return self.from_bits(self.bits ^ other.bits)

    def __le__(self, other: Self) -> bool:
        return not self.bits & ~other.bits

    def isdisjoint(self, other: Self) -> bool:
        """Tell whether the two sets share no member."""
        return not self.bits & other.bits

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return type(self).from_bits, (self.bits,)


class CPUSet(IdSet):
    """A set of logical CPUs."""

    __slots__ = ()
    noun = "CPU"


class NodeSet(IdSet):
    """A set of NUMA nodes."""

    __slots__ = ()
    noun = "NUMA node"
