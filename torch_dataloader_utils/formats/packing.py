"""Packs a file's layout into bytes for a manifest: thousands of files are unpacked without parsing a footer."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.model import FileLayout, Segment

_LENGTHS = struct.Struct("<II")


def pack_layout(layout: FileLayout, schema: pa.Schema, plain: Any, blob: bytes) -> bytes:
    """The segments, the JSON part of the layout's metadata, the schema, and its other bytes, concatenated."""
    segments = [(s.number, s.first_row, s.rows, s.size_bytes) for s in layout.segments]
    reading = {"sequential": layout.sequential, "task_rows": layout.task_rows}
    plan = json.dumps([segments, plain, reading]).encode()
    columns: bytes = schema.serialize().to_pybytes()
    return _LENGTHS.pack(len(plan), len(columns)) + plan + columns + blob


def unpack_layout(data: bytes) -> tuple[FileLayout, pa.Schema, Any, bytes]:
    """The layout without its metadata, the schema, and both parts of the metadata.

    Raises:
        ValueError: the bytes are not from `pack_layout`.
    """
    try:
        first, second = _LENGTHS.unpack_from(data)
        start, stop = _LENGTHS.size + first, _LENGTHS.size + first + second
        layout, plain = _plan(data[_LENGTHS.size : start])
        return layout, _schema(data[start:stop]), plain, data[stop:]
    except (struct.error, TypeError, ValueError, pa.ArrowException, OSError) as error:
        raise ValueError(f"{len(data)} bytes are no layout of this version of the package: {error}") from error


@lru_cache(maxsize=1024)  # a writer's files often have equal plans
def _plan(data: bytes) -> tuple[FileLayout, Any]:
    segments, plain, reading = json.loads(data)
    return FileLayout(tuple(Segment(*numbers) for numbers in segments), **reading), plain


@lru_cache(maxsize=1024)
def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.BufferReader(data))
