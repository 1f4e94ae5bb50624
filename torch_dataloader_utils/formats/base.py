"""The interface of a file format: a new format subclasses `Format` and `BatchReader` and defines only what differs."""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.schemas.depth import MOST_LEVELS, nests_too_deeply
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder
from torch_dataloader_utils.storage import Decoding, Naming, Storage, confirm_unchanged, prefetch

# Packs a file's layout into bytes for a manifest: thousands of files are unpacked without parsing a footer.

_LENGTHS = struct.Struct("<II")


def pack_layout(layout: FileLayout, schema: pa.Schema, plain: Any, blob: bytes) -> bytes:
    """The segments, the JSON part of the layout's metadata, the schema, and its other bytes, concatenated."""
    segments = [(s.number, s.first_row, s.rows, s.size_bytes) for s in layout.segments]
    reading = {"sequential": layout.sequential, "task_rows": layout.task_rows}
    plan = json.dumps([segments, plain, reading]).encode()
    columns: bytes = schema.serialize().to_pybytes()
    return _LENGTHS.pack(len(plan), len(columns)) + plan + columns + blob


def unpack_layout(data: bytes | memoryview) -> tuple[FileLayout, pa.Schema, Any, bytes | memoryview]:
    """The layout without its metadata, the schema, and both parts of the metadata.

    Raises:
        ValueError: the bytes are not from `pack_layout`.
    """
    try:
        first, second = _LENGTHS.unpack_from(data)
        start, stop = _LENGTHS.size + first, _LENGTHS.size + first + second
        layout, plain = _plan(bytes(data[_LENGTHS.size : start]))
        return layout, _schema(bytes(data[start:stop])), plain, data[stop:]
    except (struct.error, TypeError, ValueError, pa.ArrowException, OSError) as error:
        raise ValueError(f"{len(data)} bytes are no layout of this version of the package: {error}") from error


@lru_cache(maxsize=1024)  # a writer's files often have equal plans
def _plan(data: bytes) -> tuple[FileLayout, Any]:
    segments, plain, reading = json.loads(data)
    return FileLayout(tuple(Segment(*numbers) for numbers in segments), **reading), plain


@lru_cache(maxsize=1024)
def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(data))


# (layout, the file's schema, its constants: partition column -> value) -> layout without the segments in which no row
# can match.
Pruner = Callable[[FileLayout, pa.Schema, Mapping[str, Any]], FileLayout]


class Reader(ABC):
    """An open file. Used by one thread at a time.

    Attributes:
        path: the file's path.
        source: the file, open for random reads.
        layout: the file's layout; segments may have been dropped from it.
        metadata: the layout's metadata, from `Format.inspect`.
        schema: the file's top-level columns, as `read` returns them; set in `__init__`, or on the class if all files
            of the format have the same.
    """

    schema: pa.Schema

    def __init__(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> None:
        """Opens the file; receives the arguments of `Format.open`, with defaults added to `options`."""
        self.path = file.path
        self.layout, self.metadata = layout, layout.metadata
        self.source = storage.open_data(file)

    @abstractmethod
    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column, in the order of `columns`, over the rows of these segments in the order given.

        Args:
            segment_numbers: `Segment.number` of each segment.
            columns: names of top-level columns that the file has.

        Raises:
            FileReadError: the message names file, segments and columns.
        """

    def ranges(self, segment_numbers: Sequence[int]) -> Sequence[tuple[int, int]]:
        """The bytes `[start, stop)` that `read` needs for all columns of these segments; by default unknown: none."""
        return ()

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Whether `ranges` are known: then all of them are fetched now, at once, if the file is in a remote store."""
        with Naming(self.path):
            ranges = self.ranges(segment_numbers)
            prefetch(self.source, ranges)
        return bool(ranges)

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """Which of these columns one call of `read` decodes best, in order; call again for the rest.

        By default none: the caller decides how many columns it requests at a time.

        Args:
            columns: names of columns.
            rows: that are read together.
        """
        return ()

    def codes(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, DictionaryDecoder]:
        """Those of the columns of strings or bytes that are stored as numbers of few words; by default none.

        What each maps to decodes all rows of the segments, in chunks with a dictionary each, of words with offsets of
        32 bits; None if they cannot be decoded so. It is called before the file is closed.

        Args:
            segment_numbers: as in `read`.
            columns: as in `read`.
        """
        return {}

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of the columns that the compiled decoder can take, with a chunk for each segment; by default none.

        They have all rows of the segments, and the type that `read` returns: numbers, bytes or lists of numbers.

        Args:
            segment_numbers: as in `read`.
            columns: as in `read`.
        """
        return {}

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> Mapping[str, pa.ChunkedArray]:
        """A few of the rows, for those of the columns of which this costs less than `read`.

        By default none: of the others, the caller reads all rows, and takes these.

        Args:
            segment_numbers: as in `read`.
            columns: as in `read`.
            rows: numbers among the rows that `read` returns: int64 [n], at least one, ascending.
        """
        return {}

    def confirm(self) -> None:
        """Check that the file is still as planned; called after each read.

        Raises:
            FileChangedError: it has changed.
        """
        confirm_unchanged(self.source)

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self.source.close()


class BatchReader(Reader):
    """A reader that decodes each segment to a record batch.

    Attributes:
        segments: the name of segments in errors.
    """

    segments = "segments"

    @cached_property
    def _rows(self) -> dict[int, int | None]:
        return {segment.number: segment.rows for segment in self.layout.segments}

    @abstractmethod
    def batches(self, numbers: list[int], columns: list[str]) -> Sequence[pa.RecordBatch]:
        """One record batch for each of these segments, with at least these columns.

        Any exception becomes a `FileReadError` that names the file, the segments and the columns.
        """

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these segments, with one chunk per segment."""
        numbers, names = list(segment_numbers), list(columns)
        with Decoding(self.path, f"{self.segments} {', '.join(map(str, numbers))}, columns {', '.join(names)}"):
            batches = self.batches(numbers, names) if names else []
            for number, batch in zip(numbers, batches, strict=bool(names)):
                planned = self._rows.get(number)
                if planned is not None and batch.num_rows != planned:
                    raise ValueError(f"segment {number} has {batch.num_rows} rows, but {planned} were planned.")
            kinds = [self.schema.field(name).type for name in names]
            return [pa.chunked_array([b.column(n) for b in batches], k) for n, k in zip(names, kinds, strict=True)]


class Format(ABC):
    """A file format: how files are laid out and read. Stateless and picklable: workers need no registry.

    A format of your own needs a `name`, a `reader` and `inspect`; everything else has a default. `register_format`
    makes it available as `format=`.

    Attributes:
        name: its name in `format=`.
        segment_name: what the format calls a segment.
        typed: whether files declare column types; if not (text), any types that fit all values may be used.
        columnar: whether a column can be read without its neighbours; if not, all columns are requested in one call.
        options: its `format_options`, with their defaults.
        free_options: those that change neither layouts nor values, so that a manifest serves any of their values.
        described: where files describe their content: in a "footer" or a "header".
        reader: the class of its readers.
    """

    name: str
    segment_name: str = "segment"
    typed: bool = True
    columnar: bool = True
    options: Mapping[str, Any] = MappingProxyType({})
    free_options: frozenset[str] = frozenset()
    described: str = "footer"
    reader: type[Reader]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        """The file's segments that hold rows, and its schema, without reading its rows.

        Use `counted_layout` for the first if the number of rows per segment is known. Any exception becomes a
        `FileReadError` that names the file.

        Args:
            source: the file, open.
            file: its path and size.
            options: all `format_options`, with their defaults.
        """

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """The file's segments that hold rows, and its schema, from its footer or header alone (one open).

        If row counts are known only after reading, segments have none (text is planned from its length and first
        bytes). `options` here and in `open` are the user's; the format adds its defaults.

        Raises:
            FileReadError: the message names the file.
        """
        chosen = {**self.options, **options}
        with (
            Decoding(file.path, self.described),
            (storage.open_footer if self.described == "footer" else storage.open_data)(file) as source,
        ):
            layout, schema = self.inspect(source, file, chosen)
            _check_names(schema)
            deep = next((field.name for field in schema if nests_too_deeply(field.type)), None)
            if deep is not None:
                raise ValueError(f"the type of column {deep!r} nests more than {MOST_LEVELS} levels.")
            return layout, schema

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> Reader:
        """A reader of the file, which avoids reading the footer again if it can.

        Args:
            file: the file as planned; raises an error if it has changed since.
            layout: from `layout`; segments may have been dropped.
            storage: where the file is.
            options: the user's `format_options`.
            schema: the columns that will be requested, with the wanted types. A format whose files declare types may
                return those instead; one whose files do not must return these. Dictionaries of strings or bytes are a
                request to encode the column, if the format can. May contain columns that the file does not have.

        Raises:
            FileReadError: the message names the file.
        """
        with Decoding(file.path):
            return self.reader(file, layout, storage, {**self.options, **options}, schema)

    def with_declared_types(self) -> Format:
        """The format for files whose columns' types the user declared; by default the same as for inferred types."""
        return self

    def check_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027 (optional)
        """Check the values of all `format_options`, whose names and types are right; by default, all are accepted.

        Raises:
            OptionError: a value is wrong.
        """

    def numbers_rows(self, options: Mapping[str, Any]) -> bool:
        """Whether the rows that are read have all numbers from 0 on; not if bad ones are left out. By default they do.

        Args:
            options: the user's `format_options`.
        """
        return True

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A function that drops segments of a file in which no row can match `expression`; opens no file.

        By default it drops nothing, because there are no statistics.

        Args:
            expression: a filter that fits `schema`.
            schema: the schema merged from all files.
        """
        return keep_all(expression, schema)

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """Columns (nested ones as `parent.child`) that provably contain a null in these segments, by statistics."""
        return frozenset()

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """The (minimum, maximum) of top-level columns in a segment, where statistics have them; opens no file.

        By default it returns nothing, because there are no statistics.

        Args:
            layout: the file's layout.
            number: `Segment.number` of the segment.
            names: the requested columns.
        """
        return {}

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """The number of values (without nulls) in the lists of a column, for each segment; by default unknown: None."""
        return None

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """What decodes these columns of a file, in words; by default there is nothing to say: "".

        Args:
            layout: the file's layout.
            names: of top-level columns, some of which it may lack.
            options: the user's `format_options`.
        """
        return ""

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """The result of `layout`, as bytes that a manifest file can store (never a pickle)."""
        return pack_layout(layout, schema, *self.pack_metadata(layout.metadata))

    def unpack(self, data: bytes | memoryview) -> tuple[FileLayout, pa.Schema]:
        """The arguments that `pack` received.

        Raises:
            ValueError: the bytes are not from `pack`.
        """
        layout, schema, plain, blob = unpack_layout(data)
        return replace(layout, metadata=self.unpack_metadata(plain, self.kept(blob), schema)), schema

    def kept(self, blob: bytes | memoryview) -> Any:
        """What `unpack_metadata` is given of a part of memory that processes share: a copy."""
        return bytes(blob)

    def pack_metadata(self, metadata: Any) -> tuple[Any, bytes]:
        """A layout's metadata as a JSON value and bytes; the default assumes that the metadata is a JSON value."""
        return metadata, b""

    def unpack_metadata(self, plain: Any, blob: bytes, schema: pa.Schema) -> Any:
        """The metadata, from the result of `pack_metadata` (after JSON, tuples are lists) and the file's schema."""
        return plain


def _check_names(schema: pa.Schema) -> None:
    """Check that the names of columns, and of the fields below them, can be read."""
    named = "a column"
    try:
        for name, kind in zip(schema.names, schema.types, strict=True):
            named = f"a field of column {name!r}"
            if kind.num_fields:
                _decode_names(kind)
    except UnicodeDecodeError as error:
        raise ValueError(f"the name of {named} is not UTF-8: {error.object!r}. Write the file again.") from error


def _decode_names(kind: pa.DataType) -> None:
    """Read the name of each field below a type, which raises UnicodeDecodeError for those that are not UTF-8."""
    kinds = [kind]  # a loop, because types may be nested more deeply than functions
    while kinds:
        outer = kinds.pop()
        fields = [outer.field(number) for number in range(outer.num_fields)]
        kinds += [field.type for field in fields if field.name is not None]  # decodes the name


def keep_all(expression: pc.Expression, schema: pa.Schema) -> Pruner:
    """The pruner of a format without statistics: it drops nothing."""
    return lambda layout, file_schema, constants: layout
