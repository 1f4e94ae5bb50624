"""The bytes of a manifest file: the listed files and their footers, as Parquet.

It stores what was found before schemas are resolved and filters prune, so it works for any columns and filters. It
contains no secrets: no storage options, no signed links and no links with a password.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, OptionError, leave_out
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout
from torch_dataloader_utils.redaction import printable, secrets_of
from torch_dataloader_utils.sources.files import FoundFile
from torch_dataloader_utils.sources.manifest_roots import plain_path
from torch_dataloader_utils.sources.skipped import SkippedFile
from torch_dataloader_utils.storage.spelling import is_utf8

VERSION = 3  # covers the manifest file and the `pack` of every format

_KEY = b"torch_dataloader_utils.manifest"
_COLUMNS = pa.schema(
    {
        "path": pa.string(),
        "size": pa.int64(),
        "relative": pa.string(),
        "version": pa.string(),
        "decoded": pa.bool_(),
        "footer": pa.large_binary(),
    }
)
_SHOWN = 300  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class InspectedFile(FoundFile):
    """A file, as described by the listing and by its footer.

    Attributes:
        version: as in `DataFileInfo`.
        layout: its segments.
        schema: the schema of this file alone.
        decoded: whether all of it has been decoded without an error.
    """

    version: str
    layout: FileLayout
    schema: pa.Schema
    decoded: bool = field(default=False, kw_only=True)

    def data_file(self, constants: tuple[tuple[str, Any], ...] = ()) -> DataFile:
        """The file as a source has it, with the values of its partition columns."""
        info = DataFileInfo(self.path, self.size, self.layout.row_count, version=self.version)
        return DataFile(info, self.layout, constants)


@dataclass(frozen=True)
class Inspected:
    """The files found, in order, and the name of their format.

    Attributes:
        format: the format's name.
        files: those that are read.
        skipped: those that are left out.
    """

    format: str
    files: tuple[InspectedFile, ...]
    skipped: tuple[SkippedFile, ...] = ()

    @classmethod
    def of(cls, form: str, found: Iterable[InspectedFile | SkippedFile]) -> Inspected:
        """All files found, in order."""
        numbered = list(enumerate(found))
        return cls(
            form,
            tuple(file for _, file in numbered if isinstance(file, InspectedFile)),
            tuple(replace(file, place=place) for place, file in numbered if isinstance(file, SkippedFile)),
        )

    @property
    def found(self) -> list[InspectedFile | SkippedFile]:
        """All files found, in order."""
        skipped, files = {file.place: file for file in self.skipped}, iter(self.files)
        return [skipped.get(place) or next(files) for place in range(len(self.files) + len(skipped))]


@dataclass(frozen=True)
class Asked:
    """The request that a manifest answers; a manifest for another request is not used.

    Attributes:
        path: the entries of `path`, absolute and without credentials.
        format: as given.
        format_options: as given; an omitted option equals its default.
    """

    path: tuple[str, ...]
    format: str | None
    format_options: Mapping[str, Any]


def reject_secrets(paths: Iterable[str]) -> None:
    """Check that paths may be stored.

    Raises:
        OptionError: a path is a signed link, or contains a password.
    """
    for path in paths:
        if any(secrets_of(path)):
            raise OptionError(
                f"manifest= with {printable(path)}: a manifest cannot hold URLs with a query or "
                "a password, because these may be secrets. Pass credentials as storage_options=.",
                remedies=[leave_out("manifest")],
            )


def pack_manifest(inspected: Inspected, asked: Asked) -> bytes:
    """The bytes of the manifest file for these files.

    Raises:
        OptionError: a file's path must not be stored.
    """
    reject_secrets(file.path for file in inspected.found)
    for file in inspected.files:
        if not is_utf8(file.path):
            raise OptionError(
                f"manifest= with {printable(file.path)}: a manifest holds paths as text, but this one is not valid "
                "UTF-8, until the file or folder is renamed.",
                remedies=[leave_out("manifest")],
            )
    form = format_named(inspected.format)
    rows = [(f.path, f.size, f.relative, f.version, f.decoded, form.pack(f.layout, f.schema)) for f in inspected.files]
    columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in _COLUMNS]
    skipped = [asdict(file) for file in inspected.skipped]
    header = {
        "version": VERSION,
        "format": inspected.format,
        "asked": vars(asked),
        "skipped": skipped,
        "checksum": _checksum(columns, skipped),
    }
    table = pa.table(
        [pa.array(values, kind) for values, kind in zip(columns, _COLUMNS.types, strict=True)],
        schema=_COLUMNS.with_metadata({_KEY: json.dumps(header)}),
    )
    sink = pa.BufferOutputStream()
    # Footers differ slightly from file to file: zstd exploits what they share, dictionary encoding does not.
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_manifest(data: bytes, asked: Asked, name: str) -> Inspected:
    """The files stored in a manifest file.

    Args:
        data: the bytes of the manifest file.
        asked: the current request.
        name: the manifest's name, for errors.

    Raises:
        FileReadError: it is not a manifest, has another version, or is damaged.
        OptionError: it was made for another request.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        header = _header(file.schema_arrow.metadata, name)
        _reject_other(header, asked, name)
        skipped = tuple(SkippedFile(**values) for values in header["skipped"])
        return Inspected(header["format"], tuple(_files(file.read(), header)), skipped)
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        raise FileReadError(
            f"manifest={name}: the file is damaged, or not a manifest: {type(error).__name__}: {error}. If "
            "it was a manifest, delete it, and the next run creates a new one; if not, pass another path.",
            remedies=[leave_out("manifest")],
        ) from error


def leaves_out(data: bytes) -> bool:
    """Whether a manifest file lists files that are left out; reads only its header."""
    try:
        metadata = pq.ParquetFile(pa.BufferReader(data)).schema_arrow.metadata
        return bool(json.loads(metadata[_KEY])["skipped"])
    except Exception:  # noqa: BLE001 - `unpack_manifest` says what is wrong with it
        return False


def _files(table: pa.Table, header: Mapping[str, Any]) -> Iterator[InspectedFile]:
    columns = [table.column(name).to_pylist() for name in _COLUMNS.names]
    if _checksum(columns, header["skipped"]) != header["checksum"]:
        raise ValueError("its checksum does not match its content")
    unpack = format_named(header["format"]).unpack
    for path, size, relative, version, decoded, footer in zip(*columns, strict=True):
        layout, schema = unpack(footer)
        yield InspectedFile(path, size, relative, version, layout, schema, decoded=decoded)


def _checksum(columns: Sequence[Sequence[Any]], skipped: Sequence[Mapping[str, Any]]) -> int:
    """A checksum of everything stored about the files (Parquet's own checksums do not cover headers and the footer)."""
    *facts, footers = columns
    checksum = zlib.crc32(json.dumps([facts, skipped]).encode())
    for footer in footers:
        checksum = zlib.crc32(footer, checksum)
    return checksum


def _header(metadata: Mapping[bytes, bytes] | None, name: str) -> dict[str, Any]:
    """The manifest's header, after checking that this version can read it."""
    if not metadata or _KEY not in metadata:
        raise FileReadError(
            f"manifest={name}: this Parquet file is not a manifest: pass the path of a manifest, or of a file that "
            "does not exist yet, to create one there.",
            remedies=[leave_out("manifest")],
        )
    header: dict[str, Any] = json.loads(metadata[_KEY])
    if header["version"] != VERSION:
        raise FileReadError(
            f"manifest={name}: it has version {header['version']}, but this package reads version {VERSION}. "
            "Delete it to create a new one, or pass another path.",
            remedies=[leave_out("manifest")],
        )
    return header


def _reject_other(header: Mapping[str, Any], asked: Asked, name: str) -> None:
    """Reject a manifest for another path or other options."""
    form, made = format_named(header["format"]), header["asked"]
    sides = {
        "path": (made["path"], made["path"] if _same_paths(made["path"], asked.path) else list(asked.path)),
        "format": (made["format"], made["format"] if asked.format == form.name else asked.format),
        "format_options": (_binding(form, made["format_options"]), _binding(form, asked.format_options)),
    }
    for option, (theirs, ours) in sides.items():
        if theirs != ours:
            raise OptionError(
                f"manifest={name}: it was made for {option}={_shortened(theirs)}, not for {option}={_shortened(ours)}. "
                "Delete it to create a new one, or use another.",
                remedies=[leave_out("manifest")],
            )


def _same_paths(made: Sequence[str], asked: Sequence[str]) -> bool:
    return [plain_path(path) for path in made] == [plain_path(path) for path in asked]


def _binding(form: Format, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that change what a manifest contains, or which rows are read."""
    binding = {name: value for name, value in given.items() if name not in form.free_options}
    return {name: value for name, value in checked_options(form, binding).items() if name not in form.free_options}


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
