"""What plans want to know of a Parquet footer, beside its bytes: thousands of files are planned without parsing one."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.model import FileLayout, Segment

_LENGTHS = struct.Struct("<II")


@dataclass(frozen=True)
class Footer:
    """A footer, parsed when it is first used in a process; picklable.

    Attributes:
        file: a Parquet file that has this footer and nothing else.
        nulls: number of a row group -> the columns that hold a null in it for certain; row groups without any are left
            out, and so are leaves below lists.
    """

    file: bytes = field(repr=False)
    nulls: Mapping[int, tuple[str, ...]]

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The footer as pyarrow has it."""
        return pq.read_metadata(pa.BufferReader(self.file))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the parsed one, which is many times as large; compressed, these bytes are a fourth.
        return _inflated, (len(self.file), pa.compress(self.file, "zstd", asbytes=True), self.nulls)


def _inflated(size: int, data: bytes, nulls: Mapping[int, tuple[str, ...]]) -> Footer:
    return Footer(pa.decompress(data, size, "zstd", asbytes=True), nulls)


def pack_plan(layout: FileLayout, schema: pa.Schema) -> bytes:
    """Segments and columns with nulls, the schema, and the footer, one after the other."""
    footer: Footer = layout.metadata
    segments = [(s.number, s.first_row, s.rows, s.size_bytes) for s in layout.segments]
    plan = json.dumps([segments, list(footer.nulls.items())]).encode()
    columns: bytes = schema.serialize().to_pybytes()
    return _LENGTHS.pack(len(plan), len(columns)) + plan + columns + footer.file


def unpack_plan(data: bytes) -> tuple[FileLayout, pa.Schema]:
    """What was packed; the footer itself is not parsed.

    Raises:
        ValueError: the bytes are not of `pack_plan`.
    """
    try:
        first, second = _LENGTHS.unpack_from(data)
        start, stop = _LENGTHS.size + first, _LENGTHS.size + first + second
        segments, nulls = _plan(data[_LENGTHS.size : start])
        return FileLayout(segments, metadata=Footer(data[stop:], nulls)), _schema(data[start:stop])
    except (struct.error, TypeError, ValueError, pa.ArrowException, OSError) as error:
        raise ValueError(f"{len(data)} bytes are no packed Parquet footer: {error}") from error


@lru_cache(maxsize=1024)  # files of one writer are often alike
def _plan(data: bytes) -> tuple[tuple[Segment, ...], dict[int, tuple[str, ...]]]:
    segments, nulls = json.loads(data)
    return tuple(Segment(*numbers) for numbers in segments), {number: tuple(names) for number, names in nulls}


@lru_cache(maxsize=1024)
def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(data))
