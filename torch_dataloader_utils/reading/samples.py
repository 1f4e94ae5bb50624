"""Blocks of samples from a map-style dataset (`dataset[i]` is a dict), as part of combined datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.convert.columns import Column
from torch_dataloader_utils.errors import ColumnNotFoundError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, split_of
from torch_dataloader_utils.reading.blocks import Block, noting
from torch_dataloader_utils.reading.sample_fields import Field, columns_of
from torch_dataloader_utils.reading.windows import Span, of_windows, shuffled, spans_of

_OPEN_SHARDS = 8  # shards kept per thread


@dataclass(frozen=True)
class SampleScan:
    """What all tasks over one map-style dataset share; picklable if the dataset is.

    Attributes:
        dataset: returns samples, and its shards by `shard(i)`.
        name: for messages.
        fields: the keys and types of the samples.
        arrow: whether the output is Arrow.
        valid_key: key of the mask of real rows, or None if no plan repeats rows.
    """

    dataset: Any
    name: str
    fields: tuple[Field, ...]
    arrow: bool
    valid_key: str | None = None

    local = True
    predicate = None

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the samples."""
        return pa.schema([(field.key, field.type) for field in self.fields])

    @property
    def jagged(self) -> Mapping[str, Sequence[str]]:
        """None: samples are delivered as they are."""
        return {}

    def report(self) -> dict[str, dict[str, Any]]:
        """The content of batches by key."""
        return {field.key: {**field.report(), "arrow": str(field.type)} for field in self.fields}

    def vocabulary(self, column: str) -> list[Any]:
        """Always raises: samples hold values, not codes.

        Raises:
            ColumnNotFoundError: always.
        """
        raise ColumnNotFoundError(
            f"{column!r} of {self.name} has no codes: strings='codes' works only for columns of files."
        )

    def open(self, files: Mapping[FileKey, DataFile]) -> SampleReader:
        """A reader of tasks."""
        return SampleReader(self, files)


class SampleReader:
    """Executes tasks over a map-style dataset; keeps the last few shards. One per thread or process.

    A file represents a shard: its layout's metadata is the shard's index, None for the whole dataset.
    """

    def __init__(self, spec: SampleScan, files: Mapping[FileKey, DataFile]) -> None:
        self._spec = spec
        self._files = files
        self._shards: dict[int, Any] = {}

    def share(self, task: Task) -> None:
        """None: samples are read whole."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """None: samples are read whole."""
        return None

    def block(self, task: Task) -> Block:
        """The task's samples, as columns."""
        if of_windows(task):
            return shuffled(task, self.read)
        return self.read(task.pieces, task.pad, task.epoch)[0]

    def read(self, pieces: Sequence[Piece], pad: bool, epoch: int) -> tuple[Block, list[Span]]:
        """The samples of these pieces as one block of columns, and each piece's range of rows in it."""
        return self._block(pieces, pad), spans_of([len(piece) for piece in pieces])

    def _block(self, pieces: Sequence[Piece], pad: bool) -> Block:
        spec = self._spec
        with noting(split_of(pieces[0]).file.path):
            recorder().enter("decode")
            samples = [sample for piece in pieces for sample in self._samples(piece)]
            recorder().enter("convert")
            columns = columns_of(samples, spec.fields, spec.name)
        block = Block.of_columns(len(samples), columns)
        if spec.arrow:
            arrays = [field.arrow(columns[field.key]) for field in spec.fields]
            block = Block.of_table(pa.RecordBatch.from_arrays(arrays, schema=spec.output_schema))
        return block.marked(spec.valid_key, not pad)

    def close(self) -> None:
        """Release the shards."""
        self._shards.clear()

    def _samples(self, piece: Piece) -> Sequence[Any]:
        assert piece.rows is not None
        numbers = piece.rows.numbers().tolist()
        shard = self._shard(self._files[split_of(piece).file.key].layout.metadata)
        # As torch's own loader does: Hugging Face datasets read many rows at a time.
        if hasattr(shard, "__getitems__"):
            samples: Sequence[Any] = shard.__getitems__(numbers)
            return samples
        return [shard[number] for number in numbers]

    def _shard(self, number: int | None) -> Any:
        if number is None:
            return self._spec.dataset
        shard = self._shards.pop(number, None)
        if shard is None:
            while len(self._shards) >= _OPEN_SHARDS:
                self._shards.pop(next(iter(self._shards)))
            shard = self._spec.dataset.shard(number)
        self._shards[number] = shard  # the most recently used is last
        return shard
