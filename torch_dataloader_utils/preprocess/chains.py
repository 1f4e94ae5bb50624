"""What a fitted chain makes of whole arrays; its first links, while the others are fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.ids import MISSING, UNKNOWN
from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.kernels.buckets import bucketed
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.preprocess.columns import (
    categories_of,
    elements,
    in_lists,
    naming,
    plain_values,
    scalar_of,
    value_type,
)
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary, id_of, unknown_value, warn_of_infinities
from torch_dataloader_utils.preprocess.hashed import buckets, crossed
from torch_dataloader_utils.preprocess.numbers import numbers_of
from torch_dataloader_utils.preprocess.own import OwnTransform, applied
from torch_dataloader_utils.preprocess.target import TargetEncode
from torch_dataloader_utils.preprocess.transforms import (
    I64,
    PARTS,
    Bucketize,
    Categorize,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Links,
    steps_of,
)
from torch_dataloader_utils.preprocess.zones import offsets
from torch_dataloader_utils.schemas.value_hashes import array_hashes


def filled(links: Links, values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Values of any type with those of `Impute` in place of missing ones, and where an indicator found them missing."""
    missing = None
    for link, fitted in links:
        if not isinstance(link, Impute):
            continue
        values = plain_values(values)
        if link.indicator:
            missing = ~np.asarray(values.is_valid())
        values = pc.fill_null(values, scalar_of(link.fill_of(fitted), values.type)) if values.null_count else values
    return values, missing


def schema_of(each: FittedOutput, types: Sequence[pa.DataType]) -> list[pa.Field]:
    """The fields that an output becomes, of columns of these types; no value is read."""
    last, names, number = each.last, each.names, pa.type_for_alias(each.dtype)
    if isinstance(last, Keep):
        return [pa.field(names[0], types[0])]
    if isinstance(last, DateParts):
        made = [number if last.cyclic else pa.int64()] * len(names)
    elif isinstance(last, Cross):
        made = [pa.int64()]
    elif isinstance(last, TargetEncode):
        made = [number] * len(names)
    elif isinstance(last, OwnTransform):
        given = pa.float64() if each.output.numeric else value_type(types[0])
        return [pa.field(names[0], in_lists(types[0], last.output(given))), *(pa.field(n, number) for n in names[1:])]
    elif last.ends:
        made = [in_lists(types[0], pa.int64()), number]
    elif each.output.numeric:
        made = [in_lists(types[0], number), number]
    else:
        made = [in_lists(types[0], value_type(types[0])), number]
    return [pa.field(name, type_, nullable=False) for name, type_ in zip(names, made, strict=False)]


def made_of(each: FittedOutput, arrays: Sequence[pa.Array]) -> list[pa.Array]:
    """The arrays of an output, of those of its columns.

    Raises:
        UnknownValueError: a value is unknown, and its `Categorize` refuses that.
        UnsupportedTypeError: a value has no id; a value to impute is none of the column's type.
    """
    try:
        return _made_of(each, arrays)
    except (UnsupportedTypeError, OptionError) as error:
        raise UnsupportedTypeError(f"{each.output.where}: {error}") from error


def _made_of(each: FittedOutput, arrays: Sequence[pa.Array]) -> list[pa.Array]:
    last, array = each.last, arrays[0]
    if isinstance(last, Keep):
        return [array]
    if isinstance(last, DateParts):
        return _parts(last, array, last.zone or each.types[0].zone, each.dtype)
    if isinstance(last, Cross):
        return [as_arrow(_crossed(each, last, arrays))]
    if isinstance(last, TargetEncode):
        return _target_encoded(each, last, arrays)
    values, lists = elements(array)
    made, missing = _of_values(each, values)
    return [lists(made), *([] if missing is None else [as_arrow(missing)])]


def _of_values(each: FittedOutput, values: pa.Array) -> tuple[pa.Array, npt.NDArray[Any] | None]:
    """What becomes of values, and where an indicator found them missing."""
    last = each.last
    if not each.output.numeric:
        values, absent = filled(each.links, values)
        missing = None if absent is None else absent.astype(each.dtype)
        return (_ended(each, values) if last.ends else plain_values(values)), missing
    view, steps = numbers_of(values), steps_of(each.links)
    found = np.zeros(len(view), np.uint8) if any(step.indicates for step in steps) else None
    x = np.empty(len(view), np.float64 if last.ends else each.dtype)
    if view.through(steps, x, found) and view.overflow(steps, x):
        warn_of_infinities(each.output.where, str(x.dtype))
    missing = None if found is None else found.astype(each.dtype)
    if isinstance(last, Bucketize):
        return as_arrow(bucketed(x, np.array(last.bounds_of(each.fitted[-1]), np.float64))), missing
    return _ended(each, as_arrow(x)) if last.ends else as_arrow(x), missing


def _ended(each: FittedOutput, values: pa.Array) -> pa.Array:
    """What the last link makes of the values before it: ids, or the places of categories."""
    if isinstance(each.last, OwnTransform):
        return applied(each.last, each.fitted[-1].get("own"), plain_values(values))
    if isinstance(each.last, TargetEncode):
        return as_arrow(each.fitted[-1]["vocabulary"].table.lookup(categories_of(values)))
    return as_arrow(_ids(each, values))


def _target_encoded(each: FittedOutput, last: TargetEncode, arrays: Sequence[pa.Array]) -> list[pa.Array]:
    places, missing = _of_values(each, arrays[0])
    folds = last.folds_of(fold_hashes(last, arrays[1:])) + 1 if each.training else 0
    made = each.encoding[places.to_numpy(), folds]
    return [*(as_arrow(column) for column in made.T.copy()), *([] if missing is None else [as_arrow(missing)])]


def fold_hashes(link: TargetEncode, arrays: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """The hashes that decide the folds of rows: of the keys, or of the places, that these arrays hold.

    Raises:
        UnsupportedTypeError: a key has no hash.
    """
    with naming(f"by={list(link.by or ())}"):
        return arrays[0].to_numpy() if link.by is None else crossed_hashes(arrays)


def _ids(each: FittedOutput, array: pa.Array) -> I64:
    array = categories_of(array)
    if isinstance(each.last, Hash):
        return _hashed(each.last, array)
    assert isinstance(each.last, Categorize)
    return _categories(each, each.last, array)


def _categories(each: FittedOutput, last: Categorize, array: pa.Array) -> I64:
    fitted = each.fitted[-1]
    vocabulary: Vocabulary = fitted["vocabulary"]
    places = vocabulary.table.lookup(array)
    first, null = 1 + last.unknown_ids, fitted.get("null")
    ids: I64 = places + first
    if null is not None:
        ids += places >= null
    ids[places == MISSING] = 0 if null is None else first + null
    unknown = np.flatnonzero(places == UNKNOWN)
    if not len(unknown):
        return ids
    if last.unknown == "error":
        raise unknown_value(each.output.name, array[int(unknown[0])].as_py(), len(vocabulary))
    if last.unknown_ids == 1:
        ids[unknown] = 1
    else:
        ids[unknown] = buckets(_unknown_hashes(array.take(as_arrow(unknown))), last.unknown_ids + 1, 0)
    return ids


def _unknown_hashes(values: pa.Array) -> npt.NDArray[np.uint64]:
    """The hashes of unknown values; floats without one, which are not whole or too large, have that of null."""
    values = plain_values(values)
    if pt.is_floating(values.type):
        numbers = numbers_of(values).all()
        hashed = (np.floor(numbers) == numbers) & (numbers >= -(2.0**63)) & (numbers < 2.0**64)
        values = pc.if_else(as_arrow(hashed), values, pa.scalar(None, values.type))
    return array_hashes(values, floats=True)


def _crossed(each: FittedOutput, last: Cross, arrays: Sequence[pa.Array]) -> I64:
    hashes = crossed_hashes(arrays)
    if isinstance(last.of, Hash):
        ids = buckets(hashes, last.of.n, last.of.seed)
    else:
        ids = _categories(each, last.of, as_arrow(hashes.view(np.int64)))
    ids[all_missing(arrays)] = 0
    return ids


def _parts(last: DateParts, array: pa.Array, zone: str | None, dtype: str) -> list[pa.Array]:
    array = plain_values(array)
    array = array if zone is None else _wall_clock(array, zone)
    made: list[pa.Array] = []
    for part in last.parts:
        numbers = _part(part, array)
        if not last.cyclic:
            made.append(pc.fill_null(pc.add(numbers, id_of(part)), 0))
            continue
        angle = numbers_of(numbers).all()
        least, count = PARTS[part]
        angle -= least
        angle *= 2 * math.pi / count
        made += [as_arrow(function(as_arrow(angle)).to_numpy().astype(dtype)) for function in (pc.sin, pc.cos)]
    return made


def _wall_clock(array: pa.Array, zone: str) -> pa.Array:
    """What clocks in a zone show at instants, as timestamps without a zone."""
    unit = _PER_SECOND[array.type.unit]
    instants = array.cast(pa.timestamp(array.type.unit))
    numbers = np.asarray(pc.fill_null(instants, pa.scalar(0, instants.type)).view(pa.int64()))
    local = as_arrow(numbers + offsets(numbers // unit, zone) * unit).view(instants.type)
    return pc.if_else(array.is_valid(), local, pa.scalar(None, instants.type))


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _part(part: str, array: pa.Array) -> pa.Array:
    """A part of times, int64 with nulls."""
    if pt.is_date(array.type):
        array = array.cast(pa.timestamp("s" if pt.is_date32(array.type) else "ms"))
    if part == "weekday":
        found = pc.day_of_week(array, count_from_zero=False)
    else:
        names: Mapping[str, Callable[[pa.Array], pa.Array]] = {
            "hour": pc.hour,
            "minute": pc.minute,
            "second": pc.second,
            "month": pc.month,
            "day": pc.day,
            "dayofyear": pc.day_of_year,
            "year": pc.year,
        }
        found = names[part](array)
    return found.cast(pa.int64())


def crossed_hashes(arrays: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """The hash of each row's values together; null has its own."""
    return crossed([array_hashes(categories_of(array), floats=True) for array in arrays])


def all_missing(arrays: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """The rows whose values are all missing."""
    missing = np.ones(len(arrays[0]), np.bool_)
    for array in arrays:
        missing &= _missing(array)
    return missing


def _missing(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are null or NaN."""
    if not pt.is_dictionary(array.type) or len(array.dictionary) > len(array):
        return ~np.asarray(plain_values(array).is_valid())
    known: npt.NDArray[np.bool_] = np.append(_missing(array.dictionary), True)
    return known.take(np.asarray(pc.fill_null(array.indices.cast(pa.int64()), len(array.dictionary))))


def _hashed(last: Hash, array: pa.Array) -> I64:
    ids = buckets(array_hashes(array, floats=True), last.n, last.seed)
    if pt.is_floating(value_type(array.type)) or array.null_count or pt.is_dictionary(array.type):
        ids[all_missing([array])] = 0
    return ids
