"""Reads a file by its format alone, as the package's own code does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage


def read_all(form: Format, path: Path) -> pa.Table:
    """All rows, with all that a layout is asked for on the way."""
    info = DataFileInfo(str(path), path.stat().st_size)
    layout, schema = form.layout(info, Storage(), {})
    form.null_columns(layout)
    layout = form.pruner(pc.field(schema.names[0]).is_valid() | pc.scalar(True), schema)(layout, schema, {})
    reader = form.open(info, layout, Storage(), {}, schema)
    try:
        numbers = [segment.number for segment in layout.segments]
        alone = [[name] for name in schema.names] if form.columnar else [schema.names]
        columns = [column for names in alone for column in reader.read(numbers, names)]
    finally:
        reader.close()
    fields = [item.with_type(column.type) for item, column in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


@contextmanager
def opened(path: Path, engine: str = "auto", **more: Any) -> Iterator[Reader]:
    """A Parquet file, open, by one of the decoders."""
    form, options = format_named("parquet"), {"engine": engine, **more}
    info, storage = DataFileInfo(str(path), path.stat().st_size), Storage()
    layout, schema = form.layout(info, storage, options)
    reader = form.open(info, layout, storage, options, schema)
    try:
        yield reader
    finally:
        reader.close()
