"""Blocks of batches with a budget of tokens: a row of such a block is a batch, a group of rows of similar length.

A task is cut as a whole, so its batches depend on nothing else: they are the same in any thread or process, and a pass
that resumes in the middle cuts the task again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged, Text
from torch_dataloader_utils.convert.grouped import Grouped
from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.events import PackedTokens, recorder
from torch_dataloader_utils.length_buckets.groups import Budget, buckets_of
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, Window, split_of, split_pieces
from torch_dataloader_utils.options.buckets import Buckets
from torch_dataloader_utils.reading.blocks import Block, PieceReader, noting
from torch_dataloader_utils.reading.windows import Span, is_rest, places_of, whole_of
from torch_dataloader_utils.seeding import derive_key


@dataclass(frozen=True)
class Bucketing:
    """How rows are cut into batches by length; picklable.

    Attributes:
        column: the key of the column that says how long rows are.
        budget: of a batch.
        strict: whether a row over the budget is an error.
        source_key: key of the dataset of each row, of which all of a task are, or None.
        datasets: their names, by which tokens are counted, if a batch is of one; else empty.
    """

    column: str
    budget: Budget
    strict: bool
    source_key: str | None = None
    datasets: tuple[str | int, ...] = ()
    keyword: ClassVar[str] = "batch_tokens"

    def report(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The content of batches by key: that of the rows."""
        report = {key: dict(value) for key, value in rows.items()}
        if self.source_key is not None:
            report[self.source_key] = {"kind": "dense", "dtype": "int64", "shape": "[B]", "arrow": "int64"}
        return report

    def reader(self, reader: PieceReader, files: Mapping[FileKey, DataFile]) -> BucketedReader:
        """A reader of batches, by this reader of rows."""
        return BucketedReader(reader, self)

    def lengths(self, columns: Mapping[str, Column]) -> Array:
        """The length of each row, int64 [n].

        Raises:
            OptionError: a length is negative.
        """
        column = columns[self.column]
        if isinstance(column, (Ragged, Text)):
            return np.diff(column.offsets)
        assert isinstance(column, Dense)
        if len(column.array) and int(column.array.min()) < 0:
            raise OptionError(
                f"Buckets(by={self.column!r}): the column holds {column.array.min()}: expected lengths of at least 0."
            )
        return column.array.astype(np.int64)


class BucketedReader:
    """Executes tasks of batches with a budget. One per thread or process.

    Args:
        reader: reads the rows.
        bucketing: cuts them.
    """

    def __init__(self, reader: PieceReader, bucketing: Bucketing) -> None:
        self._reader = reader
        self._bucketing = bucketing

    def block(self, task: Task) -> Block:
        """The task's batches."""
        return self._batches(task.pieces, task)

    def share(self, task: Task) -> None:
        """None: rows are sorted together."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """None: rows are sorted together."""
        return None

    def close(self) -> None:
        """Close the open files."""
        self._reader.close()

    def _batches(self, pieces: Sequence[Piece], task: Task) -> Block:
        """The batches of these pieces: those left of begun windows, or their rows cut together."""
        if is_rest(pieces[0]):
            return Block.joined([self._left(piece, task) for piece in pieces])
        splits = list(split_pieces(pieces))
        with noting(split_of(splits[0]).file.path):
            rows, spans = self._reader.read(splits, task.pad, task.epoch)
            recorder().enter("shuffle")
            order = rows.present(places_of(pieces, iter(spans)).astype(np.int64))
            spans, rows = [rows.span(*span) for span in spans], rows.without_gaps()
            columns = rows.columns or {}
            lengths = self._bucketing.lengths(columns)
            if self._bucketing.strict:
                self._check(lengths, splits, spans)
            found = buckets_of(lengths, self._bucketing.budget, _key(pieces), order)
            taken = rows.take(found.rows).columns or {}
            self._count(lengths[found.rows], len(found.offsets) - 1, split_of(splits[0]).file.part)
        if (key := self._bucketing.source_key) is not None:
            taken = {**taken, key: Dense(np.full(len(found.rows), split_of(splits[0]).file.part, np.int64))}
        groups: dict[str, Any] = {key: Grouped(column, found.offsets) for key, column in taken.items()}
        return Block.of_columns(len(found.offsets) - 1, groups)

    def _count(self, lengths: Array, batches: int, part: int) -> None:
        """Record the tokens of batches that were cut; a row over the budget has a batch of its size."""
        budget, datasets = self._bucketing.budget, self._bucketing.datasets
        padded = budget.padded(lengths)
        places = batches * budget.tokens + int(np.maximum(padded - budget.tokens, 0).sum())
        source = datasets[part] if datasets else None
        recorder().count_tokens(PackedTokens(source, batches, places, int(lengths.sum()), unit="batches"))

    def _left(self, begun: Piece, task: Task) -> Block:
        """The batches of a begun window that are to be delivered: the rows of its piece count batches."""
        whole, left = whole_of(begun)
        return self._batches(whole, task).take(left)

    def _check(self, lengths: Array, splits: Sequence[Piece], spans: Sequence[Span]) -> None:
        """Raise an OptionError for the first row that is over the budget, with its file and row."""
        budget = self._bucketing.budget
        long = np.flatnonzero(budget.padded(lengths) > budget.tokens)
        if not len(long):
            return
        row = int(long[0])
        piece, first = next(
            (piece, first) for piece, (first, rows) in zip(splits, spans, strict=True) if first <= row < first + rows
        )
        start = "" if piece.rows is None else f", which begin at row {piece.rows.start} of the file,"
        buckets = Buckets(budget.tokens, by=self._bucketing.column)
        padded = "" if budget.multiple == 1 else f" ({budget.padded(lengths)[row]} padded)"
        raise OptionError(
            f"{split_of(piece).file.path}: row {row - first} of the rows read{start} has length {lengths[row]}{padded} "
            f"in {self._bucketing.column!r}, more than batch_tokens={budget.tokens}.",
            remedies=[
                use("if no row is longer", batch_tokens=buckets.replace(tokens=int(budget.padded(lengths).max()))),
                use("a batch of its own", batch_tokens=buckets.replace(long="single")),
                use(batch_tokens=buckets.replace(long="drop")),
            ],
        )


def _key(pieces: Sequence[Piece]) -> int:
    """The key of the order of the batches: of the first window, whose key depends on seed, epoch and window.

    If an earlier phase began several windows at once, a window without a key holds them.
    """
    source = pieces[0].source
    while isinstance(source, Window) and source.key is None:
        source = source.pieces[0].source
    return derive_key("buckets", source.key or 0 if isinstance(source, Window) else 0)
