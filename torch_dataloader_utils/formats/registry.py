"""The file formats, found by name, suffix or first bytes; each is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Format, Reader

__all__ = [
    "COMPRESSIONS",
    "FILE_FORMATS",
    "FORMATS",
    "MAGIC_BYTES",
    "Format",
    "FormatEntry",
    "Reader",
    "checked_options",
    "format_by_magic",
    "format_named",
    "format_of",
]

_PACKAGE = "torch_dataloader_utils"


@dataclass(frozen=True)
class FormatEntry:
    """How files of a format are recognised.

    Attributes:
        name: as `format=` spells it.
        module: the module of this package that holds it as `FORMAT`.
        suffixes: in lower case.
        magic: what such files begin with: one of these, where there are any.
        text: whether it is text, which may be compressed.
        aliases: other names that `format=` takes.
    """

    name: str
    module: str
    suffixes: tuple[str, ...]
    magic: tuple[bytes, ...] = ()
    text: bool = False
    aliases: tuple[str, ...] = ()


FORMATS = {
    entry.name: entry
    for entry in (
        FormatEntry("parquet", "formats.parquet", (".parquet", ".parq", ".pq"), (b"PAR1", b"PARE")),
        FormatEntry("orc", "formats.orc", (".orc",), (b"ORC",)),
        FormatEntry("csv", "formats.text.csv", (".csv", ".tsv"), text=True, aliases=("tsv",)),
        FormatEntry("jsonl", "formats.text.jsonl", (".jsonl", ".ndjson", ".jl"), text=True, aliases=("ndjson",)),
        FormatEntry("json", "formats.text.json", (".json",), text=True),
        FormatEntry(
            "ipc",
            "formats.ipc",
            (".arrow", ".feather", ".ipc", ".arrows"),
            (b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"),
            aliases=("arrow", "feather"),
        ),
        FormatEntry("iceberg", "iceberg.data_files", ()),
    )
}
# What files in a folder can be.
FILE_FORMATS = tuple(entry for entry in FORMATS.values() if entry.suffixes)

MAGIC_BYTES = max(len(magic) for entry in FORMATS.values() for magic in entry.magic)

# Suffixes of compressed text, each with the codec's name in pyarrow.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def format_named(name: str) -> Format:
    """The format called `name`.

    Raises:
        OptionError: there is none; lists those there are.
    """
    entry = next((entry for entry in FORMATS.values() if name in (entry.name, *entry.aliases)), None)
    if entry is None:
        raise OptionError(f"format={name!r}: expected one of {', '.join(repr(entry.name) for entry in FILE_FORMATS)}.")
    found: Format = import_module(f"{_PACKAGE}.{entry.module}").FORMAT
    return found


def format_of(path: str) -> str | None:
    """The name of the format that the path's suffix tells, or None; text may have a suffix of compression behind it."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(path.partition("?")[0]).suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    suffix = suffixes[-1 - compressed] if len(suffixes) > compressed else ""
    found = (entry.name for entry in FORMATS.values() if suffix in entry.suffixes and (entry.text or not compressed))
    return next(found, None)


def format_by_magic(start: bytes) -> str | None:
    """The name of the format whose files begin so, or None."""
    return next((entry.name for entry in FORMATS.values() if start.startswith(entry.magic)), None)


def checked_options(form: Format, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """All options of the format: its defaults and what was given over them.

    Raises:
        OptionError: an option that the format does not take, or of another type than its default (None: of any).
    """
    for name, value in (given or {}).items():
        if name not in form.options:
            raise OptionError(f"format_options={{{name!r}: ...}}: {form.name} takes {', '.join(form.options)}.")
        if form.options[name] is not None and type(value) is not type(form.options[name]):
            kind = type(form.options[name]).__name__
            raise OptionError(f"format_options={{{name!r}: {value!r}}}: expected a {kind}.")
    return {**form.options, **(given or {})}
