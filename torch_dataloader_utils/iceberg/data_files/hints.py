"""File sizes and row counts in manifests: sizes are hints, counts are checked.

Real tables record wrong sizes, because files are rewritten after their commit and some writers measure the size before
they write the footer. So the size reported by the store is used, and later reads are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.errors import FileChangedError, FileReadError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Storage, damaged


def own_layout(
    form: Format, info: DataFileInfo, file: IcebergFile | DeleteFile, storage: Storage, options: Mapping[str, Any]
) -> tuple[DataFileInfo, FileLayout]:
    """A file with its actual size, and its layout.

    Args:
        form: its format.
        info: with the size from the manifest.
        file: its entry in the plan.
        storage: where it is.
        options: the options of its format.

    Raises:
        FileChangedError: it has changed or was removed since it was planned.
        FileReadError: it is damaged, or its row count differs from the manifest.
    """
    if file.seen:
        info = replace(info, file_size=file.seen)
        layout, _ = form.layout(info, storage, options)
    else:
        info, layout = _by_hint(form, info, storage, options)
    check_count(info.path, sum(segment.rows or 0 for segment in layout.segments), file.record_count)
    return info, layout


def check_count(path: str, rows: int, expected: int, piece: str = "") -> None:
    """Check that a file has the row count in the manifest, if the manifest records one (`expected` is not negative).

    Raises:
        DamagedFileError: the counts differ.
    """
    if expected >= 0 and rows != expected:
        where = ", ".join(filter(None, [printable(path), piece]))
        raise damaged(
            path,
            f"{where}: has {rows} rows, but the table's metadata says {expected}: one of the two is damaged.",
        )


def _by_hint(
    form: Format, info: DataFileInfo, storage: Storage, options: Mapping[str, Any]
) -> tuple[DataFileInfo, FileLayout]:
    """`own_layout` for a file not read before; reads it again with its actual size if the manifest's is wrong."""
    hinted = replace(info, file_size=max(1, info.file_size))  # with size 0, reading works but leaves the size unknown
    try:
        return hinted, form.layout(hinted, storage, options)[0]
    except FileChangedError as error:
        if error.size is None:
            raise
        seen = replace(info, file_size=error.size)
        # Retries put the error into a reference cycle, whose frames would keep files alive that callers open later.
        error.__traceback__ = error.__context__ = error.__cause__ = None
    try:
        return seen, form.layout(seen, storage, options)[0]
    except FileChangedError:
        raise
    except FileReadError as error:
        sizes = f"It has {seen.file_size} bytes, but the table's metadata says {info.file_size}."
        error.args = (f"{error} {sizes}",)
        raise
