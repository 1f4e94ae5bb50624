"""The rows of a table as a dataset: at one snapshot until it is moved to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.distributed.exchange import from_first_rank
from torch_dataloader_utils.errors import CheckpointMismatchError, OptionError, SnapshotError, UnknownOptionError
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.source import Source, open_snapshot
from torch_dataloader_utils.sources.tables import SnapshotCursor, TableSnapshot, TableSource


class SnapshotDataset(LoaderDataset):
    """The rows of a snapshot of a table as batches of tensors, until `advance` moves it to another one."""

    def __init__(self, table: TableSource | None = None, options: Options | None = None, **unknown: Any) -> None:
        if table is None or options is None or unknown:
            name = type(self).__name__
            raise UnknownOptionError(f"{name}(...): use {name}.create_dataloader(table, ...).")
        self._table: TableSource | None = table
        super().__init__(open_snapshot(table.snapshot(None, options), options), options)

    def advance(self, appended_only: bool = False) -> bool:
        """Move to the newest snapshot of the table. Returns True if there was a newer one.

        Call it between epochs, on every rank: all move to the newest snapshot that rank 0 sees. During a pass, it
            applies
        from the next one on. A copy of the dataset in another process keeps its snapshot.

        Args:
            appended_only: read only the rows appended since the previously read snapshot. Without a newer snapshot,
                nothing changes.

        Raises:
            OptionError: the options pin the snapshot, or this is a copy.
            CatalogError: the catalog cannot be reached or refuses access.
            SnapshotError: with `appended_only`, a snapshot in between has expired, or changed rows in another way
                (which compactions do not), or the table does not record what was appended. The message names the
                snapshot.
        """
        table, shard = self._known_table("advance()"), self._options.shard
        if table.pinned is not None:
            raise OptionError(f"advance(): {table.pinned}")
        here = self._snapshot_of(self._epochs.next_source).cursor
        newest = from_first_rank(lambda: table.newest(self._options), shard.num_ranks, shard.peers)
        there = replace(newest, start=here.end) if appended_only else newest
        newer = newest.end != here.end
        if newer or (not appended_only and there.start != here.start):
            self._epochs.move_to(self._source_at(there))
        return newer

    def source_cursor(self) -> dict[str, Any]:
        """The position in the table's history of the live or next pass: ids of snapshots and schema, JSON-able."""
        return asdict(self._snapshot.cursor)

    def restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Read at this position of the table's history, unless the options pin another. A live pass ends.

        Raises:
            CheckpointMismatchError: it is no such position.
            OptionError: this is a copy of the dataset.
            SnapshotError: the table no longer has the snapshot.
        """
        try:
            there = SnapshotCursor(cursor["end"], cursor["start"], cursor["schema"])
        except (KeyError, TypeError) as error:
            raise CheckpointMismatchError(
                f"the state is damaged (source={cursor!r}): expected the result of loader.state_dict()."
            ) from error
        if self._table is not None and self._table.pinned is not None:
            return
        if there == self._snapshot.cursor:
            self._epochs.stay()  # in case advance() was called during the live pass
            return
        source = self._source_at(there)
        self._passes.load(EpochPosition(self._passes.epoch))
        self._epochs.move_to(source)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`: call it before each epoch, with the same number on every rank."""
        super().set_epoch(epoch)
        with self._passes.turn:
            if self._passes.live is None:  # else when the next pass begins
                self._renew()

    def _renew(self) -> None:
        """Give worker processes the latest credentials, too."""
        scan = self.source.scan
        assert isinstance(scan, ScanSpec)
        storage = replace(scan.storage.latest, renewal=scan.storage.renewal)
        if storage != scan.storage:
            self._epochs.read_by(replace(scan, storage=storage))

    @property
    def _snapshot(self) -> TableSnapshot:
        """The snapshot that the live or next pass reads."""
        return self._snapshot_of(self.source)

    @staticmethod
    def _snapshot_of(source: Source) -> TableSnapshot:
        assert source.snapshot is not None
        return source.snapshot

    def _known_table(self, asked: str) -> TableSource:
        if self._table is None:
            raise OptionError(
                f"{asked}: this dataset is a copy without a catalog. Call it on the dataset that create_dataloader "
                "returned."
            )
        return self._table

    def _source_at(self, cursor: SnapshotCursor) -> Source:
        """The source for another snapshot."""
        snapshot = self._known_table("another snapshot than its own").snapshot(cursor, self._options)
        if snapshot.cursor != cursor:
            raise SnapshotError(
                f"{snapshot.name}: requested {cursor}, got {snapshot.cursor}: the table cannot read this range. Call "
                "advance() without appended_only to read the whole table."
            )
        return open_snapshot(snapshot, self._options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._table = None  # it may hold a catalog
        super().__setstate__(state)
