"""Rejects the folder of a table: its data files also contain rows that the table has deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.storage import Storage, Stored, printable

_AS_FILES = "To read all its files, deleted rows too, name them by a glob such as 'folder/*.parquet'."


class _Kind(NamedTuple):
    """A kind of table: its name, the files that only its folder has, and what to do."""

    name: str
    marker: re.Pattern[str]
    remedy: str


_KINDS = (
    _Kind(
        "an Iceberg table",
        re.compile(r"(.+)/metadata/[^/]+\.metadata\.json"),
        "Read it by IcebergDataset.create_dataloader({root!r}, ...), or by tdu with --table.",
    ),
    _Kind(
        "a Delta table",
        re.compile(r"(.+)/_delta_log/(?:[^/]+\.json|_last_checkpoint)"),
        f"Read it by DeltaDataset.create_dataloader({{root!r}}, ...), or by tdu with --delta. {_AS_FILES}",
    ),
    _Kind("a Hudi table", re.compile(r"(.+)/\.hoodie/.+"), f"Hudi tables are not supported. {_AS_FILES}"),
)
_LOGS = ("/_delta_log", "/.hoodie")


def reject_tables(storage: Storage, files: Sequence[Stored], entry: str) -> None:
    """Check that none of the files found, hidden ones included, makes its folder a table's.

    Args:
        storage: where they are.
        files: the files.
        entry: the folder or glob that found them; one inside of a table's log is about the log itself.

    Raises:
        OptionError: one does. The message names the table and how to read it.
    """
    if any(log in entry for log in _LOGS):
        return
    for file in files:
        for name, marker, remedy in _KINDS:
            table = marker.fullmatch(file.path)
            if table is not None:
                root = printable(table[1] if storage.local else f"{storage.protocol}://{table[1].lstrip('/')}")
                raise OptionError(
                    f"path: {root} is {name} (it has {printable(file.path)}), and its data files also hold rows that "
                    f"were deleted. {remedy.format(root=root)}"
                )
