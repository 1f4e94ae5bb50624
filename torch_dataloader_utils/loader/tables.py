"""A dataset of a table's rows, at one snapshot until it is moved to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.distributed.exchange import from_first_rank
from torch_dataloader_utils.errors import CheckpointMismatchError, CountsRequiredError, OptionError, SnapshotError
from torch_dataloader_utils.events import Event, PassEvent
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.options import Delta, Iceberg, Options
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.redaction import redacts_errors
from torch_dataloader_utils.sources.agreement import sharers_of
from torch_dataloader_utils.sources.source import Source, open_snapshot
from torch_dataloader_utils.sources.tables import SnapshotCursor, TableSnapshot, TableSource
from torch_dataloader_utils.sources.vocabularies import continued
from torch_dataloader_utils.storage.waiting import limited


@redacts_errors
class SnapshotDataset(LoaderDataset):
    """The rows of a table's snapshot as batches of tensors; `advance` moves it to the newest snapshot."""

    # With follow=True: the position of the rows that the last complete pass read, and its epoch if that was here.
    _read: SnapshotCursor | None
    _read_in: int | None

    def __init__(
        self,
        table: TableSource | None = None,
        options: Options | None = None,
        chosen: Iceberg | Delta | None = None,
        snapshot: TableSnapshot | None = None,
        **unknown: Any,
    ) -> None:
        self._table: TableSource | None = table
        source = None
        if table is not None and options is not None and not unknown:
            if options.follow.follows and table.pinned is not None:
                raise OptionError(f"follow=True: {table.pinned}")
            source = open_snapshot(snapshot or table.snapshot(None, options), options)
        super().__init__(source, options, chosen, **unknown)
        self._note_read()

    def advance(self, appended_only: bool = False, non_appends: Literal["error", "ignore"] | None = None) -> bool:
        """Move to the newest snapshot of the table. Returns True if there was a newer one.

        Call it between epochs, on every rank: all ranks move to the newest snapshot that rank 0 sees. A call during a
        pass takes effect with the next pass. A copy of the dataset in another process keeps its snapshot.

        Args:
            appended_only: read only the rows appended since the snapshot read before. If there is no newer snapshot,
                nothing changes.
            non_appends: with `appended_only`, whether overwrites and deletes in between are errors, or left out; None:
                as the options of the table say, or else errors.

        Raises:
            OptionError: the options pin the snapshot, or this is a copy.
            CatalogError: the catalog cannot be reached or refuses access.
            SnapshotError: with `appended_only`, a snapshot in between has expired or did more than append (compactions
                are allowed, and other changes with `non_appends="ignore"`), or the table does not record what was
                appended. The message names the snapshot.
        """
        table = _taking(self._known_table("advance()"), non_appends)
        if table.pinned is not None:
            raise OptionError(f"advance(): {table.pinned}")
        here = self._snapshot_of(self._latest.next_source).cursor
        with limited(self._options.worker.timeout):
            newest = from_first_rank(lambda: table.newest(self._options), sharers_of(self._options), "advance()")
        there = replace(newest, start=here.end) if appended_only else newest
        newer = newest.end != here.end
        if newer or (not appended_only and there.start != here.start):
            self._latest.move_to(self._source_at(there, table))
        return newer

    def _reopened(self, options: Options, *, same_rows: bool) -> LoaderDataset:
        table, own = self._known_table("another loader of this table"), self._options.subset
        snapshot = self._snapshot_of(self._latest.next_source)
        # Which columns are read to choose rows by hash depends on these.
        same = same_rows and (options.subset.by_hash, options.subset.by, options.subset.unit) == (
            own.by_hash, own.by, own.unit
        )  # fmt: skip
        with limited(options.worker.timeout):
            if not same:
                snapshot = _snapshot_at(table, snapshot.cursor, options)
            return type(self)(table, options, self._chosen, snapshot)  # type: ignore[arg-type]

    def _saved_cursor(self) -> dict[str, Any]:
        """The live or next pass's position in the table's history: ids of snapshots and schema, as JSON-able data.

        With `follow=True`, `read` says whether its rows have been read, so that the next pass reads later ones.
        """
        read = {"read": self._is_read()} if self._options.follow.follows else {}
        return {**read, **asdict(self._snapshot.cursor)}

    def _restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Move to this position in the table's history, unless the options pin another. Ends a live pass.

        Raises:
            CheckpointMismatchError: `cursor` is not a position in a table's history.
            OptionError: this is a copy of the dataset.
            SnapshotError: the table no longer has the snapshot.
        """
        there = _restored(cursor)
        if self._table is not None and self._table.pinned is not None:
            return
        if there == self._snapshot.cursor:
            self._latest.stay()  # undoes an advance() called during the live pass
            return
        # What was left out of these rows when they were read before, is left out again.
        source = self._source_at(there, None if self._table is None else _taking(self._table, "ignore", or_none=True))
        self._passes.load(EpochPosition(self._passes.epoch))
        self._latest.move_to(source)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """As for every dataset; also moves to the state's position in the table's history."""
        super().load_state_dict(state, strict)
        read = self._options.follow.follows and (state.get("source") or {}).get("read") is True
        self._read, self._read_in = self._snapshot.cursor if read else None, None

    def _steps(self) -> int | None:
        return None if self._waits() else super()._steps()  # the next pass reads rows that are still to be appended

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. Call it before each epoch, with the same number on every rank."""
        super().set_epoch(epoch)
        scan = self._source.scan
        if isinstance(scan, ScanSpec) and scan.storage.renewal is not None:
            scan.storage.renewal.current()  # processes that copies of the loader go to from now on cannot ask for them

    def _note_read(self) -> None:
        """Note from now on whose rows complete passes read."""
        self._read = self._read_in = None
        if self._options.follow.follows:
            self._latest.hooks.add(self._note_pass)

    def _note_pass(self, event: Event) -> None:
        if isinstance(event, PassEvent) and event.complete:
            self._read, self._read_in = self._snapshot_of(self._latest.source).cursor, event.epoch

    def _is_read(self) -> bool:
        """Whether the rows at the current position have been read, and the next pass is to follow the table."""
        live = self._latest.live
        if live is not None:  # Accelerate saves states one batch ahead: a pass is over with its last batch
            return self._options.follow.follows and self._accelerated is not None and live.complete
        return self._read == self._snapshot_of(self._latest.source).cursor

    def _waits(self) -> bool:
        none_yet = self._latest.live is None and not self._latest.next_source.files
        return self._is_read() or (self._options.follow.follows and none_yet)

    def _planned(self, epoch: int | None) -> int:
        number, live = super()._planned(epoch), self._passes.live
        if not self._options.follow.follows or (live is None and not self._waits()):
            return number
        known = self._read_in if live is None else live.epoch
        if number == known and (live is not None or epoch is not None):
            return number
        raise _unknown(number, known)

    def _shown(self, epoch: int | None) -> int:
        live = self._passes.live
        if live is None and not self._is_read():
            return super()._planned(epoch)  # even if there are no rows yet
        if live is None and epoch is None:
            return self._passes.epoch if self._read_in is None else self._read_in
        return self._planned(epoch)

    def _followed(self) -> Source | None:
        if not self._options.follow.follows:
            return None
        table, passes = self._known_table("follow=True"), self._latest
        unread = passes.source.files and not self._is_read()
        read = None if unread else self._snapshot_of(passes.source).cursor

        def newest() -> SnapshotCursor:
            with limited(self._options.worker.timeout):
                return table.newest(self._options)

        ranks, features = self.world.num_ranks, self._options.features
        return features.appended(read, newest, self._source_at, lambda: passes.ending, ranks, self._options)

    @property
    def _snapshot(self) -> TableSnapshot:
        """The snapshot of the live or next pass."""
        return self._snapshot_of(self._source)

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

    def _source_at(self, cursor: SnapshotCursor, table: TableSource | None = None) -> Source:
        """The source at another position in the history of its table, or of this view of it."""
        table = table or self._known_table("another snapshot than its own")
        with limited(self._options.worker.timeout):
            source = open_snapshot(_snapshot_at(table, cursor, self._options), self._options)
        return continued(source, self._latest.next_source)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._table = None  # it may hold a catalog
        super().__setstate__(state)
        self._note_read()


def _snapshot_at(table: TableSource, cursor: SnapshotCursor, options: Options) -> TableSnapshot:
    """The snapshot of a table at this position in its history."""
    snapshot = table.snapshot(cursor, options)
    if snapshot.cursor != cursor:
        raise SnapshotError(
            f"{snapshot.name}: requested {cursor}, got {snapshot.cursor}: the table cannot read this range. Call "
            "advance() without appended_only to read the whole table."
        )
    return snapshot


def _taking(table: TableSource, non_appends: Any, *, or_none: bool = False) -> TableSource:
    """The table with overwrites and deletes among appended rows as errors, or left out; None leaves it as it is.

    Raises:
        OptionError: it cannot leave them out; with `or_none`, it is returned as it is.
    """
    if non_appends not in (None, "error", "ignore"):
        raise OptionError(f"non_appends={shown(non_appends)}: expected one of 'error', 'ignore'.")
    taking = getattr(table, "taking", None)
    if non_appends is None or (taking is None and or_none):
        return table
    if taking is None:
        raise OptionError(f"non_appends={non_appends!r}: only an Iceberg table can leave out what is no append.")
    taken: TableSource = taking(non_appends)
    return taken


def _restored(cursor: Mapping[str, Any]) -> SnapshotCursor:
    """The position in a table's history that a state has."""
    try:
        return SnapshotCursor(cursor["end"], cursor["start"], cursor["schema"])
    except (KeyError, TypeError) as error:
        raise CheckpointMismatchError(
            f"the state is damaged (source={cursor!r}): expected the result of loader.state_dict()."
        ) from error


def _unknown(epoch: int, known: int | None) -> CountsRequiredError:
    """The error for an epoch whose rows are not known yet, or no longer; those of the epoch `known` are."""
    instead = "" if known is None else f", or for epoch={known}, whose rows are known"
    return CountsRequiredError(
        f"epoch {epoch} with follow=True: which rows it has is known once its pass has begun, and until the next "
        f"one begins. Ask after its first batch{instead}."
    )
