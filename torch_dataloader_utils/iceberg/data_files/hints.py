"""Sizes and counts of files in manifests: a size is a hint, a count is checked.

Files are rewritten after their commit, and some writers count before the footer is written: real tables have wrong
    sizes.
So the store's size is used, and later reads are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.errors import FileChangedError, FileReadError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, printable


def own_layout(
    form: Format, info: DataFileInfo, file: IcebergFile | DeleteFile, storage: Storage, options: Mapping[str, Any]
) -> tuple[DataFileInfo, FileLayout]:
    """A file with its own size, and its layout.

    Args:
        form: its format.
        info: with the size in the manifest.
        file: what else is known of it.
        storage: where it is.
        options: those of its format.

    Raises:
        FileChangedError: it has changed since it was planned, or has gone.
        FileReadError: it is damaged, or its rows differ from the manifest.
    """
    if file.seen:
        info = replace(info, file_size=file.seen)
        layout, _ = form.layout(info, storage, options)
    else:
        info, layout = _by_hint(form, info, storage, options)
    check_count(printable(info.path), sum(segment.rows or 0 for segment in layout.segments), file.record_count)
    return info, layout


def check_count(where: str, rows: int, expected: int) -> None:
    """Check that a file has as many rows as the manifest says, if it says so (below 0 it does not).

    Raises:
        FileReadError: it has another number.
    """
    if expected >= 0 and rows != expected:
        raise FileReadError(
            f"{where}: has {rows} rows, but the table's manifest says {expected}: the file or the manifest is damaged."
        )


def _by_hint(
    form: Format, info: DataFileInfo, storage: Storage, options: Mapping[str, Any]
) -> tuple[DataFileInfo, FileLayout]:
    """As `own_layout`, of a file that nobody has looked at: read anew by its own size where the manifest's is wrong."""
    hinted = replace(info, file_size=max(1, info.file_size))  # of size 0 it would be read, and its size stay unknown
    try:
        return hinted, form.layout(hinted, storage, options)[0]
    except FileChangedError as error:
        if error.size is None:
            raise
        seen = replace(info, file_size=error.size)
        # Retries leave the error in a cycle, and its frames would keep what callers open from here on.
        error.__traceback__ = error.__context__ = error.__cause__ = None
    try:
        return seen, form.layout(seen, storage, options)[0]
    except FileChangedError:
        raise
    except FileReadError as error:
        sizes = f"It has {seen.file_size} bytes, but the table's manifest says {info.file_size}."
        raise FileReadError(f"{error} {sizes}") from error
