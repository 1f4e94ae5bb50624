"""The file formats, found by name, suffix or first bytes; each is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Format, Reader

__all__ = ["FORMATS", "Format", "FormatEntry", "Reader", "checked_options", "format_named"]


@dataclass(frozen=True)
class FormatEntry:
    """How files of a format are recognised.

    Attributes:
        name: as `format=` spells it; the module of this name in this package holds it as `FORMAT`.
        suffixes: in lower case.
        magic: the first bytes of each such file, or b"" where there are none.
    """

    name: str
    suffixes: tuple[str, ...]
    magic: bytes = b""


FORMATS = {
    entry.name: entry
    for entry in (FormatEntry("parquet", (".parquet", ".parq", ".pq"), b"PAR1"),)
}  # fmt: skip


def format_named(name: str) -> Format:
    """The format called `name`.

    Raises:
        OptionError: there is none; lists those there are.
    """
    if name not in FORMATS:
        raise OptionError(f"format={name!r}: expected one of {', '.join(map(repr, FORMATS))}.")
    found: Format = import_module(f"{__name__}.{name}").FORMAT
    return found


def checked_options(form: Format, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """All options of the format: its defaults and what was given over them.

    Raises:
        OptionError: an option that the format does not take, or of another type than its default.
    """
    for name, value in (given or {}).items():
        if name not in form.options:
            raise OptionError(f"format_options={{{name!r}: ...}}: {form.name} takes {', '.join(form.options)}.")
        if type(value) is not type(form.options[name]):
            kind = type(form.options[name]).__name__
            raise OptionError(f"format_options={{{name!r}: {value!r}}}: expected a {kind}.")
    return {**form.options, **(given or {})}
