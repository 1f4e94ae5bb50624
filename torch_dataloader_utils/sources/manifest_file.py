"""The manifest file: the first run or rank creates it, all others read it instead of listing files and footers."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from glob import has_magic
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import stringify_path

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, OptionError, leave_out, use
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.redaction import printable, secrets_of
from torch_dataloader_utils.sources.files import AnyPath, FoundFile, glob_matcher, lists
from torch_dataloader_utils.sources.skipped import SkippedFile
from torch_dataloader_utils.storage import Naming, Storage, open_storage
from torch_dataloader_utils.storage.spelling import is_utf8

# The bytes of a manifest file: the listed files and their footers, as Parquet.
#
# It stores what was found before schemas are resolved and filters prune, so it works for any columns and filters. It
# contains no secrets: no storage options, no signed links and no links with a password.

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
        filters: those by which folders were not looked into; None: all were.
    """

    format: str
    files: tuple[InspectedFile, ...]
    skipped: tuple[SkippedFile, ...] = ()
    filters: Any = field(default=None, repr=False, compare=False)

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


# A manifest names only files below `path`: whoever writes it must not choose what else is read, and from where.

_SCHEMES = {"s3a": "s3", "gcs": "gs"}


def check_roots(
    files: Sequence[FoundFile | SkippedFile], entries: Sequence[str], name: str, local: bool = False
) -> None:
    """Check that the files of a manifest are at or below the entries of `path`.

    Args:
        files: as the manifest names them.
        entries: the entries, as paths in the storage.
        name: the manifest's name, for the error.
        local: whether they are on the local disk, where links are followed as in a listing.

    Raises:
        FileReadError: a file is elsewhere.
    """
    below = [_below(entry) for entry in entries]
    roots = {plain_path(re.split("/[^/]*[*?[]", entry)[0]).rstrip("/") for entry in entries}
    linked = lru_cache(partial(_behind_links_up, roots))
    for file in files:
        plain = plain_path(file.path)
        inside = any(holds(plain) for holds in below) and not (local and linked(os.path.dirname(plain)))
        if file.path not in entries and not inside:
            raise FileReadError(
                f"manifest={name}: it names {printable(file.path)}, which is not below path=: "
                f"{', '.join(map(printable, entries))}. Do not use a manifest that others could write; delete it, and "
                "the next run creates a new one."
            )


def _below(entry: str) -> Callable[[str], bool]:
    """Whether a plain path is below a folder, or matches a glob; a folder may have wildcards in its name."""
    root = plain_path(entry).rstrip("/") + "/" if entry else ""
    glob = plain_path(entry) if has_magic(entry) else None
    matches = None if glob is None else glob_matcher(glob)
    ups = _ups(glob or "")

    def holds(path: str) -> bool:
        if path.startswith(root):
            return not _ups(path[len(root) :])
        return matches is not None and matches(path) is not None and _ups(path) == ups

    return holds


def _ups(path: str) -> int:
    """How many times the path leads up; some servers take a backslash for a slash."""
    return path.replace("\\", "/").split("/").count("..")


def _behind_links_up(roots: Collection[str], folder: str) -> bool:
    """Whether a folder is behind a link to a folder that holds the link: a listing of the roots does not follow it."""
    root = max((root for root in roots if f"{folder}/".startswith(f"{root}/")), key=len)
    path = os.path.realpath(root or "/")
    if os.path.realpath(folder) == os.path.normpath(path + "/" + folder[len(root) :]):
        return False  # there is no link
    holders = []
    for name in folder[len(root) :].strip("/").split("/"):
        holders.append(path)
        path = os.path.realpath(f"{path}/{name}")
        if any(f"{holder}/".startswith(f"{path.rstrip('/')}/") for holder in holders):
            return True
    return False


def plain_path(path: str) -> str:
    """The path in one spelling, which names the same file.

    Servers take http and https, and "%2e" and ".", for the same; so do clients with s3 and s3a, and disks with several
    slashes.
    """
    scheme, separator, rest = path.partition("://")
    if scheme in ("http", "https"):
        return f"http://{unquote(rest)}"
    if separator:
        return f"{_SCHEMES.get(scheme, scheme)}://{rest}"
    return re.sub("/(?:[.]?/)+", "/", path) if path.startswith("/") else path


def asked_of(
    entries: Sequence[tuple[AnyPath, str]], storage: Storage, form: str | None, format_options: Mapping[str, Any]
) -> Asked:
    """The request that these entries and options make.

    Args:
        entries: the entries of `path`, each as given and as a path in the storage.
        storage: where they are.
        form: `format` as given.
        format_options: as given.

    Raises:
        OptionError: an entry must not be stored, because it is a signed link or contains a password.
    """
    path = tuple(_spelled(entry, inner, storage) for entry, inner in entries)
    reject_secrets(path)
    return Asked(path, form, dict(format_options))


def _spelled(given: AnyPath, inner: str, storage: Storage) -> str:
    """The path in absolute form: a local path, or a URL with its protocol."""
    url = str(stringify_path(given))
    if storage.local:
        return inner
    return (url if "://" in url else f"{storage.protocol}://{url.lstrip('/')}").rstrip("/")


def kept_inspection(
    manifest: AnyPath,
    read: ReadOptions,
    ask: Callable[[], Asked],
    inspect: Callable[[], Inspected],
    sharers: Sharers | None = None,
    again: Callable[[Inspected], Inspected] = lambda kept: kept,
) -> Inspected:
    """The content of the file `manifest`; if it does not exist, the result of `inspect`, which is then saved there.

    With a process group, only rank 0 does this and sends the result to the others; an error is raised on all ranks.

    Args:
        manifest: path or URL of the manifest.
        read: storage options or filesystem, as for the data; a `file://` path is always on the local disk.
        ask: returns the request that `inspect` answers.
        inspect: lists the files and reads their footers.
        sharers: the ranks that share it; None for this process alone.
        again: returns the content of a manifest that lists damaged files, after those that have changed were read
            again. With `on_error="skip"` the result is saved.

    Raises:
        FileReadError: the file is not a manifest, has another version, or is damaged.
        OptionError: the manifest is for another request, lies among the data, or cannot be saved.
    """

    def loaded_or_made() -> bytes:
        storage, path = _opened(manifest, read)
        data = read_manifest(storage, path)
        if data is None:
            return new_manifest(manifest, read, ask, inspect)
        if not leaves_out(data):
            return data
        kept = unpack_manifest(data, ask(), name)
        now = again(kept)
        if now == kept:
            return data
        return new_manifest(manifest, read, ask, lambda: now) if read.on_error == "skip" else pack_manifest(now, ask())

    name = name_of(manifest)
    # Everything that can fail runs inside the collective or after it, so no rank leaves the others waiting.
    data = from_first_rank(loaded_or_made, sharers or Sharers(), "share the manifest that rank 0 reads or creates")
    return unpack_manifest(data, ask(), name)


def new_manifest(
    manifest: AnyPath, read: ReadOptions, ask: Callable[[], Asked], inspect: Callable[[], Inspected]
) -> bytes:
    """The bytes of a new manifest, after they were written; takes the arguments of `kept_inspection`.

    Raises:
        OptionError: it lies among the data, or cannot be saved.
    """
    storage, path = _opened(manifest, read)
    asked = ask()
    _reject_among_data(_spelled(manifest, path, storage), asked)
    data = pack_manifest(inspect(), asked)
    write_manifest(storage, path, data)
    return data


def _opened(manifest: AnyPath, read: ReadOptions) -> tuple[Storage, str]:
    """The storage of the manifest, and its path there."""
    filesystem = None if name_of(manifest).startswith("file://") else read.filesystem
    return open_storage(manifest, read.storage_options, filesystem)


def name_of(manifest: AnyPath) -> str:
    """The manifest's name, for messages."""
    return printable(str(stringify_path(manifest)))


def stale_remedy(manifest: AnyPath) -> str:
    """The remedy for a file that differs from the manifest: a sentence for the error."""
    name = name_of(manifest)
    return f"It was planned from manifest={name}: delete the manifest, and the next run creates a new one."


def read_manifest(storage: Storage, path: str) -> bytes | None:
    """The bytes of the file at `path`, or None if there is no file.

    Raises:
        OptionError: it is a folder.
        FileReadError: it cannot be read.
    """
    stored = storage.look(path)
    if stored is None:
        return None
    if stored.folder:
        raise OptionError(
            f"manifest={printable(path)} is a folder: expected the path of a file.", remedies=[leave_out("manifest")]
        )
    with Naming(path, "manifest"), storage.open(path) as source:
        data: bytes = source.read()
        return data


def write_manifest(storage: Storage, path: str, data: bytes) -> None:
    """Write these bytes to the file at `path` atomically: a reader sees all of them or none.

    Raises:
        OptionError: it cannot be written.
        BatchTimeoutError: the store does not answer.
    """
    try:
        storage.write(path, data)
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        raise OptionError(
            f"manifest={printable(path)}: it cannot be written: {type(error).__name__}: {printable(str(error))}.",
            remedies=[leave_out("manifest")],
        ) from error


def _reject_among_data(place: str, asked: Asked) -> None:
    """Reject a location where the manifest itself would be listed as data."""
    for entry in asked.path:
        if lists(entry, place):
            raise OptionError(
                f"manifest={printable(place)} lies among the data of {printable(entry)} and would be read as data.",
                remedies=[use(manifest="/_".join(place.rsplit("/", 1)))],
            )
