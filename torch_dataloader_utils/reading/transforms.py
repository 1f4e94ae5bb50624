"""Calls the user's transform on Arrow record batches, and checks what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_dataloader_utils.convert.converter import compact
from torch_dataloader_utils.errors import Example, SchemaMismatchError, UnsupportedTypeError, use
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.options.transform import PLACE, DeclaredTransform, Transform
from torch_dataloader_utils.reading.decoding import joined
from torch_dataloader_utils.reading.dictionaries import without_large_dictionaries
from torch_dataloader_utils.reading.draws import DRAW
from torch_dataloader_utils.reading.failures import ErrorText, Numbers, TransformFailed, is_of_rows, survivors
from torch_dataloader_utils.reading.row_generator import RowGenerator
from torch_dataloader_utils.reading.transform_formats import FormattedTransform, no_rows
from torch_dataloader_utils.schemas.merge import kept_schema

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.scan import ScanSpec


class TransformCall:
    """The scan's transform, and rows of a table: it is called for all of them, or for some.

    Args:
        table: the rows, with the hidden columns that the scan reads.
        spec: of the scan.
    """

    def __init__(self, table: pa.Table, spec: ScanSpec) -> None:
        self._spec = spec
        self._rng = None if spec.draws is None else RowGenerator(table.column(DRAW).to_numpy())
        hidden = [name for name in spec.hidden if name in table.column_names]
        self._rows = compact(table.drop_columns(hidden) if hidden else table)

    def __call__(self, numbers: Numbers | None = None) -> pa.RecordBatch:
        """Its result for the rows with these numbers, int64; None for all.

        Raises:
            TransformFailed: it raised an error, or did not return a record batch of the expected schema and rows.
        """
        spec, rows, rng = self._spec, self._rows, self._rng
        assert spec.transform is not None
        if numbers is not None:
            rows = compact(self._some(numbers))
            rng = None if rng is None else rng.take(numbers)
        try:
            result = spec.transform(rows) if rng is None else spec.transform(rows, rng)
            check_transformed(rows, result, spec.transform_rows, spec.transform)
            _check_schema(result.schema, spec.output_schema)
        except Exception as error:
            raise TransformFailed(error) from error
        return result

    def _some(self, numbers: Numbers) -> pa.Table:
        first, last = int(numbers[0]), int(numbers[-1]) + 1
        rows = pa.Table.from_batches([self._rows])
        return rows.slice(first, last - first) if last - first == len(numbers) else rows.take(as_arrow(numbers))

    @property
    def knows_rows(self) -> bool:
        """Whether the rows of a `RowErrors` are those that the transform was given."""
        return self._spec.transform_rows == "same" or len(functions_of(self._spec.transform)) == 1


def transformed(table: pa.Table, spec: ScanSpec) -> tuple[pa.Table, dict[int, ErrorText]]:
    """What the scan's transform makes of these rows, without those for which it failed; and these, by their numbers.

    It is not called if there are no rows.

    Raises:
        TransformFailed: as of a `TransformCall`, and the scan does not skip such rows.
    """
    recorder().enter("transform")
    if not table.num_rows:  # the filter kept none: there is nothing to do, and not every transform can handle 0 rows
        return pa.Table.from_batches([no_rows(spec.output_schema)]), {}
    call = TransformCall(without_large_dictionaries(table, spec.encoded), spec)
    errors: dict[int, ErrorText] = {}
    try:
        results = [call()]
    except TransformFailed as failed:
        if spec.skipping is None or not is_of_rows(failed.error):
            raise
        results, errors = survivors(table.num_rows, call, failed.error, knows=call.knows_rows)
    made = [
        pa.Table.from_arrays(result.columns, schema=spec.output_schema)
        for result in results or [no_rows(spec.output_schema)]
    ]
    return joined(made), errors


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
        "and types must not depend on the rows: give arrays a dtype and, also for 0 rows, their shape (as by "
        "reshape(-1, length)), or pass Transform(schema=)."
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
        of_any = _of_any_rows(transform)
        raise SchemaMismatchError(
            f"transform returned {result.num_rows} rows for {given.num_rows}. If filters= cannot leave rows out:",
            remedies=[] if of_any is None else [use("row counts are then unknown before reading", transform=of_any)],
        )


def _of_any_rows(transform: Any) -> Example | None:
    """What to give as `transform=`, so that it may change the number of rows; None if it may not, because it draws."""
    form: Any = "arrow"
    if isinstance(transform, FormattedTransform):
        transform, form = transform.transform, transform.format
    if isinstance(transform, Chained) and any(transform.draws):
        return None
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
        draws: which of them also get a generator, of their own, if rows come with one.
    """

    functions: tuple[Callable[..., Any], ...]
    draws: tuple[bool, ...] = ()

    def __call__(self, rows: Any, rng: RowGenerator | None = None) -> Any:
        """The result of the last function."""
        for place, function in enumerate(self.functions):
            if rng is None or not self.draws[place]:
                rows = function(rows)
            else:
                rows = function(rows, rng.of_function(place))
        return rows


def functions_of(transform: Any) -> tuple[Any, ...]:
    """The user's functions that a transform calls, in order."""
    inner = transform.transform if isinstance(transform, FormattedTransform) else transform
    return inner.functions if isinstance(inner, Chained) else () if inner is None else (inner,)


def declared(transform: Any) -> DeclaredTransform | None:
    """The first function of a transform, if it declares which columns it reads."""
    first = next(iter(functions_of(transform)), None)
    return first if isinstance(first, DeclaredTransform) else None


def reads_place(transform: Any) -> bool:
    """Whether a transform reads the column of places itself."""
    first = declared(transform)
    return first is not None and PLACE in first.reads


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


def marks_before(transform: Any) -> list[str]:
    """The marks of those that what a transform declares has grown from."""
    several = (each for each in functions_of(transform) if isinstance(each, DeclaredTransform))
    return [mark for each in several for mark in each.grew_from]
