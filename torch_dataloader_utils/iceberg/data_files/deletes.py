"""Rows deleted by their position in a data file: from positional delete files and deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.iceberg.data_files.cache import process_cache
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile
from torch_dataloader_utils.iceberg.data_files.hints import check_count
from torch_dataloader_utils.iceberg.data_files.inner import opened
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.sources.deleted_rows import Positions, deletion_vector
from torch_dataloader_utils.storage import Naming, Storage, confirm_unchanged
from torch_dataloader_utils.storage.spelling import one_spelling

# A delete file with its actual size, and the positions it deletes, ascending, by the data file's path in one spelling
# (None: any file).
_Read: TypeAlias = tuple[DeleteFile, Mapping[str | None, Positions]]

_NONE: Positions = np.empty(0, np.int64)
_COLUMNS = ("file_path", "pos")  # as named in the specification
_PATHS = pa.schema([pa.field("file_path", pa.dictionary(pa.int32(), pa.string()))])


def deleted_positions(file: IcebergFile, storage: Storage, rows: int) -> Positions:
    """Row numbers deleted by position in a data file: int64, ascending, unique.

    Raises:
        FileReadError: a delete file is missing or damaged; the message names it.
    """
    return seen_deletes(file, storage, rows)[1]


def seen_deletes(file: IcebergFile, storage: Storage, rows: int) -> tuple[tuple[DeleteFile, ...], Positions]:
    """The deletes of a data file, positional ones with their actual sizes; and `deleted_positions`.

    `rows` are those of the data file: a vector with more is not expanded.
    """
    read = [_read(delete, storage, rows) for delete in file.deletes]
    path = one_spelling(file.table_path)
    groups = [by_path.get(path, by_path.get(None, _NONE)) for _, by_path in read]
    groups = [positions for positions in groups if len(positions)]
    positions = groups[0] if len(groups) == 1 else np.unique(np.concatenate([_NONE, *groups]))
    return tuple(delete for delete, _ in read), positions


def _read(delete: DeleteFile, storage: Storage, rows: int) -> _Read:
    """The positions that a delete file (or vector) deletes; parsed once per process."""
    if delete.kind == "equality":
        return delete, {}

    def read() -> tuple[_Read, int]:
        return _read_vector(delete, storage, rows) if delete.kind == "vector" else _read_positions(delete, storage)

    return process_cache().get((delete.kind, storage, delete.path, delete.offset), read)


def _read_positions(delete: DeleteFile, storage: Storage) -> tuple[_Read, int]:
    """`_read` for a positional delete file; also returns the bytes of the positions."""
    with opened(delete, storage, _PATHS) as (reader, numbers, size):
        paths, positions = reader.read(numbers, _COLUMNS)
    with Naming(delete.path):
        paths.validate(full=True)  # Arrow reads a damaged dictionary without an error, and its codes name no path
        if not pa.types.is_dictionary(paths.type):
            paths = paths.dictionary_encode()
        paths = paths.unify_dictionaries().combine_chunks()
        if paths.null_count or positions.null_count:
            raise ValueError("it has nulls, but each row must be the path of a file and a position in it.")
        codes, rows = paths.indices.to_numpy(), positions.to_numpy().astype(np.int64, copy=False)
        order = np.argsort(codes, kind="stable")
        codes, rows = codes[order], rows[order]
        ends = np.searchsorted(codes, np.arange(len(paths.dictionary) + 1))
        by_path: dict[str | None, Positions] = {}
        for name, (first, last) in zip(paths.dictionary.to_pylist(), pairwise(ends), strict=True):
            spelled = one_spelling(name)
            by_path[spelled] = np.union1d(by_path.get(spelled, _NONE), rows[first:last])
        return (replace(delete, seen=size), by_path), rows.nbytes


def _read_vector(delete: DeleteFile, storage: Storage, rows: int) -> tuple[_Read, int]:
    """`_read` for a deletion vector; also returns the bytes of the positions.

    The manifest has its location, bare or in Puffin, and its own checks detect truncation, so the size of its file is
    not needed.
    """
    piece = f"deletion vector of {delete.length} bytes at byte {delete.offset}"
    with Naming(delete.path, piece):
        with storage.open_data(DataFileInfo(delete.path, delete.seen)) as source:
            size = source.size()
            source.seek(delete.offset)
            blob = source.read(delete.length)
            if delete.seen:  # otherwise there is nothing to compare it with, and its checksum holds one range together
                confirm_unchanged(source)
        if len(blob) != delete.length:
            raise ValueError(f"its length is given as {delete.length} bytes, but {len(blob)} are there.")
        positions = deletion_vector(blob, rows)
    check_count(delete.path, len(positions), delete.record_count, piece)
    return (replace(delete, seen=size), {None: positions}), positions.nbytes
