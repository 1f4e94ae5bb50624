"""Data and delete files of Iceberg tables, written by hand: what no writer at hand makes can be tried too."""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyroaring import BitMap64

from tests.formats.avro_writing import write_avro
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener, IcebergReader
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage


def field(number: int, name: str, kind: pa.DataType, nullable: bool = True) -> pa.Field:
    """A field with an id."""
    return pa.field(name, kind, nullable, {"PARQUET:field_id": str(number)})


def write(table: pa.Table, path: Path, form: str = "parquet", segment_rows: int = 1 << 20) -> Path:
    """Write a data or delete file with segments of so many rows; field ids as the format keeps them."""
    if form == "parquet":
        pq.write_table(table, path, row_group_size=segment_rows)
    elif form == "avro":
        write_avro(table, path, segment_rows)
    else:
        schema = pa.schema([_orc_field(item) for item in table.schema])
        with orc.ORCWriter(str(path), stripe_size=1, batch_size=segment_rows) as writer:
            writer.write(pa.Table.from_arrays(table.columns, schema=schema))
    return path


def positions_file(path: Path, rows: Mapping[str, Sequence[int]], form: str = "parquet") -> DeleteFile:
    """A positional delete file: path of a data file -> deleted rows."""
    paths = [name for name, numbers in rows.items() for _ in numbers]
    numbers = [number for found in rows.values() for number in found]
    schema = pa.schema(
        [field(2147483546, "file_path", pa.string(), False), field(2147483545, "pos", pa.int64(), False)]
    )
    write(pa.table([pa.array(paths, pa.string()), pa.array(numbers, pa.int64())], schema=schema), path, form)
    return DeleteFile("positions", str(path), form, path.stat().st_size)


def vector_blob(rows: Sequence[int]) -> bytes:
    """A deletion vector as Iceberg lays it out."""
    body = b"\xd1\xd3\x39\x64" + BitMap64(rows).serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def vector_file(path: Path, rows: Sequence[int], before: bytes = b"PFA1") -> DeleteFile:
    """A deletion vector, somewhere in a file."""
    blob = vector_blob(rows)
    path.write_bytes(before + blob + b"what follows")
    return DeleteFile("vector", str(path), "puffin", path.stat().st_size, len(before), len(blob))


def equality_file(path: Path, keys: pa.Table, form: str = "parquet", ids: Sequence[int] = ()) -> DeleteFile:
    """An equality delete file: the keys of deleted rows; `ids` where not all columns (by their ids) are keys."""
    write(keys, path, form)
    numbers = tuple(ids) or tuple(int(item.metadata[b"PARQUET:field_id"]) for item in keys.schema)
    return DeleteFile("equality", str(path), form, path.stat().st_size, equality_ids=numbers)


def planned(
    path: Path, form: str = "parquet", rows: int = -1, deletes: Sequence[DeleteFile] = (), **more: Any
) -> tuple[DataFileInfo, IcebergFile]:
    """A data file as the manifest tells; without `rows`, it does not tell how many there are."""
    file = IcebergFile(form, str(path), rows, deletes=tuple(deletes), **more)
    return DataFileInfo(str(path), path.stat().st_size, rows), file


def opened(
    info: DataFileInfo, file: IcebergFile, table: IcebergTable, wanted: pa.Schema | None = None
) -> tuple[FileLayout, IcebergReader]:
    layout = iceberg_layout(info, file, Storage())
    return layout, IcebergOpener(table).open(info, layout, Storage(), {}, table.schema if wanted is None else wanted)


def read_rows(
    path: Path, table: IcebergTable, form: str = "parquet", deletes: Sequence[DeleteFile] = (), **more: Any
) -> pa.Table:
    """All rows left of a data file, as the table's columns."""
    info, file = planned(path, form, deletes=deletes, **more)
    layout, reader = opened(info, file, table)
    try:
        columns = reader.read([segment.number for segment in layout.segments], table.schema.names)
    finally:
        reader.close()
    return pa.Table.from_arrays(columns, schema=table.schema)


def _orc_field(item: pa.Field) -> pa.Field:
    """The field with its ids where ORC keeps them."""
    kind = item.type
    if pt.is_struct(kind):
        kind = pa.struct([_orc_field(child) for child in kind])
    elif pt.is_map(kind):
        kind = pa.map_(_orc_field(kind.key_field), _orc_field(kind.item_field))
    elif pt.is_list(kind):
        kind = pa.list_(_orc_field(kind.value_field))
    number = (item.metadata or {}).get(b"PARQUET:field_id")
    return pa.field(item.name, kind, item.nullable, None if number is None else {"iceberg.id": number})
