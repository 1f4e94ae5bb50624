"""Infers the types of JSON values that pyarrow cannot infer, because values of one field are of different kinds.

Such a field becomes text: it is of type string, and its values are read as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from torch_dataloader_utils.schemas.depth import MOST_LEVELS


@dataclass(frozen=True, slots=True)
class ListOf:
    """The kind of lists with items of one kind."""

    items: Kind


@dataclass(frozen=True, slots=True)
class ObjectOf:
    """The kind of objects with these fields."""

    fields: Mapping[str, Kind]


Kind: TypeAlias = "str | ListOf | ObjectOf"  # the name of a plain kind: a key of `_TYPES`

_TYPES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "unsigned": pa.uint64(),
    "float": pa.float64(),
    "time": pa.timestamp("s"),
    "text": pa.string(),
}
_NUMBERS = ("int", "unsigned", "float")
_TEXTS = ("time", "text")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def fields_of(objects: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """The fields of these objects, each with a type that fits all its values, as pyarrow would infer it."""
    fields: dict[str, Kind] = {}
    for item in objects:
        for name, value in item.items():
            kind = _kind(value, 1)
            fields[name] = _merged(fields[name], kind) if name in fields else kind
    return pa.schema([(name, _type(kind)) for name, kind in fields.items()])


def _kind(value: Any, level: int) -> Kind:
    if value is None:
        return "null"
    if isinstance(value, str):
        return "time" if _TIME.match(value) and _is_time(value) else "text"
    if isinstance(value, bool | float):
        return "bool" if isinstance(value, bool) else "float"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "unsigned" if 0 < value < 2**64 else "float"
    if level > MOST_LEVELS:
        return "text"  # and so is the column, because its type is nested too deeply
    if isinstance(value, list):
        return _of_items([_kind(item, level + 1) for item in value])
    return ObjectOf({name: _kind(item, level + 1) for name, item in value.items()})


@lru_cache(maxsize=4096)
def _is_time(text: str) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(pa.timestamp("s"))
    except pa.ArrowInvalid:
        return False
    return True


def _of_items(kinds: list[Kind]) -> Kind:
    items: Kind = "null"
    for kind in kinds:
        joined = _merged(items, kind)
        if joined == "text" and not all(one in ("null", *_TEXTS) for one in (items, kind)):
            return "text"  # the whole list, because its items differ
        items = joined
    return ListOf(items)


def _merged(one: Kind, other: Kind) -> Kind:
    """A kind that fits the values of both: at worst text."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if isinstance(one, ObjectOf) and isinstance(other, ObjectOf):
        fields = dict(one.fields)
        for name, kind in other.fields.items():
            fields[name] = _merged(fields[name], kind) if name in fields else kind
        return ObjectOf(fields)
    if isinstance(one, ListOf) and isinstance(other, ListOf):
        return _of_items([one.items, other.items])
    if one in _NUMBERS and other in _NUMBERS:
        return "float" if "float" in (one, other) else "unsigned"
    return "text"


def _type(kind: Kind) -> pa.DataType:
    if isinstance(kind, ListOf):
        return pa.list_(_type(kind.items))
    if isinstance(kind, ObjectOf):
        return pa.struct([(name, _type(field)) for name, field in kind.fields.items()])
    return _TYPES[kind]
