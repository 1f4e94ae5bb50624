"""A fitted `Preprocess` applied to rows in any form, which comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_dataloader_utils.errors import ColumnNotFoundError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.preprocess.spec import without_places
from torch_dataloader_utils.preprocess.transforms import Categorize, Keep
from torch_dataloader_utils.printing import listed, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.fitted import FittedOutput
    from torch_dataloader_utils.preprocess.kinds import ColumnType


def applied_to(outputs: Sequence[FittedOutput], rows: pa.RecordBatch) -> pa.RecordBatch:
    """What becomes of the rows of a record batch.

    Raises:
        ColumnNotFoundError: columns are missing; it names all of them. Kept ones may be.
        UnsupportedTypeError: a column holds what it did not when it was fitted.
    """
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.chains import made_of, schema_of
    from torch_dataloader_utils.preprocess.columns import with_fields

    rows = with_fields(rows, sorted(_columns(outputs)))
    there = present(outputs, rows.schema.names)
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for each, given in zip(there, given_arrays(there, rows), strict=True):
        fields += schema_of(each, [array.type for array in given])
        arrays += made_of(each, given)
    if not fields:
        return rows.select([])
    schema = pa.schema(fields)
    arrays = [a if a.type.equals(f.type) else a.cast(f.type) for a, f in zip(arrays, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def present(outputs: Sequence[FittedOutput], names: Sequence[str]) -> list[FittedOutput]:
    """The outputs that can be made of columns of these names: all but kept columns that are absent.

    Raises:
        ColumnNotFoundError: columns are missing; it names all of them.
        SchemaMismatchError: a column is there twice.
        OptionError: folds are decided by rows' places, and these have none.
    """
    found = [each for each in outputs if not _is_kept(each) or each.output.columns[0] in names]
    needed = _columns(found)
    missing = sorted(needed - set(names))
    if PLACE in missing:
        raise without_places([each.output for each in found])
    if missing:
        raise ColumnNotFoundError(
            f"no columns {missing}, which this Preprocess was fitted on: there are {listed(names, show=repr)}."
        )
    twice = sorted(name for name in needed if list(names).count(name) > 1)
    if twice:
        raise SchemaMismatchError(f"the columns {twice} are there twice: rename or drop one of each.")
    return found


def given_arrays(outputs: Sequence[FittedOutput], rows: pa.RecordBatch) -> Iterator[list[pa.Array]]:
    """The arrays of the columns that each output is made of; those without any value have the type that was fitted.

    Raises:
        UnsupportedTypeError: a column holds what it did not when it was fitted.
    """
    for each in outputs:
        inputs = [(name, each.inputs.get(name), rows.column(name)) for name in each.reads]
        # Places have one type, whatever was fitted.
        yield [array if type_ is None else _given_array(each, name, type_, array) for name, type_, array in inputs]


def _given_array(each: FittedOutput, name: str, type_: ColumnType, array: pa.Array) -> pa.Array:
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.columns import kind_of, type_named, value_type
    from torch_dataloader_utils.schemas.merge import plain_type

    if pa.types.is_null(value_type(array.type)) and kind_of(array.type).nested in ("", type_.kind.nested):
        return array.cast(type_named(type_.text))
    if _is_kept(each):
        return array
    kind, size = kind_of(array.type), getattr(plain_type(array.type, extensions=True), "list_size", None)
    if kind == type_.kind and size == type_.size:
        return array
    if kind.values == type_.kind.values and kind.nested and type_.kind.nested:
        made = _in_lists_of(array, type_.size)
        if made is not None:
            return made
    raise other_kind(name, array.type, type_)


def other_kind(name: str, found: pa.DataType, fitted: ColumnType) -> UnsupportedTypeError:
    """The error for a column that holds what it did not when it was fitted."""
    from torch_dataloader_utils.preprocess.columns import kind_of

    return UnsupportedTypeError(
        f"column {name!r} holds {kind_of(found).text} ({found}), but this Preprocess was fitted on {fitted.kind.text} "
        f"({fitted.text}). Cast one of them, or fit it again."
    )


def _in_lists_of(array: pa.Array, size: int | None) -> pa.Array | None:
    """Lists as lists of one size, or of any (None); None if they have another size."""
    import pyarrow as pa

    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    values = array.type.value_type
    try:
        return array.cast(pa.list_(values) if size is None else pa.list_(values, size))
    except pa.ArrowInvalid:
        return None


def counts_of_ids(link: Categorize, made: pa.Array) -> tuple[int, int, int]:
    """How many ids there are, and how many of missing and of unknown values."""
    from torch_dataloader_utils.preprocess.columns import elements

    ids = elements(made)[0].to_numpy()
    first = np.count_nonzero(ids <= link.unknown_ids)
    missing = np.count_nonzero(ids == 0)
    return len(ids), int(missing), int(first - missing)


def is_one_row(outputs: Sequence[FittedOutput], rows: Any) -> bool | None:
    """Whether rows are a dict of one row's values, rather than one of columns; None for one that may be both."""
    if type(rows) is not dict and not isinstance(rows, Mapping):
        return False
    for each in outputs:
        for name, type_ in zip(each.output.columns, each.types, strict=True):
            if name in rows:
                found = _is_value(rows[name], nested=type_.kind.nested != "")
                if found is not None:
                    return found
    return None


def _is_value(given: Any, *, nested: bool) -> bool | None:
    """Whether this is what a column holds in one row, rather than the column; None if it may be both."""
    if not nested:
        return not _has_items(given)
    if not _has_items(given):
        return True if given is not None else None
    if getattr(given, "ndim", 1) > 1:
        return False
    items = [item for item in given if item is not None]
    return None if not items else not _has_items(items[0])


def _has_items(value: Any) -> bool:
    """Whether it is a list, an array or alike."""
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not hasattr(value, "__len__"):
        return False
    return bool(getattr(value, "ndim", 1))  # an array may be a scalar


def in_form(outputs: Sequence[FittedOutput], rows: Any) -> Any:
    """What becomes of rows in one of the forms of `Preprocess.__call__`, but for one row; the same form comes back."""
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.columns import with_fields

    if isinstance(rows, pa.RecordBatch):
        return applied_to(outputs, rows)
    if isinstance(rows, pa.Table):
        rows = with_fields(rows, sorted(_columns(outputs)))
        return pa.Table.from_batches([applied_to(outputs, record_batch(outputs, rows))])
    there = present(outputs, _names_of(rows))
    computed = [each for each in there if not _is_kept(each)]
    made = applied_to(computed, record_batch(computed, rows))
    # Columns that are kept come back as they were given: Arrow may have no type for them.
    kept = {each.output.name: each.output.columns[0] for each in there if _is_kept(each)}
    order = [name for each in there for name in each.names]
    if _library(rows) == "pandas":
        return _as_pandas(made, kept, order, rows)
    if _library(rows) == "polars":
        return _as_polars(made, kept, order, rows)
    like = {name: rows[each.output.columns[0]] for each in computed for name in each.names}
    return {name: rows[kept[name]] if name in kept else _as(like[name], made.column(name)) for name in order}


def record_batch(outputs: Sequence[FittedOutput], rows: Any) -> pa.RecordBatch:
    """Rows in one of the forms of `Preprocess.__call__`, but for one row, as a record batch of the columns used.

    Raises:
        ColumnNotFoundError: columns are missing; it names all of them. Kept ones may be.
        UnsupportedTypeError: they are in another form, or a column holds what has no type.
        SchemaMismatchError: columns have different numbers of values.
    """
    import pyarrow as pa

    names = _names_of(rows)
    needed = _columns(present(outputs, names))
    if isinstance(rows, pa.RecordBatch):
        return rows
    arrays = {name: _array(name, rows[name]) for name in names if name in needed}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatchError(f"the columns have different numbers of values: {lengths}.")
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _names_of(rows: Any) -> list[Any]:
    """The names of the columns of rows.

    Raises:
        UnsupportedTypeError: they are in none of the forms of `Preprocess.__call__`.
    """
    import pyarrow as pa

    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return list(rows.schema.names)
    if isinstance(rows, Mapping):
        return list(rows)
    if _library(rows) in ("pandas", "polars") and type(rows).__name__ == "DataFrame":
        return list(rows.columns)
    raise UnsupportedTypeError(
        f"rows are a {type(rows).__name__}: expected a pyarrow RecordBatch or Table, a pandas or polars DataFrame, "
        "or a dict of columns or of one row's values."
    )


def _array(name: str, values: Any) -> pa.Array:
    """A column in any form as an Arrow array.

    Raises:
        UnsupportedTypeError: Arrow has no type for it.
    """
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.columns import whole

    if not isinstance(values, (pa.Array, pa.ChunkedArray)) and not _has_items(values):
        raise UnsupportedTypeError(
            f"column {name!r} is {shown(values)}: expected a list or an array, as other columns have. One row has a "
            "value for each column."
        )
    try:
        return whole(_arrow(values))
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise UnsupportedTypeError(f"column {name!r}: {shown(values)} is not a column of values: {error}") from error


def _arrow(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if hasattr(values, "to_arrow"):  # of polars
        return values.to_arrow()
    if _library(values) == "torch":
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    if isinstance(values, np.ndarray):
        values = values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
        if values.ndim == 2 and values.shape[1]:
            flat = pa.array(values.reshape(-1), from_pandas=True)
            return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        values = list(values) if values.ndim > 1 else values
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:  # whole numbers above those of int64
        return pa.array(values, pa.uint64(), from_pandas=True)


def _as_pandas(made: pa.RecordBatch, kept: Mapping[str, str], order: Sequence[str], rows: Any) -> Any:
    frame = made.to_pandas() if made.num_columns else rows.iloc[:, :0].copy()
    frame.index = rows.index
    for place, name in enumerate(order):
        if name in kept:
            frame.insert(place, name, rows[kept[name]].copy())
    return frame


def _as_polars(made: pa.RecordBatch, kept: Mapping[str, str], order: Sequence[str], rows: Any) -> Any:
    import polars as pl

    return pl.DataFrame(
        [rows[kept[name]].alias(name) if name in kept else pl.Series(name, made.column(name)) for name in order]
    )


def _as(given: Any, made: pa.Array) -> Any:
    """An output in the form in which its column was given: a list, or an array or tensor of its own memory."""
    import pyarrow as pa

    if _library(given) == "torch":
        import torch

        return torch.from_numpy(_as_numpy(made)).to(given.device)
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        return made
    return _as_numpy(made) if hasattr(given, "__array__") else made.to_pylist()


def _as_numpy(column: pa.Array) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        return _as_numpy(column.flatten()).reshape(len(column), column.type.list_size)
    return column.to_numpy(zero_copy_only=False, writable=True)


def _is_kept(each: FittedOutput) -> bool:
    return isinstance(each.last, Keep)


def _columns(outputs: Sequence[FittedOutput]) -> set[str]:
    return {name for each in outputs for name in each.reads}


def _library(rows: Any) -> str:
    return type(rows).__module__.partition(".")[0]
