"""Numbers, dates and decimals: one Arrow value of fixed width becomes one value of a numpy dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import Origin, fixed, plain_chunks, unencoded, unpack, valid_rows
from torch_dataloader_utils.convert.columns import Array
from torch_dataloader_utils.convert.meaning import NUMBERS, Meaning, factor, meaning_of
from torch_dataloader_utils.errors import OptionError, SchemaMismatchError, UnsupportedTypeError, use

_EXACT = 2**53  # float64 holds every whole number up to this one
_EXACT_SCALE = 22  # and every power of ten up to this one
_INT64_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Element:
    """How values of one Arrow type become values of one dtype, whatever rows a block holds; of all columns alike.

    Attributes:
        type: Arrow type without encodings.
        steps: convert the column's own type to `type`.
        read: which reader: "fixed", "bits", "float_decimal" or "scaled_decimal".
        natural: dtype that the reader returns.
        dtype: dtype of the output.
        blank: replaces nulls: NaN, the fill value or 0.
        meaning: what the numbers of the output stand for.
        factor: what the numbers are multiplied by for that.
        named: whether `dtypes=` names the column, so that dates, times and scaled decimals are taken as plain numbers.
    """

    type: pa.DataType
    steps: tuple[str, ...]
    read: str
    natural: np.dtype[Any]
    dtype: np.dtype[Any]
    blank: Any
    meaning: Meaning = NUMBERS
    factor: int = 1
    named: bool = False

    @property
    def holds_null(self) -> bool:
        """Whether the dtype has a null of its own: NaN."""
        return self.dtype.kind == "f"

    @property
    def dtype_name(self) -> str:
        """The name of its dtype."""
        return _name_of(self.dtype)

    @property
    def as_stored(self) -> bool:
        """Whether the values of an array's buffer are those of the output."""
        return self.read == "fixed" and not self.steps and self.natural == self.dtype and self.factor == 1

    @property
    def as_bits(self) -> bool:
        """Whether the bits of an array's buffer are the booleans of the output."""
        return self.read == "bits" and not self.steps and self.natural == self.dtype

    @property
    def divisor(self) -> float:
        """What the unscaled numbers of decimals are divided by, rounded once; 0.0 if that is not all."""
        if self.read != "float_decimal" or self.steps or self.natural != self.dtype or self.factor != 1:
            return 0.0
        exact = _few_digits(self.type) and 0 <= self.type.scale <= _EXACT_SCALE
        return float(10**self.type.scale) if exact else 0.0

    def meant(self, key: str, meaning: Meaning) -> Element:
        """The element whose numbers are multiplied to stand for this (see `meaning.common`), of the column `key`."""
        multiplied = self.factor * factor(meaning, self.meaning)
        return replace(self, meaning=meaning, factor=multiplied, blank=self.times(key, self.blank, meaning))

    def times(self, key: str, fill: Any, meaning: Meaning) -> Any:
        """A fill value of the column `key`, multiplied to stand for this.

        Raises:
            OptionError: it does not fit the output's dtype.
        """
        value = fill.item() * factor(meaning, self.meaning)
        if self.dtype.kind in "iu" and not (np.iinfo(self.dtype).min <= value <= np.iinfo(self.dtype).max):
            raise OptionError(
                f"Fill({fill.item()}) for column {key!r}: {value} does not fit {self.dtype} as {meaning}, which "
                "another dataset of the combination has."
            )
        return self.dtype.type(value)


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)  # for which numpy takes longer than for all else that is planned for a column


def stored_values(column: pa.ChunkedArray, dtype: np.dtype[Any]) -> Array | None:
    """The values of a column of an element `as_stored`, as a view; None if it has nulls or is not in one piece."""
    if column.num_chunks != 1 or column.null_count or not len(column):
        return None
    chunk = column.chunk(0)
    return fixed(chunk.buffers()[1], dtype, chunk.offset, len(chunk))


def element_of(key: str, type_: pa.DataType, decimals: str) -> Element | None:
    """The element for an Arrow type, or None if its values have no fixed-width dtype.

    Raises:
        UnsupportedTypeError: a decimal has more digits than int64 holds, and `decimals="scaled"`.
    """
    bare, _ = unencoded(type_)
    if pt.is_decimal(bare):
        _check_digits(key, bare, decimals)
    return _of_type(type_, decimals)


@lru_cache(maxsize=256)  # many columns are of few types
def _of_type(type_: pa.DataType, decimals: str) -> Element | None:
    bare, steps = unencoded(type_)
    natural: np.dtype[Any]
    if pt.is_decimal(bare):
        read = "scaled_decimal" if decimals == "scaled" else "float_decimal"
        natural = np.dtype(np.int64 if decimals == "scaled" else np.float64)
    elif pt.is_boolean(bare):
        read, natural = "bits", np.dtype(np.bool_)
    else:
        stored = _stored(bare)
        if stored is None:
            return None
        read, natural = "fixed", stored
    dtype = np.dtype(np.int64) if pt.is_time(bare) else natural
    return Element(bare, steps, read, natural, dtype, null_blank(dtype), meaning_of(bare, decimals == "scaled"))


def _check_digits(key: str, type_: pa.DataType, decimals: str) -> None:
    if decimals == "scaled" and type_.precision > _INT64_DIGITS:
        raise UnsupportedTypeError(
            f"decimals='scaled' and column {key!r} of type {type_}: int64 holds {_INT64_DIGITS} digits. Cast "
            f"the column to a precision of at most {_INT64_DIGITS} in transform, or read floats.",
            remedies=[use(decimals="float64")],
        )


def null_blank(dtype: np.dtype[Any]) -> Any:
    """The value of `dtype` that replaces a null: NaN, or 0 (under a mask)."""
    return dtype.type(np.nan if dtype.kind == "f" else 0)


def _stored(type_: pa.DataType) -> np.dtype[Any] | None:
    """The dtype of a fixed-width Arrow type's buffer, or None for other types."""
    if pt.is_integer(type_):
        return np.dtype(str(type_))
    if pt.is_floating(type_):
        return np.dtype(f"float{type_.bit_width}")
    if pt.is_temporal(type_) and not pt.is_interval(type_):
        return np.dtype(f"int{type_.bit_width}")
    return None


def read_elements(
    element: Element, chunks: Sequence[pa.Array], origin: Origin, outer: Array | None = None
) -> tuple[Array, Array | None]:
    """Values [n] of `element.dtype`, writable and not shared, and which are not null: bool [n], None for all.

    Args:
        element: how to read them.
        chunks: arrays of the column's own type, n values together.
        origin: decides which buffers a batch may use.
        outer: bool [n], False where the value is null because the row that contains it is.

    Raises:
        OptionError: a value does not fit the dtype that `dtypes=` asks for.
    """
    chunks = plain_chunks(chunks, element.steps)
    valid = valid_rows(chunks)
    if outer is not None:
        valid = outer if valid is None else valid & outer
    values = _gather(element, chunks, origin)
    if values.dtype != element.dtype or element.factor != 1:
        if valid is not None:  # the value under a null may be anything
            values = np.where(valid, values, values.dtype.type(0))
        if element.factor != 1:
            values = _multiplied(values, element, origin)
        values = _cast(values, element, origin)
    if valid is not None:
        np.putmask(values, ~valid, element.blank)
    return values, valid


def _gather(element: Element, chunks: Sequence[pa.Array], origin: Origin) -> Array:
    """The values of all chunks as stored; writable if they already have the output dtype."""
    read = _READERS[element.read]
    if len(chunks) != 1:
        return np.concatenate([read(chunk, element) for chunk in chunks]) if chunks else np.empty(0, element.natural)
    values = read(chunks[0], element)
    if element.read != "fixed" or element.natural != element.dtype or not len(values):
        return values
    # carray: contiguous, writable, and aligned (in IPC files buffers may not be)
    return values if values.flags.carray and origin.may_keep(chunks[0].buffers()[1]) else values.copy()


def _multiplied(values: Array, element: Element, origin: Origin) -> Array:
    """The whole numbers times the element's factor, int64 [n], which must hold them."""
    wide = values.astype(np.int64)
    limit = np.iinfo(np.int64).max // element.factor
    if len(wide) and not (-limit <= wide.min() and wide.max() <= limit):
        raise SchemaMismatchError(
            f"column {origin.key!r} of type {element.type} has values from {wide.min()} to {wide.max()} in "
            f"{origin.where}, of which some do not fit int64 as {element.meaning}, which another dataset of the "
            "combination has. Make that dataset with schema= that has a coarser unit, or leave out such rows."
        )
    return wide * element.factor


def _cast(values: Array, element: Element, origin: Origin) -> Array:
    """A copy of `values` as `element.dtype`; truncates fractions, rejects what an integer dtype cannot hold."""
    dtype = element.dtype
    if dtype.kind in "iu" and len(values) and not np.can_cast(values.dtype, dtype):
        bounds = np.iinfo(dtype)
        low, high = values.min().item(), values.max().item()
        if not (bounds.min <= low and high <= bounds.max):  # in this form it rejects NaN, too
            raise OptionError(
                f"column {origin.key!r} has values from {low} to {high} in {origin.where}, which do not fit {dtype}: "
                "choose another dtype in dtypes=."
            )
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def _read_fixed(chunk: pa.Array, element: Element) -> Array:
    return fixed(chunk.buffers()[1], element.natural, chunk.offset, len(chunk))


def _read_bits(chunk: pa.Array, element: Element) -> Array:
    if not len(chunk):
        return np.empty(0, np.bool_)
    return unpack(chunk.buffers()[1], chunk.offset, len(chunk))


def _words(chunk: pa.Array) -> Array:
    """The unscaled decimals as signed words, low word first: int32 [n, 1] or int64 [n, 1], [n, 2], [n, 4]; a view."""
    width = chunk.type.bit_width // 8
    dtype = np.dtype(np.int32 if width == 4 else np.int64)
    count = width // dtype.itemsize
    return fixed(chunk.buffers()[1], dtype, chunk.offset * count, len(chunk) * count).reshape(-1, count)


def _read_scaled(chunk: pa.Array, element: Element) -> Array:
    # Up to 18 digits fit in the low word: the others only repeat its sign.
    return _words(chunk)[:, 0].astype(np.int64)


def _read_decimal(chunk: pa.Array, element: Element) -> Array:
    """Float64 [n], correctly rounded: if float64 holds the whole number and the power of ten, it is rounded once."""
    words, scale = _words(chunk), chunk.type.scale
    low = words[:, 0]
    if abs(scale) > _EXACT_SCALE:
        values, exact = np.zeros(len(low)), np.zeros(len(low), np.bool_)
    else:
        values = low / float(10**scale) if scale >= 0 else low * float(10**-scale)
        if _few_digits(chunk.type):
            return values
        exact = (low >= -_EXACT) & (low <= _EXACT)
        for high in range(1, words.shape[1]):
            exact &= words[:, high] == low >> 63
    for i in np.flatnonzero(~exact):
        values[i] = _divide(words[i].tobytes(), scale)
    return values


def _few_digits(decimal: pa.DataType) -> bool:
    """Whether float64 holds each unscaled number."""
    return bool(10**decimal.precision <= _EXACT)


def _divide(unscaled: bytes, scale: int) -> float:
    """`unscaled` (little-endian) / 10**scale: Python correctly rounds quotients of whole numbers of any size."""
    number = int.from_bytes(unscaled, "little", signed=True)
    return number / 10**scale if scale >= 0 else float(number * 10**-scale)


_READERS: dict[str, Callable[[pa.Array, Element], Array]] = {
    "fixed": _read_fixed,
    "bits": _read_bits,
    "float_decimal": _read_decimal,
    "scaled_decimal": _read_scaled,
}
