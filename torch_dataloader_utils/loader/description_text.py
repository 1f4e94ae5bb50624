"""Renders sections of facts as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from torch_dataloader_utils.printing import Row, html_table, shortened, text_table
from torch_dataloader_utils.redaction import printable

_WIDTH = 96  # characters per line
_CELL_WIDTH = 44
_WARNING = "border-left:3px solid #d9822b;padding:.1em 0 .1em .7em;margin:.4em 0"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, each with a text."""

    title: str
    items: Sequence[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.items)

    def lines(self) -> list[str]:
        """The facts as lines of text."""
        width = max(len(name) for name, _ in self.items)
        return [line for name, text in self.items for line in _hanging(name.ljust(width + 2), text)]

    def html(self) -> str:
        """The facts as an HTML table."""
        return html_table(("", ""), self.items)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a header."""

    title: str
    header: Sequence[str]
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def lines(self) -> list[str]:
        """The table as lines of text."""
        rows = [[shortened(cell, _CELL_WIDTH) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        return [f"  {line}" for line in text_table(self.header, rows)]

    def html(self) -> str:
        """The table as HTML."""
        return html_table(self.header, self.rows)


@dataclass(frozen=True, slots=True)
class Sentences:
    """A list of sentences."""

    title: str
    items: Sequence[str]

    def __len__(self) -> int:
        return len(self.items)

    def lines(self) -> list[str]:
        """The sentences as lines of text, each with a bullet."""
        return [line for text in self.items for line in _hanging("- ", text)]

    def html(self) -> str:
        """The sentences as HTML, each a paragraph with a mark at its side."""
        return "".join(f'<div style="{_WARNING}">{escape(text)}</div>' for text in self.items)


Section: TypeAlias = "Facts | Table | Sentences"


def text_of(sections: Sequence[Section]) -> str:
    """The sections as text, one below another."""
    parts = ["\n".join([*([section.title] if section.title else []), *section.lines()]) for section in sections]
    return printable("\n\n".join(parts))


def html_of(sections: Sequence[Section]) -> str:
    """The sections as HTML, with colours that are readable on a dark background, too."""
    parts = [
        (f'<div style="font-weight:600;margin-top:.7em">{escape(section.title)}</div>' if section.title else "")
        + section.html()
        for section in sections
    ]
    return printable(f"<div>{''.join(parts)}</div>")


def _hanging(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"  {start}", subsequent_indent=" " * (len(start) + 2))
