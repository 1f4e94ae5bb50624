"""Checks that strings are UTF-8: files may say so wrongly, and Python cannot hold others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import plain, unencoded
from torch_dataloader_utils.errors import FileReadError, use

_SHOWN = 40  # bytes of a value in a message


def check_utf8(name: str, column: pa.ChunkedArray, where: str) -> None:
    """Check all strings of a column, also those in lists and structs, and the words of dictionaries that rows have.

    Raises:
        FileReadError: one is not UTF-8; the message names column and row.
    """
    if not _holds_text(column.type):
        return
    first = 0
    for chunk in column.chunks:
        if _damaged(chunk) and (row := _first_damaged(rows := plain(chunk, unencoded(chunk.type)[1]))) is not None:
            bad = rows.slice(row, 1)
            value = f" ({bad.cast(pa.large_binary())[0].as_py()[:_SHOWN]!r})" if not pt.is_nested(rows.type) else ""
            raise FileReadError(
                f"column {name!r} has a string that is not UTF-8{value} in {where}, at row {first + row} of those "
                "read. Leave the column out with columns=, write the file again, or read strings as bytes.",
                remedies=[use(strings="bytes")],
            )
        first += len(chunk)


def _holds_text(kind: pa.DataType) -> bool:
    kind, _ = unencoded(kind)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return True
    return pt.is_nested(kind) and any(_holds_text(kind.field(number).type) for number in range(kind.num_fields))


def _damaged(array: pa.Array) -> bool:
    """Whether some text of it is damaged, perhaps of no row: a word that none has, or what a null or slice hides."""
    if _all_ascii(array):  # far cheaper to check
        return False
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _all_ascii(array: pa.Array) -> bool:
    """Whether all strings of the array certainly are ASCII."""
    kind = array.type
    if pt.is_string(kind) or pt.is_large_string(kind):
        content = _content(array)
        return not len(content) or int(content.max()) < 0x80
    if pt.is_dictionary(kind):
        return _all_ascii(array.dictionary)
    if pt.is_struct(kind):
        return all(_all_ascii(array.field(number)) for number in range(kind.num_fields))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _all_ascii(array.values)
    return bool(pt.is_primitive(kind) or pt.is_null(kind))


def _content(array: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all strings."""
    _, ends, content = array.buffers()
    if content is None or not len(array):
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(ends, np.int64 if pt.is_large_string(array.type) else np.int32)
    return np.frombuffer(content, np.uint8)[offsets[array.offset] : offsets[array.offset + len(array)]]


def _first_damaged(array: pa.Array) -> int | None:
    """The first row with a damaged text; None if there is none."""
    return next((row for row, value in enumerate(array) if not _readable(value)), None)


def _readable(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    except (ValueError, OverflowError):  # of a time beside it that Python cannot hold, which is another error
        return True
    return True
