"""Column chunks of many forms, as the page decoder takes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.formats.parquet.pages import PageDecoder

LISTS = pa.list_(pa.field("item", pa.int32(), nullable=False))
ENCODINGS = {
    **dict.fromkeys(("i32", "i64", "i8"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys(("f", "d", "x", "vector.list.element"), "BYTE_STREAM_SPLIT"),
    "text": "DELTA_LENGTH_BYTE_ARRAY",
}
_FORMS = {
    "i32": lambda rng, rows: pa.array(rng.integers(0, 90, rows), pa.int32()),
    "i64": lambda rng, rows: pa.array(rng.integers(0, 2**60, rows), pa.int64()),
    "i8": lambda rng, rows: pa.array(rng.integers(-9, 9, rows), pa.int8()),
    "u16": lambda rng, rows: pa.array(rng.integers(0, 3000, rows), pa.uint16()),
    "f": lambda rng, rows: pa.array(rng.integers(0, 5, rows).astype(np.float32)),
    "d": lambda rng, rows: pa.array(rng.standard_normal(rows)),
    "b": lambda rng, rows: pa.array(rng.random(rows) < 0.3),
    "x": lambda rng, rows: pa.array([bytes([row % 3]) * 5 for row in range(rows)], pa.binary(5)),
    "text": lambda rng, rows: pa.array([f"{row % 9}" * (row % 40) for row in rng.integers(0, 99, rows)]),
    "large": lambda rng, rows: pa.array(["x" * (row % 9) for row in range(rows)], pa.large_string()),
    "tokens": lambda rng, rows: pa.array([list(range(row % 7)) for row in rng.integers(0, 99, rows)], LISTS),
    "vector": lambda rng, rows: pa.array([[float(row), 1.0] for row in range(rows)], pa.list_(pa.float32(), 2)),
    "some": lambda rng, rows: pa.array(
        [[[1, None, 2], None, [], [3]][row % 4] for row in rng.integers(0, 99, rows)], pa.list_(pa.int64())
    ),
    "small": lambda rng, rows: pa.array(rng.integers(-9, 9, rows), pa.int32()).cast(pa.decimal128(10, 0)),
    "word": lambda rng, rows: pa.array(
        [f"{row % 9}" * (row % 40) for row in rng.integers(0, 99, rows)], pa.dictionary(pa.int32(), pa.string())
    ),
    "w": lambda rng, rows: pa.array([bytes([row % 3]) * 20 for row in range(rows)], pa.binary(20)),
}


def write_chunks(folder: Path) -> list[Path]:
    """One file for each: the numbers of a chunk, and its bytes."""
    seeds = []
    for number, (path, name) in enumerate(_columns(folder)):
        with pa.OSFile(str(path)) as source:
            file = pq.ParquetFile(source)
            decoder = PageDecoder(source, file.metadata, file.schema_arrow, verified=number % 4 == 0)
            chunk = decoder._chunks([0], decoder._forms.of([name]))[0][0, 0]
            seed = folder / f"seed-{number}"
            seed.write_bytes(chunk.tobytes() + source.read_at(int(chunk["length"]), int(chunk["start"])))
            seeds.append(seed)
    return seeds


def _columns(folder: Path) -> Iterator[tuple[Path, str]]:
    rng = np.random.default_rng(7)
    ways = itertools.product((0, 0.1, 0.6), ("none", "snappy"), ("1.0", "2.0"), (True, False), (60, 2500))
    for number, (nulls, codec, version, dictionary, rows) in enumerate(ways):
        columns = {name: make(rng, rows) for name, make in _FORMS.items()}
        if nulls:
            columns = {
                name: column
                if name in ("vector", "some")
                else pa.array(column.to_pylist(), column.type, mask=rng.random(rows) < nulls)
                for name, column in columns.items()
            }
        table = pa.table(columns)
        if not nulls:
            table = table.cast(
                pa.schema([field.with_nullable(number % 8 == 0 or field.name == "some") for field in table.schema])
            )
        path = folder / f"{number}.parquet"
        pq.write_table(
            table,
            path,
            compression=codec,
            data_page_version=version,
            use_dictionary=dictionary,
            data_page_size=300 if rows > 1000 and number % 3 else 1 << 20,
            write_page_checksum=number % 4 == 0,
            column_encoding=None if dictionary else ENCODINGS if number % 3 == 0 else None,
        )
        for name in columns:
            yield path, name
