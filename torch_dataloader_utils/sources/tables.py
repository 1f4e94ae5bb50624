"""Tables of any format: the interface that a loader needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Protocol, TypeAlias, runtime_checkable

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.events import Event
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.storage.spelling import file_keys

Id: TypeAlias = "int | str | None"


@dataclass(frozen=True)
class SnapshotCursor:
    """Which rows of a table's history are read: plain values, kept in a loader's state.

    Attributes:
        end: id of the snapshot; None for a table without one.
        start: id of the snapshot after which rows were appended, if only these are read; None for all rows.
        schema: id of the schema with which it is read, if the table has several.
    """

    end: Id
    start: Id = None
    schema: Id = None

    def __str__(self) -> str:
        return self.place if self.start is None else f"the rows appended from {self.start} to {self.end}"

    @property
    def place(self) -> str:
        """Where in the table's history it ends, for messages."""
        return f"snapshot {self.end}"


class TableSnapshot(Protocol):
    """One snapshot of a table. It is pickled with the dataset, so it must hold no catalog and no secret.

    `FileSnapshot` is one for tables of plain data files.
    """

    @property
    def name(self) -> str:
        """The table's name, for messages."""
        ...

    @property
    def cursor(self) -> SnapshotCursor:
        """The cursor with which `TableSource.snapshot` returns it again."""
        ...

    def manifest(self, options: Options) -> FileManifest:
        """The snapshot's data files with their rows (deleted ones not counted), schema and reader.

        Args:
            options: the loader's options: `read` has the filters and the storage, `split` defines how files are cut.
        """
        ...


@runtime_checkable
class ToldSnapshot(TableSnapshot, Protocol):
    """A snapshot that tells `describe()` more of itself than its cursor does."""

    @property
    def in_words(self) -> str:
        """Which snapshot it is."""
        ...

    @property
    def replay_in_words(self) -> str:
        """Which older rows are read beside appended ones; "" if none are."""
        ...


@runtime_checkable
class TableSource(Protocol):
    """A table that looks up its snapshots. It stays in the process that creates the loader: it may hold a catalog."""

    @property
    def pinned(self) -> str | None:
        """A sentence for errors: why the table stays at one snapshot, and what to do. None if it can move."""
        ...

    def newest(self, options: Options) -> SnapshotCursor:
        """The newest snapshot. Called only on rank 0, whose answer all ranks use."""
        ...

    def snapshot(self, cursor: SnapshotCursor | None, options: Options) -> TableSnapshot:
        """A snapshot of the table.

        Args:
            cursor: the snapshot to return, which must have this cursor. None: the one the user requested, by default
                the newest.
            options: the loader's options: `read.storage_options` and `read.filesystem` give access to the files.

        Raises:
            DataNotFoundError: there is no such table.
            SnapshotError: the table does not have this snapshot, or does not record what was appended.
        """
        ...


@runtime_checkable
class GrowingSource(TableSource, Protocol):
    """What tells what was added since a position itself, where the newest position does not suffice."""

    def added(self, read: SnapshotCursor, options: Options, *, last: bool) -> SnapshotCursor:
        """The position after `read`, with what was added since; `read` itself if that is nothing.

        Called only on rank 0, whose answer all ranks use; or on all, if they agree otherwise.

        Args:
            read: the position up to which all was read.
            options: of the loader.
            last: whether the wait is over: a position without additions is then another one than `read`.
        """
        ...

    def report_to(self, callback: Callable[[Event], object]) -> None:
        """Call a function with each event about what is not read, from now on."""
        ...

    def finished(self, read: SnapshotCursor) -> SnapshotCursor:
        """The position from which the same is added, but at which nothing is read: what was read may be removed."""
        ...


def added_since(table: TableSource, read: SnapshotCursor, options: Options, *, last: bool) -> SnapshotCursor:
    """The newest position of a table, with what was appended since `read`; arguments as for `GrowingSource.added`."""
    if isinstance(table, GrowingSource):
        return table.added(read, options, last=last)
    return replace(table.newest(options), start=read.end)


def snapshot_in_words(snapshot: TableSnapshot | None) -> tuple[str, str]:
    """Which snapshot is read, and which older rows are read beside appended ones; "" for neither."""
    if isinstance(snapshot, ToldSnapshot):
        return snapshot.in_words, snapshot.replay_in_words
    return ("", "") if snapshot is None or snapshot.cursor.end is None else (str(snapshot.cursor), "")


def check_listed_once(paths: Sequence[str], storage: Storage) -> None:
    """Check that a snapshot lists each of its files once, by whatever names.

    Args:
        paths: the files, as paths in the storage.
        storage: where they are.

    Raises:
        FileReadError: it lists one repeatedly. The message names it.
    """
    keys = list(file_keys(paths, storage.protocol, storage.local))
    names = dict(zip(reversed(keys), reversed(paths), strict=True))  # the first of each
    if len(names) < len(paths):
        key, times = max(Counter(keys).items(), key=itemgetter(1))
        other = next((path for path, one in zip(paths, keys, strict=True) if one == key and path != names[key]), None)
        link = "" if other is None else f" (as {printable(other)}, too)"
        raise FileReadError(
            f"{printable(names[key])}: the table lists this file {times} times{link}, but must list it once."
        )
