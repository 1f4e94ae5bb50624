"""Column chunks of Parquet files, decoded by the compiled library of pages.c: their numbers, and the calls."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.library import library, pages_library
from torch_dataloader_utils.kernels.rows import Bytes, addresses, width_of

# The numbers of a chunk, as the struct of this name in pages.c has them.
_FIELDS = (
    *("file", "start", "length", "codec", "type", "stored", "width", "blank", "decimal", "most", "entry", "fixed"),
    *("rows", "entries", "room", "checked", "values", "valid", "first", "base", "offsets", "wide", "lists"),
    *("coded", "text", "ranges", "picked", "used"),
    *("nulls", "null_lists", "found", "refused"),
)
CHUNK = np.dtype([(name, np.int64) for name in _FIELDS])
Chunks: TypeAlias = npt.NDArray[np.void]  # of this dtype; a table, because an object for each chunk takes longer

_BYTES = 6  # the physical type of bytes of any length, which parquet.thrift numbers
_WORD = 16  # bytes of an entry of a dictionary of bytes, each of which is stored in at least 4
_NUMBERS = 11  # of the struct `Straight` of pages.c
_SLACK = 1 << 10  # bytes that a chunk takes of memory besides its own, because parts of it lie at 64 bytes
_KEPT = 16 << 20  # bytes of memory for compressed and decompressed pages that a thread keeps between calls

_scratch = threading.local()


class Straight(NamedTuple):
    """A column of fixed width that is decoded to where it is delivered.

    Attributes:
        chunks: its chunks, [n].
        out: where its rows are delivered, [rows], of the dtype of its values.
        blank: what stands at nulls, of that dtype; None: there must be none.
    """

    chunks: Chunks
    out: npt.NDArray[Any]
    blank: Any


class RaggedChunks(NamedTuple):
    """A column of bytes or lists that is decoded to where it is delivered.

    Attributes:
        chunks: its chunks, [n].
        values: where its bytes are delivered, uint8, or the entries of its lists, as many as its chunks may have.
        offsets: where the rows begin and end among them, int64 [rows + 1]; None: all lists have one size.
    """

    chunks: Chunks
    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64] | None


def decode(chunks: Chunks) -> None:
    """Decode chunks, of which the results are then among their numbers.

    Raises:
        MemoryError: there is no memory for pages of the sizes that they name.
    """
    if not chunks.size:
        return
    found, zstd, memory = pages_library(), zstd_functions(), _memory_for(chunks)
    assert found is not None
    table = np.ascontiguousarray(chunks)
    found.tdu_decode(*addresses(table), table.size, *addresses(memory), len(memory), _address(zstd))
    if table is not chunks:
        chunks[...] = table


def deliver(columns: Sequence[Straight], scratch: Bytes, places: npt.NDArray[np.uint32] | None = None) -> list[bool]:
    """Decode columns, each while it is in the processor's cache, and deliver their rows.

    Args:
        columns: at least one.
        scratch: memory for all rows of a column, if they have places.
        places: uint32 [rows], which row of a column is delivered first, second, ...; None: as the chunks have them.

    Returns:
        Which of them were: not those with chunks that are not decoded here, or with nulls that have no blank.

    Raises:
        MemoryError: as above.
    """
    table, counts = joined([column.chunks for column in columns]), [len(column.chunks) for column in columns]
    outs = np.array(addresses(*(column.out for column in columns)))
    sources = outs if places is None else np.full(len(columns), scratch.ctypes.data)
    firsts, rows = np.cumsum([0, *counts[:-1]]), np.cumsum(table["rows"]) - table["rows"]
    table["values"], table["valid"] = np.repeat(sources, counts), 0
    table["first"] = rows - np.repeat(rows[firsts], counts)
    table["width"] = np.repeat([column.out.itemsize for column in columns], counts)
    table["blank"] = np.repeat([_word(column.out.dtype, column.blank) for column in columns], counts)
    numbers = np.zeros((len(columns), _NUMBERS), np.int64)
    numbers[:, 0], numbers[:, 1], numbers[:, 2] = table.ctypes.data + firsts * CHUNK.itemsize, counts, sources
    numbers[:, 3:5] = (0, 0) if places is None else (places.ctypes.data, len(places))
    numbers[:, 5], numbers[:, 6] = [width_of(column.out) for column in columns], outs
    numbers[:, 7] = [column.blank is not None for column in columns]
    _deliver(numbers, _memory_for(table))
    return [not refused for refused in numbers[:, -1].tolist()]


@lru_cache(maxsize=256)  # many columns have few dtypes
def _word(dtype: np.dtype[Any], blank: Any) -> int:
    """The bytes of what stands at nulls, as a number."""
    if blank is None:
        return 0
    return int.from_bytes(dtype.type(blank).tobytes().ljust(8, b"\0"), "little", signed=True)


def deliver_ragged(columns: Sequence[RaggedChunks]) -> list[int | None]:
    """Decode columns of bytes or lists to where they are delivered.

    Returns:
        The bytes or entries of each; more than there is room for: the column must be decoded again, with more. None:
        it was not, because a chunk is not decoded here, or has nulls.

    Raises:
        MemoryError: as above.
    """
    table, at = joined([column.chunks for column in columns]), 0
    memory, numbers = _memory_for(table), np.zeros((len(columns), _NUMBERS), np.int64)
    for number, (chunks, values, offsets) in enumerate(columns):
        own = table[at : at + len(chunks)]
        own["values"], own["valid"], own["lists"] = values.ctypes.data, 0, 0
        if offsets is not None:
            own["offsets"] = offsets.ctypes.data + 8 * (np.cumsum(own["rows"]) - own["rows"])
            own["wide"] = 1
        if values.dtype == np.uint8 and (own["type"] == _BYTES).all():
            own["room"] = len(values)
        numbers[number, :2], numbers[number, -3] = (own.ctypes.data, len(own)), 1
        at += len(own)
    _deliver(numbers, memory)
    return [None if refused else found for found, refused in numbers[:, -2:].tolist()]


def _deliver(numbers: npt.NDArray[np.int64], memory: Bytes) -> None:
    found, take = pages_library(), library()
    assert found is not None
    assert take is not None
    moved = ctypes.cast(take.tdu_take, ctypes.c_void_p)
    found.tdu_deliver(
        *addresses(numbers), len(numbers), *addresses(memory), len(memory), _address(zstd_functions()), moved
    )


def joined(parts: Sequence[Chunks]) -> Chunks:
    """The chunks of all parts, [n], in fresh memory."""
    # As plain numbers: numpy compares the fields of structures one by one before it joins them.
    return np.concatenate([np.ascontiguousarray(part).view(np.int64) for part in parts]).view(CHUNK)


def delivers() -> bool:
    """Whether there are the compiled libraries that `deliver` needs."""
    return pages_library() is not None and library() is not None


@lru_cache(maxsize=1)
def zstd_functions() -> npt.NDArray[np.uint64] | None:
    """The addresses of zstd's functions, as pages.c takes them; None if its library is not installed."""
    try:
        # By name: `ctypes.util.find_library` starts processes.
        found = ctypes.CDLL("libzstd.so.1")
        functions = (found.ZSTD_createDCtx, found.ZSTD_freeDCtx, found.ZSTD_decompressDCtx)
    except (OSError, AttributeError):
        return None
    return np.array([ctypes.cast(each, ctypes.c_void_p).value for each in functions], np.uint64)


def _address(array: npt.NDArray[Any] | None) -> int | None:
    return None if array is None else int(array.ctypes.data)


def _memory_for(chunks: Chunks) -> npt.NDArray[np.uint8]:
    """Memory of this thread to decode chunks: one, a page of it, and its dictionary, as a page and as values."""
    wider = np.maximum(1, -(-chunks["width"] // np.maximum(1, chunks["stored"])))
    wider = np.where((chunks["type"] == _BYTES) & (chunks["coded"] == 0), _WORD // 4, wider)
    return memory(int((chunks["length"] + chunks["room"] * (2 + wider)).max()) + _SLACK)


def memory(size: int) -> npt.NDArray[np.uint8]:
    """Memory of this thread for one call."""
    kept: npt.NDArray[np.uint8] | None = getattr(_scratch, "kept", None)
    if kept is not None and len(kept) >= size:
        return kept
    made = np.empty(size, np.uint8)
    if size <= _KEPT:
        _scratch.kept = made
    return made
