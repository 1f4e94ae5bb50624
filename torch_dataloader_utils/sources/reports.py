"""Log lines about a new dataset: what filters ruled out, damaged files, columns of folders, and missing columns."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.printing import damage_in_words
from torch_dataloader_utils.sources.deleted_rows import LiveOpener
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.sources.skipped import skipped_counts, skipped_reasons
from torch_dataloader_utils.storage import printable

_LOG = logging.getLogger("torch_dataloader_utils")
_SHOWN = 5  # columns listed in a line


def report_pruned(manifest: FileManifest, name: str) -> None:
    """Log how much filters ruled out before anything was read.

    Args:
        manifest: the manifest of the files.
        name: the data's name.
    """
    pruned = manifest.pruned
    if pruned.segments_after < pruned.segments_before or pruned.files_after < pruned.files_before:
        _LOG.info(
            "%s: filters keep %d of %d files, and %d of the %d %ss examined",
            name, pruned.files_after, pruned.files_before, pruned.segments_after, pruned.segments_before,
            manifest.opener.segment_name,
        )  # fmt: skip


def report_skipped(manifest: FileManifest, name: str) -> None:
    """Log which damaged files are left out, and why.

    Args:
        manifest: the manifest of the files.
        name: the data's name.
    """
    skipped = manifest.skipped
    if skipped:
        _LOG.warning(
            "%s: on_error='skip' leaves out %s, and keeps %d: %s",
            name, damage_in_words(*skipped_counts(skipped)), manifest.file_count,
            skipped_reasons(skipped),
        )  # fmt: skip


def report_folders(manifest: FileManifest, name: str) -> None:
    """Log which columns of files folder names replace, and why folders named `key=value` are no columns.

    Args:
        manifest: the manifest of the files.
        name: the data's name.
    """
    if manifest.unused_folders:
        _LOG.warning(
            "%s: folders named key=value become no columns, because %s. Pass partitioning=None if that is right.",
            name, manifest.unused_folders,
        )  # fmt: skip
    for column, path in manifest.overruled.items():
        _LOG.warning(
            "%s: column %r has the value that the name of the folder has, not those in the files: they differ, first "
            "in %s. Pass partitioning=None to get those of the files.",
            name, column, printable(path),
        )  # fmt: skip


def report_missing(manifest: FileManifest, columns: Sequence[str], name: str) -> None:
    """Log in one line which columns are missing from files, with the number of these files and the first of them.

    Args:
        manifest: the manifest of the files.
        columns: the columns to be read.
        name: the data's name.
    """
    missing = {column: manifest.missing[column] for column in columns if column in manifest.missing}
    if not missing:
        return
    opener = manifest.opener.inner if isinstance(manifest.opener, LiveOpener) else manifest.opener
    sampled = isinstance(opener, Format) and not opener.typed
    listed = [
        f"{column!r} ({count} of {len(manifest.files)} files, the first is {printable(path)})"
        for column, (count, path) in list(missing.items())[:_SHOWN]
    ]
    more = f"; and {len(missing) - _SHOWN} more columns" if len(missing) > _SHOWN else ""
    _LOG.info(
        "%s: columns missing from some files%s are null there: %s%s",
        name, " (judged by their first MiB)" if sampled else "", "; ".join(listed), more,
    )  # fmt: skip
