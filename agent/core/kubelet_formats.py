"""The versions of the kubelet's state files, declared as its Go structs are.

Mirrors ``pkg/kubelet/cm/{cpumanager,memorymanager}/state/checkpoint.go``: v1.36.2 for all but the
``data`` members, which are those of 1.37 (kubernetes/kubernetes#139102, #139626).

========  ================================  ================================
version   CPU                               memory
========  ================================  ================================
V1        before 1.18, by container id      before 1.36, or gate off
V2        before 1.36, or gate off          1.36, gate on
V3        1.36, gate on                     1.37: V1, and ``data`` beside it
V4        1.37: V2, and ``data`` beside it
========  ================================  ================================

The gate is PodLevelResourceManagers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

from agent.core.cpuset import MAX_ID, CPUSet
from agent.core.go_types import (
    INT,
    Decoding,
    GoJSONError,
    GoType,
    Map,
    Member,
    Number,
    Slice,
    Struct,
    Text,
    fnv1a,
    from_json,
    to_json,
)

Record = dict[str, object]
"""The members of a file by their Go names, as `agent.core.go_types` reads them."""

CORRUPTED = "checkpoint is corrupted"


class KubeletFileError(ValueError):
    """A state file cannot be used; the text is the kubelet's."""


def parse_cpus(text: str) -> CPUSet:
    """Read a list as ``cpuset.Parse`` does, stricter than the kernel: no blanks, no strides.

    Raises `KubeletFileError` in Go's words.
    """
    bits = 0
    for item in text.split(",") if text else ():
        first, dash, last = item.partition("-")
        low = _atoi(first)
        high = _atoi(last) if dash else low
        if low > high:
            raise KubeletFileError(f'invalid range "{item}" ({low} > {high})')
        if high > MAX_ID:
            raise KubeletFileError(f"CPU number {high} is above {MAX_ID}")
        bits |= (1 << high + 1) - (1 << low)
    return CPUSet.from_bits(bits)


def _atoi(text: str) -> int:
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise KubeletFileError(f'strconv.Atoi: parsing "{text}": invalid syntax')
    return int(digits)


class _PodCpus(GoType):
    """``state.PodEntry`` of the CPU manager: a set in the dump, a list text in JSON."""

    name = "state.PodEntry"
    _json = Struct("state.podEntryJSON", (Member("CPUSet", "cpuSet", Text(), omitempty=True),))

    def decode(self, value: object, path: str, decoding: Decoding) -> CPUSet:
        text = cast("dict[str, str]", self._json.decode(value, path, decoding))["CPUSet"]
        try:
            return parse_cpus(text)
        except KubeletFileError as error:
            decoding.fail(f"failed to parse cpuset: {error}")
            return CPUSet()

    def dump(self, value: object) -> str:
        items = " ".join(f"{cpu}:{{}}" for cpu in cast("CPUSet", value))
        return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{items}]}}}}"

    def encode(self, value: object) -> object:
        return self._json.encode({"CPUSet": str(value)})


@dataclass(frozen=True)
class Format:
    """One version of a file; ``zero_passes`` says whether a checksum of 0 is accepted."""

    kind: str
    version: int
    members: tuple[Member, ...]
    zero_passes: bool = False

    @cached_property
    def struct(self) -> Struct:
        """The Go struct: the members and the checksum over them."""
        checksum = Member("Checksum", "checksum", Number("checksum.Checksum"))
        return Struct(f"state.{self.kind}V{self.version}", (*self.members, checksum))

    def checksum(self, record: Record) -> int:
        """Return the checksum of a record, in whose dump all versions have the same name."""
        members = self.struct.dump_members({**record, "Checksum": 0})
        return fnv1a(f"(*state.{self.kind}){members}")

    def sealed(self, record: Record) -> Record:
        """Return what is written for a record: its members and the checksum over them."""
        return cast("Record", self.struct.encode({**record, "Checksum": self.checksum(record)}))

    def read(self, document: object) -> tuple[Record, str]:
        """Return the record, as far as it can be read, and what is wrong with it or nothing."""
        decoding = Decoding(f"{self.kind}V{self.version}")
        record = cast("Record", self.struct.decode(document, "", decoding))
        accepted = {self.checksum(record)} | ({0} if self.zero_passes else set())
        return record, decoding.error or ("" if record["Checksum"] in accepted else CORRUPTED)


_NUMBERS = Slice("[]int", Number("int", INT))
_POLICY = Member("PolicyName", "policyName", Text())

_SETS = Map("map[string]string", Text())
_CPU_HEAD = (_POLICY, Member("DefaultCPUSet", "defaultCpuSet", Text()))
_CPU_ENTRIES = Member(
    "Entries", "entries", Map("map[string]map[string]string", _SETS), made=True, omitempty=True
)
_CPU_PODS = Member(
    "PodEntries",
    "podEntries",
    Map("state.PodCPUAssignments", _PodCpus()),
    made=True,
    omitempty=True,
)
_CPU_ENTRIES_BY_ID = Member("Entries", "entries", _SETS, made=True, omitempty=True)

_CPU = "CPUManagerCheckpoint"
CPU_V1 = Format(_CPU, 1, (*_CPU_HEAD, _CPU_ENTRIES_BY_ID), zero_passes=True)
CPU_V2 = Format(_CPU, 2, (*_CPU_HEAD, _CPU_ENTRIES), zero_passes=True)
CPU_V3 = Format(_CPU, 3, (*_CPU_HEAD, _CPU_ENTRIES, _CPU_PODS))
CPU_DATA = Struct("state.CPUManagerCheckpointData", CPU_V3.members)

_TABLE = Struct(
    "state.MemoryTable",
    tuple(
        Member(go, json, Number("uint64"))
        for go, json in (
            ("TotalMemSize", "total"),
            ("SystemReserved", "systemReserved"),
            ("Allocatable", "allocatable"),
            ("Reserved", "reserved"),
            ("Free", "free"),
        )
    ),
    pointer=True,
)
_NODE = Struct(
    "state.NUMANodeState",
    (
        Member("NumberOfAssignments", "numberOfAssignments", Number("int", INT)),
        Member("MemoryMap", "memoryMap", Map("map[v1.ResourceName]*state.MemoryTable", _TABLE)),
        Member("Cells", "cells", _NUMBERS),
    ),
    pointer=True,
)
_BLOCK = Struct(
    "state.Block",
    (
        Member("NUMAAffinity", "numaAffinity", _NUMBERS),
        Member("Type", "type", Text("v1.ResourceName")),
        Member("Size", "size", Number("uint64")),
    ),
)
_BLOCKS = Slice("[]state.Block", _BLOCK)
_POD_BLOCKS = Struct(
    "state.PodEntry", (Member("MemoryBlocks", "memoryBlocks", _BLOCKS, omitempty=True),)
)
_MACHINE = Map("state.NUMANodeMap", _NODE, by_number=True)
_MEMORY_ENTRIES = Map("state.ContainerMemoryAssignments", Map("map[string][]state.Block", _BLOCKS))
_MEMORY_BODY = (
    _POLICY,
    Member("MachineState", "machineState", _MACHINE, made=True),
    Member("Entries", "entries", _MEMORY_ENTRIES, made=True, omitempty=True),
)
_MEMORY_PODS = Member(
    "PodEntries",
    "podEntries",
    Map("state.PodMemoryAssignments", _POD_BLOCKS),
    made=True,
    omitempty=True,
)

_MEMORY = "MemoryManagerCheckpoint"
MEMORY_V1 = Format(_MEMORY, 1, _MEMORY_BODY, zero_passes=True)
MEMORY_V2 = Format(_MEMORY, 2, (*_MEMORY_BODY, _MEMORY_PODS))
MEMORY_DATA = Struct("state.MemoryManagerCheckpointData", MEMORY_V2.members)

_ENVELOPE = Struct(
    "state.envelope",
    (
        Member("Data", "data", Text()),
        Member("DataChecksum", "dataChecksum", Number("checksum.Checksum")),
    ),
)


class Found(NamedTuple):
    """What a file holds: the version that could be read (0: ``data``), its members, its pods."""

    version: int
    record: Record
    pods: Record


def read(text: str, formats: Sequence[Format], data: Struct, *, newest: str) -> Found:
    """Read a file by the first of ``formats`` that it fits, newest first.

    Pod entries that an earlier attempt could read are kept although the format that fits at last
    does not know them.  Where there is ``data``, only that counts.  Raises `KubeletFileError` with
    the error of the last attempt.
    """
    try:
        document = from_json(text)
    except GoJSONError as error:
        raise KubeletFileError(str(error)) from None
    envelope = cast("Record", _ENVELOPE.decode(document, "", Decoding("envelope")))
    if envelope["Data"] or envelope["DataChecksum"]:
        record = _read_data(envelope, data, newest)
        return Found(0, record, _pods(record))
    pods: Record = {}
    error_text = ""
    for format_ in formats:
        record, error_text = format_.read(document)
        pods = _pods(record) or pods
        if not error_text:
            return Found(format_.version, record, pods)
    raise KubeletFileError(error_text)


def _pods(record: Record) -> Record:
    return cast("Record | None", record.get("PodEntries")) or {}


def _read_data(envelope: Record, data: Struct, newest: str) -> Record:
    text = str(envelope["Data"])
    decoding = Decoding(data.name.removeprefix("state."))
    record: Record = {}
    try:
        record = cast("Record", data.decode(from_json(text), "", decoding))
    except GoJSONError as error:
        decoding.fail(str(error))
    if decoding.error:
        what = "cpu" if data is CPU_DATA else "memory"
        raise KubeletFileError(
            f"could not load {newest} checkpoint: "
            f"failed to deserialize {what} manager checkpoint data: {decoding.error}"
        )
    if envelope["DataChecksum"] != _data_checksum(text):
        raise KubeletFileError(f"could not load {newest} checkpoint: {CORRUPTED}")
    return record


def with_data(beside: Record, data: Struct, record: Record) -> Record:
    """Return what 1.37 writes: the members of an older version and, beside them, ``data``."""
    text = to_json(data.encode(record))
    return {**beside, "data": text, "dataChecksum": _data_checksum(text)}


def _data_checksum(text: str) -> int:
    return fnv1a(f"(string){text}")
