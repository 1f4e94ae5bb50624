"""The manifest file: what listing and footers gave, as one Parquet file that the next run or rank takes instead.

It holds what was found before schemas were resolved and filters pruned, so it serves any columns and filters. It holds
no secret: neither storage options nor links that are signed or carry a password.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import glob_translate, stringify_path

from torch_dataloader_utils.distributed.exchange import from_first_rank
from torch_dataloader_utils.distributed.peers import Peers
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, OptionError
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import FileLayout
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.files import AnyPath, FoundFile
from torch_dataloader_utils.storage import Naming, Storage, open_storage, printable

VERSION = 1  # of the manifest file and of all formats' `pack`

_KEY = b"torch_dataloader_utils.manifest"
_COLUMNS = pa.schema(
    {
        "path": pa.string(),
        "size": pa.int64(),
        "relative": pa.string(),
        "version": pa.string(),
        "footer": pa.large_binary(),
    }
)
_SHOWN = 300  # characters of a value in an error
_SIGNED = re.compile(r"(^|::)https?://[^?]*\?")
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")


@dataclass(frozen=True, slots=True)
class InspectedFile(FoundFile):
    """A file as listing and its footer tell.

    Attributes:
        version: as in `DataFileInfo`.
        layout: its segments.
        schema: of the file alone.
    """

    version: str
    layout: FileLayout
    schema: pa.Schema


@dataclass(frozen=True)
class Inspected:
    """All files that were found, in order, and the name of their format."""

    format: str
    files: tuple[InspectedFile, ...]


@dataclass(frozen=True)
class Asked:
    """What a manifest is made for; one made for anything else is not used.

    Attributes:
        path: the entries of `path`, absolute and without credentials.
        format: as given.
        format_options: as given; defaults count as given.
    """

    path: tuple[str, ...]
    format: str | None
    format_options: Mapping[str, Any]


def asked_of(
    entries: Sequence[tuple[AnyPath, str]], storage: Storage, form: str | None, format_options: Mapping[str, Any]
) -> Asked:
    """What these entries and options ask for.

    Args:
        entries: of `path`, each as given and as the storage names it.
        storage: where they are.
        form: `format` as given.
        format_options: as given.

    Raises:
        OptionError: an entry that must not be written down: a signed link, or one with a password.
    """
    path = tuple(_spelled(entry, inner, storage) for entry, inner in entries)
    _reject_secrets(path)
    return Asked(path, form, dict(format_options))


def _spelled(given: AnyPath, inner: str, storage: Storage) -> str:
    """A path without doubt about where it begins."""
    url = str(stringify_path(given))
    if storage.local:
        return inner
    return (url if "://" in url else f"{storage.protocol}://{url.lstrip('/')}").rstrip("/")


def _reject_secrets(paths: Iterable[str]) -> None:
    for path in paths:
        if _SIGNED.search(path) or _PASSWORD.search(path):
            raise OptionError(
                f"manifest= with {_PASSWORD.sub('://', printable(path))}: a manifest keeps no links with a query or a "
                "password, which may be secrets. Pass credentials as storage_options=, or leave manifest= out."
            )


def kept_inspection(
    manifest: AnyPath,
    read: ReadOptions,
    ask: Callable[[], Asked],
    inspect: Callable[[], Inspected],
    num_ranks: int | None = None,
    peers: Peers | None = None,
) -> Inspected:
    """What the file `manifest` holds; where there is none, what `inspect` finds, which is then saved there.

    With a process group, its rank 0 alone does so and sends the others what it has; an error is raised on all ranks.

    Args:
        manifest: path or URL of the manifest.
        read: storage options or filesystem, as for the data; a `file://` path is on the local disk even so.
        ask: tells what `inspect` looks for.
        inspect: lists the files and reads their footers.
        num_ranks: of the loader, or None.
        peers: the processes that run the loader; None for all.

    Raises:
        FileReadError: the file there is no manifest, of another version, or damaged.
        OptionError: the manifest is for something else, lies among the data, or cannot be saved.
    """

    def loaded_or_made() -> bytes:
        filesystem = None if name.startswith("file://") else read.filesystem
        storage, path = open_storage(manifest, read.storage_options, filesystem)
        data = read_manifest(storage, path)
        if data is None:
            asked = ask()
            _reject_among_data(_spelled(manifest, path, storage), asked)
            data = pack_manifest(inspect(), asked)
            write_manifest(storage, path, data)
        return data

    name = printable(str(stringify_path(manifest)))
    # Whatever can fail comes in the collective or after it: no rank leaves the others waiting.
    data = from_first_rank(loaded_or_made, num_ranks, peers)
    return unpack_manifest(data, ask(), name)


def stale_remedy(manifest: AnyPath) -> str:
    """What to do about a file that is not as the manifest says: a sentence for the error."""
    name = printable(str(stringify_path(manifest)))
    return f"It was planned from manifest={name}: delete that, and the files are listed and inspected anew."


# --------------------------------------------------------------------------------------------------------- bytes


def pack_manifest(found: Inspected, asked: Asked) -> bytes:
    """The manifest file of these files.

    Raises:
        OptionError: a file's path that must not be written down.
    """
    _reject_secrets(file.path for file in found.files)
    form = format_named(found.format)
    rows = [(f.path, f.size, f.relative, f.version, form.pack(f.layout, f.schema)) for f in found.files]
    columns = [list(values) for values in zip(*rows, strict=True)]
    header = {"version": VERSION, "format": found.format, "asked": vars(asked), "checksum": _checksum(columns)}
    table = pa.table(
        [pa.array(values, kind) for values, kind in zip(columns, _COLUMNS.types, strict=True)],
        schema=_COLUMNS.with_metadata({_KEY: json.dumps(header)}),
    )
    sink = pa.BufferOutputStream()
    # Footers differ a little from file to file: zstd finds what they share, a dictionary does not.
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_manifest(data: bytes, asked: Asked, name: str) -> Inspected:
    """What was packed.

    Args:
        data: of the manifest file.
        asked: what is wanted now.
        name: of the manifest, for errors.

    Raises:
        FileReadError: it is no manifest, of a newer version, or damaged.
        OptionError: it was made for something else.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        header = _header(file.schema_arrow.metadata, name)
        _reject_other(header, asked, name)
        return Inspected(header["format"], tuple(_files(file.read(), header)))
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        raise FileReadError(
            f"manifest={name}: the file there is damaged, or no manifest: {type(error).__name__}: {error}. Give "
            "another path; or delete it, if it was a manifest, to have it made anew."
        ) from error


def _files(table: pa.Table, header: Mapping[str, Any]) -> Iterator[InspectedFile]:
    columns = [table.column(name).to_pylist() for name in _COLUMNS.names]
    if _checksum(columns) != header["checksum"]:
        raise ValueError("its checksum is not that of its content")
    unpack = format_named(header["format"]).unpack
    for path, size, relative, version, footer in zip(*columns, strict=True):
        layout, schema = unpack(footer)
        yield InspectedFile(path, size, relative, version, layout, schema)


def _checksum(columns: Sequence[Sequence[Any]]) -> int:
    """Of all that the manifest says of files (Parquet's own checksums leave out headers and the footer)."""
    *facts, footers = columns
    found = zlib.crc32(json.dumps(facts).encode())
    for footer in footers:
        found = zlib.crc32(footer, found)
    return found


def _header(metadata: Mapping[bytes, bytes] | None, name: str) -> dict[str, Any]:
    """The manifest's header, once it is known to be one that this version reads."""
    if not metadata or _KEY not in metadata:
        raise FileReadError(
            f"manifest={name}: this Parquet file is no manifest. Give the path of a manifest, or one where there is no "
            "file yet, and it is made there."
        )
    header: dict[str, Any] = json.loads(metadata[_KEY])
    if header["version"] != VERSION:
        raise FileReadError(
            f"manifest={name}: it is of version {header['version']}, and this package reads version {VERSION}. "
            "Delete it to have it made anew, or give another manifest=."
        )
    return header


def _reject_other(header: Mapping[str, Any], asked: Asked, name: str) -> None:
    """Refuse a manifest of another path or other options."""
    form, made = format_named(header["format"]), header["asked"]
    sides = {
        "path": (made["path"], list(asked.path)),
        "format": (made["format"], made["format"] if asked.format == form.name else asked.format),
        "format_options": tuple(checked_options(form, given["format_options"]) for given in (made, vars(asked))),
    }
    for option, (theirs, ours) in sides.items():
        if theirs != ours:
            raise OptionError(
                f"manifest={name}: it was made for {option}={_shortened(theirs)}, and {option}={_shortened(ours)} is "
                "asked for. Delete it to have it made anew, or give another manifest=."
            )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# ---------------------------------------------------------------------------------------------------------- files


def read_manifest(storage: Storage, path: str) -> bytes | None:
    """The bytes of the file at `path`, or None where there is none.

    Raises:
        OptionError: it is a folder.
        FileReadError: it cannot be read.
    """
    there = storage.look(path)
    if there is None:
        return None
    if there.folder:
        raise OptionError(f"manifest={printable(path)} is a folder: give the path of a file.")
    with Naming(path, "manifest"), storage.open(path) as source:
        data: bytes = source.read()
        return data


def write_manifest(storage: Storage, path: str, data: bytes) -> None:
    """Make these bytes the file at `path`: a reader finds all of them or none.

    Raises:
        OptionError: it cannot be written.
    """
    try:
        if storage.local:
            _replace(path, data)
        else:
            with storage.connect().open_output_stream(path, compression=None) as sink:
                sink.write(data)  # in one go: object stores show an object once all of it is there
    except Exception as error:
        raise OptionError(
            f"manifest={printable(path)}: it cannot be written: {type(error).__name__}: {printable(str(error))}. Give "
            "a path that can, or leave manifest= out."
        ) from error


def _replace(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    beside = os.path.join(folder, f".{name}.{uuid.uuid4().hex}")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)


def _reject_among_data(place: str, asked: Asked) -> None:
    """Refuse a place where the manifest itself would be listed as data."""
    for entry in asked.path:
        if _lists(entry, place):
            raise OptionError(
                f"manifest={printable(place)} lies among the data of {printable(entry)}, and would be read as data "
                "when that is listed. Give a place outside, or a name there that begins with '_'."
            )


def _lists(entry: str, place: str) -> bool:
    """Whether a file at `place` is one that listing `entry` gives."""
    if not has_magic(entry):
        below = place.removeprefix(f"{entry}/")
        return place == entry or (below != place and not _hidden(below))
    name = entry.rpartition("/")[2]
    return bool(re.match(glob_translate(entry), place)) and (
        name.startswith((".", "_")) or not _hidden(place.rpartition("/")[2])
    )


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))
