"""The file formats, looked up by name, suffix or first bytes; built-in formats are imported on first use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Format

_PACKAGE = "torch_dataloader_utils"

MAGIC_BYTES = 32  # read from a file without a known suffix: no format's magic is longer


@dataclass(frozen=True)
class FormatEntry:
    """How files of a format are recognised.

    Attributes:
        name: its name in `format=`.
        home: the module of this package that defines it as `FORMAT`, or the format itself.
        suffixes: in lower case.
        magic: alternatives for the first bytes of such files; may be empty.
        text: whether it is a text format, whose files may be compressed.
        aliases: other names in `format=`.
    """

    name: str
    home: str | Format
    suffixes: tuple[str, ...]
    magic: tuple[bytes, ...] = ()
    text: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def format(self) -> Format:
        """The format."""
        if isinstance(self.home, Format):
            return self.home
        loaded: Format = import_module(f"{_PACKAGE}.{self.home}").FORMAT
        return loaded


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
    )
}

# Suffixes of compressed text, each with the codec's name in pyarrow.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def register_format(format: Format, *, suffixes: Sequence[str] = (), magic: Sequence[bytes] = ()) -> None:
    """Let `create_dataloader` read files of this format: by its name in `format=`, by suffix or by first bytes.

    Worker processes receive the format with their tasks, so they must be able to import its module. Registering it
    again replaces it.

    Args:
        format: an instance of a subclass of `Format`.
        suffixes: suffixes of its files, such as ".toy".
        magic: alternatives for the first bytes of its files, at most 32 bytes each.

    Raises:
        OptionError: it is not a format, or its name, a suffix or its first bytes belong to another format.
    """
    if not isinstance(format, Format) or not getattr(format, "name", ""):
        raise OptionError(f"register_format({format!r}): expected an object of a subclass of Format, with a name.")
    entry = FormatEntry(format.name, format, tuple(suffix.lower() for suffix in suffixes), tuple(magic))
    _check_entry(entry)
    for other in FORMATS.values():
        _check_apart(entry, other)
    FORMATS[entry.name] = entry


def _check_entry(entry: FormatEntry) -> None:
    for suffix in entry.suffixes:
        if not re.fullmatch(r"\.[^./]+", suffix) or suffix in COMPRESSIONS:
            raise OptionError(f"register_format({entry.name!r}): suffix {suffix!r}: expected one such as '.toy'.")
    for magic in entry.magic:
        if not isinstance(magic, bytes) or not 0 < len(magic) <= MAGIC_BYTES:
            raise OptionError(f"register_format({entry.name!r}): magic {magic!r}: expected 1 to {MAGIC_BYTES} bytes.")


def _check_apart(entry: FormatEntry, other: FormatEntry) -> None:
    """Reject a format that could be confused with another one, unless it is the same format."""
    if entry.name == other.name and _class_of(entry) == _class_of(other):
        return
    shared: dict[str, list[Any]] = {
        "name": [entry.name] if entry.name in (other.name, *other.aliases) else [],
        "suffix": [suffix for suffix in entry.suffixes if suffix in other.suffixes],
        "magic": [a for a in entry.magic if any(a.startswith(b) or b.startswith(a) for b in other.magic)],
    }
    for what, values in shared.items():
        if values:
            raise OptionError(
                f"register_format({entry.name!r}): the {what} {values[0]!r} belongs to the format {other.name!r} "
                f"({_class_of(other)}); use another one."
            )


def _class_of(entry: FormatEntry) -> str:
    """The name of a registered format's class (a notebook cell redefines the class itself), or the built-in module."""
    home = entry.home
    return f"{_PACKAGE}.{home}" if isinstance(home, str) else f"{type(home).__module__}.{type(home).__qualname__}"


def file_formats() -> list[FormatEntry]:
    """The formats that files in a folder can have."""
    return [entry for entry in FORMATS.values() if entry.suffixes or isinstance(entry.home, Format)]


def format_named(name: str) -> Format:
    """The format called `name`.

    Raises:
        OptionError: there is no such format; the message lists the known ones.
    """
    return entry_named(name).format


def entry_named(name: str) -> FormatEntry:
    """How files of the format called `name` are recognised.

    Raises:
        OptionError: there is no such format; the message lists the known ones.
    """
    for entry in FORMATS.values():
        if name in (entry.name, *entry.aliases):
            return entry
    known = ", ".join(repr(entry.name) for entry in file_formats())
    raise OptionError(f"format={name!r}: expected one of {known}; pass your own format to register_format first.")


def format_of(path: str) -> str | None:
    """The name of the format for the path's suffix, or None. A compression's suffix may follow a text format's."""
    suffix, compressed = _suffix(path)
    entries = (entry for entry in FORMATS.values() if entry.text or not compressed)
    return next((entry.name for entry in entries if suffix in entry.suffixes), None)


def has_suffix(path: str) -> bool:
    """Whether the path ends in a suffix that contains a letter; a compression suffix after it is ignored."""
    return re.search("[a-z]", _suffix(path)[0]) is not None


def _suffix(path: str) -> tuple[str, bool]:
    """The last suffix, ignoring a compression suffix, in lower case ("" for none); and whether it is compressed."""
    name = path.partition("?")[0].rstrip("/").rpartition("/")[2].lower()  # a `PurePosixPath` takes 10 times as long
    suffixes = [] if name.endswith(".") else [f".{part}" for part in name.lstrip(".").split(".")[1:]]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    return suffixes[-1 - compressed] if len(suffixes) > compressed else "", compressed


def format_by_magic(start: bytes) -> str | None:
    """The format whose files begin like this, or None."""
    return next((entry.name for entry in FORMATS.values() if start.startswith(entry.magic)), None)


def checked_options(form: Format, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """All options of the format: its defaults, overridden by the given ones.

    Raises:
        OptionError: the format does not accept an option, its type differs from its default's (None: any type), or
            the format refuses its value.
    """
    for name, value in (given or {}).items():
        if name not in form.options:
            raise OptionError(
                f"format_options={{{name!r}: ...}}: {form.name} takes {', '.join(form.options) or 'none'}."
            )
        if form.options[name] is not None and type(value) is not type(form.options[name]):
            kind = type(form.options[name]).__name__
            raise OptionError(f"format_options={{{name!r}: {value!r}}}: expected a {kind}.")
    options = {**form.options, **(given or {})}
    form.check_options(options)
    return options
