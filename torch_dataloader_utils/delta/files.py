"""The data files of a table at a version: from the log's entries and the deletion vectors."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.deleted_rows import Positions
from torch_dataloader_utils.storage.spelling import one_spelling

_BOUNDS = ("min", "max", "null_count")
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
    found = [_listed(row) for row in actions.to_pylist()]
    return sorted(found, key=lambda file: (file.time, file.path))


def _listed(row: Mapping[str, Any]) -> ListedFile:
    bounds = {part: row.get(part) or {} for part in _BOUNDS}
    rows = row.get("num_records")
    return ListedFile(
        _inside(plain_url(row["path"])),
        max(row["size_bytes"] or 0, 0),  # a hint
        None if rows is None or rows < 0 else rows,
        row["modification_time"],
        row.get("partition") or {},
        bounds,
    )


def _inside(path: str) -> str:
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


def deleted_rows(table: DeltaTable, files: list[ListedFile], name: str) -> dict[str, Positions]:
    """The row numbers that deletion vectors delete, by the `path` of their data file.

    Raises:
        FileReadError: a vector is for no file of the table.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    root = plain_url(table.table_uri)
    by_url = {one_spelling(file.path if file.elsewhere else f"{root}/{file.path}"): file for file in files}
    deleted = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for url, kept in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
            file = by_url.get(one_spelling(plain_url(url)))
            if file is None:
                where = printable(url)
                raise FileReadError(f"{name}: a deletion vector is for {where}, which is no file of the table.")
            deleted[file.path] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype(np.int64)
    return deleted
