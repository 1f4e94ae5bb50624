"""Finds and parses the objects of a JSON text in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.formats.possessive import MANY
from torch_dataloader_utils.formats.text.errors import Row

MOST_LEVELS = 1_000
TOO_DEEP = f"nests more than {MOST_LEVELS:,} levels of lists and objects, or more than Python can parse"

_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)%b"?|[\[\]{}]' % MANY, re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def too_deep(row: bytes) -> bool:
    """Whether a row nests more than `MOST_LEVELS` levels: pyarrow overflows its stack when it infers their types."""
    if row.count(b"[") + row.count(b"{") <= MOST_LEVELS:
        return False
    level = 0
    for match in _BRACKET.finditer(row):
        level += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(match[0], 0)
        if level > MOST_LEVELS:
            return True
    return False


def line_rows(text: bytes) -> list[Row]:
    """The lines that are not blank."""
    return [Row(number, line) for number, line in enumerate(text.split(b"\n")) if line.strip()]


def object_rows(text: str) -> Iterator[Row]:
    """The elements of an array, or else documents, as rows.

    Raises:
        json.JSONDecodeError: the text is not JSON, is truncated, or an object is nested too deeply.
    """
    line = last = 0
    for begin, end in _elements(text):
        line, last = line + text.count("\n", last, begin), begin
        yield Row(line, text[begin:end].encode())


def _elements(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each element of an array, or else of each document, in characters."""
    at = _space(text, 0)
    array = text[at : at + 1] == "["
    at = _space(text, at + array)
    if array and text[at : at + 1] == "]":
        return _expect_end(text, at + 1)
    while array or at < len(text):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except RecursionError:
            raise json.JSONDecodeError(TOO_DEEP, text, at) from None
        yield at, end
        at = _space(text, end)
        if array and text[at : at + 1] == "]":
            return _expect_end(text, at + 1)
        if array and text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _space(text, at + array)
    return None


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect_end(text: str, at: int) -> None:
    if (end := _space(text, at)) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)


class _Literal(float):
    """A number that keeps its original text."""

    def __new__(cls, text: str) -> _Literal:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


class RepeatedName(ValueError):
    """An object has two fields of one name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the name {name!r} is repeated")
        self.name = name


def _unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object, whose names must differ."""
    found = dict(fields)
    if len(found) < len(fields):
        names = [name for name, _ in fields]
        raise RepeatedName(next(name for name in names if names.count(name) > 1))
    return found


def loads(row: bytes) -> dict[str, Any]:
    """The object in a row; null counts as an object without fields.

    Raises:
        RepeatedName: an object has two fields of one name.
        ValueError: the row is not JSON, not an object, or nested too deeply.
    """
    if too_deep(row):  # which Python 3.13 can parse
        raise ValueError(TOO_DEEP)
    try:
        value = json.loads(row.decode(), parse_float=_Literal, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if not isinstance(value, dict | None):
        raise ValueError("expected an object")
    return value or {}


def as_text(value: Any) -> str | None:
    """A value as a string: numbers as written in the text, objects and lists as JSON."""
    if value is None or isinstance(value, str):
        return value
    try:
        return _dumped(value)
    except RecursionError:
        return json.dumps(value, ensure_ascii=False)  # in C, which can do more levels, but spells numbers its own way


def _dumped(value: Any) -> str:
    """A value as JSON, with numbers as written in the text."""
    if isinstance(value, dict):
        fields = [f"{json.dumps(name, ensure_ascii=False)}: {_dumped(item)}" for name, item in value.items()]
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join([_dumped(item) for item in value])}]"
    return value.text if isinstance(value, _Literal) else json.dumps(value, ensure_ascii=False)


def written(value: Any, kind: pa.DataType) -> str:
    """The JSON text of a value as its type needs it: with text for strings, and without fields that a struct lacks."""
    if value is None:
        return "null"
    if pt.is_dictionary(kind):
        return written(value, kind.value_type)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return json.dumps(as_text(value))
    if pt.is_struct(kind) and isinstance(value, dict):
        fields = ((field.name, field.type) for field in kind if field.name in value)
        return f"{{{','.join(f'{json.dumps(name)}:{written(value[name], inner)}' for name, inner in fields)}}}"
    if hasattr(kind, "value_type") and isinstance(value, list):
        return f"[{','.join(written(item, kind.value_type) for item in value)}]"
    return value.text if isinstance(value, _Literal) else json.dumps(value)
