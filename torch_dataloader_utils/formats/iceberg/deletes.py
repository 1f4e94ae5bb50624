"""Rows deleted by their position in a data file: from positional delete files and deletion vectors."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import MissingExtraError
from torch_dataloader_utils.formats.iceberg.cache import process_cache
from torch_dataloader_utils.formats.iceberg.files import DeleteFile, IcebergFile
from torch_dataloader_utils.formats.iceberg.inner import opened
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Naming, Storage

Positions = npt.NDArray[np.int64]

_NONE: Positions = np.empty(0, np.int64)
_COLUMNS = ("file_path", "pos")  # the specification names them
_PATHS = pa.schema([pa.field("file_path", pa.dictionary(pa.int32(), pa.string()))])
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def deleted_positions(file: IcebergFile, storage: Storage) -> Positions:
    """Row numbers deleted by position in a data file, int64, ascending, each once.

    Raises:
        FileReadError: a delete file is missing or damaged: names it.
    """
    found = [_positions(delete, storage, file.table_path) for delete in file.deletes if delete.kind != "equality"]
    found = [positions for positions in found if len(positions)]
    return found[0] if len(found) == 1 else np.unique(np.concatenate([_NONE, *found]))


def _positions(delete: DeleteFile, storage: Storage, data_path: str) -> Positions:
    """The positions that one delete file (or vector) has for a data file, ascending; parsed once per process."""
    key = (delete.kind, storage, delete.path, delete.offset)
    if delete.kind == "vector":
        return process_cache().get(key, lambda: _sized(_read_vector(delete, storage)))
    by_path: Mapping[str, Positions] = process_cache().get(key, lambda: _read_positions(delete, storage))
    return by_path.get(data_path, _NONE)


def _sized(positions: Positions) -> tuple[Positions, int]:
    return positions, positions.nbytes


def _read_positions(delete: DeleteFile, storage: Storage) -> tuple[dict[str, Positions], int]:
    """The positions of a positional delete file by path of the data file, and their bytes."""
    with opened(delete, storage, _PATHS) as (reader, numbers):
        paths, positions = reader.read(numbers, _COLUMNS)
    with Naming(delete.path):
        if not pa.types.is_dictionary(paths.type):
            paths = paths.dictionary_encode()
        paths = paths.unify_dictionaries().combine_chunks()
        if paths.null_count or positions.null_count:
            raise ValueError("it has nulls, where each row is the path of a file and a position in it.")
        codes, rows = paths.indices.to_numpy(), positions.to_numpy().astype(np.int64, copy=False)
        order = np.argsort(codes, kind="stable")
        codes, rows = codes[order], rows[order]
        ends = np.searchsorted(codes, np.arange(len(paths.dictionary) + 1))
        groups = (np.unique(rows[first:last]) for first, last in pairwise(ends))
        return dict(zip(paths.dictionary.to_pylist(), groups, strict=True)), rows.nbytes


def _read_vector(delete: DeleteFile, storage: Storage) -> Positions:
    """The positions of a deletion vector: length, magic, a 64-bit roaring bitmap in portable form, and a checksum."""
    with Naming(delete.path, f"deletion vector of {delete.length} bytes at byte {delete.offset}"):
        with storage.open_data(DataFileInfo(delete.path, delete.size)) as source:
            source.seek(delete.offset)
            blob = source.read(delete.length)
        if len(blob) != delete.length or int.from_bytes(blob[:4], "big") != len(blob) - 8:
            raise ValueError(f"its length says {int.from_bytes(blob[:4], 'big')} bytes, and {len(blob)} are there.")
        if blob[4:8] != _VECTOR_MAGIC:
            raise ValueError(f"it begins with {blob[4:8]!r}, where {_VECTOR_MAGIC!r} is expected.")
        if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
            raise ValueError("its checksum is wrong: the bytes were damaged.")
        return _bitmap(blob[8:-4])


def _bitmap(data: bytes) -> Positions:
    try:
        from pyroaring import BitMap64
    except ImportError as error:
        raise MissingExtraError(
            "deletion vectors need pyroaring: pip install 'torch-dataloader-utils[iceberg]'"
        ) from error
    return np.array(BitMap64.deserialize(data).to_array(), np.int64)
