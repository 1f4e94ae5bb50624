"""Sets the weights of a loader's rows, which hold from the next epoch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, OptionError, leave_out, use
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.model import Unit
from torch_dataloader_utils.options import Options, progress_of
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.combined import scans_of
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.row_weights.row_numbers import given_rows, row_numbers
from torch_dataloader_utils.row_weights.weighted import Line, WeightedRows
from torch_dataloader_utils.row_weights.whole_weights import F64, WholeWeights, checked
from torch_dataloader_utils.sources.agreement import sharers_of, sharing_of
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.storage.waiting import limited

_CALL = "set_row_weights"


def set_weights(here: Passes, values: Any, rows: Any, rows_per_epoch: int | None) -> None:
    """Draw rows by these weights, from the next pass on that begins an epoch; see `LoaderDataset.set_row_weights`.

    Args:
        here: the passes of the loader.
        values: the weights; None: each row is read once.
        rows: which rows they are of; None for all, in file order.
        rows_per_epoch: how many rows an epoch has; None: as many as there are, or as before where `rows` are given.
    """
    source, options = here.next_source, here.options
    if values is None:
        if rows is not None or rows_per_epoch is not None:
            raise OptionError(f"{_CALL}(None): expected nothing else: each row is read once then.")
        here.move_to(replace(source, weights=None))
        return
    check(source, options)
    if rows is not None and source.unit is Unit.WINDOW:
        raise OptionError(
            f"{_CALL}(rows=) with sequences: windows have no names of their own. Give a weight for each of the "
            f"{source.splits.rows:,} windows, in the order of an unshuffled epoch."
        )
    if rows_per_epoch is not None and not (type(rows_per_epoch) is int and rows_per_epoch > 0):
        raise OptionError(f"{_CALL}(rows_per_epoch={shown(rows_per_epoch)}): expected a whole number of at least 1.")
    before = source.weights if isinstance(source.weights, WeightedRows) else None
    line = Line(source.files) if before is None else before.line
    if rows is None:
        weights, number = WholeWeights.of(checked(values, line.rows, "row, in file order")), line.rows
    else:
        weights = _updated(before, line, source, options, values, rows)
        number = line.rows if before is None else before.number
    number = number if rows_per_epoch is None else rows_per_epoch
    here.move_to(replace(source, weights=WeightedRows(line, weights, number, options.shuffle.shuffle_seed)))


def check(source: Source, options: Options) -> None:
    """Check that rows can be drawn.

    Raises:
        OptionError: another option decides how often rows are read.
        CountsRequiredError: their number is known only after reading.
    """
    scans = scans_of(source.scan)
    if any(getattr(scan, "copies", None) is not None for scan in scans):
        raise OptionError(
            f"{_CALL} with class_weights: both decide how often a row is read. Multiply the weights of rows by those "
            "of their classes.",
            remedies=[leave_out("class_weights")],
        )
    if not all(isinstance(scan, ScanSpec) for scan in scans):
        raise OptionError(f"{_CALL} with a map-style dataset: its rows are asked for one by one, and none is drawn.")
    if options.follow.follows:
        raise OptionError(
            f"{_CALL} with follow=True: a pass reads what was appended, and each row once.",
            remedies=[leave_out("follow")],
        )
    if options.features.mixes_rows:
        raise OptionError(
            f"{_CALL} with a combination that mixes rows: the mix decides how many it takes of each dataset.",
            remedies=[use(batches="splits")],
        )
    if source.unit is Unit.TOKEN:
        raise OptionError(
            f"{_CALL} with Pack(method='wrap') that counts tokens: documents are cut, so none can be drawn.",
            remedies=[use(pack=options.pack.pack.replace(method="best_fit"))] if options.pack.pack else [],
        )
    if not source.rows_are_final or source.splits.uncounted is not None:
        why = options.uncounted
        raise CountsRequiredError(
            f"{_CALL} needs the number of rows, known only after reading{why and f': {why}'}.",
            remedies=[] if why else [use("counts once", count_rows=True)],
        )
    if not source.splits.rows:
        raise EmptyDatasetError(f"{_CALL}: the loader has no rows.")


def weights_of(source: Source) -> F64 | None:
    """The weights by which the rows of a source are drawn, float64 [rows], in file order; None: each is read once."""
    return source.weights.weights.values if isinstance(source.weights, WeightedRows) else None


def _updated(
    before: WeightedRows | None, line: Line, source: Source, options: Options, values: Any, rows: Any
) -> WholeWeights:
    """The weights with those that all ranks give for rows; a collective."""
    over = partial(progress_of(options).over, work="finding rows", unit="segments")
    sharing = sharing_of(sharers_of(options), "set row weights", "setting row weights")
    with sharing.failing_together(), limited(options.worker.timeout):
        given = given_rows(rows)
        part = row_numbers(source, line, *given, over), checked(values, len(given[0]), "of the rows")
    numbers, weights = (np.concatenate(parts) for parts in zip(*sharing.gathered(part), strict=True))
    current = WholeWeights.of(np.ones(line.rows)) if before is None else before.weights
    return current.updated(numbers, weights)
