"""What speeds are counted in: rows; or tokens, if documents are packed, because a sequence is no row of a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.options.packing import DOCUMENTS
from torch_dataloader_utils.reading.scan import ScanSpec

_LEAST_BATCHES = 64  # of a sample


@dataclass(frozen=True)
class CountUnit:
    """What is counted.

    Attributes:
        name: "rows" or "tokens".
        factor: how many of them the loader delivers for each row that it counts: for each sequence, or each batch with
            a budget of tokens.
        column: the column of the files whose values are counted; "" if rows are.
        path: where the lists are, if it is a struct.
        known: whether raw decoding can count them, too: not the tokens that a transform makes.
    """

    name: str = "rows"
    factor: float = 1.0
    column: str = ""
    path: tuple[int, ...] = ()
    known: bool = True

    def of_columns(self, names: Sequence[str], columns: Sequence[pa.Array]) -> int:
        """How many of them these columns hold."""
        if not self.column:
            return len(columns[0]) if columns else 0
        if self.column not in names:
            return 0  # a file that lacks the column
        lists = columns[names.index(self.column)]
        if self.path:
            lists = pc.struct_field(lists, list(self.path))
        return pc.sum(pc.list_value_length(lists)).as_py() or 0


ROWS = CountUnit()


def unit_of(data: Data, seconds: float) -> CountUnit:
    """The unit in which the loader and raw decoding are comparable.

    Where it takes reading to know the factor, batches are read for about so many seconds.
    """
    _, dataset = data.open()
    try:
        passes = passes_of(dataset)
        options, scan = passes.options, passes.source.scan
    finally:
        dataset.close()
    assert isinstance(scan, ScanSpec)  # of one dataset
    pack = options.pack
    if pack.pack is None:
        return ROWS if options.bucket.batch_tokens is None else CountUnit(factor=_sampled(data, _rows, seconds))
    key = (pack.columns or scan.converter.keys)[0]
    plan = next(plan for plan in scan.converter.plans if plan.key == key)
    side = next(prefix for prefix in pack.pack.prefixes if key.startswith(prefix))
    marked = data.but(pack=pack.pack.replace(keys=None))  # with document_ids
    factor = 1.0 if pack.wraps else _sampled(marked, partial(_tokens, side + DOCUMENTS), seconds)
    known = scan.transform is None and plan.column in scan.schema.names
    return CountUnit("tokens", factor, plan.column if known else "", plan.path if known else (), known)


def _sampled(data: Data, counted: Callable[[Any], tuple[int, int]], seconds: float) -> float:
    """How many there are for each row that the loader counts; `counted` returns both numbers for a batch."""
    loader, dataset = data.but("device", "collate_fn", "pin_memory", "dtypes", output_format="numpy").open()
    amount = rows = batches = 0
    try:
        end = time.perf_counter() + seconds
        for batch in loader:
            found = counted(batch)
            amount, rows, batches = amount + found[0], rows + found[1], batches + 1
            if batches >= _LEAST_BATCHES and time.perf_counter() > end:
                break
    finally:
        dataset.close()
    return amount / rows if rows else 1.0


def _tokens(key: str, batch: Any) -> tuple[int, int]:
    """The tokens of a batch of sequences without their padding, and the sequences."""
    documents = batch[key]
    return int(np.count_nonzero(documents >= 0)), len(documents)


def _rows(batch: Any) -> tuple[int, int]:
    """The rows of a batch with a budget of tokens, which counts as one row."""
    column = next(iter(batch.values()))
    if not isinstance(column, Mapping):
        return len(column), 1
    if "offsets" in column:
        return len(column["offsets"]) - 1, 1
    return len(column["lengths"]) // len(column.get("keys", "1")), 1  # of K columns together, if they are jagged
