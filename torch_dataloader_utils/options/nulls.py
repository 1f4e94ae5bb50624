"""`nulls=`: what becomes of nulls in columns whose output has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import ByColumn, Value, setting


def _filling(name: str, value: Any) -> Any:
    """A value, also as an array; or a dict of these by column."""
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return {key: _as_lists(item) for key, item in value.items()}
    if value is None or isinstance(value, Mapping):
        raise OptionError(f"{name}={shown(value)}: expected a value, or a dict of column -> value.")
    return _as_lists(value)


def _as_lists(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


class Fill(Value):
    """Replaces nulls with a value.

    For all columns, it fills those that can hold the value: a number fills columns of numbers, text those of text. A
    dict of columns, patterns or types fills only these.

    Raises:
        OptionError: it is no value.
    """

    value: Any = setting(
        check=_filling,
        doc="the value; in lists, a number also replaces null elements, a list only null lists; or a dict by column",
        kw_only=False,
    )


Nulls: TypeAlias = Literal["error", "mask", "drop"] | Fill
NullsLike: TypeAlias = Nulls | Mapping[str, Nulls | Mapping[str, Any]]

check_nulls = ByColumn(("error", "mask", "drop"), Fill)


def nulls_text(given: Any) -> str:
    """Which nulls are left out, as a text that does not depend on the order of a dict."""
    if isinstance(given, Mapping):
        return str({key: nulls_text(leaf) for key, leaf in sorted(given.items())})
    return "fill" if isinstance(given, Fill) else str(given)
