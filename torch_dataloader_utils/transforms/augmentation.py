"""Random changes of rows, by `Transform(..., random=True)`: flips and crops of images, noise, values left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.row_generator import RowGenerator
from torch_dataloader_utils.transforms.columns import check_column, place_of, replaced
from torch_dataloader_utils.transforms.images import checked_size

Array = npt.NDArray[Any]

_VALUES = 1 << 18  # drawn at a time: 2 MB


@dataclass(frozen=True)
class RandomFlip:
    """Flips some of the images of a column of tensors `[C, H, W]`, such as `DecodeImages` makes; picklable.

    Args:
        column: of tensors whose last two axes are height and width.
        p: how probable it is for each image, from 0 to 1.
        vertical: whether top and bottom change places, instead of left and right.

    Raises:
        OptionError: an argument is not one of the above.
    """

    column: str
    p: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        check_column(self.column, "RandomFlip")
        _check_share("RandomFlip", self.p)

    def __call__(self, rows: pa.RecordBatch, rng: RowGenerator) -> pa.RecordBatch:
        """The rows with some images flipped; nulls stay nulls.

        Raises:
            UnsupportedTypeError: the column is not of tensors.
        """
        place, images = _tensors(rows, self.column, "RandomFlip")
        chosen = rng.random() < self.p
        made = images.copy()
        made[chosen] = images[chosen][..., ::-1, :] if self.vertical else images[chosen][..., ::-1]
        return _with_tensors(rows, place, made)


@dataclass(frozen=True)
class RandomCrop:
    """Cuts a part of one size out of each image of a column of tensors `[C, H, W]`, at a random place; picklable.

    Args:
        column: of tensors whose last two axes are height and width.
        size: (height, width) of the parts; an int for a square.
        padding: pixels of zeros around each image, of which a part may have some.

    Raises:
        OptionError: an argument is not one of the above.
    """

    column: str
    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        check_column(self.column, "RandomCrop")
        object.__setattr__(self, "size", checked_size(self.size, "RandomCrop"))
        if type(self.padding) is not int or self.padding < 0:
            raise OptionError(f"RandomCrop(padding={shown(self.padding)}): expected a whole number of at least 0.")

    def __call__(self, rows: pa.RecordBatch, rng: RowGenerator) -> pa.RecordBatch:
        """The rows with parts of images; nulls stay nulls.

        Raises:
            UnsupportedTypeError: the column is not of tensors.
            OptionError: images are smaller than the parts.
        """
        assert isinstance(self.size, tuple)
        place, images = _tensors(rows, self.column, "RandomCrop")
        pad, (height, width) = self.padding, self.size
        room = [side + 2 * pad - part for side, part in zip(images.shape[-2:], self.size, strict=True)]
        if min(room) < 0:
            given = " x ".join(map(str, images.shape[-2:]))
            raise OptionError(
                f"RandomCrop(size={self.size}): column {self.column!r} holds images of {given} pixels (height x "
                "width): expected parts that are not larger, or more padding."
            )
        tops, lefts = (rng.integers(0, left + 1).tolist() for left in room)
        made = np.empty((*images.shape[:-2], height, width), images.dtype)
        for row, (top, left) in enumerate(zip(tops, lefts, strict=True)):  # a slice for each is faster than a gather
            image = np.pad(images[row], [(0, 0)] * (images.ndim - 3) + [(pad, pad)] * 2) if pad else images[row]
            made[row] = image[..., top : top + height, left : left + width]
        return _with_tensors(rows, place, made)


@dataclass(frozen=True)
class GaussianNoise:
    """Adds noise of the normal distribution to columns of numbers, lists of one length, or tensors; picklable.

    Whole numbers are rounded, and stay within what their type holds, as pixels from 0 to 255 do.

    Args:
        columns: their names.
        scale: the standard deviation, above 0.

    Raises:
        OptionError: an argument is not one of the above.
    """

    columns: str | Sequence[str]
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names("GaussianNoise", self.columns))
        whole = isinstance(self.scale, (int, float)) and not isinstance(self.scale, bool)
        if not (whole and 0 < self.scale < float("inf")):
            raise OptionError(f"GaussianNoise(scale={shown(self.scale)}): expected a number above 0.")

    def __call__(self, rows: pa.RecordBatch, rng: RowGenerator) -> pa.RecordBatch:
        """The rows with noise; nulls stay nulls.

        Raises:
            UnsupportedTypeError: a column is not of numbers.
        """
        for number, name in enumerate(self.columns):
            place = place_of(rows, name, "GaussianNoise")
            column, drawn = rows.column(place), rng.of_function(number)
            values = _numbers(column, name)
            made = np.empty_like(values)
            step = max(1, _VALUES // max(1, values[:1].size))
            for first in range(0, len(values), step):
                part = slice(first, first + step)
                noise = drawn.take(part).normal(scale=self.scale, shape=values.shape[1:])
                made[part] = _within(values[part] + noise, values.dtype)
            rows = replaced(rows, place, name, _like(column, made))
        return rows


@dataclass(frozen=True)
class ColumnDropout:
    """Leaves out some values of columns, each with the same probability; picklable.

    Args:
        columns: their names.
        p: how probable it is for each value, from 0 to 1.
        value: what takes its place; None: a null.

    Raises:
        OptionError: an argument is not one of the above.
    """

    columns: str | Sequence[str]
    p: float = 0.1
    value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names("ColumnDropout", self.columns))
        _check_share("ColumnDropout", self.p)

    def __call__(self, rows: pa.RecordBatch, rng: RowGenerator) -> pa.RecordBatch:
        """The rows without these values.

        Raises:
            OptionError: a column cannot hold the value.
        """
        dropped = rng.random(len(self.columns)) < self.p
        for number, name in enumerate(self.columns):
            place = place_of(rows, name, "ColumnDropout")
            made = self._dropped(rows.column(place), as_arrow(np.ascontiguousarray(dropped[:, number])), name)
            rows = replaced(rows, place, name, made)
        return rows

    def _dropped(self, column: pa.Array, dropped: pa.Array, name: str) -> pa.Array:
        if isinstance(column.type, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(column.type, self._dropped(column.storage, dropped, name))
        if pt.is_dictionary(column.type):
            return self._dropped(column.cast(column.type.value_type), dropped, name).cast(column.type)
        try:
            return pc.if_else(dropped, pa.scalar(self.value, column.type), column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
            raise OptionError(
                f"ColumnDropout(value={shown(self.value)}): column {name!r} holds {column.type}, which cannot hold it."
            ) from error


def _names(who: str, columns: Any) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Sequence) else (columns,)
    if not names:
        raise OptionError(f"{who}(columns={shown(columns)}): expected the name of a column, or a list of names.")
    for name in names:
        check_column(name, who)
    return names


def _check_share(who: str, p: Any) -> None:
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise OptionError(f"{who}(p={shown(p)}): expected a probability from 0 to 1.")


def _tensors(rows: pa.RecordBatch, name: str, who: str) -> tuple[int, Array]:
    """The index of a column of tensors, and these as an array `[rows, ..., H, W]`, with anything for nulls."""
    place = place_of(rows, name, who)
    column = rows.column(place)
    if not isinstance(column.type, pa.FixedShapeTensorType) or len(column.type.shape) < 2:
        raise UnsupportedTypeError(
            f"{who}: column {name!r} holds {column.type}: expected tensors of height and width, such as DecodeImages "
            "makes: put it before this one."
        )
    if column.type.permutation not in (None, [*range(len(column.type.shape))]):
        raise UnsupportedTypeError(f"{who}: column {name!r} holds tensors whose axes are stored in another order.")
    return place, _numbers(column, name)


def _with_tensors(rows: pa.RecordBatch, place: int, made: Array) -> pa.RecordBatch:
    column = rows.column(place)
    kind = pa.fixed_shape_tensor(column.type.value_type, made.shape[1:], dim_names=column.type.dim_names)
    return replaced(rows, place, rows.schema.names[place], _like(column, made, kind))


def _numbers(column: pa.Array, name: str) -> Array:
    """The numbers of a column, `[rows, *shape]`, with anything for nulls."""
    kind = column.type
    shape: tuple[int, ...] = ()
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, column = tuple(kind.shape), column.storage
    elif pt.is_fixed_size_list(kind):
        shape = (kind.list_size,)
    if shape:
        size = int(np.prod(shape))
        column = column.values.slice(column.offset * size, len(column) * size)
    if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        raise UnsupportedTypeError(f"column {name!r} holds {kind}: expected numbers, lists of one length, or tensors.")
    dtype = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros((0, *shape), dtype)
    values: Array = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return values.reshape(-1, *shape)


def _like(column: pa.Array, made: Array, kind: pa.DataType | None = None) -> pa.Array:
    """Numbers as a column of the same type, or of that tensor type, with the same nulls."""
    kind = column.type if kind is None else kind
    missing = column.is_null() if column.null_count else None
    flat = pa.array(made.reshape(-1))
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if not pt.is_fixed_size_list(storage):
        return pa.array(made, mask=None if missing is None else missing.to_numpy(zero_copy_only=False))
    rows = pa.FixedSizeListArray.from_arrays(flat, type=storage, mask=missing)
    return pa.ExtensionArray.from_storage(kind, rows) if isinstance(kind, pa.BaseExtensionType) else rows


def _within(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values as this dtype: whole numbers rounded to the nearest, and within what it holds."""
    if dtype.kind == "f":
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    # The largest of 64 bits is no float.
    most = float(limits.max) if int(float(limits.max)) == limits.max else np.nextafter(float(limits.max), 0)
    return np.clip(np.rint(values), limits.min, most).astype(dtype)
