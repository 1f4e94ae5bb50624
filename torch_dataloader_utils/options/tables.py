"""The options for Iceberg tables only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.values import (
    Checked,
    credentials,
    flag,
    interval,
    maybe,
    not_below_zero,
    one_of,
    option,
    seconds_or_zero,
    values,
    whole,
)

# The options that let passes follow a growing table.


@dataclass(frozen=True, kw_only=True)
class FollowOptions(Checked):
    """Whether each pass reads what was appended to a table since the pass before it."""

    follow: bool = option(False, flag, doc="each pass after the first reads the rows appended since the pass before it")
    poll_seconds: float = option(10, interval, doc="with follow: how often a pass looks for appended rows")
    wait_seconds: float | None = option(
        None, maybe(seconds_or_zero), doc="with follow: a pass that finds no appended rows for so long is empty"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_seconds is not None and not self.follow:
            raise OptionError(
                f"wait_seconds={self.wait_seconds} without follow=True.",
                remedies=[use(follow=True), leave_out("wait_seconds")],
            )


# The options for Delta tables only.


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(Checked):
    """Which version of a table is read."""

    version: int | None = option(None, maybe(whole(0)), doc="read this version, with its own schema")
    as_of: datetime | str | int | None = option(
        None, doc="read what was current at this time: a datetime with zone, ISO text, or milliseconds"
    )


_column_names = values(
    "names, such as ['_file', '_pos']", lambda value: isinstance(value, Sequence) and not isinstance(value, str)
)


@dataclass(frozen=True, kw_only=True)
class TableOptions(Checked):
    """Which table and snapshot are read, and what besides the columns."""

    # Credentials: never in a repr, a log or an error.
    catalog_config: Mapping[str, Any] | None = option(
        None,
        credentials("as pyiceberg's load_catalog takes it, such as {'name': 'default'}"),
        doc="the catalog's properties, as pyiceberg's load_catalog takes them",
        repr=False,
    )
    snapshot_id: int | None = option(None, doc="read this snapshot, with its own schema")
    ref: str | None = option(None, doc="read this branch or tag")
    as_of: datetime | str | int | None = option(
        None, doc="read what was current at this time: a datetime with zone, ISO text, or milliseconds"
    )
    start_snapshot_id: int | None = option(None, doc="read only rows appended after this snapshot")
    end_snapshot_id: int | None = option(None, doc="read rows appended up to this snapshot; None for the current one")
    non_appends: Literal["error", "ignore"] = option(
        "error",
        one_of("error", "ignore"),
        doc="for appended rows: overwrites and deletes among the appends are errors, or are left out",
    )
    replay: float = option(
        0.0, not_below_zero, doc="for appended rows: how many older rows are read beside each, drawn anew each time"
    )
    scan_filter: Any = option(None, doc="rules out files and row groups like filters, but drops no single row")
    metadata_columns: Sequence[str] = option((), _column_names, doc='columns such as "_file" and "_pos" to add')
