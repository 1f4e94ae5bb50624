"""What a dataset says of the snapshot that it reads; a value of its own, since it needs no extra."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot that was resolved.

    Attributes:
        snapshot_id: its id.
        timestamp_ms: when it was made, in milliseconds since 1970.
        schema_id: of the schema that it is read with.
        ref: the branch or tag that was asked for.
        start_snapshot_id: whose successors' appends are read, where only appends are.
        operation: what made it, such as "append".
    """

    snapshot_id: int
    timestamp_ms: int
    schema_id: int
    ref: str | None = None
    start_snapshot_id: int | None = None
    operation: str | None = None
