"""An Iceberg table as a source of snapshots."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.iceberg.catalog import again
from torch_dataloader_utils.iceberg.plan import IcebergRead, newest_snapshot, plan_table
from torch_dataloader_utils.iceberg.planned import IcebergPlan
from torch_dataloader_utils.iceberg.snapshots import SnapshotChoice
from torch_dataloader_utils.options import Options, TableOptions, progress_of
from torch_dataloader_utils.sources.tables import SnapshotCursor

_PINS = ("snapshot_id", "as_of", "end_snapshot_id")


class IcebergSource:
    """A table and the options for reading it. It stays in its process, because it may hold a catalog and its secrets.

    Args:
        table: as in `plan_table`.
        chosen: the table's options.
    """

    def __init__(self, table: Any, chosen: TableOptions) -> None:
        self._table = table
        self._chosen = chosen

    @property
    def options(self) -> TableOptions:
        """The options that read the same rows by the table's name: a table given as an object has a catalog, too."""
        named = isinstance(self._table, (str, os.PathLike)) or self._chosen.catalog_config is not None
        return self._chosen if named else replace(self._chosen, catalog_config={})

    @property
    def pinned(self) -> str | None:
        """Why the table stays at one snapshot (an option pins it); None if it can move."""
        option = next((name for name in _PINS if getattr(self._chosen, name) is not None), None)
        return option and (
            f"{option}= was given, which pins the snapshot: leave it out, or use ref= or start_snapshot_id= instead."
        )

    def newest(self, options: Options) -> SnapshotCursor:
        """The newest snapshot of the branch; with `start_snapshot_id=`, the rows appended since.

        Raises:
            CatalogError: the catalog cannot be reached or denies access.
        """
        return newest_snapshot(self._table, self._read(options))

    def snapshot(self, cursor: SnapshotCursor | None, options: Options) -> IcebergPlan:
        """The plan of a snapshot in the table's current state; raises the same errors as `plan_table`."""
        table = self._table if cursor is None else again(self._table)
        return plan_table(table, self._read(options), cursor)

    def _read(self, options: Options) -> IcebergRead:
        chosen, read = self._chosen, options.read
        return IcebergRead(
            catalog_config=chosen.catalog_config,
            snapshot=SnapshotChoice(
                chosen.snapshot_id,
                chosen.ref,
                chosen.as_of,
                chosen.start_snapshot_id,
                chosen.end_snapshot_id,
                chosen.non_appends,
            ),
            filters=read.filters,
            scan_filter=chosen.scan_filter,
            columns=read.columns,
            metadata_columns=tuple(chosen.metadata_columns),
            subset=options.subset,
            replay=float(chosen.replay),
            storage_options=read.storage_options,
            filesystem=read.filesystem,
            progress=progress_of(options),
        )
