"""What `Preprocess.to_module` can compute, of which arrays, and these arrays of rows; without torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.preprocess.columns import plain_values, value_type
from torch_dataloader_utils.preprocess.fitted import FittedOutput
from torch_dataloader_utils.preprocess.forms import given_arrays, is_one_row, record_batch
from torch_dataloader_utils.preprocess.numbers import numbers_of
from torch_dataloader_utils.preprocess.target import TargetEncode
from torch_dataloader_utils.preprocess.transforms import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Robust,
    Standardize,
)
from torch_dataloader_utils.schemas.value_hashes import array_hashes

InputKind: TypeAlias = Literal["number", "int", "hash", "time"]

DTYPES: Mapping[InputKind, str] = {"number": "float64", "int": "int64", "hash": "int64", "time": "int64"}
_COMPUTED = (
    Standardize, MinMax, Robust, Log1p, Clip, Impute, Bucketize, Categorize, Hash, Cross, DateParts, TargetEncode,
)  # fmt: skip
_UTC = ("UTC", "Etc/UTC", "+00:00")


def mask_of(column: str) -> str:
    """The name of the bools that say where a column is missing."""
    return f"{column}_missing"


def chosen_of(outputs: Sequence[FittedOutput], chosen: Collection[str] | None) -> list[FittedOutput]:
    """The outputs that are chosen; of None, all but kept columns.

    Raises:
        OptionError: a name is none of an output, or there is nothing to compute.
    """
    names = [name for each in outputs for name in each.names]
    if isinstance(chosen, str) or any(name not in names for name in chosen or ()):
        raise OptionError(f"outputs={chosen!r}: expected a list of some of {names}.")
    made = [each for each in outputs if _is_chosen(each, chosen)]
    if not made:
        raise OptionError(f"outputs={chosen!r}: there is nothing to compute: expected some of {names}.")
    return made


def _is_chosen(each: FittedOutput, chosen: Collection[str] | None) -> bool:
    return not isinstance(each.last, Keep) if chosen is None else any(n in chosen for n in each.names)


def check_exported(outputs: Sequence[FittedOutput]) -> None:
    """Check that a module can compute these outputs.

    Raises:
        UnsupportedTypeError: it cannot compute one of them; names it and the remedy.
    """
    refusals = [_refusal(each) or _refused_vocabulary(each) for each in outputs]
    computed = [name for each, no in zip(outputs, refusals, strict=True) if not no for name in each.names]
    others = f", and the others by to_module(outputs={computed})" if computed else ""
    for each, refusal in zip(outputs, refusals, strict=True):
        if refusal:
            raise UnsupportedTypeError(
                f"output {each.output.name!r}, made by {each.last!r}: a module {refusal}. Compute it by the Preprocess "
                f"itself{others}."
            )


def _refusal(each: FittedOutput) -> str:
    """Why no module computes an output; empty if one does."""
    kind, last = each.kinds[0], each.last
    if isinstance(last, Keep):
        return "takes no part in what is kept"
    for link in each.output.chain:
        if type(link) not in _COMPUTED:
            return f"has no formula for {type(link).__name__}"
    if any(kind.nested for kind in each.kinds):
        return "takes no lists"
    if not last.ends and kind.values != "number":
        return f"holds no {kind.values}"
    if isinstance(last, DateParts):
        zone = last.zone or each.types[0].zone
        return "" if zone is None or zone in _UTC else f"knows no zone such as {zone}"
    return ""


def _refused_vocabulary(each: FittedOutput) -> str:
    """Why the hashes of a vocabulary do not stand for its values; empty if they do, or there is none."""
    if "vocabulary" not in each.fitted[-1]:
        return ""
    values = each.fitted[-1]["vocabulary"].array
    if pa.types.is_uint64(values.type) and len(values) and max(values.to_pylist()) >= 2**63:
        return "takes int64, but values of the vocabulary are larger"
    if len(np.unique(array_hashes(values, floats=True))) < len(values):
        return "looks values up by their hashes, and two of the vocabulary have the same"
    return ""


def inputs_of(outputs: Sequence[FittedOutput]) -> dict[str, InputKind]:
    """What is given of each column: numbers, whole numbers, hashes or times.

    Raises:
        OptionError: a column is called as another's bools of what is missing.
        UnsupportedTypeError: one column is needed in two forms.
    """
    found: dict[str, InputKind] = {}
    for each in outputs:
        for column, type_ in zip(each.output.columns, each.types, strict=True):
            kind = _kind(each, type_.kind.values, type_.text)
            before = found.setdefault(column, kind)
            if {before, kind} == {"hash", "time"}:
                raise UnsupportedTypeError(
                    f"column {column!r}: DateParts takes its times, and another output its hashes: make two modules, "
                    "by to_module(outputs=[...])."
                )
            if kind == "int":  # numbers are made of ints, but not the other way
                found[column] = kind
    masks = {mask_of(column): column for column, kind in found.items() if kind in ("int", "time")}
    taken = sorted(masks.keys() & found.keys())
    if taken:
        raise OptionError(
            f"to_module: {taken} are columns, and also what says where {[masks[name] for name in taken]} are missing: "
            "make two modules, by to_module(outputs=[...])."
        )
    return found


def _kind(each: FittedOutput, values: str, type_: str) -> InputKind:
    if isinstance(each.last, DateParts):
        return "time"
    if values != "number":
        return "hash"
    return "int" if type_ in ("int64", "bool") and not each.output.numeric else "number"


def arrays_of(outputs: Sequence[FittedOutput], rows: Any) -> dict[str, npt.NDArray[Any]]:
    """What a module of these outputs is given for rows, by name; shape [rows] each.

    Raises:
        ColumnNotFoundError: columns are missing; it names all of them.
        UnsupportedTypeError: a column holds what it did not when it was fitted, or a number that is no int64.
    """
    kinds = inputs_of(outputs)
    one = is_one_row(outputs, rows) is not False  # as `Preprocess.__call__` has it
    batch = record_batch(outputs, {name: [value] for name, value in rows.items()} if one else rows)
    made: dict[str, npt.NDArray[Any]] = {}
    for each, arrays in zip(outputs, given_arrays(outputs, batch), strict=True):
        for column, array in zip(each.output.columns, arrays, strict=True):
            if column not in made:
                made |= _given(column, kinds[column], plain_values(array))
            if kinds[column] == "number" and not each.output.numeric:
                _check_exact(column, array, made[column])
    return made


def _check_exact(column: str, array: pa.Array, numbers: npt.NDArray[Any]) -> None:
    """Check that whole numbers of which ids are made, given where floats were fitted, are exact as float64."""
    if not pa.types.is_floating(value_type(array.type)) and (np.abs(numbers) >= 2.0**53).any():
        raise UnsupportedTypeError(
            f"column {column!r} holds {array.type} of 2**53 or more, but was fitted as floats, which a module is "
            "given: fit it on integers."
        )


def _given(column: str, kind: InputKind, array: pa.Array) -> dict[str, npt.NDArray[Any]]:
    if kind == "hash":
        return {column: array_hashes(array).view(np.int64)}
    if kind == "number":
        numbers = numbers_of(array).values.astype(np.float64)
        numbers[~np.asarray(array.is_valid())] = np.nan
        return {column: numbers}
    try:
        whole = array.cast(pa.timestamp("us")) if kind == "time" else array
        ints = whole.cast(pa.int64()).fill_null(0)
    except pa.ArrowInvalid as error:
        unit = "microseconds" if kind == "time" else "whole numbers"
        raise UnsupportedTypeError(f"column {column!r}: a module takes {unit} as int64: {error}") from error
    return {column: ints.to_numpy().copy(), mask_of(column): ~np.asarray(array.is_valid())}
