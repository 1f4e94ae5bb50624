"""Reads the data of all ranks, and compares the rows that arrive with those that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import BAD, Output, Screen
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.options import mask_in_batches
from torch_dataloader_utils.printing import listed, plural

_SHOWN = 20  # ids
_PLACE = ("_file", "_pos")  # of a row of a table
# What shapes the order and the batches, and not which rows there are.
_ORDER = (
    *("sharding", "split_strategy", "even", "last_batch", "steps_per_epoch", "shuffle", "shuffle_buffer_size"),
    *("canonical_ranks", "num_ranks", "rank"),
)


@dataclass(frozen=True)
class Delivered:
    """The rows that arrived.

    Attributes:
        rows: how many, without padding.
        expected: how many there should be; None if filters decide while reading.
        ids: the columns that identify a row; without any, rows are only counted.
        missing: the ids of rows that did not arrive.
        repeated: the ids of rows that arrived more than once.
    """

    rows: int
    expected: int | None
    ids: tuple[str, ...]
    missing: tuple[Any, ...]
    repeated: tuple[Any, ...]

    @property
    def ok(self) -> bool:
        """Whether the rows are those that were expected."""
        return not self.missing and not self.repeated and self.expected in (None, self.rows)

    @property
    def fact(self) -> tuple[str, str]:
        """How many arrived, and how they were compared, in words."""
        how = f"compared by {' and '.join(self.ids)}" if self.ids else "counted; --id-column NAME compares them"
        return "read", f"{plural(self.rows, 'row')}, {how}"

    def show_faults(self, screen: Screen) -> None:
        """Print what is missing or repeated."""
        if self.expected not in (None, self.rows):
            screen.line(f"{self.rows:,} rows arrived, expected {self.expected:,}.", BAD)
        for problem in ("missing", "repeated"):
            ids = getattr(self, problem)
            if ids:
                screen.line(f"{problem}: {listed(ids, _SHOWN)}", BAD)


def delivered_rows(data: Data, dataset: Any, epochs: Sequence[int], id_column: str | None, output: Output) -> Delivered:
    """The rows that all ranks read in these epochs, compared with those of a plain pass over the data."""
    ids, data = _identified(data, id_column)
    ranks, planned = dataset.world.num_ranks, _planned(dataset, epochs)
    if passes_of(dataset).options.shard.even == "sync":
        data = data.but("even")  # these ranks read one after another, each to its end
    with output.no_warnings():
        passes = [data.but(num_ranks=ranks, rank=rank) for rank in range(ranks)]
        arrived = [batch for each in passes for batch in _batches(each, epochs, ids)]
        if not ids:
            return Delivered(sum(map(len, arrived)), planned, (), (), ())
        plain = list(_batches(data.but(*_ORDER, num_ranks=1, rank=0), [0], ids))
    return _compared(ids, arrived, plain, planned, allowed=_left_out(dataset))


def _identified(data: Data, id_column: str | None) -> tuple[list[str], Data]:
    """The columns that identify rows, and the data with them; none without `id_column`, except of an Iceberg table."""
    if id_column:
        return [id_column], data.but(columns=[id_column])
    if data.call != "iceberg":
        return [], data
    given = data.keywords.get("metadata_columns", ())
    return [*_PLACE], data.but(metadata_columns=list(dict.fromkeys([*given, *_PLACE])))


def _planned(dataset: Any, epochs: Sequence[int]) -> int | None:
    """The rows that the plans of all ranks deliver; None if they are known only after reading."""
    options = passes_of(dataset).options
    if options.shard.steps_per_epoch is not None or options.skips_rows:
        return None
    rows = [dataset.shard_size(rank, epoch) for epoch in epochs for rank in range(dataset.world.num_ranks)]
    return None if None in rows else sum(rows)


def _left_out(dataset: Any) -> bool:
    """Whether the options leave rows out."""
    options = passes_of(dataset).options
    shard, batch = options.shard, options.batch
    return shard.even == "drop" or batch.last_batch == "drop" or shard.steps_per_epoch is not None


def _batches(data: Data, epochs: Sequence[int], ids: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The real rows of the batches of one rank, with their ids only."""
    loader, dataset = data.but("collate_fn").open(output_format="arrow")
    options = passes_of(dataset).options
    valid = mask_in_batches(options)
    try:
        for epoch in epochs:
            dataset.set_epoch(epoch)
            for batch in loader:
                real = batch if valid is None else batch.filter(batch[valid])
                yield real.select(list(ids))
    finally:
        dataset.close()


def _compared(
    ids: Sequence[str],
    arrived: Sequence[pa.RecordBatch],
    plain: Sequence[pa.RecordBatch],
    expected: int | None,
    *,
    allowed: bool,
) -> Delivered:
    """The rows that arrived, compared by id; `allowed`: whether rows may be missing."""
    if not arrived and not plain:
        return Delivered(0, expected, tuple(ids), (), ())
    sides = [_signed(batches, sign) for batches, sign in ((arrived, 1), (plain, -1)) if batches]
    joined = pa.concat_tables(sides, promote_options="permissive")
    times = joined.group_by(list(ids)).aggregate([("times", "sum")])

    def those(mask: Any) -> tuple[Any, ...]:
        rows = times.filter(mask).select(list(ids)).to_pylist()
        return tuple(next(iter(row.values())) if len(ids) == 1 else tuple(row.values()) for row in rows)

    missing = () if allowed else those(pc.less(times["times_sum"], 0))
    repeated = those(pc.greater(times["times_sum"], 0))
    rows = sum(map(len, arrived))
    return Delivered(rows, expected, tuple(ids), missing, repeated)


def _signed(batches: Sequence[pa.RecordBatch], sign: int) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table.append_column("times", pa.repeat(pa.scalar(sign, pa.int64()), len(table)))
