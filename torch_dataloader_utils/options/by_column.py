"""Options by column (see `values.ByColumn`): which of the keys of a dict says what a column gets."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch_dataloader_utils.errors import OptionError

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
TYPES = (*DTYPES, "decimal", "date", "time", "timestamp", "duration", "string", "binary")
ALL = "*"


@dataclass(frozen=True, slots=True)
class Leaves:
    """What an option says of each column of a schema.

    Attributes:
        given: by column, pattern or type.
        columns: of the schema.
    """

    given: Mapping[str, Any]
    columns: Collection[str]

    def of(self, column: str, types: Sequence[str] = ()) -> tuple[str, Any] | None:
        """The key that says what a column gets, and what that is; None if no key does.

        A column's own name counts before patterns, of these the longest, and patterns before types.

        Args:
            column: its name.
            types: the words for its type.
        """
        if column in self.given:
            return column, self.given[column]
        patterns = [key for key in self.given if key not in self.columns and (key == ALL or fnmatchcase(column, key))]
        key = min(patterns, key=lambda key: (-len(key), key), default=None)
        if key is None:
            key = next((word for word in types if word in self.given and word not in self.columns), None)
        return None if key is None else (key, self.given[key])


def leaves(option: str, given: Any, columns: Collection[str]) -> Leaves:
    """What an option says of each of these columns: one leaf for all, or a dict by column.

    Raises:
        OptionError: a key is no column and no type, or a pattern that matches none.
    """
    if not isinstance(given, Mapping):
        return Leaves({ALL: given}, columns)
    for key in given:
        is_pattern = bool(set(key) & set("*?["))
        if key in columns or key in TYPES or (is_pattern and any(fnmatchcase(name, key) for name in columns)):
            continue
        close = difflib.get_close_matches(key, [*columns, *TYPES], n=2)
        hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        expected = f"expected one of the columns {list(columns)}, a pattern or a type, such as 'float64'"
        raise OptionError(f"{option} names {key!r}{hint}: {expected}.")
    return Leaves(given, columns)


def with_leaf(given: Any, default: str, column: str, leaf: Any) -> dict[str, Any]:
    """The option by column that says `leaf` of this column, and of the others what `given` says."""
    rest = given if isinstance(given, Mapping) else {} if given == default else {ALL: given}
    return {**rest, column: leaf}


def without_leaf(given: Mapping[str, Any], column: str) -> dict[str, Any]:
    """The option by column that does not name this column."""
    return {key: leaf for key, leaf in given.items() if key != column}
