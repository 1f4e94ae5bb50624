"""An Iceberg table as a source of snapshots."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Literal

from torch_dataloader_utils.iceberg.catalog import again
from torch_dataloader_utils.iceberg.plan import IcebergRead, newest_snapshot, plan_table
from torch_dataloader_utils.iceberg.planned import IcebergPlan
from torch_dataloader_utils.iceberg.snapshots import SnapshotChoice
from torch_dataloader_utils.options import Appended, Iceberg, Options, progress_of
from torch_dataloader_utils.sources.tables import SnapshotCursor


class IcebergSource:
    """A table and the options for reading it. It stays in its process, because it may hold a catalog and its secrets.

    Args:
        chosen: the table, and what is read of it.
        non_appends: what overwrites and deletes among appended rows are, instead of what `chosen` says.
    """

    def __init__(self, chosen: Iceberg, non_appends: Literal["error", "ignore"] | None = None) -> None:
        self._table: Any = chosen.table
        self._chosen = chosen
        self._appended = chosen.appended if isinstance(chosen.appended, Appended) else None
        self._non_appends = non_appends
        self._latest: IcebergPlan | None = None  # its footers are those of other plans of the snapshot

    @property
    def options(self) -> Iceberg:
        """The options that read the same rows by the table's name: a table given as an object has a catalog, too."""
        named = isinstance(self._table, (str, os.PathLike)) or self._chosen.catalog is not None
        return self._chosen if named else self._chosen.replace(catalog={})

    @property
    def pinned(self) -> str | None:
        """Why the table stays at one snapshot (an option pins it); None if it can move."""
        until = None if self._appended is None else self._appended.until
        pins = {"snapshot_id": self._chosen.snapshot_id, "as_of": self._chosen.as_of, "until": until}
        option = next((name for name, value in pins.items() if value is not None), None)
        return option and f"{option}= was given, which pins the snapshot: leave it out, or use ref= instead."

    def taking(self, non_appends: Literal["error", "ignore"]) -> IcebergSource:
        """The same table, with overwrites and deletes among appended rows as errors, or left out."""
        return IcebergSource(self._chosen, non_appends)

    def newest(self, options: Options) -> SnapshotCursor:
        """The newest snapshot of the branch; with `appended` or `follow`, the rows appended since.

        Raises:
            CatalogError: the catalog cannot be reached or denies access.
        """
        return newest_snapshot(self._table, self._read(options))

    def snapshot(self, cursor: SnapshotCursor | None, options: Options) -> IcebergPlan:
        """The plan of a snapshot in the table's current state; raises the same errors as `plan_table`."""
        table = self._table if cursor is None else again(self._table)
        plan = plan_table(table, self._read(options), cursor)
        if self._latest is None or self._latest.cursor != plan.cursor:
            self._latest = plan
        return replace(plan, layouts=self._latest.layouts)

    def _read(self, options: Options) -> IcebergRead:
        chosen, read = self._chosen, options.read
        return IcebergRead(
            catalog=chosen.catalog,
            snapshot=SnapshotChoice(
                chosen.snapshot_id,
                chosen.ref,
                chosen.as_of,
                self._appended or options.follow.follow,
                self._non_appends,
            ),
            filters=read.filters,
            scan_filter=chosen.scan_filter,
            columns=read.columns,
            metadata_columns=tuple(chosen.metadata_columns),
            subset=options.subset,
            features=options.features,
            storage_options=read.storage_options,
            filesystem=read.filesystem,
            progress=progress_of(options),
        )
