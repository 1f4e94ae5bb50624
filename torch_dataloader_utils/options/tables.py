"""The options for Iceberg tables only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from torch_dataloader_utils.options.checks import Checked, credentials, not_below_zero, one_of, option, values

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
