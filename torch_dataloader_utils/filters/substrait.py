"""What an Arrow expression says, as a small tree: pyarrow shows it only as a Substrait message.

The message is protobuf; of it only what comparisons, lists of values and their logic need is understood.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_Message: TypeAlias = Mapping[int, Sequence[Any]]  # number of a field -> its values: int or bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A column, by the places that lead to it: in the schema, then in each struct."""

    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A constant.

    Attributes:
        kind: "bool", "int", "float", "string", "binary", "decimal", "date" (days), "time", "timestamp", "timestamptz"
            (microseconds each), or "null".
        value: as Python has it, numbers for times.
    """

    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Substrait by its name; "in" has the list of values after what is looked up."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something else."""


Node: TypeAlias = Column | Value | Call | Unknown


def tree_of(expression: pc.Expression, schema: pa.Schema) -> Node:
    """What `expression` says over `schema`; `Unknown` where pyarrow cannot write it, or this cannot read it."""
    plain = pa.schema([_without_metadata(field) for field in schema])  # Substrait has no words for it
    try:
        message = bytes(expression.to_substrait(plain, allow_arrow_extensions=True))
    except (pa.ArrowException, ImportError):  # not all that pyarrow evaluates has words; some builds have no Substrait
        return Unknown()
    return _extended(_fields(message))


def _without_metadata(field: pa.Field) -> pa.Field:
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([_without_metadata(inner) for inner in kind])
    elif pt.is_map(kind):
        kind = pa.map_(*(_without_metadata(inner).type for inner in (kind.key_field, kind.item_field)))
    elif pt.is_list(kind):
        kind = pa.list_(_without_metadata(kind.value_field))
    return pa.field(field.name, kind, field.nullable)


# ------------------------------------------------------------------------------------------------------- the message


def _fields(data: bytes) -> _Message:
    """The fields of a protobuf message: numbers as unsigned int, all else as bytes."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _number(message: _Message, number: int) -> int:
    """A field that is left out where it is 0."""
    return int(message.get(number, [0])[-1])


def _messages(message: _Message, number: int) -> Iterator[_Message]:
    return (_fields(data) for data in message.get(number, ()))


def _extended(message: _Message) -> Node:
    """The expression of an `ExtendedExpression`."""
    foreign = {_number(uri, 1) for uri in _messages(message, 1) if uri.get(2, [b""])[0].startswith(b"urn:arrow:")}
    functions = {}
    for declaration in _messages(message, 2):
        for function in _messages(declaration, 3):
            if _number(function, 1) not in foreign:
                functions[_number(function, 2)] = function[3][0].decode().partition(":")[0]
    references = list(_messages(message, 3))
    return _Expressions(functions).node(references[0][1][0])


@dataclass(frozen=True)
class _Expressions:
    """Reads expressions, with the functions that the message declares."""

    functions: Mapping[int, str] = field(default_factory=dict)

    def node(self, data: bytes) -> Node:
        (number, values), *_ = _fields(data).items()
        inner = _fields(values[0])
        readers: dict[int, Callable[[_Message], Node]] = {1: _literal, 2: _column, 3: self._call, 8: self._in}
        return readers[number](inner) if number in readers else Unknown()

    def _call(self, message: _Message) -> Node:
        """A scalar function; options such as ignored case make it another one."""
        name = self.functions.get(_number(message, 1))
        arguments = [argument.get(3) for argument in _messages(message, 4)]
        options = {option[2][0] for option in _messages(message, 5)}
        if name is None or None in arguments or options - {b"CASE_SENSITIVE"}:
            return Unknown()
        return Call(name, tuple(self.node(argument[0]) for argument in arguments if argument))

    def _in(self, message: _Message) -> Node:
        return Call("in", (self.node(message[1][0]), *(self.node(option) for option in message.get(2, ()))))


def _column(message: _Message) -> Node:
    """A reference to a column of the schema, or within its structs."""
    path = []
    segments = list(_messages(message, 1))
    while segments:
        if 2 not in segments[0]:
            return Unknown()  # of a list or a map
        (place,) = _messages(segments[0], 2)
        path.append(_number(place, 1))
        segments = list(_messages(place, 2))
    return Column(tuple(path)) if path else Unknown()


def _literal(message: _Message) -> Node:
    for number, values in message.items():
        if number in _LITERALS:
            kind, read = _LITERALS[number]
            return Value(kind, read(values[0]))
    return Unknown()


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _decimal(data: bytes) -> Decimal:
    message = _fields(data)
    unscaled = int.from_bytes(message[1][0], "little", signed=True)
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    return Decimal((int(unscaled < 0), digits, -_number(message, 3)))


# Field of a literal -> its kind, and from what is in the message to the value.
_LITERALS: Mapping[int, tuple[str, Callable[[Any], Any]]] = {
    1: ("bool", bool),
    **dict.fromkeys((2, 3, 5, 7), ("int", _signed)),
    10: ("float", lambda data: struct.unpack("<f", data)[0]),
    11: ("float", lambda data: struct.unpack("<d", data)[0]),
    12: ("string", lambda data: data.decode()),
    **dict.fromkeys((13, 23), ("binary", bytes)),
    14: ("timestamp", _signed),
    16: ("date", _signed),
    17: ("time", _signed),
    24: ("decimal", _decimal),
    27: ("timestamptz", _signed),
    29: ("null", lambda data: None),
}
