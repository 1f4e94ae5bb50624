"""Blocks of tokens: the documents of a task one after another, to be cut into sequences of one length.

A row of a plan is a token here. So planning, sharding, shuffling and resuming know exactly how many sequences there
are, and need no code for them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.events import PackedTokens, recorder
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Rows, Split, Task, Window, split_of, split_pieces
from torch_dataloader_utils.options.packing import DOCUMENTS, NAMED
from torch_dataloader_utils.packing.documents import document_lengths
from torch_dataloader_utils.packing.fragments import Fragments
from torch_dataloader_utils.packing.sides import PackedSide, keys_of, report_of_names
from torch_dataloader_utils.reading.blocks import Block, PieceReader, noting
from torch_dataloader_utils.reading.runs import SegmentRun, runs_of
from torch_dataloader_utils.reading.windows import Span
from torch_dataloader_utils.seeding import window_order

_FILES = 64  # whose segments a reader keeps


@dataclass(frozen=True)
class WrappedStage:
    """What batches hold of tokens that are cut into sequences; picklable.

    Attributes:
        side: what batches hold.
        valid_key: key of the mask of real tokens, or None if no plan repeats any.
        source_key: key of the dataset of each sequence, or None.
        datasets: their names, by which tokens are counted, if a sequence is of one; else empty.
        names: the columns that name documents.
    """

    side: PackedSide
    valid_key: str | None = None
    source_key: str | None = None
    datasets: tuple[str | int, ...] = ()
    names: tuple[str, ...] = ()
    keyword: ClassVar[str] = "pack"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a batch, in order."""
        added = () if self.source_key is None else (self.source_key,)
        return (*keys_of([self.side], self.valid_key, self.names), *added)

    def report(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The content of batches by key; `rows` is that of the columns before they are packed."""
        report = self.side.report(rows) | report_of_names(self.names)
        if self.valid_key in self.keys:  # of tokens, where whole documents have one of sequences
            shape = f"[B, {self.side.pack.length}]"
            report[self.valid_key] = {"kind": "dense", "dtype": "bool", "shape": shape, "arrow": "bool"}
        if self.source_key is not None:
            report[self.source_key] = {"kind": "dense", "dtype": "int64", "shape": "[B]", "arrow": "int64"}
        return report


@dataclass(frozen=True)
class Wrapping(WrappedStage):
    """How tokens are cut into sequences; picklable.

    Attributes:
        splits: the number of all splits, by which the orders of pieces tell laps apart, if documents are other ones in
            each lap, because a transform draws; None: those of several laps are read once.
    """

    splits: int | None = None

    def reader(self, reader: PieceReader, files: Mapping[FileKey, DataFile]) -> TokenReader:
        """A reader of tokens, by this reader of documents."""
        return TokenReader(reader, files, self)


class TokenReader:
    """Executes tasks whose rows are tokens. One per thread or process.

    A row of a block is a token of each packed column. The key `document_ids` says which tokens begin a document, or a
    part of one that does not follow the part before it: bool [tokens].

    Args:
        reader: reads the documents.
        files: the files, by key; the live rows of their segments are tokens.
        wrapping: says what is packed.
    """

    def __init__(self, reader: PieceReader, files: Mapping[FileKey, DataFile], wrapping: Wrapping) -> None:
        self._reader = reader
        self._files = files
        self._wrapping = wrapping
        self._known: dict[FileKey, Sequence[int]] = {}

    def block(self, task: Task) -> Block:
        """The task's tokens."""
        pieces = list(split_pieces(task.pieces))
        runs, owners, laps = self._runs(pieces)
        with noting(split_of(pieces[0]).file.path):
            documents, spans = self._documents(runs, laps, task.epoch)
            spans = [documents.span(*span) for span in spans]
            columns = {key: column for key, column in (documents.columns or {}).items() if isinstance(column, Ragged)}
            by_run = self._by_run(columns, runs, spans, skips=documents.left_out is not None)
            recorder().enter("shuffle" if isinstance(task.pieces[0].source, Window) else "convert")
            selections = (
                selected(by_run[owner], piece.rows, self._starts(runs[owner].file)[runs[owner].first])
                for piece, owner in zip(pieces, owners, strict=True)
            )
            streams = [stream_of(piece, selections) for piece in task.pieces]
            named = {name: (documents.columns or {})[name] for name in self._wrapping.names}
            block = self._tokens(columns, named, streams)
        if self._wrapping.source_key is not None:  # a task is of one dataset
            part = np.full(block.rows, split_of(pieces[0]).file.part, np.int32)
            block = Block.of_columns(block.rows, {**(block.columns or {}), self._wrapping.source_key: Dense(part)})
        datasets, rows = self._wrapping.datasets, block.rows
        source = datasets[split_of(pieces[0]).file.part] if datasets else None
        recorder().count_tokens(PackedTokens(source, rows, rows, 0 if task.pad else rows))
        return block.marked(self._wrapping.valid_key, not task.pad)

    def share(self, task: Task) -> None:
        """None: documents are read whole."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """None: documents are read whole."""
        return None

    def close(self) -> None:
        """Close the open files."""
        self._reader.close()

    def _runs(self, pieces: Sequence[Piece]) -> tuple[list[SegmentRun], list[int], list[int]]:
        """The runs of these pieces, and the run of each piece; and the lap of each run, 0 if laps are read once."""
        splits, owners = self._wrapping.splits, [0] * len(pieces)
        runs: list[SegmentRun] = []
        laps_of_runs: list[int] = []
        laps = [0 if splits is None else piece.order // splits for piece in pieces]
        for lap in dict.fromkeys(laps):
            places = [place for place, one in enumerate(laps) if one == lap]
            found, owning = runs_of([self._place(pieces[place]) for place in places])
            for place, owner in zip(places, owning, strict=True):
                owners[place] = len(runs) + owner
            runs += found
            laps_of_runs += [lap] * len(found)
        return runs, owners, laps_of_runs

    def _documents(self, runs: Sequence[SegmentRun], laps: Sequence[int], epoch: int) -> tuple[Block, list[Span]]:
        """The documents of runs, which those of another lap may overlap, and each run's range of them."""
        blocks: list[Block] = []
        spans: list[Span] = []
        for lap, each in groupby(zip(laps, runs, strict=True), key=lambda pair: pair[0]):
            pieces = [
                Piece(
                    Split(self._files[run.file].info, segments=(run.first, run.last)),
                    None,
                    lap * (self._wrapping.splits or 1),
                )
                for _, run in each
            ]
            at = sum(block.rows_read for block in blocks)
            block, found = self._reader.read(pieces, pad=False, epoch=epoch)
            blocks.append(block)
            spans += [(at + first, rows) for first, rows in found]
        return Block.joined_reads(blocks), spans

    def _starts(self, file: FileKey) -> Sequence[int]:
        """The plan row of the first token of each segment of a file, and the end of the last."""
        if file not in self._known:
            if len(self._known) == _FILES:
                self._known.clear()
            self._known[file] = self._files[file].layout.plan_starts()
        return self._known[file]

    def _place(self, piece: Piece) -> tuple[FileKey, int, int]:
        """The file of a piece of a split, and the half-open range of the segments that hold its tokens."""
        file, starts = split_of(piece).file.key, self._starts(split_of(piece).file.key)
        assert piece.rows is not None
        last = len(starts) - 1
        return file, bisect_right(starts, piece.rows.start, hi=last) - 1, bisect_left(starts, piece.rows.stop, hi=last)

    def _by_run(
        self, columns: Mapping[str, Ragged], runs: Sequence[SegmentRun], spans: Sequence[Span], *, skips: bool
    ) -> list[Fragments]:
        """The documents of each run, where their tokens are.

        Raises:
            SchemaMismatchError: a document's columns have different lengths.
            FileReadError: there are more or fewer tokens than planned.
        """
        document_lengths(columns, self._wrapping.side.columns)
        offsets, found = columns[self._wrapping.side.columns[0]].offsets, []
        for run, (first, count) in zip(runs, spans, strict=True):
            starts = self._starts(run.file)
            fragments = Fragments.of_documents(offsets[first : first + count + 1])
            planned = starts[run.last] - starts[run.first]
            if fragments.tokens != planned:
                why = (
                    "The transform failed for other documents than when they were counted: let it fail for the same, "
                    "or use Pack(method='best_fit'), which needs no counts."
                    if skips
                    else "If the file has not changed, its footer is wrong: add count_rows=True, which counts the "
                    "tokens instead."
                )
                raise FileReadError(
                    f"{self._files[run.file].info.path}: {fragments.tokens} tokens were read where {planned} were "
                    f"planned, in the column {self._wrapping.side.columns[0]!r}. {why}"
                )
            found.append(fragments)
        return found

    def _tokens(
        self, columns: Mapping[str, Ragged], named: Mapping[str, Column], streams: Sequence[Fragments]
    ) -> Block:
        """The tokens of these streams, one after another; without a copy if they are stored so.

        Args:
            columns: of documents.
            named: what names documents; of tokens, it is under `NAMED`.
            streams: the tokens.
        """
        arrays: dict[str, Array] = {}
        for key in self._wrapping.side.columns:
            parts = [_gathered(columns[key], stream) for stream in streams]
            arrays[key] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        fragments = Fragments.joined(streams)
        ends, offsets = fragments.ends, columns[self._wrapping.side.columns[0]].offsets
        documents = np.searchsorted(offsets, fragments.starts, "right") - 1 if named else None
        for name, column in named.items():
            if isinstance(column, Dense):
                arrays[NAMED[name]] = np.repeat(column.array[documents], fragments.lengths)
        begins = np.zeros(int(ends[-1]) if len(ends) else 0, np.bool_)
        begins[:1] = True
        begins[ends[:-1]] = True
        return Block.of_columns(
            len(begins), {key: Dense(array) for key, array in {**arrays, DOCUMENTS: begins}.items()}
        )


def selected(fragments: Fragments, rows: Rows | None, first: int = 0) -> Fragments:
    """The tokens with these numbers, None for all, of fragments whose first token has the number `first`."""
    if rows is None:
        return fragments
    return Fragments.joined([fragments.cut(start - first, stop - first) for start, stop in rows.runs()])


def stream_of(piece: Piece, selections: Iterator[Fragments]) -> Fragments:
    """The fragments of a piece in the order of delivery: those of a window are permuted.

    Args:
        piece: of a split or window.
        selections: those of each piece of a split, in the order of `split_pieces`; consumed as needed.
    """
    window = piece.source
    if not isinstance(window, Window):
        return next(selections)
    drawn = Fragments.joined([stream_of(inner, selections) for inner in window.pieces])
    if window.key is not None:
        drawn = drawn.permuted(partial(_order, window.key))
    return selected(drawn, piece.rows)


def _order(key: int, number: int) -> Array:
    return window_order(number, key)


def _gathered(column: Ragged, stream: Fragments) -> Array:
    """The tokens of these fragments: views if they are stored one after another."""
    run = stream.run()
    if run is not None:
        return column.values[slice(*run)]
    offsets, places = stream.sources()
    return Ragged(column.values[offsets[0] : offsets[-1]], offsets).take(places).values
