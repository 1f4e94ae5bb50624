"""Rows of a subset chosen by `_row_id`, which tables of format version 3 keep through deletes and rewrites."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.iceberg.planned import PlannedFile
from torch_dataloader_utils.options import SubsetOptions
from torch_dataloader_utils.redaction import printable

ROW_KEY = "_row_id"


def hashes_row_ids(options: SubsetOptions, schema: Schema, format_version: int) -> bool:
    """Whether rows of a table with this schema are chosen by their ids.

    Raises:
        OptionError: they were to be, but the table has no row ids.
    """
    if not options.by_hash or options.unit != "row" or any(item.name == ROW_KEY for item in schema.fields):
        return False
    if options.by is None:
        return format_version >= 3
    if ROW_KEY in options.by and format_version < 3:
        raise OptionError(
            f"by={ROW_KEY!r} exists only in tables of format version 3 or later, and this table has version "
            f"{format_version}. Choose them by the values of a key column.",
            remedies=[use("chooses files", **options.hashed(unit="file"))],
        )
    return ROW_KEY in options.by


def check_row_ids(name: str, files: Sequence[PlannedFile], options: SubsetOptions) -> None:
    """Check that all rows of these files have ids.

    Raises:
        OptionError: some have none yet. They get them with the next commit, so their subset would change.
    """
    without = sum(planned.file.first_row_id is None for planned in files)
    if without:
        raise OptionError(
            f"{printable(name)}: rows of {without} of {len(files)} files have no row ids, because nothing was written "
            "since the table was upgraded to format version 3. Choose them by the values of a key column, or "
            "commit to the table first.",
            remedies=[use("chooses files", **options.hashed(unit="file"))],
        )
