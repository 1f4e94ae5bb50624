"""Tables: what a loader needs of one, whatever its format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeAlias, runtime_checkable

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.storage import printable

Id: TypeAlias = "int | str | None"


@dataclass(frozen=True)
class SnapshotCursor:
    """Which rows of a table's history are read: plain values, kept in a loader's state.

    Attributes:
        end: id of the snapshot; None for a table without one.
        start: id of the snapshot after which rows were appended, where only these are read; None for all rows.
        schema: id of the schema that it is read with, where the table keeps several.
    """

    end: Id
    start: Id = None
    schema: Id = None

    def __str__(self) -> str:
        return f"snapshot {self.end}" if self.start is None else f"the rows appended from {self.start} to {self.end}"


class TableSnapshot(Protocol):
    """One snapshot of a table. It is pickled with the dataset, so it holds no catalog and no secret.

    `FileSnapshot` is one for tables of plain data files.
    """

    @property
    def name(self) -> str:
        """Of the table, for messages."""
        ...

    @property
    def cursor(self) -> SnapshotCursor:
        """What `TableSource.snapshot` finds it by again."""
        ...

    def manifest(self, options: Options) -> FileManifest:
        """The snapshot's data files with their rows (those deleted are not counted), schema and reader.

        Args:
            options: of the loader: `read` has the filters and where files are, `split` how they are cut.
        """
        ...


@runtime_checkable
class TableSource(Protocol):
    """A table: finds its snapshots. It stays in the process that makes the loader, so it may hold a catalog."""

    @property
    def pinned(self) -> str | None:
        """Why the table stays at one snapshot, and what to do about it: a sentence for errors; None where it moves."""
        ...

    def newest(self, options: Options) -> SnapshotCursor:
        """The newest snapshot; asked on rank 0 alone, whose answer all ranks get."""
        ...

    def snapshot(self, cursor: SnapshotCursor | None, options: Options) -> TableSnapshot:
        """A snapshot of the table.

        Args:
            cursor: which one: the snapshot returned must have just this one. None: what the user asked for, by default
                the newest.
            options: of the loader: `read.storage_options` and `read.filesystem` say how files are reached.

        Raises:
            DataNotFoundError: there is no such table.
            SnapshotError: the table does not have this snapshot, or cannot say what was appended.
        """
        ...


def check_listed_once(paths: Sequence[str]) -> None:
    """Check that a snapshot lists each of its files once.

    Raises:
        FileReadError: it does not: names one.
    """
    path, times = max(Counter(paths).items(), key=itemgetter(1), default=("", 0))
    if times > 1:
        raise FileReadError(
            f"{printable(path)}: the table lists this file {times} times: its rows would be read as often."
        )
