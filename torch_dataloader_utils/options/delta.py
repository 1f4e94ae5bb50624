"""The options for Delta tables only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from torch_dataloader_utils.options.checks import Checked, maybe, option, whole


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(Checked):
    """Which version of a table is read."""

    version: int | None = option(None, maybe(whole(0)), doc="read this version, with its own schema")
    as_of: datetime | str | int | None = option(
        None, doc="read what was current at this time: a datetime with zone, ISO text, or milliseconds"
    )
