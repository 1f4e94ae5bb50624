"""The formats of the files that Iceberg tables are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.formats.parquet.plan import Footer
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile
from torch_dataloader_utils.iceberg.data_files.hints import own_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

_NAMES = ("parquet", "orc", "avro")


def inner_format(name: str) -> Format:
    """The format of a data or delete file.

    Raises:
        OptionError: Iceberg has no such format of data files.
    """
    if name not in _NAMES:
        raise OptionError(f"a file of format {name!r}: expected one of Iceberg's data formats, {', '.join(_NAMES)}.")
    form: Format = import_module(f"torch_dataloader_utils.formats.{name}").FORMAT
    return form


def inner_options(form: Format, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the `format_options` of a table that the format of one file takes."""
    return {name: value for name, value in options.items() if name in form.options}


def layout_schema(layout: FileLayout) -> pa.Schema | None:
    """The schema of a file of this layout, where that has one (ORC's does not)."""
    footer = layout.metadata.metadata if isinstance(layout.metadata, Footer) else layout.metadata
    schema = getattr(footer, "schema", None)
    return schema.to_arrow_schema() if isinstance(schema, pq.ParquetSchema) else schema


@contextmanager
def opened(file: DeleteFile, storage: Storage, wanted: pa.Schema) -> Iterator[tuple[Reader, list[int], int]]:
    """A reader of a delete file, the numbers of its segments, and the bytes of the file.

    Args:
        file: the delete file.
        storage: where it is.
        wanted: as `Format.open` has it.

    Raises:
        FileReadError: naming the file.
    """
    form = inner_format(file.format)
    info, layout = own_layout(form, DataFileInfo(file.path, file.size), file, storage, {})
    reader = form.open(info, layout, storage, {}, wanted)
    try:
        yield reader, [segment.number for segment in layout.segments], info.file_size
    finally:
        reader.close()
