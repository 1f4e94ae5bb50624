"""Rows for which a transform fails: found by halving what it was given, and what takes their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import (
    ColumnNotFoundError,
    MissingExtraError,
    OptionError,
    RowErrors,
    SchemaMismatchError,
    UnknownOptionError,
    UnsupportedTypeError,
)
from torch_dataloader_utils.reading.transform_formats import exactly
from torch_dataloader_utils.redaction import printable

Numbers: TypeAlias = npt.NDArray[np.int64]
Call: TypeAlias = Callable[[Numbers], pa.RecordBatch]  # the transform's result for some of the rows

_LONGEST = 1000  # characters of an error
# Of how a transform is made or called: with these, no row is to blame.
_NOT_OF_ROWS = (
    ColumnNotFoundError,
    MissingExtraError,
    OptionError,
    SchemaMismatchError,
    UnknownOptionError,
    UnsupportedTypeError,
    MemoryError,
)


def is_of_rows(error: BaseException) -> bool:
    """Whether an error of a transform may be that of some of its rows."""
    return isinstance(error, Exception) and not isinstance(error, _NOT_OF_ROWS)


class TransformFailed(Exception):
    """Carries an error of the user's function out of what else may fail beside it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class ErrorText(NamedTuple):
    """An error as text, without secrets."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> ErrorText:
        """The name of its class, and its message."""
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - of any class
            text = "an error without a text"
        return cls(type(error).__name__, printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."))


@dataclass(frozen=True)
class Skipping:
    """What becomes of rows for which a transform fails, if that is no error; picklable.

    Attributes:
        most: the most of them in a pass: a share of its rows, as a float, or a number.
        fills: for some columns, what a failed row holds: an array of one row.
        keeps: whether a failed row keeps its place, because rows are delivered by number; otherwise it is left out.
    """

    most: float
    fills: Mapping[str, pa.Array] = field(default_factory=dict, compare=False)
    keeps: bool = False


def survivors(
    rows: int, call: Call, error: Exception, *, knows: bool
) -> tuple[list[pa.RecordBatch], dict[int, ErrorText]]:
    """What a transform makes of rows for which it failed together, called again for parts of them.

    Args:
        rows: their number.
        call: the transform's result for some of them.
        error: of the call for all of them.
        knows: whether the rows of a `RowErrors` are these; not if a function before has changed the number of rows.

    Returns:
        Its results, in the order of the rows; and the errors of those that fail alone, by their numbers.

    Raises:
        TransformFailed: it raised an error that is not of rows.
    """
    results: list[pa.RecordBatch] = []
    errors, waiting = _parted(np.arange(rows), error, knows)
    while waiting:
        numbers = waiting.pop()
        try:
            results.append(call(numbers))
        except TransformFailed as again:
            if not is_of_rows(again.error):
                raise
            bad, parts = _parted(numbers, again.error, knows)
            errors |= bad
            waiting += parts
    return results, dict(sorted(errors.items()))


def _parted(numbers: Numbers, error: Exception, knows: bool) -> tuple[dict[int, ErrorText], list[Numbers]]:
    """The errors of those of these rows that are known to have failed; and the others in parts, the first one last."""
    if isinstance(error, RowErrors) and knows and max(error.errors) < len(numbers):
        rest = np.delete(numbers, list(error.errors))
        bad = {int(numbers[row]): ErrorText.of(each) for row, each in error.errors.items()}
        return bad, [rest] if len(rest) else []
    if len(numbers) == 1:
        return {int(numbers[0]): ErrorText.of(error)}, []
    half = len(numbers) // 2
    return {}, [numbers[half:], numbers[:half]]


def first_failing(rows: int, call: Call) -> int | None:
    """The first of so many rows for which a transform fails alone; None if it fails for none any more."""
    first, end = 0, rows
    while end - first > 1:
        middle = (first + end) // 2
        if _fails(call, np.arange(first, middle)):
            end = middle
        else:
            first = middle
    return first if _fails(call, np.arange(first, end)) else None


def _fails(call: Call, numbers: Numbers) -> bool:
    try:
        call(numbers)
    except TransformFailed:
        return True
    return False


def with_stand_ins(
    good: pa.Table,
    numbers: Numbers,
    rows: int,
    fills: Mapping[str, pa.Array],
    another: Callable[[], pa.Table | None] = lambda: None,
) -> pa.Table | None:
    """All rows, each failed one as a copy of the nearest good one before it, else after; None if there is none to copy.

    Args:
        good: the good rows.
        numbers: of these rows, ascending, int64.
        rows: the number of all rows.
        fills: what failed rows hold instead in some columns.
        another: finds a good row beside them, if none of them is.
    """
    if not len(numbers) and not fills.keys() >= set(good.schema.names):
        found = another()
        if found is None:
            return None
        good = found
    nearest = np.maximum(np.searchsorted(numbers, np.arange(rows), side="right") - 1, 0)
    filled = np.full(rows, good.num_rows)
    filled[numbers] = np.arange(len(numbers))
    columns = [
        _of_slices(pa.chunked_array([*column.chunks, fills[name]], column.type), filled)
        if name in fills
        else _of_slices(column, nearest)
        for name, column in zip(good.schema.names, good.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=good.schema)


def _of_slices(column: pa.ChunkedArray, places: Numbers) -> pa.ChunkedArray:
    """The rows at these places, which mostly follow one another: slices, because a take of tensors costs much more."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    parts = [column.slice(int(places[first]), last - first) for first, last in pairwise(cuts)]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], column.type)


def fills_of(schema: pa.Schema, value: Any) -> dict[str, pa.Array]:
    """What failed rows hold, by column: an array of one row for each column that is filled.

    Args:
        schema: of the columns that the transform returns.
        value: that of a `Fill`: a dict by column, or a value for each column that can hold it.

    Raises:
        OptionError: there is no such column, or it cannot hold its value.
    """
    if not isinstance(value, Mapping):
        made = {item.name: _filled(item.type, value) for item in schema}
        found = {name: array for name, array in made.items() if array is not None}
        if not found:
            raise OptionError(f"Transform: on_error=Fill({value!r}): no column of {schema.names} can hold it.")
        return found
    fills = {}
    for name, one in value.items():
        if name not in schema.names:
            raise OptionError(f"Transform: on_error=Fill: no column {name!r}: the transform returns {schema.names}.")
        array = _filled(schema.field(name).type, one)
        if array is None:
            kind = schema.field(name).type
            raise OptionError(f"Transform: on_error=Fill: column {name!r} holds {kind}, and no {one!r}.")
        fills[name] = array
    return fills


def _filled(kind: pa.DataType, value: Any) -> pa.Array | None:
    """An array of one row with this value, in each place of a row of one shape; None if the type cannot hold it."""
    if isinstance(kind, pa.BaseExtensionType):
        rows = _filled(kind.storage_type, value)
        return None if rows is None else pa.ExtensionArray.from_storage(kind, rows)
    if pa.types.is_fixed_size_list(kind) and not isinstance(value, (list, tuple)):
        inner = _filled(kind.value_type, value)
        if inner is None:
            return None
        return pa.FixedSizeListArray.from_arrays(inner.take(pa.array(np.zeros(kind.list_size, np.int64))), type=kind)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(value, bool) != pa.types.is_boolean(plain) and not isinstance(value, (list, tuple, dict)):
        return None  # Arrow would take True for 1
    try:
        made = exactly([value], plain)
        return made.cast(kind) if plain is not kind else made
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError):
        return None
