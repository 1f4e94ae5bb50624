"""Waits for rows that are appended to a table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic, sleep

from torch_dataloader_utils.distributed.exchange import Sharers, from_first_rank
from torch_dataloader_utils.options import FollowOptions
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.sources.tables import SnapshotCursor

_LOG = logging.getLogger("torch_dataloader_utils")


def appended_since(
    here: SnapshotCursor,
    newest: Callable[[], SnapshotCursor],
    source_at: Callable[[SnapshotCursor], Source],
    options: FollowOptions,
    sharers: Sharers,
) -> Source:
    """The rows appended after a position in a table's history, as soon as there are any; none if time is over.

    A collective: all ranks use what rank 0 finds, at the same time.

    Args:
        here: the position up to which rows were read.
        newest: looks up the table's newest position; called on rank 0 only.
        source_at: opens the rows at a position.
        options: how often to look, and for how long.
        sharers: the ranks that share the answer.
    """
    end = monotonic() + (inf if options.wait_seconds is None else options.wait_seconds)
    waiting = False
    while True:
        found, left = from_first_rank(lambda: (newest(), end - monotonic()), sharers, "look for appended rows")
        if found.end != here.end or left <= 0:
            here = replace(found, start=here.end)
            source = source_at(here)
            if source.files or left <= 0:  # a compaction appends no files
                return source
        if not waiting:
            _LOG.info("waiting for rows appended after snapshot %s; looks every %g s", here.end, options.poll_seconds)
        waiting = True
        sleep(min(options.poll_seconds, left))
