"""Appended rows of a table as a feature: passes wait for them, and older ones are read beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.following.folder import FolderSource, check_agreement
from torch_dataloader_utils.following.replay import Replay, drawn
from torch_dataloader_utils.following.waiting import appended_since, check_group
from torch_dataloader_utils.hashing import name_hash
from torch_dataloader_utils.options import Appended, Follow, Options
from torch_dataloader_utils.sources.agreement import sharers_of
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.sources.tables import SnapshotCursor

if TYPE_CHECKING:
    from torch_dataloader_utils.iceberg.planned import PlannedFile  # needs an extra


@dataclass(frozen=True)
class Following(Feature):
    """Rows that were appended to a table.

    Attributes:
        how: what is read of them and beside them, once or in each pass.
    """

    how: Appended | Follow

    def older_rows(
        self, files: Sequence[PlannedFile], older: Callable[[], Sequence[PlannedFile]], cursor: SnapshotCursor
    ) -> Replay | None:
        """As many older rows as `replay` asks for, drawn anew for each range of snapshots; None without it."""
        if not self.how.replay:
            return None
        key = name_hash(self.how.seed, str(cursor.start), str(cursor.end))
        return drawn(float(self.how.replay), files, older() if files else (), key)

    def appended(
        self,
        read: SnapshotCursor | None,
        added: Callable[[SnapshotCursor, bool], SnapshotCursor],
        source_at: Callable[[SnapshotCursor], Source],
        ending: Callable[[], bool],
        num_ranks: int,
        options: Options,
    ) -> Source | None:
        """With `follow`, what was appended since all rows were read, as soon as there is any (see `Feature`).

        Raises:
            ShardingError: several ranks have no process group, in which they would agree on it.
            StaleIteratorError: the wait was ended.
        """
        if not isinstance(self.how, Follow):
            return None
        sharers = sharers_of(options)
        if self.how.rounds is None:
            check_group(num_ranks, sharers)
        if read is None:
            return None
        return appended_since(read, added, source_at, self.how, sharers, options.worker.timeout, ending)

    def growing(self, path: Any, options: Options) -> FolderSource | None:
        """With `follow`, the rounds of a folder.

        Raises:
            OptionError: several ranks have neither a process group nor `rounds`, or a path is a file.
        """
        if not isinstance(self.how, Follow):
            return None
        check_agreement(self.how, options)
        return FolderSource(path, self.how, options.read)


def following(options: Options) -> Following | None:
    """The feature of `follow` and `appended`; None without both."""
    how = options.follow.appended or options.follow.follow
    return None if how is None else Following(how)
