"""The data files of a table at a version: from the log's entries and the deletion vectors."""

from __future__ import annotations

import posixpath
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
from deltalake import DeltaTable

from torch_dataloader_utils.delta.entries import LogEntries, LoggedVector
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.parquet import FORMAT as PARQUET
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.deleted_rows import Positions, vector_rows
from torch_dataloader_utils.storage import Naming, Storage, open_storage

_BOUNDS = ("min", "max", "null_count")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # of Z85
_ID_LENGTH = 20  # characters of a UUID in Z85
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A data file, as the log lists it.

    Attributes:
        path: its path below the table's folder; absolute, or a URL, if it is elsewhere.
        size: bytes.
        rows: all its rows, deleted ones too; None if the log does not say.
        time: when it was written, in milliseconds since 1970.
        partition: partition column -> value, as a Python object.
        bounds: "min", "max" and "null_count" -> physical name of a column -> value, for what the log has of these.
    """

    path: str
    size: int
    rows: int | None
    time: int
    partition: Mapping[str, Any]
    bounds: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def elsewhere(self) -> bool:
        """Whether it is outside of the table's folder, as in a shallow clone."""
        return self.path.startswith("/") or _SCHEME.match(self.path) is not None


def plain_url(url: str) -> str:
    """A URL as deltalake spells it, decoded; a local one as a path."""
    local = re.sub("^file:/+", "/", unquote(url))
    return local if local == "/" else local.rstrip("/")


def listed_files(table: DeltaTable, bounds: bool) -> list[ListedFile]:
    """The table's data files: the oldest first, those of one time by their paths; `bounds` only if asked for.

    Raises:
        FileReadError: a relative path leads out of the table's folder.
    """
    actions = pa.table(table.get_add_actions(flatten=False))
    if not bounds:
        actions = actions.drop_columns([name for name in _BOUNDS if name in actions.column_names])
    found = [_listed_file(row) for row in actions.to_pylist()]
    return sorted(found, key=lambda file: (file.time, file.path))


def _listed_file(row: Mapping[str, Any]) -> ListedFile:
    bounds = {part: row.get(part) or {} for part in _BOUNDS}
    rows = row.get("num_records")
    return ListedFile(
        inside(plain_url(row["path"])),
        max(row["size_bytes"] or 0, 0),  # a hint
        None if rows is None or rows < 0 else rows,
        row["modification_time"],
        row.get("partition") or {},
        bounds,
    )


def inside(path: str) -> str:
    """The path in one spelling, if it is relative: then it must stay in the table's folder."""
    if path.startswith("/") or _SCHEME.match(path):
        return path
    plain = posixpath.normpath(path)
    if plain.split("/")[0] == ".." or plain == ".":
        raise FileReadError(
            f"{printable(path)}: the table's log names this as one of its files, but the path leads out of the table's "
            "folder. Files elsewhere must be named by absolute paths, as shallow clones do."
        )
    return plain


def has_vectors(table: DeltaTable) -> bool:
    """Whether the table requires of its readers that they apply deletion vectors."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def with_vectors(entries: LogEntries) -> frozenset[str]:
    """The paths of the files of which vectors delete rows."""
    return frozenset(inside(plain_url(path)) for path, vector in entries.vectors.items() if vector is not None)


def deleted_rows(
    files: list[ListedFile], entries: LogEntries, paths: Mapping[str, str], storage: Storage, root: str
) -> dict[str, Positions]:
    """The row numbers that deletion vectors delete, by the `path` of their data file.

    Args:
        files: the table's files.
        entries: the log at the same version.
        paths: `path` of a file -> its path in the storage.
        storage: where the files are.
        root: the table's folder there.

    Raises:
        FileReadError: a vector cannot be read, deletes rows that its file does not have, or another number of rows than
            the log says.
    """
    known = {inside(plain_url(path)): vector for path, vector in entries.vectors.items()}
    missing = next((file for file in files if file.path not in known), None)
    if missing is not None:
        raise FileReadError(
            f"{printable(missing.path)}: is a file of the table, but its log does not say whether rows of it are "
            "deleted: write a checkpoint of the table."
        )
    return {
        file.path: _rows_of(vector, file, paths[file.path], storage, root)
        for file in files
        if (vector := known[file.path]) is not None
    }


def _rows_of(vector: LoggedVector, file: ListedFile, path: str, storage: Storage, root: str) -> Positions:
    """The rows that a vector deletes of a file; reads its footer if the log does not have its number of rows."""
    where = f"deletion vector of {printable(path)}"
    rows = file.rows
    if rows is None:
        layout, _ = PARQUET.layout(DataFileInfo(path, file.size), storage, {})
        rows = sum(segment.rows or 0 for segment in layout.segments)
    if not 0 <= vector.rows <= rows:
        raise FileReadError(
            f"{where}: the log says that it deletes {vector.rows} rows, but the file has {rows}: the log is damaged."
        )
    try:
        found = vector_rows(_vector_bytes(vector, storage, root), vector.rows)
    except ValueError as error:
        raise FileReadError(f"{where}: is damaged, or not as the log says: {error}") from error
    if len(found) != vector.rows:
        raise FileReadError(f"{where}: deletes {len(found)} rows, but the log says {vector.rows}: one is damaged.")
    if len(found) and found[-1] >= rows:
        raise FileReadError(f"{where}: deletes row {found[-1]}, but the file has {rows} rows.")
    return found


def _vector_bytes(vector: LoggedVector, storage: Storage, root: str) -> bytes:
    """The magic and the bitmap of a vector.

    Raises:
        ValueError: it is not as the log says.
    """
    if vector.kind == "i":
        data = _decoded(vector.place)[: max(vector.size, 0)]
        if len(data) != vector.size:
            raise ValueError(f"its size is given as {vector.size} bytes, but it has {len(data)}.")
        return data
    if vector.kind == "p":
        path = plain_url(vector.place)
        place = path if path.startswith("/") else open_storage(path)[1]
    elif vector.kind == "u" and len(vector.place) >= _ID_LENGTH:
        folder, number = vector.place[:-_ID_LENGTH], UUID(bytes=_decoded(vector.place[-_ID_LENGTH:]))
        place = "/".join(filter(None, [root.rstrip("/"), folder, f"deletion_vector_{number}.bin"]))
    else:
        raise ValueError(f"its kind is {vector.kind!r}, which is not known.")
    with Naming(place), storage.open(place) as source:
        size = source.size()
        if vector.size < 0 or vector.offset < 0 or vector.offset + vector.size + 8 > size:
            raise ValueError(f"the log says {vector.size} bytes at byte {vector.offset} of a file of {size}.")
        source.seek(vector.offset)
        blob: bytes = source.read(vector.size + 8)
    if int.from_bytes(blob[:4], "big") != vector.size:
        raise ValueError(f"its size is {int.from_bytes(blob[:4], 'big')} bytes, but the log says {vector.size}.")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("its checksum is wrong: the bytes are damaged.")
    return blob[4:-4]


def _decoded(text: str) -> bytes:
    """The bytes of a text in base 85 (Z85).

    Raises:
        ValueError: it is none.
    """
    if len(text) % 5:
        raise ValueError("its text is cut off.")
    digits = [_DIGITS.index(digit) for digit in text]
    groups = [sum(digits[at + place] * 85 ** (4 - place) for place in range(5)) for at in range(0, len(text), 5)]
    if any(group >= 1 << 32 for group in groups):
        raise ValueError("its text is not of base 85.")
    return b"".join(group.to_bytes(4, "big") for group in groups)
