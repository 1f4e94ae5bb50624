"""The output dtype of columns of numbers, as requested by `dtypes=`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.elements import Element
from torch_dataloader_utils.errors import Example, OptionError
from torch_dataloader_utils.options.by_column import DTYPES, Leaves, leaves
from torch_dataloader_utils.printing import shown

Dtype: TypeAlias = "np.dtype[Any]"

_FLOATS = ("float16", "float32", "float64")
_KINDS = {
    "decimal": pt.is_decimal,
    "date": pt.is_date,
    "time": pt.is_time,
    "timestamp": pt.is_timestamp,
    "duration": pt.is_duration,
}


@dataclass(frozen=True, slots=True)
class Casts:
    """The dtypes that `dtypes=` requests.

    Attributes:
        named: by column, pattern or kind of type.
        types: for all other columns, their dtype without a cast -> dtype.
    """

    named: Leaves
    types: Mapping[Dtype, Dtype]

    def of(self, key: str, element: Element) -> tuple[Dtype | None, bool]:
        """The dtype requested for a column, or None; and whether its name is given.

        Dates and times are not numbers: they are cast only by name.
        """
        words = words_of(element) if self.named.given else ()
        name, dtype = self.named.of(key, words) or (None, self.types.get(element.dtype))
        return (None if name != key and pt.is_temporal(element.type) else dtype), name == key


def words_of(element: Element | None) -> tuple[str, ...]:
    """The words for the type of a column of numbers, or of lists of them, in a dict by column."""
    if element is None:
        return ()
    words = _kinds_of(element.type)
    return words if pt.is_temporal(element.type) else (*words, element.dtype_name)


@lru_cache(maxsize=256)  # many columns are of few types
def _kinds_of(type_: pa.DataType) -> tuple[str, ...]:
    return tuple(word for word, is_kind in _KINDS.items() if is_kind(type_))


def casts_of(given: Any, keys: Collection[str], stack: Mapping[str, Sequence[str]] | None) -> Casts:
    """The casts that `dtypes=` requests: one dtype for all floats, or a dict of column, stack, pattern or type.

    Raises:
        OptionError: a key is none of these, or a value is not a dtype.
    """
    if given is None:
        return Casts(Leaves({}, keys), {})
    if not isinstance(given, Mapping):
        return Casts(Leaves({}, keys), dict.fromkeys(map(np.dtype, _FLOATS), _float_dtype(given)))
    stacked: dict[str, Dtype] = {}
    named: dict[str, Dtype] = {}
    types: dict[Dtype, Dtype] = {}
    for name, asked in given.items():
        dtype = numpy_dtype(asked, f"dtypes={{{shown(name)}: {shown(asked)}}}")
        if isinstance(name, str) and name not in keys and name in (stack or {}):
            stacked |= dict.fromkeys((stack or {})[name], dtype)
        elif isinstance(name, str) and (name in keys or name.removeprefix("torch.") not in DTYPES):
            named[name] = dtype
        else:
            types[numpy_dtype(name, f"dtypes={{{shown(name)}: ...}}", ", or a column")] = dtype
    return Casts(leaves("dtypes", stacked | named, keys), types)


def with_cast(given: Any, **named: str) -> Example:
    """What to give as `dtypes=` instead of `given` to cast these columns or stacks, too."""
    others = given if isinstance(given, Mapping) else {} if given is None else dict.fromkeys(_FLOATS, given)
    text = ", ".join([*(["..."] if others else []), *(f"{name!r}: {dtype!r}" for name, dtype in named.items())])
    return Example(f"{{{text}}}", {**others, **named})


def _float_dtype(given: Any) -> Dtype:
    dtype = numpy_dtype(given, f"dtypes={shown(given)}", ", or a dict of column or type -> dtype")
    if dtype.kind != "f":
        raise OptionError(
            f"dtypes={shown(given)}: one dtype is for all columns of floats: expected one of {', '.join(_FLOATS)}. "
            f"Name the columns to cast to {dtype}, such as dtypes={{'column': '{dtype}'}}."
        )
    return dtype


def _plain_name(given: Any) -> str:
    try:
        return str(given).removeprefix("torch.")
    except Exception:  # noqa: BLE001 (whatever a foreign __str__ raises)
        return ""


def numpy_dtype(given: Any, where: str, others: str = "") -> Dtype:
    """The numpy dtype for a numpy dtype, its name or type, or a torch dtype (without importing torch).

    Args:
        given: any of these.
        where: the option that holds it, for errors.
        others: a phrase for what else the option accepts.

    Raises:
        OptionError: it is none of these, or numpy has no such dtype (bfloat16).
    """
    name = _plain_name(given)
    if name not in DTYPES:
        try:
            # "float" and "int" have 64 bits in numpy, but 32 in torch.
            name = "" if given is None or name in ("float", "int") else str(np.dtype(given))
        except Exception:  # noqa: BLE001 (numpy looks at any object, and parses any text)
            name = ""
    if name not in DTYPES:
        raise OptionError(
            f"{where}: expected one of {', '.join(DTYPES)}, by name or as the dtype of numpy or torch{others}."
        )
    return np.dtype(name)
