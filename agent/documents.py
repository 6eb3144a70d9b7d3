"""YAML and JSON files as plain data, with the line of every field, within bounds.

Scalars are what JSON would make of them (the core schema of YAML 1.2): ``1_000``, ``1:30``,
``010``, ``on`` and dates stay texts, so that whoever wants a number or a boolean refuses them
instead of reading 1000, 90, 8, true or a date.  Anchors and aliases work; tags, merge keys and
repeated keys are refused, because what they mean differs from reader to reader.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import yaml
from pydantic import ValidationError

from agent.errors import InputError

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Bounds of one file: no manifest comes near, and a nest of aliases cannot grow beyond."""

FieldPath = tuple[str | int, ...]

# The scanner of libyaml where PyYAML was built with it; nothing is constructed by either.
_LOADER: type[yaml.BaseLoader] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str"))
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "mapping_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "a text",
}
"""What pydantic's types of errors ask for."""
_WORDS: Mapping[str, object] = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_FLOAT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong at one field."""

    path: FieldPath
    message: str

    def __str__(self) -> str:
        return f"{field_text(self.path)}: {self.message}" if self.path else self.message


class FieldError(InputError):
    """One field of a document or object is wrong."""

    def __init__(self, problem: Problem, *, where: str = "") -> None:
        super().__init__(str(problem), where=where)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Document:
    """One document of the file ``name``; ``line`` is where it begins, counted from 1."""

    name: str
    line: int
    data: object
    node: yaml.Node | None = None

    def where(self, path: FieldPath = ()) -> str:
        """Return ``name:line`` of a field, or of the nearest field around it that exists."""
        line, node = self.line, self.node
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            mark, node = found
            line = mark.start_mark.line + 1
        return f"{self.name}:{line}"


def field_text(path: FieldPath) -> str:
    """Return a path as Kubernetes writes it: ``spec.containers[0].resources.limits[cpu]``."""
    text = ""
    for step in path:
        if isinstance(step, int) or not step.isidentifier():
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def read_text(path: Path) -> str:
    """Return a file's text; raises `InputError` where it cannot be read, and as `read_stream`."""
    try:
        with path.open("rb") as file:
            return read_stream(file, name=str(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def read_stream(file: BinaryIO, *, name: str) -> str:
    """Return a stream's text, without a byte order mark.

    Raises `InputError` where it is above `MAX_BYTES`, or not UTF-8.
    """
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES} bytes: split it", where=name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", where=name) from error


def parse(text: str, *, name: str) -> list[Document]:
    """Return the documents of a YAML or JSON text that are not empty.

    A text is JSON if ``name`` says so, or if it says nothing and the text begins with a brace: JSON
    may be indented with tabs, which YAML forbids.  Raises `InputError` that says file and line.
    """
    says_yaml = name.endswith((".yaml", ".yml"))
    if name.endswith(".json") or (not says_yaml and text.lstrip().startswith("{")):
        return [_json_document(text, name)]
    try:
        roots = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise InputError(f"is not YAML: {error.problem or error.context}", where=where) from error
    except yaml.YAMLError as error:  # a control character, say; it knows no line
        raise InputError(f"is not YAML: {' '.join(str(error).split())}", where=name) from error
    except RecursionError as error:  # only without libyaml, which has a bound of its own
        raise InputError("is nested too deeply", where=name) from error
    reader = _Reader(name)
    documents = [Document(name, n.start_mark.line + 1, reader.value(n), n) for n in roots]
    return [d for d in documents if d.data is not None]


def quantity_text(value: object) -> str | None:
    """Return the text of a quantity, which a file may write as a bare number; None if it is none.

    ``resource.Quantity`` takes a JSON number for its text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return None


def problems_of(error: ValidationError) -> Iterator[Problem]:
    """Yield what a pydantic model found wrong, in the words of this program."""
    for detail in error.errors(include_url=False):
        kind, value = detail["type"], detail["input"]
        if kind == "missing":
            message = "is missing"
        elif kind == "extra_forbidden":
            message = "is not a key that is known here"
        elif kind == "value_error":
            message = str(detail["ctx"]["error"])
        elif kind == "literal_error":
            message = f"{value!r} is not possible: write {detail['ctx']['expected']}"
        elif kind in _EXPECTED:
            message = f"{_shortened(value)} is not {_EXPECTED[kind]}"
        else:
            message = f"{detail['msg'][0].lower()}{detail['msg'][1:]}, not {_shortened(value)}"
        yield Problem(detail["loc"], message)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 a line's worth


def _child(node: yaml.Node | None, step: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the node that marks the line of a member (its key, if it has one), and its value."""
    if isinstance(node, yaml.MappingNode):
        return next(((k, v) for k, v in node.value if k.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None


def _json_document(text: str, name: str) -> Document:
    try:
        data = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", where=f"{name}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not usable JSON: {error}", where=name) from error
    try:  # JSON with its tabs replaced (they stand between values only) is YAML: it knows the lines
        node = yaml.compose(text.replace("\t", " "), Loader=_LOADER)
    except (yaml.YAMLError, RecursionError):
        node = None
    return Document(name, 1, data, node)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} is repeated")
    return members


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not a JSON value")


class _Reader:
    """Makes plain data of YAML nodes; counts what it makes, since aliases can multiply it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def value(self, node: yaml.Node, depth: int = 0) -> object:
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH:
            raise self._error(
                node, f"is too large: {MAX_VALUES} values, {MAX_DEPTH} levels at most"
            )
        if node.tag not in _TAGS:
            raise self._error(node, f"the tag {node.tag!r} is not supported: leave it out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        assert isinstance(node, yaml.ScalarNode)
        return node.value if node.style else _plain_scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key must be a text")
            if key.value == "<<":
                raise self._error(key, "merge keys (<<) are not supported: write the fields out")
            if key.value in members:
                raise self._error(key, f"the key {key.value!r} is repeated")
            members[key.value] = self.value(value, depth + 1)
        return members

    def _error(self, node: yaml.Node, message: str) -> InputError:
        return InputError(message, where=f"{self._name}:{node.start_mark.line + 1}")


def _plain_scalar(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
