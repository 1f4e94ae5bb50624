"""A fit: as many scans of the rows as transforms need, which the ranks of a job share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from time import perf_counter
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.distributed.exchange import Sharers, sharers_among
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.options import Options, progress_of
from torch_dataloader_utils.options.keywords import parse_stream
from torch_dataloader_utils.options.transform import RowsRead
from torch_dataloader_utils.preprocess.ranks import join
from torch_dataloader_utils.preprocess.scan import FitScan
from torch_dataloader_utils.preprocess.sources import (
    OF_FIT,
    FitRows,
    given_dataset,
    in_memory,
    options_of_rows,
    rows_of,
)
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.progress import Progress
from torch_dataloader_utils.sources.agreement import sharing_of

_LOG = logging.getLogger("torch_dataloader_utils")


def fit(
    first: Callable[[pa.Schema, bool], FitScan], source: Any, options: Mapping[str, Any]
) -> tuple[FitScan, Sequence[RowsRead]]:
    """The last scan that a fit needs, finished, and which rows of files it has read.

    Args:
        first: makes the first scan of rows of a schema, on the first rank that shares the fit, and on others.
        source: what is read.
        options: keywords of `stream`.

    Raises:
        EmptyDatasetError: there are no rows.
        WorkerError: another rank failed; says why.
        PlanMismatchError: the ranks read different data or have different specs; or one does not arrive in time.
    """
    began, number = perf_counter(), 0
    own = parse_stream(None, {name: options[name] for name in OF_FIT if name in options})
    sharers = _sharers(own, source)
    given = given_dataset(source)
    # A loader that shows its progress shows this, too.
    progress = progress_of(own if given is None or own.worker.show_progress else passes_of(given).options)
    sharing = sharing_of(sharers, "put together what they counted", "fitting")
    with sharing.failing_together():
        rows = rows_of(source, options_of_rows(source, options), "fit", sharing.rank, sharing.num_ranks)
        scan = first(rows.schema, sharing.rank == 0)
    following: FitScan | None = scan if scan.columns else None
    while following is not None:
        scan, number = following, number + 1
        with _closed_by_errors(scan):
            with sharing.failing_together():
                _count(scan, rows, progress, number)
            join(scan, sharers, sharing, f"{rows.mark} {scan.mark}")
            following = scan.finish()
    done = "updated by" if scan.updates else "fitted on"
    _LOG.info("%s %s in %.1f s: %s", done, plural(scan.rows, "row"), perf_counter() - began, plural(number, "scan"))
    return scan, rows.read()


@contextmanager
def _closed_by_errors(scan: FitScan) -> Iterator[None]:
    """A context that leaves no temporary files of a scan if it fails; else those of rare values stay for updates."""
    try:
        yield
    except BaseException:
        scan.close()
        raise


def _sharers(own: Options, source: Any) -> Sharers:
    """The processes that share the scans: those of the job, or of the ranks that a loader or the options name.

    Rows in memory are shared only if ranks are named: then each has a part of them.
    """
    from torch_dataloader_utils import __version__  # the root is complete only after this module is loaded

    dataset = given_dataset(source)
    shard = own.shard if dataset is None or _named(own) else passes_of(dataset).options.shard
    if in_memory(source) and not _named(own):
        return Sharers()
    version = {"the version of torch_dataloader_utils": __version__}
    return sharers_among(shard.num_ranks, shard.peers, own.worker.timeout, version)


def _named(own: Options) -> bool:
    """Whether the options name the ranks."""
    return own.shard.num_ranks is not None or own.shard.ranks is not None


def _count(scan: FitScan, rows: FitRows, progress: Progress, number: int) -> None:
    work = "fitting" if number == 1 else f"fitting, scan {number}"
    with (
        progress.over(rows.total, work, "rows") as shown,
        closing(rows.tables(scan.columns, scan.counted_columns)) as tables,
    ):
        for table in tables:
            scan.add(table)
            shown.advance(table.num_rows)
