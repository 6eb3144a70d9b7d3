"""The description of a machine: a YAML file of schema ``numalet-topology/v1``.

What a description leaves out or calls ``null`` ("not known") is filled in like this:

====================  ==========================================================================
``packages``          one package for each NUMA node with CPUs; package 0 if those are not known
``threads``           one thread a core
``l3``                no caches are shown, as if there were none
``nodes``             one NUMA node for each package, 10 to itself and 20 to the others
``nodes: {}``         no node directory is shown; the machine has 64 GiB
a node's memory       64 GiB if it has CPUs, else not shown
a node's distances    not shown
``cpu.present`` etc.  what follows from the CPUs that are named anywhere
====================  ==========================================================================
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    ValidationError,
    model_validator,
)

from agent import documents
from agent.core.cpuset import MAX_ID, CPUSet, NodeSet
from agent.errors import InputError

SCHEMA: Literal["numalet-topology/v1"] = "numalet-topology/v1"
DEFAULT_MEM_KIB = 64 * 1024 * 1024
_ID = re.compile(r"0|-?[1-9]\d{0,8}", re.ASCII)


def _id_list(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("write a list of ids such as 0-3,8")  # noqa: TRY004 pydantic wants it
    return str(value)


def _cpu_list(value: object) -> CPUSet:
    return value if isinstance(value, CPUSet) else CPUSet.parse(_id_list(value))


def _node_list(value: object) -> NodeSet:
    return value if isinstance(value, NodeSet) else NodeSet.parse(_id_list(value))


def _id_key(value: object) -> object:
    """Return the number that a key of a YAML mapping, always a text, stands for."""
    return int(value) if isinstance(value, str) and _ID.fullmatch(value) else value


CPUs = Annotated[CPUSet, PlainValidator(_cpu_list), PlainSerializer(str)]
Nodes = Annotated[NodeSet, PlainValidator(_node_list), PlainSerializer(str)]
NodeKey = Annotated[int, BeforeValidator(_id_key), Field(ge=0, le=MAX_ID)]
PackageKey = Annotated[int | Literal["missing"], BeforeValidator(_id_key)]
GroupKey = Annotated[int, BeforeValidator(_id_key)]
CacheSize = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,11}[KMG]?B?$")]
PageSize = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,11}kB$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CPUFiles(_Part):
    """The texts of ``/sys/devices/system/cpu/{online,offline,present,possible,isolated}``."""

    online: CPUs
    offline: CPUs | None = None
    present: CPUs | None = None
    possible: CPUs | None = None
    isolated: CPUs | None = None
    per_cpu_online_zero: CPUs = CPUSet()


class Single(_Part):
    """One thread a core."""

    kind: Literal["single"]

    def core_of(self, cpu: int) -> int:
        """Return the lowest CPU number that the core of ``cpu`` can have."""
        return cpu


class Adjacent(_Part):
    """Runs of ``threads_per_core`` CPU numbers are a core."""

    kind: Literal["adjacent"]
    threads_per_core: PositiveInt

    def core_of(self, cpu: int) -> int:
        """Return the lowest CPU number that the core of ``cpu`` can have."""
        return cpu - cpu % self.threads_per_core


class Offset(_Part):
    """The CPUs i, i + ``offset``, i + 2 ``offset``, … are a core."""

    kind: Literal["offset"]
    threads_per_core: PositiveInt
    offset: PositiveInt

    def core_of(self, cpu: int) -> int:
        """Return the lowest CPU number that the core of ``cpu`` can have."""
        block = self.threads_per_core * self.offset
        return cpu - cpu % block + cpu % self.offset


class Listed(_Part):
    """The cores, spelled out; a CPU that is not named is a core of its own."""

    kind: Literal["list"]
    groups: list[CPUs]

    def core_of(self, cpu: int) -> int:
        """Return the lowest CPU number that the core of ``cpu`` can have."""
        return next((min(group) for group in self.groups if cpu in group), cpu)


Threads = Annotated[Single | Adjacent | Offset | Listed, Field(discriminator="kind")]


class L3(_Part):
    """A last-level cache; without ``id`` its folder has no ``id`` file."""

    cpus: CPUs
    size: CacheSize | None = None
    id: int | None = None


class NumaNodeFiles(_Part):
    """What ``/sys/devices/system/node/nodeN`` shows."""

    cpus: CPUs
    mem_kib: NonNegativeInt | None = None
    mem_mib: NonNegativeInt | None = None
    distance: list[NonNegativeInt] | None = None
    hugepages: dict[PageSize, NonNegativeInt] = {}

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.mem_kib is not None and self.mem_mib is not None:
            raise ValueError("mem_kib and mem_mib say the same thing: leave one out")
        return self

    @property
    def shown_kib(self) -> int | None:
        """The node's MemTotal in KiB; None where it is not shown."""
        if self.mem_mib is not None:
            return self.mem_mib * 1024
        if self.mem_kib is None and self.cpus:
            return DEFAULT_MEM_KIB
        return self.mem_kib


class Description(_Part):
    """A whole description file."""

    schema_: Literal["numalet-topology/v1"] = Field(alias="schema")
    name: str
    title: str = ""
    provenance: str = ""
    arch: str = ""
    cpu: CPUFiles
    packages: dict[PackageKey, CPUs] | None = None
    threads: Threads = Single(kind="single")
    l3: list[L3] | None = None
    nodes: dict[NodeKey, NumaNodeFiles] | None = None
    node_masks: dict[
        Literal["online", "possible", "has_cpu", "has_memory", "has_normal_memory"], Nodes
    ] = {}
    books: dict[GroupKey, CPUs] = {}
    drawers: dict[GroupKey, CPUs] = {}
    cpu_types: dict[str, CPUs] = {}
    quirks: list[str] = []
    expect: dict[str, object] = {}

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for what, sets in (
            ("packages", (self.packages or {}).values()),
            ("l3", (cache.cpus for cache in self.l3 or ())),
            ("threads", self.threads.groups if isinstance(self.threads, Listed) else ()),
        ):
            _refuse_overlap(what, sets)
        homeless = self.cpu.online - union((self.packages or {0: self.cpu.online}).values())
        if homeless:
            raise ValueError(f"packages: CPU {homeless} is online but in no package")
        return self

    def known_packages(self) -> dict[int, CPUSet]:
        """Return the CPUs of every package, as given or assumed."""
        if self.packages is not None:
            return {key: cpus for key, cpus in self.packages.items() if key != "missing"}
        if not self.nodes:
            return {0: self.cpu.online}
        return {key: node.cpus for key, node in self.nodes.items() if node.cpus}

    def known_nodes(self) -> dict[int, NumaNodeFiles]:
        """Return the NUMA nodes, as given or assumed; none for a machine without such folders."""
        if self.nodes is not None:
            return self.nodes
        packages = list(self.known_packages().values())
        return {
            i: NumaNodeFiles(
                cpus=cpus, distance=[10 if i == j else 20 for j in range(len(packages))]
            )
            for i, cpus in enumerate(packages)
        }


def load_description(path: Path) -> Description:
    """Read a description file; raises `InputError` that names file, line and key."""
    return parse_description(documents.read_text(path), name=str(path))


def parse_description(text: str, *, name: str) -> Description:
    """Return the description in a text; ``name`` is what errors call it."""
    found = documents.parse(text, name=name)
    if len(found) != 1:
        raise InputError("must hold exactly one machine description", where=name)
    try:
        return Description.model_validate(found[0].data)
    except ValidationError as error:
        problem = next(documents.problems_of(error))
        raise InputError(str(problem), where=found[0].where(problem.path)) from error


def description_data(description: Description) -> dict[str, object]:
    """Return a description as plain data: what its YAML or JSON file holds."""
    return description.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)


def dump_description(description: Description) -> str:
    """Return the YAML text of a description; parsing it gives the same description again."""
    data = description_data(description)
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=100)


def _refuse_overlap(what: str, sets: Iterable[CPUSet]) -> None:
    seen = CPUSet()
    for cpus in sets:
        if not cpus.isdisjoint(seen):
            raise ValueError(f"{what}: CPU {cpus & seen} is named twice")
        seen |= cpus


def union(sets: Iterable[CPUSet]) -> CPUSet:
    """Return all CPUs of the sets."""
    return CPUSet(i for cpus in sets for i in cpus)
