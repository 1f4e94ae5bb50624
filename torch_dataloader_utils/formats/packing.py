"""The index of a file (its schema, and lists of numbers) as bytes that a manifest can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

_SCHEMA = "schema"


def pack_index(schema: bytes, numbers: Mapping[str, Sequence[int]]) -> bytes:
    """The bytes of a schema's IPC message, and lists of numbers, as bytes: an Arrow stream of one row."""
    lists = {name: pa.array([values], pa.list_(pa.int64())) for name, values in numbers.items()}
    row = pa.record_batch({_SCHEMA: pa.array([schema], pa.binary()), **lists})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack_index(data: bytes, names: Sequence[str]) -> tuple[bytes, dict[str, list[int]]]:
    """What `pack_index` was given.

    Raises:
        ValueError: the bytes are not of `pack_index` with these names.
    """
    try:
        row = pa.ipc.open_stream(data).read_next_batch()
        lists = {name: row.column(name).flatten().to_numpy(zero_copy_only=False).tolist() for name in names}
        return row.column(_SCHEMA)[0].as_py(), lists
    except (pa.ArrowException, OSError, KeyError, StopIteration) as error:
        raise ValueError(f"{len(data)} bytes are no packed index of {', '.join(names)}: {error}") from error
