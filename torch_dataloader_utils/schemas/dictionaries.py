"""Text or bytes, or lists of these, as dictionaries, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.schemas.merge import without_dictionaries

DictionaryDecoder: TypeAlias = Callable[[], pa.ChunkedArray | None]  # of a column; None: it cannot be decoded so

# Parquet's words are no large ones, whatever its Arrow schema says; pandas and Polars declare all text as large.
_WORDS = {
    pa.string(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.binary(),
}


def as_dictionaries(kind: pa.DataType) -> pa.DataType | None:
    """The type of strings or bytes as dictionaries, or of lists of these; None for all else."""
    if kind in _WORDS:
        return pa.dictionary(pa.int32(), _WORDS[kind])
    if not (pt.is_list(kind) or pt.is_large_list(kind)) or kind.value_type not in _WORDS:
        return None
    inner = kind.value_field.with_type(pa.dictionary(pa.int32(), _WORDS[kind.value_type]))
    return pa.list_(inner) if pt.is_list(kind) else pa.large_list(inner)


def numbered(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Values as dictionaries, without looking for equal ones: each is a word of its own.

    Args:
        column: the values.
        kind: what `as_dictionaries` returns for their type.
    """
    plain = without_dictionaries(kind)
    pieces = [piece for chunk in column.chunks for piece in _pieces(chunk)]
    return pa.chunked_array([_numbered(piece.cast(plain), kind) for piece in pieces], kind)


def _pieces(array: pa.Array) -> Iterator[pa.Array]:
    """Parts of large text that words of no large type can hold."""
    if array.nbytes < 1 << 31 or len(array) < 2:
        yield array
        return
    for part in (array.slice(0, len(array) // 2), array.slice(len(array) // 2)):
        yield from _pieces(part)


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of dictionaries; those of `numbered` are not copied."""
    kind = without_dictionaries(column.type)
    return pa.chunked_array([_decoded(chunk, kind) for chunk in column.chunks], kind)


def _around(lists: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Lists of other values, as many."""
    return pa.Array.from_buffers(kind, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [values])


def _numbered(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pt.is_dictionary(kind):
        return _around(array, kind, _numbered(array.values, kind.value_type))
    first, rows = array.offset, len(array)
    numbers = pa.py_buffer(np.arange(-first, rows, dtype=np.int32))
    valid, *values = array.buffers()
    # Arrow does not join dictionaries that hold nulls.
    words = pa.Array.from_buffers(array.type, rows, [None, *values], 0, first)
    codes = pa.Array.from_buffers(pa.int32(), rows, [valid, numbers], array.null_count, first)
    return pa.DictionaryArray.from_arrays(codes, words)


def _decoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pt.is_dictionary(array.type):
        return _around(array, kind, _decoded(array.values, kind.value_type))
    codes, words, rows = array.indices, array.dictionary, len(array)
    valid, numbers = codes.buffers()
    first = codes.offset - words.offset  # where each is a word of its own
    if rows and 0 <= first <= len(words) - rows and codes.type == pa.int32() and not words.null_count:
        held = np.frombuffer(numbers, np.int32, rows, 4 * codes.offset)
        if (held == np.arange(first, first + rows)).all():
            return pa.Array.from_buffers(kind, rows, [valid, *words.buffers()[1:]], codes.null_count, codes.offset)
    return array.cast(kind)
