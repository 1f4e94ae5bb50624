"""Text for people: tables for terminals and notebooks, amounts in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, TypeAlias

# A cell is left-aligned text, or a number, right-aligned; None is a number that is not known.
Cell: TypeAlias = "str | int | None"
Row: TypeAlias = Sequence[Cell]

_LONGEST = 1000  # characters of a value in an error
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
# No colour of its own but this grey, which shows on white and on black.
_LINE = "border-bottom:1px solid rgba(128,128,128,.4)"
_CELL = f"padding:.2em .9em .2em 0;vertical-align:top;background:none;{_LINE}"
_FIRST = "white-space:nowrap;"


def shown(value: object) -> str:
    """A value given by the user, for an error: its repr, shortened; of a value that cannot be shown, its type."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (whatever a foreign __repr__ raises)
        return f"<{type(value).__name__}, which cannot be shown>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(items: Iterable[Any], most: int = 16, show: Callable[[Any], str] = str) -> str:
    """Items one after another, the first `most` of them: "a, b and 3 more"."""
    texts = list(map(show, items))
    return ", ".join(texts[:most]) + (f" and {len(texts) - most:,} more" if len(texts) > most else "")


def in_bytes(size: int) -> str:
    """A number of bytes in words, such as "12.3 MiB"."""
    amount, place = float(size), 0
    while amount >= 1024 and place < len(_UNITS) - 1:
        amount, place = amount / 1024, place + 1
    return f"{size} bytes" if not place else f"{amount:.1f} {_UNITS[place]}"


def plural(number: int, noun: str) -> str:
    """A number of things in words, such as "1 split" or "2,000 splits"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def damage_in_words(files: int, rows: int) -> str:
    """How much is damaged, such as "2 damaged files with at least 20 rows"; 0 rows are not mentioned."""
    return plural(files, "damaged file") + (f" with at least {plural(rows, 'row')}" if rows else "")


def shortened(text: str, width: int) -> str:
    """The text, its middle left out where it is longer than `width`."""
    half = (width - 3) // 2
    return text if len(text) <= width else f"{text[: width - 3 - half]}...{text[len(text) - half :]}"


def text_table(header: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The lines of a table, columns aligned."""
    texts = [list(header), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = _numeric(header, rows)
    return ["  ".join(map(_aligned, line, widths, right)).rstrip() for line in texts]


def html_table(header: Sequence[str], rows: Sequence[Row]) -> str:
    """The table as HTML that takes the colours of its page, light or dark; without a header line if all are empty."""
    right = _numeric(header, rows)
    lines = [_html_row("th", header, right)] if any(header) else []
    lines += [_html_row("td", [_text(cell) for cell in row], right) for row in rows]
    return f'<table style="border-collapse:collapse;margin:.4em 0">{"".join(lines)}</table>'


def _text(cell: Cell) -> str:
    if cell is None:
        return "unknown"
    return cell if isinstance(cell, str) else f"{cell:,}"


def _numeric(header: Sequence[str], rows: Sequence[Row]) -> list[bool]:
    """Which columns hold numbers."""
    return [any(isinstance(row[place], int) for row in rows) for place in range(len(header))]


def _aligned(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _html_row(tag: str, texts: Sequence[str], right: Sequence[bool]) -> str:
    cells = (
        f'<{tag} style="{"" if place else _FIRST}text-align:{"right" if number else "left"};{_CELL}">'
        f"{escape(text)}</{tag}>"
        for place, (text, number) in enumerate(zip(texts, right, strict=True))
    )
    return f"<tr>{''.join(cells)}</tr>"
