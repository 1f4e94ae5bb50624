"""Selects the snapshot to read and the schema to read it with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, Literal

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from torch_dataloader_utils.errors import Remedy, SnapshotError, use
from torch_dataloader_utils.iceberg.snapshot_info import SnapshotInfo
from torch_dataloader_utils.options import Appended, Follow
from torch_dataloader_utils.options.times import milliseconds, utc
from torch_dataloader_utils.printing import plural, shown
from torch_dataloader_utils.sources.tables import SnapshotCursor

_SHOWN = 5  # snapshots listed in an error
_MAIN = "main"
_SKIPPED = {  # operations that append nothing; a compaction moves the same rows to other files
    "error": frozenset({Operation.REPLACE}),
    "ignore": frozenset({Operation.REPLACE, Operation.OVERWRITE, Operation.DELETE}),
}


@dataclass(frozen=True)
class SnapshotChoice:
    """The part of a table to read: one of `snapshot_id`, `ref` and `as_of`, or the rows appended between two snapshots.

    Attributes:
        snapshot_id: a snapshot.
        ref: a branch or tag.
        as_of: a time: reads the snapshot that was current then. A datetime with a time zone, its ISO form, or
            milliseconds since 1970.
        appended: reads what was appended, once or in each pass.
        non_appends: instead of what `appended` says of overwrites and deletes.
    """

    snapshot_id: int | None = None
    ref: str | None = None
    as_of: datetime | str | int | None = None
    appended: Appended | Follow | None = None
    non_appends: Literal["error", "ignore"] | None = None

    @property
    def start(self) -> int | None:
        """The snapshot after which rows were appended."""
        after = None if self.appended is None else self.appended.after
        assert not isinstance(after, str), "that is of folders"
        return after

    @property
    def until(self) -> int | None:
        """The last snapshot whose appends are read; None for the current one."""
        return self.appended.until if isinstance(self.appended, Appended) else None

    @property
    def incremental(self) -> bool:
        """Whether only appended rows are read."""
        return self.start is not None or self.until is not None

    @property
    def skipped(self) -> frozenset[Operation]:
        """The operations that append nothing and are no errors."""
        return _SKIPPED[self.non_appends or ("error" if self.appended is None else self.appended.non_appends)]

    @property
    def advice(self) -> str:
        """What to do about an operation that is no append, in a sentence."""
        if self.incremental:
            return "End before it, or start from it."
        return "Call advance() to read the whole table, or advance(appended_only=True, non_appends='ignore')."

    def remedies(self) -> list[Remedy]:
        """What leaves out overwrites and deletes among the appends."""
        keyword = "appended" if isinstance(self.appended, Appended) else "follow"
        if self.appended is None or self.non_appends is not None:
            return []
        ignoring: Any = {keyword: self.appended.replace(non_appends="ignore")}
        return [use("leaves out overwrites and deletes", **ignoring)]


@dataclass(frozen=True)
class Resolved:
    """The result of a choice in a table.

    Attributes:
        snapshot: the snapshot, or None in a table without one.
        schema: the schema with which it is read.
        appends: the snapshots whose appended files are read, oldest first; None for all files of the snapshot.
    """

    snapshot: Snapshot | None
    schema: Schema
    appends: tuple[Snapshot, ...] | None = None


def resolve(metadata: TableMetadata, choice: SnapshotChoice, cursor: SnapshotCursor | None = None) -> Resolved:
    """The snapshot at `cursor`, or else the one that `choice` selects.

    As in Spark, branches are read with the table's current schema, everything else with the snapshot's schema.

    Raises:
        SnapshotError: there is no such snapshot or ref, or (for appends) a snapshot in between changed existing rows.
    """
    if cursor is not None:
        return _at(metadata, choice, cursor)
    if choice.incremental:
        return _appended(metadata, choice)
    if choice.snapshot_id is not None:
        snapshot = _by_id(metadata, choice.snapshot_id, f"snapshot_id={choice.snapshot_id}")
        return Resolved(snapshot, _own_schema(metadata, snapshot))
    if choice.as_of is not None:
        snapshot = _as_of(metadata, choice.as_of)
        return Resolved(snapshot, _own_schema(metadata, snapshot))
    if choice.ref is not None:
        return _at_ref(metadata, choice.ref)
    return Resolved(_current(metadata), metadata.schema())


def cursor_of(resolved: Resolved, start: Any) -> SnapshotCursor:
    """A cursor that selects the same rows again, regardless of later commits."""
    end = None if resolved.snapshot is None else resolved.snapshot.snapshot_id
    return SnapshotCursor(end, start, resolved.schema.schema_id)


def described(resolved: Resolved, ref: str | None, start: Any) -> SnapshotInfo | None:
    """The description of the snapshot for users; `ref` and `start` are as requested."""
    snapshot = resolved.snapshot
    if snapshot is None:
        return None
    operation = None if snapshot.summary is None else snapshot.summary.operation.value
    return SnapshotInfo(
        snapshot_id=snapshot.snapshot_id,
        timestamp_ms=snapshot.timestamp_ms,
        schema_id=resolved.schema.schema_id,
        ref=ref,
        start_snapshot_id=start,
        operation=operation,
    )


# --------------------------------------------------------------------------------------------------------- one snapshot


def _current(metadata: TableMetadata) -> Snapshot | None:
    number = metadata.current_snapshot_id
    return None if number is None or number < 0 else _by_id(metadata, number, "the table's current snapshot")


def _by_id(metadata: TableMetadata, number: int, asked: str) -> Snapshot:
    snapshot = metadata.snapshot_by_id(number)
    if snapshot is None:
        raise SnapshotError(
            f"{asked}: snapshot {number} is not in the table, or no longer: {_there(metadata.snapshots)}"
        )
    return snapshot


def _at_ref(metadata: TableMetadata, name: str) -> Resolved:
    ref = metadata.refs.get(name)
    if ref is None and name == _MAIN:
        return Resolved(_current(metadata), metadata.schema())
    if ref is None:
        raise SnapshotError(
            f"ref={name!r}: the table has no such branch or tag: expected one of {sorted(metadata.refs)}."
        )
    snapshot = _by_id(metadata, ref.snapshot_id, f"ref={name!r}")
    is_branch = ref.snapshot_ref_type == SnapshotRefType.BRANCH
    return Resolved(snapshot, metadata.schema() if is_branch else _own_schema(metadata, snapshot))


def _as_of(metadata: TableMetadata, as_of: Any) -> Snapshot:
    """The snapshot that was current at that time, according to the table's log."""
    at = milliseconds(as_of)
    log = [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    if not log:
        log = [(snapshot.timestamp_ms, snapshot.snapshot_id) for snapshot in ancestors_of(_current(metadata), metadata)]
    past = [entry for entry in log if entry[0] <= at]
    if not past:
        raise SnapshotError(f"as_of={shown(as_of)}: the table had no snapshot yet; {_there(metadata.snapshots)}")
    return _by_id(metadata, max(past, key=lambda entry: entry[0])[1], f"as_of={shown(as_of)}")


def _own_schema(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    if snapshot.schema_id is None:  # as in format version 1
        return metadata.schema()
    return _schema(metadata, snapshot.schema_id, f"snapshot {snapshot.snapshot_id} was written")


def _schema(metadata: TableMetadata, number: int, who: str) -> Schema:
    schema = metadata.schema_by_id(number)
    if schema is None:
        raise SnapshotError(f"{who} with schema {number}, which the table's metadata does not contain (any more).")
    return schema


def _at(metadata: TableMetadata, choice: SnapshotChoice, cursor: SnapshotCursor) -> Resolved:
    number: Any = cursor.end
    schema: Any = cursor.schema
    resolved_schema = _schema(metadata, schema, f"snapshot {number} was read")
    if number is None:
        return Resolved(None, resolved_schema)
    snapshot = _by_id(metadata, number, "the snapshot to be read")
    appends = None if cursor.start is None else _appends(metadata, choice, cursor.start, snapshot)
    return Resolved(snapshot, resolved_schema, appends)


def _there(snapshots: Iterable[Snapshot]) -> str:
    """A list of the snapshots that can be read, newest first, for an error."""
    newest = sorted(snapshots, key=lambda snapshot: snapshot.timestamp_ms, reverse=True)
    listed = [f"{snapshot.snapshot_id} ({utc(snapshot.timestamp_ms)})" for snapshot in newest[:_SHOWN]]
    more = f" and {plural(len(newest) - _SHOWN, 'older one')}" if len(newest) > _SHOWN else ""
    return f"available are {', '.join(listed)}{more}." if listed else "it has no snapshots."


# -------------------------------------------------------------------------------------------------------------- appends


def _appended(metadata: TableMetadata, choice: SnapshotChoice) -> Resolved:
    number = choice.until
    end = _current(metadata) if number is None else _by_id(metadata, number, f"until={number}")
    return Resolved(end, metadata.schema(), _appends(metadata, choice, choice.start, end))


def snapshots_after(metadata: TableMetadata, start: int | str | None, end: Snapshot | None) -> frozenset[int]:
    """The ids of all snapshots after `start` up to and including `end`, whatever they did."""
    later = takewhile(lambda snapshot: snapshot.snapshot_id != start, ancestors_of(end, metadata))
    return frozenset(snapshot.snapshot_id for snapshot in later)


def _appends(
    metadata: TableMetadata, choice: SnapshotChoice, start: int | str | None, end: Snapshot | None
) -> tuple[Snapshot, ...]:
    """The appends after `start` up to and including `end`, oldest first; raises if `choice` forbids the others."""
    since: list[Snapshot] = []
    reached = start is None
    for snapshot in ancestors_of(end, metadata):
        if snapshot.snapshot_id == start:
            reached = True
            break
        since.append(snapshot)
        # The start itself may have expired: its successor still names it.
        reached = reached or snapshot.parent_snapshot_id == start
    if not reached:
        known = "a table without snapshots"
        if end is not None:
            oldest = since[-1].snapshot_id
            known = f"snapshot {end.snapshot_id}, whose history goes back to {oldest} (more may have expired)"
        raise SnapshotError(f"after={start}: is not an ancestor of {known}: {_there(metadata.snapshots)}")
    return tuple(snapshot for snapshot in reversed(since) if _is_append(snapshot, choice))


def _is_append(snapshot: Snapshot, choice: SnapshotChoice) -> bool:
    """Whether a snapshot appended rows; False for operations that the choice skips.

    Raises:
        SnapshotError: it is another operation, or of an unknown kind: it may have appended.
    """
    operation = None if snapshot.summary is None else snapshot.summary.operation
    if operation != Operation.APPEND and operation not in choice.skipped:
        raise SnapshotError(
            f"snapshot {snapshot.snapshot_id} ({utc(snapshot.timestamp_ms)}) is not an append but "
            f"{'of an unknown kind' if operation is None else repr(operation.value)}: between two snapshots, only "
            f"appended rows can be read. {choice.advice}",
            remedies=choice.remedies() if operation else [],
        )
    return bool(operation == Operation.APPEND)
