"""A fitted `Preprocess` applied to rows in any form, which comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_dataloader_utils.errors import ColumnNotFoundError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.preprocess.transforms import Categorize, Keep
from torch_dataloader_utils.printing import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.fitted import FittedOutput


def applied_to(outputs: Sequence[FittedOutput], rows: pa.RecordBatch) -> pa.RecordBatch:
    """What becomes of the rows of a record batch.

    Raises:
        ColumnNotFoundError: columns are missing; it names all of them. Kept ones may be.
        UnsupportedTypeError: a column holds what it did not when it was fitted.
    """
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.chains import made_of, schema_of
    from torch_dataloader_utils.preprocess.columns import kind_of, plain_type, type_named

    names = rows.schema.names
    present = [each for each in outputs if not isinstance(each.last, Keep) or each.output.columns[0] in names]
    missing = sorted({name for each in present for name in each.output.columns} - set(names))
    if missing:
        raise ColumnNotFoundError(f"no columns {missing}, which this Preprocess was fitted on: there are {names}.")
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for each in present:
        given = []
        for name, type_ in zip(each.output.columns, each.types, strict=True):
            array = rows.column(names.index(name))
            if pa.types.is_null(plain_type(array.type)):
                array = pa.nulls(len(array), type_named(type_.text))
            elif kind_of(array.type) != type_.kind and not isinstance(each.last, Keep):
                raise UnsupportedTypeError(
                    f"column {name!r} holds {kind_of(array.type).text} ({array.type}), but this Preprocess was fitted "
                    f"on {type_.kind.text} ({type_.text}). Cast one of them, or fit it again."
                )
            given.append(array)
        fields += schema_of(each, [array.type for array in given])
        arrays += made_of(each, given)
    schema = pa.schema(fields)
    arrays = [a if a.type.equals(f.type) else a.cast(f.type) for a, f in zip(arrays, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def counts_of_ids(link: Categorize, made: pa.Array) -> tuple[int, int, int]:
    """How many ids there are, and how many of missing and of unknown values."""
    from torch_dataloader_utils.preprocess.columns import elements

    ids = elements(made)[0].to_numpy()
    first = np.count_nonzero(ids <= link.unknown_ids)
    missing = np.count_nonzero(ids == 0)
    return len(ids), int(missing), int(first - missing)


def is_one_row(outputs: Sequence[FittedOutput], rows: Any) -> bool:
    """Whether rows are a dict of one row's values, rather than one of columns."""
    if type(rows) is not dict and not isinstance(rows, Mapping):
        return False
    for each in outputs:
        for name, kind in zip(each.output.columns, each.kinds, strict=True):
            if name not in rows:
                continue
            value = rows[name]
            if not kind.nested:
                return not _is_column(value)
            if value is not None and len(value):
                return not _is_column(value[0])
    return True


def _is_column(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and (hasattr(value, "__len__") or bool(getattr(value, "ndim", 0)))


def in_form(outputs: Sequence[FittedOutput], rows: Any) -> Any:
    """What becomes of rows in one of the forms of `Preprocess.__call__`, but for one row; the same form comes back."""
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return applied_to(outputs, rows)
    if isinstance(rows, pa.Table):
        return pa.Table.from_batches([applied_to(outputs, whole_batch(rows))])
    module = type(rows).__module__.partition(".")[0]
    if module == "pandas" and hasattr(rows, "columns"):
        made = applied_to(outputs, pa.RecordBatch.from_pandas(_needed(outputs, rows), preserve_index=False)).to_pandas()
        made.index = rows.index
        return made
    if module == "polars" and hasattr(rows, "to_arrow"):
        import polars as pl

        return pl.from_arrow(pa.Table.from_batches([applied_to(outputs, whole_batch(rows.to_arrow()))]))
    if isinstance(rows, Mapping):
        return _of_columns(outputs, rows)
    raise UnsupportedTypeError(
        f"rows are a {type(rows).__name__}: expected a pyarrow RecordBatch or Table, a pandas or polars DataFrame, "
        "or a dict of columns or of one row's values."
    )


def whole_batch(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table as one record batch."""
    import pyarrow as pa

    from torch_dataloader_utils.preprocess.scan import whole

    return pa.RecordBatch.from_arrays(
        [whole(column) for column in table.columns], schema=None, names=table.column_names
    )


def _needed(outputs: Sequence[FittedOutput], frame: Any) -> Any:
    """The columns of a pandas DataFrame that are used: others may hold what Arrow cannot."""
    names = {name for each in outputs for name in each.output.columns}
    return frame[[name for name in frame.columns if name in names]]


def _of_columns(outputs: Sequence[FittedOutput], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Of a dict of arrays or lists; arrays come back where arrays were given, else lists."""
    import pyarrow as pa

    types = {name: type_ for each in outputs for name, type_ in zip(each.output.columns, each.types, strict=True)}
    arrays: dict[str, pa.Array] = {}
    of_numpy = False
    for name, values in rows.items():
        if name not in types:
            continue
        if hasattr(values, "__array__"):
            of_numpy = True
            values = np.asarray(values)
            values = list(values) if values.ndim > 1 else values
        try:
            arrays[name] = values if isinstance(values, pa.Array) else pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UnsupportedTypeError(f"column {name!r}: {shown(values)} is no column of values: {error}") from error
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = {name: len(array) for name, array in arrays.items()}
        raise SchemaMismatchError(f"the columns have different numbers of values: {lengths}.")
    made = applied_to(outputs, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)))
    return {
        name: _as_numpy(column) if of_numpy else column.to_pylist()
        for name, column in zip(made.schema.names, made.columns, strict=True)
    }


def _as_numpy(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False)
