"""The text of numalet's checkpoint: rendering it fast, and reading it strictly.

One JSON document on one line::

    {"version":1,"sha256":"...","payload":{"generation":7,...}}

The checksum is taken of the payload's own text between its braces, never of a rendering of what was
read, so that no change of numalet or of a library can make a whole file look damaged.  A later
version must take its checksum of its version too: so it is told from a version digit that was hit.

Sets are Linux lists, blocks of memory are ``[type, NUMA nodes, bytes]``, amounts are bytes and
milli-CPUs.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, PlainValidator, TypeAdapter, ValidationError

from agent import __version__
from agent.core.claims import BUDGET_ANNOTATION
from agent.core.cpuset import CPUSet, IdSet, NodeSet
from agent.core.pods import Pod, PodUID
from agent.core.state import Affinity, Block, MemoryTable, NodeMemory, NodeState, PodEntry
from agent.ports import Rejection, Remembered

VERSION = 1

_FRAME = re.compile(
    r'\{"version":(\d{1,9}),(?:"sha256":"([0-9a-f]{64})","payload":(\{.*\})\}\n)?', re.DOTALL
)
_KEPT_ANNOTATIONS = (BUDGET_ANNOTATION, "kubernetes.io/config.")
"""Where a budget comes from, and what a static pod's cgroup is called; the rest can be large."""

_dumps = json.JSONEncoder(separators=(",", ":")).encode

_K = TypeVar("_K", bound="str | int")
_V = TypeVar("_V")


class Damaged(ValueError):
    """A file is no checkpoint, or not all of one; the text says why."""


class NewerVersion(ValueError):
    """A file was written by a newer numalet."""

    def __init__(self, version: int) -> None:
        super().__init__(f"file version {version}, this numalet reads up to {VERSION}")
        self.version = version


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who wrote a checkpoint: which numalet, in which boot of which machine."""

    agent_version: str = __version__
    boot_id: str = ""
    topology: str = ""


class Decoded(NamedTuple):
    """A whole file: what it remembers, who wrote it and when, and its text after that."""

    remembered: Remembered
    writer: Writer
    generation: int
    written_at_s: float
    body: str


class _Fragments(Generic[_K, _V]):
    """JSON members of a mapping of immutable values, each rendered once for each object."""

    def __init__(self, render: Callable[[_V], str]) -> None:
        self._render = render
        self._known: dict[_K, tuple[_V, str]] = {}

    def join(self, values: Mapping[_K, _V]) -> str:
        """Return the mapping as a JSON object, in its own order."""
        known, old = {}, self._known
        for key, value in values.items():
            found = old.get(key)
            if found is None or found[0] is not value:
                found = value, f"{_dumps(str(key))}:{self._render(value)}"
            known[key] = found
        self._known = known
        return f"{{{','.join([text for _, text in known.values()])}}}"


class Renderer:
    """Renders what is to be remembered; what did not change since last time is not rendered again.

    Labels and most annotations of pods are left out: they decide nothing, and can be large.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = asdict(writer)
        self._memory: _Fragments[int, NodeMemory] = _Fragments(_node_memory)
        self._entries: _Fragments[PodUID, PodEntry] = _Fragments(_entry)
        self._pods: _Fragments[PodUID, Pod] = _Fragments(_pod)
        self._rejections: _Fragments[PodUID, Rejection] = _Fragments(_rejection)

    def body(self, remembered: Remembered) -> str:
        """Return all of the payload but its generation and its time."""
        state = remembered.state
        head = _dumps({**self._writer, "default": str(state.default)})[1:-1]
        return (
            f'{head},"memory":{self._memory.join(state.memory)}'
            f',"entries":{self._entries.join(state.pods)}'
            f',"pods":{self._pods.join(remembered.pods)}'
            f',"rejections":{self._rejections.join(remembered.rejections)}}}'
        )


def frame(body: str, generation: int, written_at_s: float) -> bytes:
    """Return the file for a body that `Renderer` rendered."""
    payload = f'{{"generation":{generation},"written_at_s":{written_at_s!r},{body}'.encode()
    digest = hashlib.sha256(payload).hexdigest()
    return b'{"version":%d,"sha256":"%b","payload":%b}\n' % (VERSION, digest.encode(), payload)


def decode(data: bytes) -> Decoded:
    """Read a file; raises `Damaged` or `NewerVersion`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Damaged("not UTF-8 text") from error
    match = _FRAME.match(text)
    if match is None:
        raise Damaged("not a checkpoint")
    version = int(match[1])
    if version > VERSION and not _is_whole(text, match):
        raise NewerVersion(version)
    if version != VERSION:
        # A newer numalet changes the version because the rest changes: here only the digit did.
        raise Damaged(f"the version was changed to {version}")
    found = _payload(text, match)
    _, _, rest = match[3].partition('"written_at_s":')
    return Decoded(
        remembered=found.remembered(),
        writer=Writer(
            agent_version=found.agent_version, boot_id=found.boot_id, topology=found.topology
        ),
        generation=found.generation,
        written_at_s=found.written_at_s,
        body=rest.partition(",")[2],
    )


def _payload(text: str, match: re.Match[str]) -> "_Payload":
    """Check and read all that follows the version; raises `Damaged`."""
    if match.end() != len(text) or match[3] is None:
        raise Damaged("cut short or edited")
    if hashlib.sha256(match[3].encode()).hexdigest() != match[2]:
        raise Damaged("the checksum differs")
    try:
        return _Payload.model_validate_json(match[3], strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Damaged(f"{where}: {first['msg']}") from error


def _is_whole(text: str, match: re.Match[str]) -> bool:
    try:
        _payload(text, match)
    except Damaged:
        return False
    return True


def _node_memory(node: NodeMemory) -> str:
    tables = {
        name: (t.total, t.system_reserved, t.allocatable, t.reserved, t.free)
        for name, t in node.tables.items()
    }
    return _dumps({"assignments": node.assignments, "cells": str(node.cells), "tables": tables})


def _entry(entry: PodEntry) -> str:
    return _dumps(_entry_members(entry))


def _entry_members(entry: PodEntry) -> dict[str, object]:
    members: dict[str, object] = {}
    if entry.pool is not None:
        members["pool"] = str(entry.pool)
    if entry.memory_pool is not None:
        members["memory_pool"] = _blocks(entry.memory_pool)
    members["cpus"] = {name: str(cpus) for name, cpus in entry.cpus.items()}
    members["memory"] = {name: _blocks(blocks) for name, blocks in entry.memory.items()}
    members["affinity"] = {
        name: (None if hint.nodes is None else str(hint.nodes), hint.preferred)
        for name, hint in entry.affinity.items()
    }
    if entry.first is not None:
        members["first"] = _entry_members(entry.first)
    return members


def _blocks(blocks: tuple[Block, ...]) -> list[tuple[str, str, int]]:
    return [(block.resource, str(block.nodes), block.size_bytes) for block in blocks]


_PODS = TypeAdapter(Pod)


def _pod(pod: Pod) -> str:
    kept = {k: v for k, v in pod.annotations.items() if k.startswith(_KEPT_ANNOTATIONS)}
    # Of a container's life only what it leads to is remembered: it changes all the time.
    lean = replace(pod, annotations=kept, labels={}, container_ids={}, ended_init=frozenset())
    lean = replace(lean, api_uid=None, controller="", priority=None)
    lean = replace(lean, runtime_class="", own_kernel="", is_terminating=False)
    return _PODS.dump_json(lean, exclude_defaults=True).decode()


def _rejection(rejection: Rejection) -> str:
    return _dumps((rejection.reason, rejection.message))


def _id_set(kind: type[IdSet]) -> PlainValidator:
    def parse(value: object) -> IdSet:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not a list of {kind.noun}s")  # noqa: TRY004 -- pydantic reports ValueErrors only
        return kind.parse(value)

    return PlainValidator(parse)


_CPUs = Annotated[CPUSet, _id_set(CPUSet)]
_Nodes = Annotated[NodeSet, _id_set(NodeSet)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _BlockItem(NamedTuple):
    resource: str
    nodes: _Nodes
    size_bytes: int

    def block(self) -> Block:
        return Block(self.nodes, self.resource, self.size_bytes)


class _NodeMemory(_Strict):
    assignments: int
    cells: _Nodes
    tables: dict[str, tuple[int, int, int, int, int]]

    def node_memory(self) -> NodeMemory:
        tables = {name: MemoryTable(*amounts) for name, amounts in self.tables.items()}
        return NodeMemory(self.assignments, self.cells, tables)


class _Entry(_Strict):
    pool: _CPUs | None = None
    memory_pool: list[_BlockItem] | None = None
    cpus: dict[str, _CPUs]
    memory: dict[str, list[_BlockItem]]
    affinity: dict[str, tuple[_Nodes | None, bool]]
    first: "_Entry | None" = None

    def entry(self) -> PodEntry:
        pool = self.memory_pool
        return PodEntry(
            pool=self.pool,
            cpus=self.cpus,
            memory_pool=None if pool is None else tuple(item.block() for item in pool),
            memory={n: tuple(item.block() for item in items) for n, items in self.memory.items()},
            affinity={n: Affinity(*hint) for n, hint in self.affinity.items()},
            first=None if self.first is None else self.first.entry(),
        )


class _Payload(_Strict):
    generation: int
    written_at_s: float
    agent_version: str
    boot_id: str
    topology: str
    default: _CPUs
    memory: dict[int, _NodeMemory]
    entries: dict[PodUID, _Entry]
    pods: dict[PodUID, Pod]
    rejections: dict[PodUID, tuple[str, str]]

    def remembered(self) -> Remembered:
        state = NodeState(
            default=self.default,
            pods={uid: entry.entry() for uid, entry in self.entries.items()},
            memory={i: node.node_memory() for i, node in self.memory.items()},
        )
        rejections = {uid: Rejection(*why) for uid, why in self.rejections.items()}
        return Remembered(state=state, pods=self.pods, rejections=rejections)
