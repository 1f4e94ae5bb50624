"""Blocks of packed sequences: the documents of a task, gathered into [sequences, length] columns.

A task is packed as a whole, so its sequences depend on nothing else: they are the same in any thread or process, and a
pass that resumes in the middle packs the task again. So packing has no state of its own: a position is a task and a
number of sequences, and the rest of a begun block is a window whose rows are sequences, for whichever rank gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged
from torch_dataloader_utils.errors import OptionError, SchemaMismatchError, use
from torch_dataloader_utils.events import PackedTokens, recorder
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, Window, split_of, split_pieces
from torch_dataloader_utils.options.packing import IGNORED, OF_DOCUMENTS, Pack
from torch_dataloader_utils.packing.sequence_columns import Numbers, sequence_columns, starts_of
from torch_dataloader_utils.packing.sequences import Sequences, owners_of, side_by_side
from torch_dataloader_utils.packing.sides import PackedSide, keys_of, made_labels, report_of_names
from torch_dataloader_utils.reading.blocks import Block, PieceReader, noting
from torch_dataloader_utils.reading.buffers import Scratch
from torch_dataloader_utils.reading.windows import Span, is_rest, places_of, whole_of


@dataclass(frozen=True)
class DocumentPacking:
    """How documents are packed; picklable.

    Attributes:
        pads: key of tokens or labels -> what fills up its sequences.
        pack: says how.
        sides: of pairs; documents have one.
        documents: the fewest documents of a window.
        sequences: the fewest sequences of a window.
        valid_key: key of the mask of real sequences, or None if no plan repeats any.
        source_key: key of the dataset of each sequence, or None.
        datasets: their names, by which tokens are counted, if a sequence is of one; else empty.
        names: the columns that name documents.
    """

    pads: Mapping[str, Any]
    pack: Pack
    sides: tuple[PackedSide, ...]
    documents: int
    sequences: int
    valid_key: str | None = None
    source_key: str | None = None
    datasets: tuple[str | int, ...] = ()
    names: tuple[str, ...] = ()
    keyword: ClassVar[str] = "pack"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a batch, in order."""
        added = () if self.source_key is None else (self.source_key,)
        return (*keys_of(self.sides, self.valid_key, self.names), *added)

    def report(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The content of batches by key; `rows` is that of the columns before they are packed."""
        report = {key: content for side in self.sides for key, content in side.report(rows).items()}
        report |= report_of_names(self.names)
        if self.source_key is not None:
            report[self.source_key] = {"kind": "dense", "dtype": "int64", "shape": "[B]", "arrow": "int64"}
        return report

    def reader(self, reader: PieceReader, files: Mapping[FileKey, DataFile]) -> PackedReader:
        """A reader of sequences, by this reader of documents."""
        return PackedReader(reader, self)

    def packed(self, block: Block, order: Array | None, memory: Workspace, part: int = 0) -> Block:
        """The documents of a block, packed in fresh memory; a row of the result is a sequence.

        Args:
            block: the documents.
            order: their numbers in the order of the stream; None for that of the block.
            memory: of the reader.
            part: the number of the dataset of all of them, if they are of one.

        Raises:
            SchemaMismatchError: a document's columns have different lengths, or one side of a pair is empty.
            OptionError: a document is too long, which `pack` says to raise for.
        """
        columns = {key: column for key, column in (block.columns or {}).items() if isinstance(column, Ragged)}
        lengths = [document_lengths(columns, side.columns) for side in self.sides]
        longest = np.maximum.reduce(lengths)
        self._check_long(longest)
        self._check_pairs(lengths, longest)
        window = self.documents, self.sequences
        layouts = side_by_side(lengths, self.pack.length, self.pack.long, window, order)
        packed: dict[str, Column] = {}
        for side, sequences in zip(self.sides, layouts, strict=True):
            packed.update(self._columns(side, columns, sequences, memory))
        if self.names:
            owners = owners_of(lengths[0], longest, self.pack.length)
            packed.update(self._names(block.columns or {}, layouts[0], owners))
        self._count(layouts, packed, part)
        return Block.of_columns(len(layouts[0]), packed)

    def rest(self, block: Block) -> Block:
        """What is left of a begun block: its sequences stay as they are."""
        return block

    def _count(self, layouts: Sequence[Sequences], packed: Mapping[str, Column], part: int) -> None:
        """Record the tokens of sequences that were packed."""
        shape = len(layouts[0]), self.pack.length
        tokens = shape[0] * shape[1] * len(layouts)
        labels = [packed[side.labels] for side in self.sides if side.labels is not None]
        arrays = [column.array for column in labels if isinstance(column, Dense)]
        trained = sum(int(np.count_nonzero(array != IGNORED)) for array in arrays) if arrays else None
        real = tokens - sum(sequences.padding for sequences in layouts)
        source = self.datasets[part] if self.datasets else None
        recorder().count_tokens(PackedTokens(source, shape[0], tokens, real, trained))

    def _names(self, columns: Mapping[str, Column], sequences: Sequences, owners: Array) -> dict[str, Column]:
        """What names the documents of each sequence, in their order; `owners`: the document of each of its sources."""
        real = sequences.documents >= 0
        documents = owners[sequences.runs[real]]
        offsets = np.append(0, np.cumsum(real))[sequences.offsets]
        named = {name: columns[name] for name in self.names}
        return {
            OF_DOCUMENTS[name]: Ragged(column.array[documents], offsets, "flat")
            for name, column in named.items()
            if isinstance(column, Dense)
        }

    def _check_long(self, longest: Array) -> None:
        """Check that documents are not too long, if that is an error; of pairs, these are the longer sides."""
        pairs = self.pack.together
        fails = self.pack.long == "error" or (pairs and self.pack.long == "split")
        if fails and longest.max(initial=0) > self.pack.length:
            row, why = longest.argmax(), " and a pair is not cut into several" if pairs else ""
            raise OptionError(
                f"pack={self.pack.short()}: row {row} of the {len(longest)} rows read has {longest[row]} tokens, more "
                f"than length={self.pack.length}{why}.",
                remedies=[use(pack=self.pack.replace(long=way)) for way in ("split", "truncate", "drop")[pairs:]],
            )

    def _check_pairs(self, lengths: Sequence[Array], longest: Array) -> None:
        """Check that both sides of a pair have tokens, or none."""
        alone = np.flatnonzero((np.minimum.reduce(lengths) == 0) & (longest > 0))
        if len(alone):
            sides = zip(self.pack.prefixes, lengths, strict=True)
            found = " and ".join(f"{prefix}* has {side[alone[0]]} tokens" for prefix, side in sides)
            raise SchemaMismatchError(
                f"Pack(together=True): in row {alone[0]} of the {len(longest)} rows read, {found}: expected both sides "
                "of a pair to have tokens, or none."
            )

    def _columns(
        self, side: PackedSide, columns: Mapping[str, Ragged], sequences: Sequences, memory: Workspace
    ) -> dict[str, Column]:
        shape = len(sequences), self.pack.length
        given = {key: columns[key] for key in side.columns}
        if side.made_of is not None and side.labels is not None:
            tokens = columns[side.made_of]
            given[side.labels] = Ragged(made_labels(tokens.values), tokens.offsets)
        packed = {key: _gathered(column, self.pads[key], sequences, memory.tokens) for key, column in given.items()}
        lengths = sequences.lengths
        if side.labels is not None:  # models compare the label of a token with what they predict one token earlier
            packed[side.labels].reshape(-1)[starts_of(lengths)] = self.pads[side.labels]
        added = sequence_columns(lengths, sequences.documents, sequences.offsets, shape, memory.numbers)
        return {**{key: Dense(array) for key, array in packed.items()}, **side.named(added)}


def document_lengths(columns: Mapping[str, Ragged], keys: Sequence[str]) -> Array:
    """The tokens of each document, int64 [documents].

    Args:
        columns: of documents.
        keys: those that are packed.

    Raises:
        SchemaMismatchError: a document's columns have different lengths.
    """
    first, *others = keys
    lengths = np.diff(columns[first].offsets)
    for key in others:
        differing = np.flatnonzero(lengths != np.diff(columns[key].offsets))
        if len(differing):
            raise SchemaMismatchError(
                f"pack: in row {differing[0]} of the {len(lengths)} rows read, {first!r} has "
                f"{lengths[differing[0]]} values and {key!r} has {np.diff(columns[key].offsets)[differing[0]]}: "
                "expected one value of each column per token."
            )
    return lengths


class Workspace:
    """The memory that one reader uses again for each block.

    Attributes:
        tokens: holds the tokens of a column and their padding.
        numbers: from which positions are computed.
    """

    def __init__(self) -> None:
        self.tokens = Scratch()
        self.numbers = Numbers()


def _gathered(column: Ragged, pad: Any, sequences: Sequences, scratch: Scratch) -> Array:
    """The tokens and the padding of all sequences, copied run by run: [sequences, L]."""
    tokens = column.values
    sources = scratch.array(len(tokens) + sequences.padding, tokens)
    sources[: len(tokens)], sources[len(tokens) :] = tokens, pad
    values = Ragged(sources, sequences.sources).take(sequences.runs).values
    return values.reshape(len(sequences), sequences.capacity)


class DocumentPacker(Protocol):
    """Makes blocks of sequences, or of their tokens, of documents that are read together."""

    @property
    def valid_key(self) -> str | None:
        """The key of the mask of real ones, or None."""

    @property
    def source_key(self) -> str | None:
        """The key of the dataset of each, or None."""

    def packed(self, block: Block, order: Array | None, memory: Workspace, part: int = 0) -> Block:
        """Those of the documents of a block, in this order."""

    def rest(self, block: Block) -> Block:
        """Some of what `packed` returned, by themselves."""


class PackedReader:
    """Executes tasks of packed sequences. One per thread or process.

    Args:
        reader: reads the documents.
        packing: packs them.
    """

    def __init__(self, reader: PieceReader, packing: DocumentPacker) -> None:
        self._reader = reader
        self._packing = packing
        self._memory = Workspace()

    def block(self, task: Task) -> Block:
        """The task's sequences."""
        block = self._sequences(task.pieces, task.epoch).marked(self._packing.valid_key, not task.pad)
        if (key := self._packing.source_key) is None:
            return block
        part = split_of(next(split_pieces(task.pieces))).file.part  # a task is of one dataset
        column = Dense(np.full(block.rows, part, np.int64))
        return replace(block, columns={**(block.columns or {}), key: column})

    def share(self, task: Task) -> None:
        """None: documents are packed whole."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """None: documents are packed whole."""
        return None

    def close(self) -> None:
        """Close the open files."""
        self._reader.close()

    def _sequences(self, pieces: Sequence[Piece], epoch: int) -> Block:
        """The sequences of these pieces: those left of begun windows, or their documents packed together."""
        if is_rest(pieces[0]):
            return Block.joined([self._left(piece, epoch) for piece in pieces])
        splits = list(split_pieces(pieces))
        with noting(split_of(splits[0]).file.path):
            documents, spans = self._reader.read(splits, pad=False, epoch=epoch)
            order = _order_of(pieces, spans)
            order = None if order is None else documents.present(order)
            recorder().enter("convert")
            return self._packing.packed(documents, order, self._memory, split_of(splits[0]).file.part)

    def _left(self, begun: Piece, epoch: int) -> Block:
        """The sequences of a begun window that are to be delivered: the rows of its piece count sequences."""
        whole, left = whole_of(begun)
        return self._packing.rest(self._sequences(whole, epoch).take(left))


def _order_of(pieces: Sequence[Piece], spans: Sequence[Span]) -> Array | None:
    """The numbers of the documents in the order of the stream, which shuffle windows permute; None if as they are read.

    Args:
        pieces: of splits or windows.
        spans: the range of rows of each piece of a split.
    """
    in_order = all(first + rows == following for (first, rows), (following, _) in pairwise(spans))
    if in_order and not any(map(_permuted, pieces)):
        return None
    recorder().enter("shuffle")
    return places_of(pieces, iter(spans)).astype(np.int64)


def _permuted(piece: Piece) -> bool:
    window = piece.source
    return isinstance(window, Window) and (window.key is not None or any(map(_permuted, window.pieces)))
