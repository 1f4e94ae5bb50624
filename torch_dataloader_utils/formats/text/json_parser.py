"""Parses JSON objects to columns with pyarrow's reader: lines, consecutive documents, or the elements of one array."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.types as pt

from torch_dataloader_utils.formats.text.errors import BadLines, BadText, Fault, Row, cited, misfit
from torch_dataloader_utils.formats.text.json_rows import (
    TOO_DEEP,
    RepeatedName,
    line_rows,
    loads,
    object_rows,
    too_deep,
    written,
)
from torch_dataloader_utils.formats.text.whole_numbers import may_round, may_write_long, rounds, with_unsigned
from torch_dataloader_utils.schemas.depth import MOST_LEVELS, nests_too_deeply, types_in

# Infers the types of JSON values that pyarrow cannot infer, because values of one field are of different kinds.
#
# Such a field becomes text: it is of type string, and its values are read as they are written.


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


_MOST_BYTES = 2**31 - 2**10  # maximum bytes that pyarrow parses as one block
_OBJECT = re.compile(rb"[ \t\r\n]*\{")
_LOOK = 2**10  # bytes
_SKIP = "set format_options={'on_bad_lines': 'skip'}"


class JsonParser:
    """Parses objects; a `Parser`. Fields that are not requested are ignored, missing ones are null.

    Args:
        kind: how the objects are arranged: "lines", "documents" or "array".
        schema: the columns that may be requested, with the wanted types.
        declared: whether these are declared: then whole numbers may be rounded to floats.
    """

    def __init__(self, kind: str, schema: pa.Schema, *, declared: bool = False) -> None:
        self._kind, self._declared = kind, declared
        self._wanted = {field.name: field.type for field in schema}

    def parse(self, text: pa.Buffer, columns: Sequence[str]) -> tuple[pa.Table, list[int]]:
        """The objects of the text as rows."""
        if text.size > _MOST_BYTES:
            raise NotImplementedError(
                f"{text.size} bytes of JSON in one piece: expected at most 2 GiB; use JSON Lines."
            )
        if self._kind == "array":
            return self._array(text, columns), []
        table = self._objects(text, columns)
        if self._kind == "lines" and table.num_rows < _line_count(text, table.num_rows):
            raise ValueError("an object goes over several lines")
        return table, []

    def parse_rows(self, rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
        """The rows; raises for any bad one."""
        table = self._objects(pa.py_buffer(b"\n".join(row.text for row in rows)), columns)
        if table.num_rows != len(rows):
            raise ValueError(f"{table.num_rows} objects in {len(rows)} rows")
        return table

    def rows(self, text: bytes) -> list[Row]:
        """The text of each object."""
        if self._kind == "lines":
            return line_rows(text)
        try:
            return list(object_rows(text.decode()))
        except UnicodeDecodeError as error:
            raise BadText(text.count(b"\n", 0, error.start), f"byte {error.start} is not UTF-8.") from error
        except json.JSONDecodeError as error:
            raise BadText(
                error.lineno - 1, f"is not JSON: {error.msg} at character {error.colno} of the line."
            ) from error

    def fault(self, row: bytes, columns: Sequence[str]) -> Fault | None:
        """Why a row cannot be read: it is not JSON, not an object, or a value does not fit."""
        if too_deep(row):  # which Python 3.13 can parse
            return _too_deep(row)
        try:
            value = json.loads(row.decode())
        except UnicodeDecodeError as error:
            return Fault(f"byte {error.start + 1} of it is not UTF-8: {cited(row)}.")
        except json.JSONDecodeError as error:
            advice = " If objects span several lines, set format='json'." if self._kind == "lines" else ""
            return Fault(f"is not JSON: {error.msg} at character {error.pos + 1}: {cited(row)}.{advice}")
        except RecursionError:
            return _too_deep(row)
        if not isinstance(value, dict | None):
            return Fault(f"expected an object, got {cited(row)}.")
        faults = (self._misfit(row, name, (value or {}).get(name)) for name in columns)
        return next((fault for fault in faults if fault is not None), None)

    def _misfit(self, row: bytes, name: str, value: Any) -> Fault | None:
        try:
            self.parse_rows([Row(0, row)], [name])
        except ValueError:
            return _repeats(row) or misfit(name, json.dumps(value, ensure_ascii=False), self._wanted[name])
        return None

    def _array(self, text: pa.Buffer, columns: Sequence[str]) -> pa.Table:
        """The elements of one array, which pyarrow reads only as a value inside an object."""
        try:
            return self._whole_array(text, columns)
        except pa.ArrowInvalid:
            if not self._strings(columns):
                raise
            return self.parse_rows(self.rows(text.to_pybytes()), columns)

    def _whole_array(self, text: pa.Buffer, columns: Sequence[str]) -> pa.Table:
        fields = pa.struct([(name, _read_as(self._wanted[name])) for name in columns])
        whole = pa.py_buffer(b"".join([b'{"":', text, b"}"]))
        table = _read(whole, pa.schema([("", pa.list_(fields))]))
        if table.num_rows != 1 or table.column(0).null_count:
            raise ValueError("expected one array")
        rows = table.column(0).combine_chunks().flatten()
        arrays = rows.flatten()  # a null element becomes a row of nulls
        return self._conformed(pa.table(arrays, names=list(columns)), columns, text)

    def _objects(self, text: pa.Buffer, columns: Sequence[str]) -> pa.Table:
        """Lines or documents."""
        try:
            return self._plain(text, columns)
        except pa.ArrowInvalid:
            strings = self._strings(columns)
            if not strings:
                raise
        # pyarrow accepts only JSON strings for strings: Python writes all values as such, the others must be valid.
        table = self._plain(text, others) if (others := [name for name in columns if name not in strings]) else None
        content = text.to_pybytes()
        rows = [
            loads(row.text) for row in (line_rows(content) if self._kind == "lines" else object_rows(content.decode()))
        ]
        fields = pa.struct([(name, self._wanted[name]) for name in strings])
        texts = self._plain(pa.py_buffer("\n".join(written(row, fields) for row in rows).encode()), strings)
        if not len(rows) == texts.num_rows == (len(rows) if table is None else table.num_rows):
            raise ValueError("objects are not separate")
        return pa.table({name: texts[name] if name in strings or table is None else table[name] for name in columns})

    def _strings(self, columns: Sequence[str]) -> list[str]:
        """The columns that hold strings, at any depth."""
        kinds = (pa.string(), pa.large_string())
        return [name for name in columns if any(kind in kinds for kind in types_in(self._wanted[name]))]

    def _plain(self, text: pa.Buffer, columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([(name, _read_as(self._wanted[name])) for name in columns])
        return self._conformed(_read(text, schema), columns, text)

    def _conformed(self, table: pa.Table, columns: Sequence[str], text: pa.Buffer) -> pa.Table:
        """The columns in the requested types; checks that strings are UTF-8, because pyarrow does not."""
        for column in table.columns:
            if not pt.is_primitive(column.type):
                column.validate(full=True)
        if not self._declared:
            self._check_whole_numbers(table, text)
        wanted = pa.schema([(name, self._wanted[name]) for name in columns])
        if table.schema.equals(wanted):
            return table
        return pa.table([_cast(table[field.name], field.type) for field in wanted], schema=wanted)

    def _check_whole_numbers(self, table: pa.Table, text: pa.Buffer) -> None:
        """Check that no whole number was rounded to a float.

        Raises:
            ValueError: one was.
        """
        large = [field for field in table.schema if may_round(table[field.name])]
        if not large or not may_write_long(text):
            return
        content = text.to_pybytes()
        for row in line_rows(content) if self._kind == "lines" else object_rows(content.decode()):
            values = loads(row.text)
            if any(rounds(values.get(field.name), field.type) for field in large):
                raise ValueError("a whole number would be rounded to float64")


def inferred(path: str, parser: JsonParser, rows: Sequence[Row], options: Mapping[str, Any]) -> pa.Schema:
    """The fields of the first rows, with types that fit their values.

    Raises:
        FileReadError: a row cannot be read (unless bad lines are skipped); the message names file and line.
    """
    deep = [number for number, row in enumerate(rows) if too_deep(row.text)]
    if deep and options["on_bad_lines"] == "error":
        BadLines(path, False, lambda: 0).fail(rows[deep[0]].line, _too_deep(rows[deep[0]].text), None)
    rows = [row for number, row in enumerate(rows) if number not in set(deep)] if deep else rows
    bad: list[int] = []
    schema = _inferred(rows, bad) if rows else pa.schema([])
    if bad and options["on_bad_lines"] == "error":
        row = rows[bad[0]]
        fault = parser.fault(row.text, []) or _repeats(row.text) or Fault(f"cannot be read: {cited(row.text)}.")
        BadLines(path, False, lambda: 0).fail(row.line, fault, None)
    return schema


def _inferred(rows: Sequence[Row], bad: list[int]) -> pa.Schema:
    """The fields of these rows, with the types that pyarrow infers; if it infers none, with one that fits all values.

    Appends the numbers of rows that cannot be read to `bad`.
    """
    text = pa.py_buffer(b"\n".join(row.text for row in rows))
    try:
        table = _read(text, None)
        if table.num_rows == len(rows):
            return _shallow(with_unsigned(table, partial(_fits, text)))
    except (pa.ArrowInvalid, UnicodeDecodeError):  # the latter for a name
        pass
    objects = []
    for number, row in enumerate(rows):
        try:
            objects.append(loads(row.text))
        except ValueError:
            bad.append(number)
    return _shallow(fields_of(objects))


def _fits(text: pa.Buffer, name: str, kind: pa.DataType) -> bool:
    try:
        _read(text, pa.schema([(name, kind)]))
    except pa.ArrowInvalid:
        return False
    return True


def _shallow(schema: pa.Schema) -> pa.Schema:
    """The schema, with strings (of JSON) in place of types that are nested too deeply to be columns."""
    types = [pa.string() if nests_too_deeply(field.type) else field.type for field in schema]
    return pa.schema(list(zip(schema.names, types, strict=True)))


def _repeats(row: bytes) -> Fault | None:
    """The fault that an object of a row has two fields of one name; None if none has."""
    try:
        loads(row)
    except RepeatedName as error:
        return Fault(
            f"the name {error.name!r} is repeated: {cited(row)}. Keep one of its values, or {_SKIP}.", error.name
        )
    except ValueError:
        return None
    return None


def _too_deep(row: bytes) -> Fault:
    return Fault(f"{TOO_DEEP}: {cited(row)}. Flatten it, or {_SKIP}.")


def _line_count(text: pa.Buffer, rows: int) -> int:
    """The number of lines that are not blank; blank ones are subtracted only if there are more lines than `rows`."""
    content = np.frombuffer(text, np.uint8)
    count = int(np.count_nonzero(content == 10)) + int(content[-1] != 10)
    return count if count <= rows else sum(1 for line in text.to_pybytes().split(b"\n") if line.strip())


def _read(text: pa.Buffer, schema: pa.Schema | None) -> pa.Table:
    """The objects of the text, read as one block in the calling thread; with the types of `schema`, else inferred."""
    if not _OBJECT.match(text.slice(0, min(text.size, _LOOK)).to_pybytes()):
        # A null before the first object crashes pyarrow.
        return _read(pa.py_buffer(b"".join([b"{}\n", text])), schema).slice(1)
    return pajson.read_json(
        pa.BufferReader(text),
        read_options=pajson.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema,
            newlines_in_values=True,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )


def _read_as(kind: pa.DataType) -> pa.DataType:
    """A type that pyarrow's JSON reader supports, from which values are cast to `kind`."""
    if pt.is_dictionary(kind):
        return _read_as(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_date(kind):
        return pa.string()
    return pa.int64() if pt.is_duration(kind) else kind


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pt.is_dictionary(kind):
        column = _cast(column, kind.value_type).dictionary_encode()
    return column if column.type.equals(kind) else column.cast(kind)
