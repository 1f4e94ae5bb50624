"""Writes the tables of `iceberg.py`: one Parquet file of 16 row groups, and tables of it with deletes of each kind.

pyiceberg writes neither delete files nor manifests of version 3, so delete files, manifests and metadata are made here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.iceberg.by_hand import equality_file, field, positions_file, vector_file
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile

GROUPS = 16
KEYS = 100_000
SNAPSHOT = 1
CONTENT = {"positions": 1, "vector": 1, "equality": 2}


def rows_of(rows: int, rng: np.random.Generator) -> pa.Table:
    """11 columns: identifiers, four values, a label, a flag, a time, text of 10 to 30 letters; each with a field id."""
    ends = np.concatenate([[0], np.cumsum(rng.integers(10, 31, rows))]).astype(np.int32)
    letters = rng.integers(97, 123, int(ends[-1]), dtype=np.uint8)
    columns: dict[str, Any] = {
        "id": np.arange(rows),
        "user": rng.integers(0, 1 << 20, rows),
        "item": rng.integers(0, 1 << 16, rows, dtype=np.int32),
        **{f"value{number}": rng.standard_normal(rows, dtype=np.float32) for number in range(4)},
        "label": rng.integers(0, 2, rows, dtype=np.int32),
        "flag": rng.integers(0, 2, rows) == 1,
        "time": (1_700_000_000_000_000 + rng.integers(0, 10**12, rows)).astype("datetime64[us]"),
        "text": pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters)),
    }
    table = pa.table(columns)
    return table.cast(pa.schema([field(number, item.name, item.type) for number, item in enumerate(table.schema, 1)]))


def data_file(folder: Path, rows: int) -> Path:
    """The data file, in a folder of its own; written unless it exists."""
    path = folder / f"rows-{rows}" / "data.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        table = rows_of(rows, np.random.default_rng(0))
        pq.write_table(table, partial, row_group_size=rows // GROUPS, compression="zstd")
        partial.rename(path)
    return path


def _some(rows: int, count: int) -> np.ndarray:
    """`count` random row numbers, in order."""
    return np.sort(np.random.default_rng(1).choice(rows, count, replace=False))


def _positions(folder: Path, data: Path, rows: int) -> DeleteFile:
    return positions_file(folder / "positions.parquet", {str(data): _some(rows, rows // 100).tolist()})


def _vector(folder: Path, data: Path, rows: int) -> DeleteFile:
    return vector_file(folder / "vector.puffin", _some(rows, rows // 100).tolist())


def _equality(folder: Path, data: Path, rows: int) -> DeleteFile:
    keys = pa.schema([field(1, "id", pa.int64())])
    return equality_file(folder / "equality.parquet", pa.table([_some(rows, min(KEYS, rows // 10))], schema=keys))


# kind of deletes -> (version of the table's format, function that makes the delete file)
DELETES: dict[str, tuple[int, Callable[[Path, Path, int], DeleteFile] | None]] = {
    "no deletes": (2, None),
    "1 % positional deletes": (2, _positions),
    "1 % deletion vector": (3, _vector),
    f"{KEYS:,} equality keys": (2, _equality),
}


def write_tables(folder: Path, data: Path) -> dict[str, Path]:
    """Kind of deletes -> the metadata file of a table of the data file with such deletes."""
    found = {}
    for number, (kind, (version, make)) in enumerate(DELETES.items()):
        place = folder / f"table-{number}"
        place.mkdir(parents=True, exist_ok=True)
        delete = None if make is None else make(place, data, pq.read_metadata(data).num_rows)
        found[kind] = _write_table(place, data, delete, version)
    return found


def _write_table(folder: Path, data: Path, delete: DeleteFile | None, version: int) -> Path:
    """The metadata file of a table that consists of a data file and, optionally, a delete file."""
    footer = pq.read_metadata(data)
    listed = [_manifest(folder / "data.avro", _data_entry(data, footer.num_rows), version, sequence_number=1)]
    if delete is not None:
        listed.append(_manifest(folder / "deletes.avro", _delete_entry(delete, data), version, sequence_number=2))
    manifests = folder / "manifests.avro"
    _avro(manifests, MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file", listed)
    empty = new_table_metadata(
        pyarrow_to_schema(footer.schema.to_arrow_schema()),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        str(folder),
        {"format-version": str(version)},
    )
    snapshot = Snapshot(
        snapshot_id=SNAPSHOT,
        sequence_number=2,
        timestamp_ms=empty.last_updated_ms,
        manifest_list=str(manifests),
        summary=Summary(Operation.APPEND),
        schema_id=0,
        first_row_id=0 if version == 3 else None,
        added_rows=footer.num_rows if version == 3 else None,
    )
    said = {
        "snapshots": [snapshot],
        "current_snapshot_id": SNAPSHOT,
        "last_sequence_number": 2,
        "refs": {MAIN_BRANCH: SnapshotRef(snapshot_id=SNAPSHOT, snapshot_ref_type=SnapshotRefType.BRANCH)},
    }
    path = folder / "v1.metadata.json"
    # `model_dump_json` refuses version 3.
    path.write_text(json.dumps(empty.model_copy(update=said).model_dump(mode="json")))
    return path


def _data_entry(data: Path, rows: int) -> dict[str, Any]:
    return {
        "content": 0,
        "file_path": str(data),
        "file_format": "PARQUET",
        "record_count": rows,
        "file_size_in_bytes": data.stat().st_size,
    }


def _delete_entry(delete: DeleteFile, data: Path) -> dict[str, Any]:
    vector = delete.kind == "vector"
    return {
        "content": CONTENT[delete.kind],
        "file_path": delete.path,
        "file_format": delete.format.upper(),
        "record_count": 1 if vector else pq.read_metadata(delete.path).num_rows,
        "file_size_in_bytes": delete.size,
        "equality_ids": list(delete.equality_ids) or None,
        "referenced_data_file": str(data) if vector else None,
        "content_offset": delete.offset if vector else None,
        "content_size_in_bytes": delete.length if vector else None,
    }


def _manifest(path: Path, file: Mapping[str, Any], version: int, sequence_number: int) -> dict[str, Any]:
    """Write a manifest with this file; returns its entry for the list of manifests."""
    schema = manifest_entry_schema_with_data_file(version, data_file_with_partition(StructType(), version))
    numbers = {"sequence_number": sequence_number, "file_sequence_number": sequence_number}
    entry = {"status": 1, "snapshot_id": SNAPSHOT, **numbers, "data_file": {**file, "partition": {}}}
    _avro(path, schema, "manifest_entry", [entry])
    return {
        "manifest_path": str(path),
        "manifest_length": path.stat().st_size,
        "partition_spec_id": 0,
        "content": int(file["content"] > 0),
        "sequence_number": sequence_number,
        "min_sequence_number": sequence_number,
        "added_snapshot_id": SNAPSHOT,
        "added_files_count": 1,
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": file["record_count"],
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
        "first_row_id": 0 if version == 3 and file["content"] == 0 else None,
    }


def _avro(path: Path, schema: Any, name: str, records: list[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, AvroSchemaConversion().iceberg_to_avro(schema, name), records)
