"""Ids of values: the place of each value of an Arrow array in a list of values, by a table that is built once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import fixed, is_binary, plain, unencoded, unpack, valid_rows
from torch_dataloader_utils.convert.columns import Array
from torch_dataloader_utils.convert.meaning import meaning_of
from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.kernels.table import ByteKeys, KeyTable, table_of
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.schemas.merge import is_text
from torch_dataloader_utils.storage.locks import ForkLock

MISSING = -1
UNKNOWN = -2

Mask: TypeAlias = npt.NDArray[np.bool_]
_BYTES, _NUMBERS = "bytes", "numbers"
_DAY = 86_400 * 10**9
_NANOSECONDS = {"day": _DAY, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class IdTable:
    """Finds the ids of values; picklable, and any number of threads may look up at once.

    Values are the same if they are equal, whatever their width, unit or encoding. Bools are 0 and 1, and floats the
    whole number that they are equal to. Text is its UTF-8 bytes. A date is its midnight without a zone.

    Args:
        values: the values, each once: text, bytes, whole numbers, bools, dates, times, durations or timestamps. The
            id of a value is its place.

    Raises:
        UnsupportedTypeError: they are of another type.
        ValueError: one is null.
    """

    def __init__(self, values: pa.Array) -> None:
        bare, steps = unencoded(values.type)
        self._family, self._unit = _family(bare), _unit(bare)
        if self._family is None or pt.is_floating(bare):
            raise UnsupportedTypeError(
                f"values of type {values.type} have no ids: expected text, bytes, whole numbers, bools, dates or times."
            )
        self._unsigned = pt.is_uint64(bare)
        self._plain = plain(values, steps)
        if self._plain.null_count:
            raise ValueError("a null has no id: leave it out of the values.")
        self.values = values
        self._built: KeyTable | None = None
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[Callable[[pa.Array], IdTable], tuple[pa.Array]]:
        return IdTable, (self.values,)

    def shared(self) -> tuple[Callable[[pa.Array, KeyTable | None], IdTable], tuple[pa.Array, KeyTable | None]]:
        """As `__reduce__`, for other processes of this machine: with what was built."""
        return IdTable._with, (self.values, self._built)

    @classmethod
    def _with(cls, values: pa.Array, built: KeyTable | None) -> IdTable:
        made = cls(values)
        made._built = built
        return made

    def build(self) -> None:
        """Build the table now, rather than at the first lookup.

        Raises:
            ValueError: a value is among them twice.
        """
        self._table()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the values, and of the table once it is built."""
        return int(self.values.nbytes) + (0 if self._built is None else self._built.nbytes)

    def accepts(self, type_: pa.DataType) -> bool:
        """Whether values of a type can be among these: all can be that are null, and no text is among numbers."""
        bare, _ = unencoded(type_)
        return pt.is_null(bare) or _family(bare) == self._family

    def lookup(self, array: pa.Array | pa.ChunkedArray) -> I64:
        """The id of each value.

        Returns:
            int64 [n]: `MISSING` (-1) for null and NaN, `UNKNOWN` (-2) for what is not among the values, which all
            floats beyond 64 bits with a sign are.

        Raises:
            UnsupportedTypeError: no values of this type can be among them.
            ValueError: a value is among them twice.
        """
        if not self.accepts(array.type):
            raise UnsupportedTypeError(
                f"values of type {array.type} cannot be among values of type {self.values.type}: cast them."
            )
        if isinstance(array, pa.ChunkedArray):
            return np.concatenate([np.empty(0, np.int64), *map(self.lookup, array.chunks)])
        # A large dictionary may come with few rows.
        if pt.is_dictionary(array.type) and len(array.dictionary) <= len(array):
            return self._of_dictionary(array)
        array = plain(array, unencoded(array.type)[1])
        if not len(array) or pt.is_null(array.type):
            return np.full(len(array), MISSING, np.int64)
        return self._of_plain(array)

    def _of_dictionary(self, array: pa.DictionaryArray) -> I64:
        ids, indices = np.append(self.lookup(array.dictionary), MISSING), array.indices
        if len(ids) == 2 and not indices.null_count:  # one value, such as the name of the rows' file
            return np.full(len(indices), ids[0])
        places = fixed(indices.buffers()[1], _dtype(indices.type), indices.offset, len(indices))
        valid = valid_rows([indices])
        return ids.take(places if valid is None else np.where(valid, places, len(ids) - 1))

    def _of_plain(self, array: pa.Array) -> I64:
        valid = valid_rows([array])
        if self._family == _BYTES:
            ids = self._table().places_of(_bytes_of(array))
            ids[ids < 0] = UNKNOWN
        else:
            numbers = _numbers_of(array)
            keys, possible = self._keys(numbers, _unit(array.type))
            ids = self._table().places_of(keys)
            ids[ids < 0] = UNKNOWN
            if possible is not None:
                ids[~possible] = UNKNOWN
            if numbers.dtype.kind == "f":
                ids[np.isnan(numbers)] = MISSING
        if valid is not None:
            ids[~valid] = MISSING
        return ids

    def _keys(self, numbers: Array, unit: int) -> tuple[I64, Mask | None]:
        """Numbers, of a unit of so many nanoseconds, as the values are stored, and which of them can be; None: all."""
        if numbers.dtype.kind == "f":
            keys, possible = _whole(numbers)
            return keys, possible & (keys >= 0) if self._unsigned else possible
        keys = numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64, copy=False)
        if self._unsigned != (numbers.dtype == np.uint64):  # the same bits are another number
            return keys, keys >= 0
        return _in_unit(keys, unit, self._unit)

    def _table(self) -> KeyTable:
        if self._built is None:
            with self._lock:
                if self._built is None:
                    self._built = self._build()
        return self._built

    def _build(self) -> KeyTable:
        of_bytes = self._family == _BYTES
        table = table_of(_bytes_of(self._plain) if of_bytes else self._keys(_numbers_of(self._plain), self._unit)[0])
        if table.duplicate is not None:
            twice = self._plain[table.duplicate].as_py()
            raise ValueError(f"the value {twice!r} is there twice: list each value once.")
        return table


def _family(bare: pa.DataType) -> str | None:
    """Equal for types without encodings whose values can be equal; None for values without ids."""
    if is_text(bare) or is_binary(bare):
        return _BYTES
    if pt.is_integer(bare) or pt.is_boolean(bare) or pt.is_floating(bare):
        return _NUMBERS
    if not pt.is_temporal(bare) or pt.is_interval(bare):
        return None
    kind = meaning_of(bare, scaled=False).kind
    return "timestamps" if kind == "dates" else kind


def _unit(bare: pa.DataType) -> int:
    """The nanoseconds that 1 is in dates and times; 1 for others."""
    return _NANOSECONDS.get(meaning_of(bare, scaled=False).unit, 1)


def _dtype(bare: pa.DataType) -> np.dtype[Any]:
    """That of a type of numbers, as they are stored."""
    sign = "f" if pt.is_floating(bare) else "u" if pt.is_unsigned_integer(bare) else "i"
    return np.dtype(f"{sign}{bare.bit_width // 8}")


def _numbers_of(array: pa.Array) -> Array:
    """The numbers of an array, [n], of the dtype in which they are stored; of bools int8; at nulls any."""
    data = array.buffers()[1]
    if pt.is_boolean(array.type):
        return unpack(data, array.offset, len(array)).view(np.int8) if len(array) else np.empty(0, np.int8)
    return fixed(data, _dtype(array.type), array.offset, len(array))


def _bytes_of(array: pa.Array) -> ByteKeys:
    """The bytes of an array of text or bytes; at nulls any."""
    _, ends, data = array.buffers()
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    offsets = fixed(ends, dtype, array.offset, len(array) + 1) if len(array) else np.zeros(1, dtype)
    return ByteKeys(np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), offsets)


def _whole(numbers: Array) -> tuple[I64, Mask]:
    """Floats as int64, and which of them are equal to it; the others are 0."""
    wide = numbers.astype(np.float64, copy=False)
    whole = (np.floor(wide) == wide) & (wide >= -(2.0**63)) & (wide < 2.0**63)
    return np.where(whole, wide, 0).astype(np.int64), whole


def _in_unit(numbers: I64, unit: int, wanted: int) -> tuple[I64, Mask | None]:
    """Numbers of one unit in another (nanoseconds each), and which of them it can express; None: all."""
    if unit == wanted:
        return numbers, None
    if unit < wanted:
        quotients, rests = np.divmod(numbers, wanted // unit)
        return quotients, rests == 0
    factor = unit // wanted
    most = (2**63 - 1) // factor
    return numbers * factor, (numbers >= -most) & (numbers <= most)
