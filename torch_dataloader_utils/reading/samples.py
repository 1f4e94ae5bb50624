"""Blocks of samples from a map-style dataset (`dataset[i]` is a dict), as part of combined datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Objects, Ragged, Text
from torch_dataloader_utils.errors import ColumnNotFoundError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, split_of
from torch_dataloader_utils.reading.blocks import Block, noting
from torch_dataloader_utils.reading.windows import Span, of_windows, shuffled, spans_of
from torch_dataloader_utils.storage import Storage

# The keys of a map-style dataset's samples, and how samples become columns.
#
# The first samples determine the fields; every later sample is checked against them.

Sample = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampleField:
    """The values under one key of every sample.

    Attributes:
        key: the key.
        kind: "dense" (numbers, or arrays of one shape), "ragged" (arrays whose first axis varies), "list" (str, bytes
            or other objects).
        dtype: of the arrays; else "str", "bytes" or "object".
        shape: of a row; for "ragged", of one item of a row.
        type: Arrow type of a row.
    """

    key: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    type: pa.DataType

    def report(self) -> dict[str, Any]:
        """Kind, dtype and shape in a batch, as in a converter's report."""
        sizes = ("B", "*", *self.shape) if self.kind == "ragged" else ("B", *self.shape)
        return {"kind": self.kind, "dtype": self.dtype, "shape": _shape(sizes)}

    def column(self, values: Sequence[Any]) -> Column:
        """The values of some samples as a column.

        Raises:
            SchemaMismatchError: a value has another dtype or shape than in the first samples.
        """
        if self.kind == "list":
            return self._text(values) if self.dtype in ("str", "bytes") else self._objects(values)
        dtype = np.dtype(self.dtype)
        arrays = [self._checked(value, dtype) for value in values]
        if self.kind == "dense":
            return Dense(np.stack(arrays))
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return Ragged(np.concatenate(arrays), offsets)

    def arrow(self, column: Column) -> pa.Array:
        """The column as Arrow, for outputs other than tensors."""
        if isinstance(column, Dense):
            return _nested(column.array.reshape(-1), self.shape)
        if isinstance(column, Ragged):
            return pa.ListArray.from_arrays(
                column.offsets.astype(np.int32), _nested(column.values.reshape(-1), self.shape)
            )
        return pa.array(column.to_list(), self.type)

    def _checked(self, value: Any, dtype: np.dtype[Any]) -> Array:
        array = as_array(value)
        if array is not None and self.kind == "ragged" and array.shape == (0,):
            return np.empty((0, *self.shape), dtype)  # an empty list has no dtype
        expected = self.shape if array is None or self.kind == "dense" else (*array.shape[:1], *self.shape)
        if array is None or array.dtype != dtype or array.shape != expected:
            given = type(value).__name__ if array is None else f"{array.dtype} of shape {_shape(array.shape)}"
            raise SchemaMismatchError(
                f"the key {self.key!r} holds {given}, but the first samples have {self.report()}. Every sample must "
                "have the same dtype and shape; only the first axis may vary, and so may the lengths of lists of "
                "numbers."
            )
        return array

    def _text(self, values: Sequence[Any]) -> Text:
        binary = self.dtype == "bytes"
        wrong = [value for value in values if not (value is None or isinstance(value, bytes if binary else str))]
        if wrong:
            raise SchemaMismatchError(
                f"the key {self.key!r} holds {type(wrong[0]).__name__}, but the first samples have {self.dtype}."
            )
        data = [b"" if value is None else value if binary else value.encode() for value in values]
        offsets = np.zeros(len(data) + 1, np.int64)
        np.cumsum([len(item) for item in data], out=offsets[1:])
        valid = np.array([value is not None for value in values]) if None in values else None
        return Text(np.frombuffer(b"".join(data), np.uint8), offsets, valid, binary)

    def _objects(self, values: Sequence[Any]) -> Objects:
        try:
            return Objects(pa.chunked_array([pa.array(values, self.type)]))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatchError(
                f"the key {self.key!r} holds values that do not fit the first samples' type {self.type}: {error}"
            ) from error


def fields_of(samples: Sequence[Any], name: str) -> tuple[SampleField, ...]:
    """The fields of the first samples (at least one) of the dataset called `name`.

    Raises:
        SchemaMismatchError: they have different keys or dtypes.
        UnsupportedTypeError: a sample is not a dict, or a value is neither an array nor plain data.
    """
    for sample in samples:
        if not isinstance(sample, Mapping) or not all(isinstance(key, str) for key in sample):
            raise UnsupportedTypeError(
                f"{name}: a sample is {type(sample).__name__}: expected a dict with str keys, such as "
                "{'speech': array, 'text': str}."
            )
    keys = tuple(samples[0])
    _check_keys(samples, keys, name)
    return tuple(_field(key, [sample[key] for sample in samples], name) for key in keys)


def as_array(value: Any) -> Array | None:
    """A number, array, tensor or list of numbers as an array of bools, ints or floats; else None."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    if isinstance(value, (list, tuple)):
        if not all(isinstance(item, (bool, int, float, np.number, np.bool_)) for item in value):
            return None
    elif not isinstance(value, (np.ndarray, int, float, np.generic)):
        if not hasattr(value, "numpy"):
            return None
        value = value.detach().numpy() if hasattr(value, "detach") else value.numpy()
    array: Array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.dtype.kind in "biuf" else None


def columns_of(samples: Sequence[Sample], fields: Sequence[SampleField], name: str) -> dict[str, Column]:
    """The samples as columns, by key.

    Raises:
        SchemaMismatchError: a sample has other keys, dtypes or shapes than the first ones.
    """
    _check_keys(samples, [field.key for field in fields], name)
    return {field.key: field.column([sample[field.key] for sample in samples]) for field in fields}


def _field(key: str, values: Sequence[Any], name: str) -> SampleField:
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, str) for value in given):
        return SampleField(key, "list", "str", (), pa.string())
    if given and all(isinstance(value, bytes) for value in given):
        return SampleField(key, "list", "bytes", (), pa.binary())
    arrays = [as_array(value) for value in values]
    if all(array is not None for array in arrays):
        return _array_field(key, values, [array for array in arrays if array is not None])
    try:
        return SampleField(key, "list", "object", (), pa.infer_type(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnsupportedTypeError(
            f"{name}: the key {key!r} holds {sorted({type(value).__name__ for value in values})}: expected numbers, "
            f"arrays, tensors, str, bytes, or lists and dicts of plain values ({error})."
        ) from error


def _array_field(key: str, values: Sequence[Any], arrays: Sequence[Array]) -> SampleField:
    """The field of a key that holds arrays: ragged if they are lists, or if the first samples' lengths differ."""
    typed = next((array for array in arrays if array.size), arrays[0])
    element = pa.from_numpy_dtype(typed.dtype)
    varies = isinstance(values[0], (list, tuple)) or len({array.shape for array in arrays}) > 1
    if not (varies and typed.ndim):
        return SampleField(key, "dense", str(typed.dtype), typed.shape, _nested_type(element, typed.shape))
    shape = typed.shape[1:]
    return SampleField(key, "ragged", str(typed.dtype), shape, pa.list_(_nested_type(element, shape)))


def _nested_type(element: pa.DataType, shape: Sequence[int]) -> pa.DataType:
    for size in reversed(shape):
        element = pa.list_(element, size)
    return element


def _nested(values: Array, shape: Sequence[int]) -> pa.Array:
    array = pa.array(values)
    for size in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _check_keys(samples: Sequence[Sample], keys: Sequence[str], name: str) -> None:
    expected = set(keys)
    for sample in samples:
        if sample.keys() != expected:
            raise SchemaMismatchError(
                f"{name}: a sample has the keys {list(sample)}, but the first one has {list(keys)}: every sample must "
                "have the same keys."
            )


def _shape(sizes: Sequence[object]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


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
    fields: tuple[SampleField, ...]
    arrow: bool
    valid_key: str | None = None

    local = True
    predicate = None
    storages = (Storage(),)

    @property
    def mark(self) -> str:
        """Nothing: the dataset transforms its samples itself."""
        return ""

    @property
    def marks_before(self) -> Sequence[str]:
        """None."""
        return ()

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

    def vocabularies(self) -> dict[str, list[Any]]:
        """None: samples hold values, not codes."""
        return {}

    def prepare(self) -> None:
        """Nothing is shared but the dataset."""

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
