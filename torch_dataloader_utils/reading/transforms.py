"""Calls the user's transform on Arrow record batches, and checks what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_dataloader_utils.convert.converter import compact
from torch_dataloader_utils.errors import (
    DataLoaderUtilsError,
    Example,
    FileReadError,
    SchemaMismatchError,
    UnsupportedTypeError,
    use,
)
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.options.transform import DeclaredTransform, Transform
from torch_dataloader_utils.reading.dictionaries import without_large_dictionaries
from torch_dataloader_utils.reading.transform_formats import FormattedTransform, no_rows
from torch_dataloader_utils.schemas.merge import kept_schema

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.scan import ScanSpec


def transformed(table: pa.Table, spec: ScanSpec, where: str) -> pa.Table:
    """The scan's transform applied to these rows; `where` names them in errors. It is not called if there are no rows.

    Raises:
        UnsupportedTypeError: it did not return a record batch.
        SchemaMismatchError: the result's schema is not the expected one, or its number of rows is wrong.
    """
    recorder().enter("transform")
    assert spec.transform is not None
    if not table.num_rows:  # the filter kept none: there is nothing to do, and not every transform can handle 0 rows
        return pa.Table.from_batches([no_rows(spec.output_schema)])
    batch = compact(without_large_dictionaries(table, spec.encoded))
    try:
        result = spec.transform(batch)
        check_transformed(batch, result, spec.transform_rows, spec.transform)
        _check_schema(result.schema, spec.output_schema)
    except DataLoaderUtilsError as error:  # the reader adds the note to other errors, which are the transform's own
        if type(error) is FileReadError:  # of a file within the data, such as an image
            raise FileReadError(f"{where}: {error}") from error.__cause__
        error.add_note(f"while transforming {where}")
        raise
    return pa.Table.from_arrays(result.columns, schema=spec.output_schema)


def _check_schema(returned: pa.Schema, expected: pa.Schema) -> None:
    """Check names and types, but not nullability; in a worker, the expected schema is an unpickled copy."""
    if returned.equals(expected):
        return
    if returned.names == expected.names:
        kept = zip(kept_schema(returned), kept_schema(expected), strict=True)
        pairs = [pair for pair in kept if not pair[0].type.equals(pair[1].type)]
        if not pairs:
            return
        got, wanted = (", ".join(f"{item.name}: {item.type}" for item in fields) for fields in zip(*pairs, strict=True))
    else:
        got, wanted = str(returned.names), str(expected.names)
    raise SchemaMismatchError(
        f"transform returned the columns {got} where its call on 0 rows (or Transform(schema=)) said {wanted}. Columns "
        "and types must not depend on the rows: give arrays a dtype, or pass Transform(schema=)."
    )


def check_transformed(given: pa.RecordBatch, result: object, rows: str, transform: Callable[..., Any]) -> None:
    """Check what a transform returned.

    Raises:
        UnsupportedTypeError: the result is not a record batch.
        SchemaMismatchError: the number of rows differs, and `rows` is "same".
    """
    if not isinstance(result, pa.RecordBatch):
        raise UnsupportedTypeError(f"transform returned {type(result).__name__}: expected a pyarrow.RecordBatch.")
    if rows == "same" and result.num_rows != given.num_rows:
        raise SchemaMismatchError(
            f"transform returned {result.num_rows} rows for {given.num_rows}. If filters= cannot leave rows out:",
            remedies=[use("row counts are then unknown before reading", transform=_of_any_rows(transform))],
        )


def _of_any_rows(transform: Any) -> Example:
    """What to give as `transform=`, so that it may change the number of rows."""
    form: Any = "arrow"
    if isinstance(transform, FormattedTransform):
        transform, form = transform.transform, transform.format
    function = list(transform.functions) if isinstance(transform, Chained) else transform
    made = Transform(function, rows="any", format=form)
    own = getattr(function, "__name__", "")
    name = own if own.isidentifier() else "f"  # "<lambda>" is no code
    return Example(made.text(lambda field, item: name if field == "function" else repr(item)), made)


@dataclass(frozen=True)
class Chained:
    """Functions of rows, called one after another; picklable if they are.

    Attributes:
        functions: each gets what the one before it returned.
    """

    functions: tuple[Callable[[Any], Any], ...]

    def __call__(self, rows: Any) -> Any:
        """The result of the last function."""
        return reduce(lambda found, function: function(found), self.functions, rows)


def functions_of(transform: Any) -> tuple[Any, ...]:
    """The user's functions that a transform calls, in order."""
    inner = transform.transform if isinstance(transform, FormattedTransform) else transform
    return inner.functions if isinstance(inner, Chained) else () if inner is None else (inner,)


def declared(transform: Any) -> DeclaredTransform | None:
    """The first function of a transform, if it declares which columns it reads."""
    first = next(iter(functions_of(transform)), None)
    return first if isinstance(first, DeclaredTransform) else None


def made_by(transform: Any) -> Sequence[str]:
    """The columns that a transform of record batches declares to be made of new memory."""
    last = next(reversed(functions_of(transform)), None)
    if isinstance(transform, FormattedTransform) or not isinstance(last, DeclaredTransform):
        return ()
    return last.made


def prepare(transform: Any) -> None:
    """Let the functions of a transform make what all worker processes share."""
    for each in functions_of(transform):
        if isinstance(each, DeclaredTransform):
            each.prepare()


def marks_of(transform: Any) -> str:
    """What states and ranks compare of a transform; "" if it declares nothing."""
    return " ".join(each.mark for each in functions_of(transform) if isinstance(each, DeclaredTransform))
