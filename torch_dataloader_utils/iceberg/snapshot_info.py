"""A description of the snapshot that a dataset reads; in its own module, because it needs no extra."""

from __future__ import annotations

from dataclasses import dataclass

from torch_dataloader_utils.options.times import utc


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot that was resolved.

    Attributes:
        snapshot_id: its id.
        timestamp_ms: when it was created, in milliseconds since 1970.
        schema_id: id of the schema with which it is read.
        ref: the requested branch or tag.
        start_snapshot_id: if only appended rows are read, the snapshot after which they were appended.
        operation: the operation that created it, such as "append".
    """

    snapshot_id: int
    timestamp_ms: int
    schema_id: int
    ref: str | None = None
    start_snapshot_id: int | None = None
    operation: str | None = None

    @property
    def in_words(self) -> str:
        """Which snapshot it is, and which rows are read if not all."""
        at = f"snapshot {self.snapshot_id} of {utc(self.timestamp_ms)}"
        branch = "" if self.ref is None else f" ({self.ref!r})"
        after = self.start_snapshot_id
        return f"{at}{branch}" if after is None else f"rows appended after snapshot {after}, up to {at}{branch}"
