"""A table that is asked for other snapshots than the one that was read first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch_dataloader_utils.distributed.exchange import from_first_rank
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.iceberg.catalog import again
from torch_dataloader_utils.iceberg.plan import IcebergPlan, IcebergRead, newest_snapshot, plan_table
from torch_dataloader_utils.iceberg.snapshots import PinnedSnapshot, SnapshotChoice

_PINS = ("snapshot_id", "as_of", "end_snapshot_id")


class TableHistory:
    """The snapshots of a table. It stays in its process: it may hold a catalog, and its secrets.

    Args:
        table: as `plan_table` takes it.
        read: what was read of it first.
    """

    def __init__(self, table: Any, read: IcebergRead) -> None:
        assert isinstance(read.snapshot, SnapshotChoice)
        self._table = table
        self._read = read
        self._choice = read.snapshot

    @property
    def pinned_by(self) -> str | None:
        """The option that pins the snapshot, if one was given."""
        return next((name for name in _PINS if getattr(self._choice, name) is not None), None)

    def newest(self, num_ranks: int | None, group: Any) -> PinnedSnapshot:
        """The newest snapshot of the branch that is read, as rank 0 sees it: a collective.

        Raises:
            OptionError: the options pin a snapshot.
            CatalogError: the catalog cannot be reached, or refuses.
        """
        if self.pinned_by is not None:
            raise OptionError(
                f"advance(): {self.pinned_by}= was given, which pins the snapshot: leave it out, or give ref= or "
                "start_snapshot_id= instead."
            )
        found = from_first_rank(lambda: newest_snapshot(self._table, self._read), num_ranks, group)
        return replace(found, start_snapshot_id=self._choice.start_snapshot_id)

    def plan(self, pin: PinnedSnapshot) -> IcebergPlan:
        """The plan of a snapshot, as `plan_table` makes it, of the table as it is now."""
        return plan_table(again(self._table), replace(self._read, snapshot=pin))
