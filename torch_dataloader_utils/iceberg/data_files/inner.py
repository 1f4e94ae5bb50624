"""The formats of an Iceberg table's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile
from torch_dataloader_utils.iceberg.data_files.hints import own_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

_NAMES = ("parquet", "orc", "avro")


def inner_format(name: str) -> Format:
    """The format of a data or delete file.

    Raises:
        OptionError: it is not one of Iceberg's data file formats.
    """
    if name not in _NAMES:
        raise OptionError(f"a file of format {name!r}: expected one of Iceberg's data formats, {', '.join(_NAMES)}.")
    form: Format = import_module(f"torch_dataloader_utils.formats.{name}").FORMAT
    return form


def inner_options(form: Format, options: Mapping[str, Any]) -> dict[str, Any]:
    """The table's `format_options` that apply to the format of one file."""
    return {name: value for name, value in options.items() if name in form.options}


def layout_schema(layout: FileLayout) -> pa.Schema | None:
    """The schema in a file's layout, or None if the layout has none (ORC)."""
    footer = layout.metadata.metadata if isinstance(layout.metadata, Footer) else layout.metadata
    schema = getattr(footer, "schema", None)
    return schema.to_arrow_schema() if isinstance(schema, pq.ParquetSchema) else schema


@contextmanager
def opened(file: DeleteFile, storage: Storage, wanted: pa.Schema) -> Iterator[tuple[Reader, list[int], int]]:
    """A context with a reader of a delete file, the numbers of its segments, and the file's size in bytes.

    Args:
        file: the delete file.
        storage: where it is.
        wanted: the `schema` argument of `Format.open`.

    Raises:
        FileReadError: the file cannot be read; the message names it.
    """
    form = inner_format(file.format)
    info, layout = own_layout(form, DataFileInfo(file.path, file.size), file, storage, {})
    reader = form.open(info, layout, storage, {}, wanted)
    try:
        yield reader, [segment.number for segment in layout.segments], info.file_size
        reader.confirm()
    finally:
        reader.close()
