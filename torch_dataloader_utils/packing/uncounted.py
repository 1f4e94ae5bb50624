"""Documents one after another, whose tokens are counted as they are read: a row of a block is a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged
from torch_dataloader_utils.events import PackedTokens, recorder
from torch_dataloader_utils.model import DataFile, FileKey
from torch_dataloader_utils.options.packing import DOCUMENTS, NAMED
from torch_dataloader_utils.packing.documents import PackedReader, Workspace, document_lengths
from torch_dataloader_utils.packing.stream import WrappedStage
from torch_dataloader_utils.reading.blocks import Block, PieceReader


@dataclass(frozen=True)
class UncountedWrapping(WrappedStage):
    """How tokens are cut into sequences that nobody counted; picklable.

    Where a block ends, a sequence goes on in the next one. So a position is a task and a number of its tokens.
    """

    def reader(self, reader: PieceReader, files: Mapping[FileKey, DataFile]) -> PackedReader:
        """A reader of tokens, by this reader of documents."""
        return PackedReader(reader, self)

    def packed(self, block: Block, order: Array | None, memory: Workspace, part: int = 0) -> Block:
        """The tokens of a block's documents, one after another.

        Args:
            block: the documents.
            order: their numbers in the order of the stream; None for that of the block.
            memory: of the reader.
            part: the number of their dataset.

        Raises:
            SchemaMismatchError: a document's columns have different lengths.
        """
        given = {key: column for key, column in (block.columns or {}).items() if isinstance(column, Ragged)}
        lengths = document_lengths(given, self.side.columns)
        columns: dict[str, Column] = {}
        for key in self.side.columns:
            column = given[key] if order is None else given[key].take(order)
            columns[key] = Dense(column.values[column.offsets[0] : column.offsets[-1]])
        lengths = lengths if order is None else lengths[order]
        for name in self.names:
            named = (block.columns or {})[name]
            assert isinstance(named, Dense)
            columns[NAMED[name]] = Dense(np.repeat(named.array if order is None else named.array[order], lengths))
        count = int(lengths.sum())
        recorder().count_tokens(PackedTokens(self.datasets[part] if self.datasets else None, count, count, count))
        begins = np.zeros(count, np.bool_)
        begins[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return Block.of_columns(len(begins), {**columns, DOCUMENTS: Dense(begins)})

    def rest(self, block: Block) -> Block:
        """What is left of a begun block: it may begin within a document."""
        columns = dict(block.columns or {})
        begins = columns[DOCUMENTS]
        assert isinstance(begins, Dense)
        array = begins.array.copy()
        array[:1] = True
        return replace(block, columns={**columns, DOCUMENTS: Dense(array)})
