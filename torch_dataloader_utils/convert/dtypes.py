"""The output dtype of columns of numbers, as requested by `dtypes=`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow.types as pt

from torch_dataloader_utils.convert.elements import Element
from torch_dataloader_utils.errors import Example, OptionError
from torch_dataloader_utils.printing import shown

Dtype: TypeAlias = "np.dtype[Any]"

_FLOATS = ("float16", "float32", "float64")
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *_FLOATS)


@dataclass(frozen=True, slots=True)
class Casts:
    """The dtypes that `dtypes=` requests.

    Attributes:
        columns: column -> dtype.
        types: for all other columns, their dtype without a cast -> dtype.
    """

    columns: Mapping[str, Dtype]
    types: Mapping[Dtype, Dtype]

    def of(self, key: str, element: Element) -> Dtype | None:
        """The dtype requested for a column, or None. Dates and times are not numbers: they are cast only by name."""
        if key in self.columns or pt.is_temporal(element.type):
            return self.columns.get(key)
        return self.types.get(element.dtype)


def casts_of(given: Any, keys: Sequence[str], stack: Mapping[str, Sequence[str]] | None) -> Casts:
    """The casts that `dtypes=` requests: one dtype for all floats, or a dict of column, stack or type -> dtype.

    Raises:
        OptionError: a key is none of these, or a value is not a dtype.
    """
    if given is None:
        return Casts({}, {})
    if not isinstance(given, Mapping):
        return Casts({}, dict.fromkeys(map(np.dtype, _FLOATS), _float_dtype(given)))
    columns: dict[str, Dtype] = {}
    stacked: dict[str, Dtype] = {}
    types: dict[Dtype, Dtype] = {}
    for name, asked in given.items():
        dtype = numpy_dtype(asked, f"dtypes={{{shown(name)}: {shown(asked)}}}")
        if isinstance(name, str) and name in keys:
            columns[name] = dtype
        elif isinstance(name, str) and name in (stack or {}):
            stacked |= dict.fromkeys((stack or {})[name], dtype)
        else:
            types[_named_type(name, keys)] = dtype
    return Casts(stacked | columns, types)


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


def _named_type(name: Any, keys: Sequence[str]) -> Dtype:
    """The dtype named by a key of `dtypes=` that is not a column."""
    if not isinstance(name, str):
        return numpy_dtype(name, f"dtypes={{{shown(name)}: ...}}", ", or a column")
    if name.removeprefix("torch.") in _DTYPES:
        return np.dtype(name.removeprefix("torch."))
    raise OptionError(unknown_column("dtypes", name, keys, " or a type, such as 'float64'", _DTYPES))


def unknown_column(option: str, name: str, keys: Sequence[str], others: str = "", words: Sequence[str] = ()) -> str:
    """The error message for an option that names an unknown column.

    Args:
        option: its keyword.
        name: the unknown name.
        keys: the columns.
        others: a phrase for what else it may name.
        words: those other names.
    """
    close = difflib.get_close_matches(name, [*keys, *words], n=2)
    hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
    return f"{option} names {name!r}{hint}: expected one of the columns {list(keys)}{others}."


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
    if name not in _DTYPES:
        try:
            # "float" and "int" have 64 bits in numpy, but 32 in torch.
            name = "" if given is None or name in ("float", "int") else str(np.dtype(given))
        except Exception:  # noqa: BLE001 (numpy looks at any object, and parses any text)
            name = ""
    if name not in _DTYPES:
        raise OptionError(
            f"{where}: expected one of {', '.join(_DTYPES)}, by name or as the dtype of numpy or torch{others}."
        )
    return np.dtype(name)
