"""The scan of an update: it counts further rows, and goes on from what was counted of those before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError
from torch_dataloader_utils.preprocess.columns import kind_of, type_named, types_by_name, value_type
from torch_dataloader_utils.preprocess.counted import as_given, known_of
from torch_dataloader_utils.preprocess.fit_state import FitState
from torch_dataloader_utils.preprocess.fitted import FittedOutput
from torch_dataloader_utils.preprocess.forms import other_kind
from torch_dataloader_utils.preprocess.refinement import Accuracy
from torch_dataloader_utils.preprocess.scan import FitScan, Learning


def update_scan(
    outputs: Sequence[FittedOutput],
    state: FitState,
    schema: pa.Schema,
    *,
    update: Literal[True, "ids"],
    memory: int,
    accuracy: Accuracy,
    mark: str,
    recalls: bool = True,
) -> FitScan:
    """The scan of further rows.

    Args:
        outputs: as they were fitted.
        state: what was counted for them.
        schema: of the rows.
        update: "ids" if only vocabularies grow.
        memory: bytes of values that each output counts in memory.
        accuracy: which quantiles would take another scan, of all rows.
        mark: of the fit that is updated.
        recalls: whether the scan counts the rows before, too; of ranks that share it, one does.

    Raises:
        OptionError: what was counted is not enough.
        SavedPreprocessError: it was saved, and its file is missing or damaged.
        ColumnNotFoundError: columns are missing; it names all of them.
        UnsupportedTypeError: a column holds what it did not when it was fitted.
    """
    counted = state.read(whole=recalls)
    several = [
        (given := as_given(each), known_of(each, given, own, numbers_stay=update == "ids"))
        for each, own in zip(outputs, counted, strict=True)
    ]
    read = {name for output, known in several if known.counted is not None for name in output.columns}
    found = types_by_name(schema, sorted(read))
    if missing := sorted(read - set(found)):
        raise ColumnNotFoundError(
            f"no columns {missing}, which this Preprocess was fitted on: the columns are {schema.names}."
        )
    learning = [
        Learning(output, [] if known.counted is None else _types(known.fitted, found), memory, accuracy, known)
        for output, known in several
    ]
    scan = FitScan(learning, f"{mark} {update}")
    if recalls:
        scan.recall()
    return scan


def _types(each: FittedOutput, found: Mapping[str, pa.DataType]) -> list[pa.DataType]:
    """The types of an output's columns now; of those in which all is null, as they were fitted."""
    made = []
    for name, fitted in zip(each.output.columns, each.types, strict=True):
        type_, kind = found[name], kind_of(found[name])
        if pa.types.is_null(value_type(type_)):
            type_ = type_named(fitted.text)
        elif kind.values != fitted.kind.values or bool(kind.nested) != bool(fitted.kind.nested):
            raise other_kind(name, type_, fitted)
        made.append(type_)
    return made
