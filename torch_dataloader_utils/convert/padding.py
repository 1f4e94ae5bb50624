"""What fills lists up to the length of the longest: `pad_values` and `pad_multiple`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.convert.leaves import ListLeaf
from torch_dataloader_utils.convert.plan import ColumnPlan, fits
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import PadOptions


def with_padding(plans: Sequence[ColumnPlan], options: PadOptions) -> tuple[ColumnPlan, ...]:
    """The plans, in which padded lists have the padding that the options request.

    Raises:
        OptionError: `pad_values` names another column, or a value does not fit its column.
    """
    values = options.pad_values or {}
    padded = [plan.key for plan in plans if _is_padded(plan)]
    check_padded_names(values, padded)
    return tuple(
        replace(plan, leaf=replace(plan.leaf, layout=_padding(plan.key, plan.leaf, options)))
        if isinstance(plan.leaf, ListLeaf) and plan.key in padded
        else plan
        for plan in plans
    )


def check_padded_names(values: Mapping[str, Any], padded: Collection[str]) -> None:
    """Raise an OptionError if `pad_values` names a column that is not padded."""
    unknown = [name for name in values if name not in padded]
    if unknown:
        raise OptionError(f"pad_values names {unknown[0]!r}: expected one of the columns {list(padded)}.")


def pad_value(key: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as a scalar of the column's dtype.

    Raises:
        OptionError: it is not a number that fits.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    number = isinstance(plain, (int, float)) and (dtype.kind == "b" or not isinstance(plain, bool))
    if not number or not fits(plain, dtype):
        raise OptionError(f"pad_values={{{key!r}: {value!r}}}: expected a number that fits {dtype}.")
    return dtype.type(plain)


def _is_padded(plan: ColumnPlan) -> bool:
    return isinstance(plan.leaf, ListLeaf) and isinstance(plan.leaf.layout, Padding)


def _padding(key: str, leaf: ListLeaf, options: PadOptions) -> Padding:
    value = (options.pad_values or {}).get(key, 0)
    return Padding(pad_value(key, value, leaf.element.dtype), options.pad_multiple)
