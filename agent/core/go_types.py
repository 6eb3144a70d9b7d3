"""The Go types of the kubelet's state files: how Go reads, writes and hashes their values.

A type is described once, and the description does three things with a plain Python value (text,
integer, list, dict; None is Go's nil):

* ``decode`` reads parsed JSON as ``encoding/json`` does: names of members in any case, unknown
  members skipped, null leaves nil, and of several values of a wrong type the first is the error
  while the rest is still read;
* ``encode`` gives it back for ``json.Marshal``: members in the order of declaration;
* ``dump`` renders it as ``dump.ForHash`` of ``k8s.io/utils/dump`` does: the text that a checksum is
  taken of (kubelet-semantics 8.2).
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Never, cast

UINT64 = (0, 2**64 - 1)
INT = (-(2**63), 2**63 - 1)
_NIL = "<nil>"
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_List = Sequence[object]
_Items = Mapping[str, object]
_KINDS = {dict: "object", list: "array", str: "string", bool: "bool"}


class GoJSONError(ValueError):
    """A text is not JSON, or not of the expected shape; in the words of ``encoding/json``."""


class Decoding:
    """One attempt to read a document into the Go struct named ``struct``."""

    def __init__(self, struct: str) -> None:
        self.struct = struct
        self.error = ""

    def refuse(self, value: object, path: str, go_type: str) -> None:
        """Remember that ``value`` is not a ``go_type``, unless something was wrong before."""
        what = _KINDS.get(type(value), "number")
        where = f"struct field {self.struct}.{path}" if path else "value"
        self.fail(f"json: cannot unmarshal {what} into Go {where} of type {go_type}")

    def fail(self, message: str) -> None:
        """Remember an error, unless something was wrong before."""
        self.error = self.error or message


class GoType(ABC):
    """A type; ``name`` is what Go calls it."""

    name: str

    @abstractmethod
    def decode(self, value: object, path: str, decoding: Decoding) -> object:
        """Return the Python value of parsed JSON; the zero value where it is of a wrong type."""

    @abstractmethod
    def dump(self, value: object) -> str:
        """Return the text to hash."""

    def encode(self, value: object) -> object:
        """Return what `to_json` renders."""
        return value


@dataclass(frozen=True)
class Text(GoType):
    """A string."""

    name: str = "string"

    def decode(self, value: object, path: str, decoding: Decoding) -> str:
        """Return the text, empty for null."""
        if isinstance(value, str):
            return _without_surrogates(value)
        if value is not None:
            decoding.refuse(value, path, self.name)
        return ""

    def dump(self, value: object) -> str:
        """Return the text as it is: the dump does not quote."""
        return str(value)


@dataclass(frozen=True)
class Number(GoType):
    """An integer within ``limits``, both included."""

    name: str
    limits: tuple[int, int] = UINT64

    def decode(self, value: object, path: str, decoding: Decoding) -> int:
        """Return the number, 0 for null."""
        low, high = self.limits
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        if value is not None:
            decoding.refuse(value, path, self.name)
        return 0

    def dump(self, value: object) -> str:
        """Return the decimal digits."""
        return str(value)


@dataclass(frozen=True)
class Slice(GoType):
    """A list."""

    name: str
    item: GoType

    def decode(self, value: object, path: str, decoding: Decoding) -> list[object] | None:
        """Return the items, None for null."""
        if isinstance(value, list):
            return [self.item.decode(item, path, decoding) for item in value]
        if value is not None:
            decoding.refuse(value, path, self.name)
        return None

    def dump(self, value: object) -> str:
        """Return the items in their order."""
        if value is None:
            return _NIL
        return f"[{' '.join(map(self.item.dump, cast('_List', value)))}]"

    def encode(self, value: object) -> object:
        """Return the items in their order."""
        return value and [self.item.encode(item) for item in cast("_List", value)]


@dataclass(frozen=True)
class Map(GoType):
    """A map with string keys, or with integer ones if ``by_number``."""

    name: str
    item: GoType
    by_number: bool = False

    def decode(self, value: object, path: str, decoding: Decoding) -> dict[object, object] | None:
        """Return the items, None for null."""
        if not isinstance(value, dict):
            if value is not None:
                decoding.refuse(value, path, self.name)
            return None
        items: dict[object, object] = {}
        for key, item in cast("dict[str, object]", value).items():
            name = _without_surrogates(key)
            if self.by_number and not re.fullmatch(r"[+-]?\d{1,18}", name, re.ASCII):
                decoding.fail(f"json: cannot unmarshal number {name} into Go value of type int")
                continue
            known = int(name) if self.by_number else name
            items[known] = self.item.decode(item, f"{path}.{name}", decoding)
        return items

    def dump(self, value: object) -> str:
        """Return the items, sorted: strings bytewise, integers by value."""
        if value is None:
            return _NIL
        items = cast("_Items", value)
        return f"map[{' '.join(f'{key}:{self.item.dump(items[key])}' for key in sorted(items))}]"

    def encode(self, value: object) -> object:
        """Return the items, sorted by key as text, which is how integer keys are written too."""
        items = cast("Mapping[object, object] | None", value)
        return items and {str(k): self.item.encode(items[k]) for k in sorted(items, key=str)}


@dataclass(frozen=True)
class Member:
    """One field of a struct: its Go name, its JSON name, its type.

    ``made`` says that it is made before the document is read, so that it is not nil where the
    document does not name it; ``omitempty`` that an empty value is not written.
    """

    go: str
    json: str
    type: GoType
    made: bool = field(default=False, kw_only=True)
    omitempty: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Struct(GoType):
    """A struct, or a pointer to one if ``pointer``; its value is a dict by Go names."""

    name: str
    members: tuple[Member, ...]
    pointer: bool = False

    def decode(self, value: object, path: str, decoding: Decoding) -> dict[str, object] | None:
        """Return the members; for null zero values, or None for a pointer."""
        if value is None and self.pointer:
            return None
        if not isinstance(value, dict):
            if value is not None:
                decoding.refuse(value, path, self.name)
            value = {}
        given = {key.lower(): item for key, item in cast("dict[str, object]", value).items()}
        return {
            member.go: {}
            if member.made and member.json.lower() not in given
            else member.type.decode(
                given.get(member.json.lower()), f"{path}.{member.json}".lstrip("."), decoding
            )
            for member in self.members
        }

    def dump(self, value: object) -> str:
        """Return the members, each with its type."""
        if value is None:
            return _NIL
        return f"{'<*>' if self.pointer else ''}{self.dump_members(value)}"

    def dump_members(self, value: object) -> str:
        """Return the members in braces."""
        given = cast("_Items", value)
        return (
            "{"
            + " ".join(f"{m.go}:({m.type.name}){m.type.dump(given[m.go])}" for m in self.members)
            + "}"
        )

    def encode(self, value: object) -> object:
        """Return the members in order of declaration."""
        given = cast("_Items | None", value)
        return given and {
            m.json: m.type.encode(given[m.go])
            for m in self.members
            if given[m.go] or not m.omitempty
        }


def from_json(text: str) -> object:
    """Parse a document; raises `GoJSONError` for what Go refuses as well."""
    try:
        return json.loads(text, parse_int=_integer, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip(" \t\r\n")
        if not rest or error.msg.startswith("Unterminated"):
            raise GoJSONError("unexpected end of JSON input") from None
        raise GoJSONError(f"invalid character '{rest[0]}' at offset {error.pos}") from None
    except RecursionError:
        raise GoJSONError("exceeded max depth") from None


def to_json(value: object) -> str:
    """Render what ``encode`` gave as ``json.Marshal`` does: one line, no spaces, HTML escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def fnv1a(text: str) -> int:
    """Return the 32-bit FNV-1a hash of a text's UTF-8 bytes (``hash/fnv`` ``New32a``)."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


def quoted(text: str) -> str:
    """Return a text as Go's ``%q`` prints it."""
    return json.dumps(text, ensure_ascii=False)


def _integer(digits: str) -> int:
    """Python refuses to convert thousands of digits; 30 are too many for any Go type as well."""
    return int(digits[:30])


def _refuse_constant(name: str) -> Never:
    raise GoJSONError(f"invalid character '{name[0]}' looking for beginning of value")


def _without_surrogates(text: str) -> str:
    """Return the text with U+FFFD for half characters, which Go strings cannot hold."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
