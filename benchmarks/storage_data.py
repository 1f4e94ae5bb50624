"""Writes the files of `storage.py`: a table of identifiers, values and text, in each format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.orc as orc


def mixed(rows: int, seed: int) -> pa.Table:
    """Two identifiers, a value, a label and 10 to 50 letters of text."""
    rng = np.random.default_rng(seed)
    ends = np.concatenate([[0], np.cumsum(rng.integers(10, 51, rows))]).astype(np.int32)
    letters = rng.integers(97, 123, int(ends[-1]), dtype=np.uint8)
    return pa.table(
        {
            "user": rng.integers(0, 1 << 20, rows),
            "item": rng.integers(0, 1 << 16, rows),
            "value": rng.standard_normal(rows).round(6),
            "label": rng.integers(0, 2, rows),
            "text": pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters)),
        }
    )


def csv_lines(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False))
    return sink.getvalue().to_pybytes()


def json_objects(table: pa.Table) -> bytes:
    parts: list[Any] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        text = pa.types.is_string(column.type)
        start = f'{", " if parts else "{"}"{name}": ' + '"' * text
        parts += [start, column.cast(pa.string()), '"' * text]
    lines = pc.binary_join_element_wise(*parts, "}\n", "").combine_chunks()
    return lines.cast(pa.large_binary()).buffers()[2].to_pybytes()


LINES = {"csv": csv_lines, "jsonl": json_objects}


def write_text(form: str, path: Path, size: int) -> int:
    """Write a file of this format and about this size in bytes; returns its number of rows."""
    rows = 0
    with path.open("wb") as file:
        if form == "csv":
            file.write((",".join(mixed(1, 0).column_names) + "\n").encode())
        while file.tell() < size:
            table = mixed(100_000 if size > 50e6 else 10_000, rows)
            file.write(LINES[form](table))
            rows += table.num_rows
    return rows


def write_as(form: str, folder: Path, files: int, rows: int) -> Path:
    """The folder of `files` files with `rows` rows each; written unless it exists."""
    target = folder / f"{form}-{files}x{rows}"
    partial = target.with_suffix(".partial")
    if target.exists():
        return target
    partial.mkdir(parents=True)
    for number in range(files):
        table, path = mixed(rows, number), partial / f"part-{number:02}.{form.partition('-')[0]}"
        if form in LINES:
            header = (",".join(table.column_names) + "\n").encode() if form == "csv" else b""
            path.write_bytes(header + LINES[form](table))
        elif form == "orc":
            orc.write_table(table, path, stripe_size=8 << 20)
        else:
            feather.write_feather(table, path, compression=form.partition("-")[2], chunksize=65_536)
    return partial.rename(target)
