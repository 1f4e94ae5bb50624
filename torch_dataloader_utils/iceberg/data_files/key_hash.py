"""Row hashes over several columns, computed with NumPy: equal rows have equal hashes. pyarrow has no such function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

Hashes: TypeAlias = npt.NDArray[np.uint64]

HASH_BITS = 63

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 / golden ratio: multiplying by it spreads nearby numbers
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_NULL = np.uint64(0x6A09E667F3BCC909)
_HALF = np.uint64(32)
_WORD_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(9)], np.uint64)
_HEAD_WORDS, _TAIL_WORDS = 32, 8  # of 8 bytes: only these at the beginning and end of longer values are hashed


def row_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """A hash of `HASH_BITS` bits per row, shape [n], over columns of scalar types; all nulls have the same hash.

    The upper bits differ even for nearby or regularly spaced values, so hash tables can be ordered by them.

    Args:
        columns: at least one, each of shape [n]; equal values must have equal bytes.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns if len(hashes) else ():
        for words in _words(column):
            hashes = _mixed(hashes, words)
    return (hashes * _SPREAD) >> np.uint64(64 - HASH_BITS)


def _mixed(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = (hashes ^ words) * _FACTOR
    mixed ^= mixed >> _HALF
    return mixed


def _words(column: pa.Array) -> list[Hashes]:
    """The values as 64-bit words."""
    kind = column.type
    if pt.is_boolean(kind):
        words = [column.cast(pa.uint8()).fill_null(0).to_numpy().astype(np.uint64)]
    elif pt.is_primitive(kind):
        numbers = np.frombuffer(column.buffers()[1], f"<i{kind.bit_width // 8}", len(column), _start(column))
        words = [numbers.astype(np.int64, copy=False).view(np.uint64)]
    elif pt.is_decimal(kind):
        wide = np.frombuffer(column.buffers()[1], "<u8", len(column) * kind.bit_width // 64, _start(column))
        words = list(wide.reshape(len(column), -1).T)
    else:
        words = [_text_hashes(column.cast(pa.large_binary()))]
    if not column.null_count:
        return words
    null = column.is_null().to_numpy(zero_copy_only=False)
    return [np.where(null, _NULL, part) for part in words]


def _start(column: pa.Array) -> int:
    return int(column.offset * column.type.bit_width // 8)


def _text_hashes(column: pa.Array) -> Hashes:
    """A hash of the bytes of each value, 8 at a time."""
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    starts, sizes = offsets[:-1], np.diff(offsets)
    words = _at_every_byte(column.buffers()[2], int(offsets[-1]))
    hashes = _mixed(words[starts] & _WORD_MASKS[np.minimum(sizes, 8)], sizes.view(np.uint64))
    rows = np.arange(len(sizes))
    for word in range(1, _HEAD_WORDS):
        rows = rows[sizes[rows] > 8 * word]
        if not len(rows):
            return hashes
        rest = np.minimum(sizes[rows] - 8 * word, 8)
        hashes[rows] = _mixed(hashes[rows], words[starts[rows] + 8 * word] & _WORD_MASKS[rest])
    for word in range(1, _TAIL_WORDS + 1):
        hashes[rows] = _mixed(hashes[rows], words[starts[rows] + sizes[rows] - 8 * word])
    return hashes


def _at_every_byte(data: pa.Buffer | None, size: int) -> Hashes:
    """The 8 bytes starting at each byte, as numbers, shape [size + 1]; padded with zeros at the end."""
    padded = np.zeros(size + 8, np.uint8)
    if data is not None:
        padded[:size] = np.frombuffer(data, np.uint8, size)
    return np.ndarray((size + 1,), np.dtype("<u8"), padded, strides=(1,))
