"""`strings=`: what becomes of text, and of whole numbers that stand for categories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import ByColumn, Value, setting, whole

_int64 = whole(-(2**63))


def _values(name: str, given: Any) -> Any:
    """None, the values of codes, or these by column."""
    if isinstance(given, Mapping):
        if not given or not all(isinstance(key, str) for key in given):
            raise OptionError(f"{name}={shown(given)}: expected a dict of column -> list of values.")
        return {key: _listed(f"{name}[{key!r}]", items) for key, items in given.items()}
    return None if given is None else _listed(name, given)


def _listed(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, bytes, set, frozenset)) or not isinstance(given, Iterable):
        raise OptionError(f"{name}={shown(given)}: expected a list of values.")
    return tuple(given.to_pylist() if hasattr(given, "to_pylist") else given)


def _unknown(name: str, given: Any) -> Any:
    return given if given == "error" else _int64(name, given)


class Codes(Value):
    """Int64 codes instead of values: the place of each value in the vocabulary of its column.

    For all columns, it is for those of strings and bytes; a column of whole numbers has codes if it is named.

    Raises:
        OptionError: a field cannot have this value.
    """

    values: Sequence[Any] | Mapping[str, Sequence[Any]] | None = setting(
        default=None,
        check=_values,
        doc="the vocabulary, in the order of the codes, or a dict by column; None: all values, found by a scan, sorted",
        kw_only=False,
    )
    unknown: Literal["error"] | int = setting(
        default="error",
        check=_unknown,
        doc="the code of values outside the vocabulary; or they raise an UnknownValueError",
    )


Strings: TypeAlias = Literal["list", "bytes", "codes"] | Codes
StringsLike: TypeAlias = Strings | Mapping[str, Strings | Mapping[str, Any]]

check_strings = ByColumn(("list", "bytes", "codes"), Codes)


def codes_in(given: Any) -> dict[str, Codes]:
    """The codes that are asked for, by the key of a dict by column; one for all columns by "*"."""
    by_column = given if isinstance(given, Mapping) else {"*": given}
    return {key: Codes() if leaf == "codes" else leaf for key, leaf in by_column.items() if _is_codes(leaf)}


def _is_codes(leaf: Any) -> bool:
    return leaf == "codes" or isinstance(leaf, Codes)
