"""The kinds of columns that transforms tell apart; without pyarrow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What a column holds, whatever its width, unit or encoding.

    Attributes:
        values: "number", "text", "bytes", "date", "time", "timestamp" or "zoned"; "other" if it is none of them.
        nested: "list" or "fixed" (lists of one size) if it holds lists of such values; "" if it does not.
    """

    values: str
    nested: str = ""

    @property
    def text(self) -> str:
        """In one word."""
        return f"{self.nested} of {self.values}" if self.nested else self.values


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column that was fitted.

    Attributes:
        text: the type that stands for all of its kind, as Arrow writes it, such as "int64" or "list<item: string>".
        kind: of the column.
        zone: the zone of its instants, if they have one.
    """

    text: str
    kind: ColumnKind
    zone: str | None = None

    @property
    def values(self) -> str:
        """The type of its values: in lists, of their elements."""
        return self.text.partition("<item: ")[2].rpartition(">")[0] if self.kind.nested else self.text

    @property
    def size(self) -> int | None:
        """The number of values of each list, if all have the same."""
        return int(self.text.rpartition("[")[2].removesuffix("]")) if self.kind.nested == "fixed" else None
