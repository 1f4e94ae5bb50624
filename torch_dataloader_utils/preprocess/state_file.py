"""What was counted of a fit as it is saved: plain values for the JSON; cells and rare values in one Parquet file.

The file holds, for each output in order, the cells of its grid and then its rare values, in row groups of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.preprocess.columns import type_named, whole
from torch_dataloader_utils.preprocess.counted import Counted, CountedValues, as_given, is_learned_vocabulary, unfilled
from torch_dataloader_utils.preprocess.counts import ValueCounts, common_type, counted_type, held, typed
from torch_dataloader_utils.preprocess.fitted import FittedOutput
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.learning import HELD
from torch_dataloader_utils.preprocess.moments import Moments
from torch_dataloader_utils.preprocess.own import is_plain
from torch_dataloader_utils.preprocess.partitions import PARTITIONS
from torch_dataloader_utils.preprocess.scans import wanted
from torch_dataloader_utils.preprocess.seen import NumberStatistics
from torch_dataloader_utils.preprocess.transforms import Cross, Impute
from torch_dataloader_utils.values import whole as whole_number

_GROUP = 1 << 20  # rows
_SCHEMA = pa.schema(
    {
        "number": pa.int64(),  # a rare value: of a number, bool, date or time,
        "bytes": pa.large_binary(),  # or of text or bytes
        "least": pa.float64(),  # the least value of a cell,
        "greatest": pa.float64(),  # and the greatest, if that is another one
        "count": pa.int64(),  # how often the value, or values of the cell, were counted
    }
)
_ENCODINGS = {
    "number": "DELTA_BINARY_PACKED",
    "bytes": "DELTA_BYTE_ARRAY",
    "least": "BYTE_STREAM_SPLIT",
    "greatest": "BYTE_STREAM_SPLIT",
    "count": "DELTA_BINARY_PACKED",
}
_NUMBERS = ("missing", "below", "above", "finite")
_NO_CELLS = [pa.nulls(0, pa.float64()), pa.nulls(0, pa.float64()), pa.nulls(0, pa.int64())]
_count = whole_number(0, 2**62)


def saved_counted(counted: Sequence[Counted | None]) -> tuple[list[dict[str, Any] | None], bytes | None]:
    """What the JSON holds of each output, and the bytes of the file; None if it would hold nothing.

    Args:
        counted: for each output, all in this process.
    """
    plain = [None if each is None else _plain(each) for each in counted]
    tables = [table for each in counted if each is not None for table in _tables(each) if len(table)]
    if not tables:
        return plain, None
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "column_encoding": _ENCODINGS}
    with pq.ParquetWriter(sink, _SCHEMA, write_statistics=False, **options) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=_GROUP)
    return plain, sink.getvalue().to_pybytes()


def _plain(counted: Counted) -> dict[str, Any]:
    made: dict[str, Any] = {"first": counted.first}
    if (numbers := counted.numbers) is not None:
        made["numbers"] = {name: getattr(numbers, name) for name in _NUMBERS}
        if numbers.sums is not None:
            made["numbers"]["sums"] = numbers.sums.to_json()
        if isinstance(numbers.grid, Grid):
            cells = numbers.grid.to_arrays()
            made["numbers"]["grid"] = {"shift": int(cells["shift"]), "cells": len(cells["least"])}
    if (values := counted.values) is not None:
        assert values.rare is not None
        made["values"] = {
            "type": str(values.type),
            "by_bits": values.by_bits,
            "missing": values.rare.missing,
            "rare": values.rare.distinct,
        }
    if counted.own is not None and is_plain(list(counted.own)):
        made["own"] = list(counted.own)
    return made


def _tables(counted: Counted) -> Iterator[pa.Table]:
    """The cells and rare values of an output, as the file holds them."""
    if counted.numbers is not None and isinstance(counted.numbers.grid, Grid):
        cells = counted.numbers.grid.to_arrays()
        alone = cells["least"] == cells["greatest"]
        greatest = pa.array(cells["greatest"], mask=alone)
        yield _table(least=as_arrow(cells["least"]), greatest=greatest, count=as_arrow(cells["counts"]))
    if counted.values is not None and counted.values.rare is not None:
        yield from _rare(counted.values.rare)


def _rare(values: ValueCounts) -> Iterator[pa.Table]:
    """The rare values, some at a time."""
    tables: list[pa.Table] = []
    for number in range(PARTITIONS):
        found = values.partition(number)
        if len(found):
            column = held(whole(found.column("value")), values.type)
            texts = column.type != pa.int64()
            column = {"bytes": column.cast(pa.large_binary())} if texts else {"number": column}
            tables.append(_table(**column, count=whole(found.column("count"))))
        if sum(map(len, tables)) >= _GROUP or (tables and number == PARTITIONS - 1):
            yield pa.concat_tables(tables).combine_chunks()
            tables = []


def _table(**columns: pa.Array) -> pa.Table:
    rows = len(columns["count"])
    return pa.table([columns.get(item.name, pa.nulls(rows, item.type)) for item in _SCHEMA], schema=_SCHEMA)


def read_counted(
    outputs: Sequence[FittedOutput], plain: Sequence[Mapping[str, Any] | None], data: bytes | None, *, whole: bool
) -> tuple[Counted | None, ...]:
    """What `saved_counted` was given.

    Args:
        outputs: as they were saved.
        plain: what the JSON holds of each.
        data: the bytes of the file; None if there is none.
        whole: False for what needs no file: of which types values are.

    Raises:
        Exception: of any kind, if `saved_counted` never returns this.
    """
    groups = _Groups(data if whole else None)
    made = tuple(
        None if saved is None else _read(each, saved, groups if whole else None)
        for each, saved in zip(outputs, plain, strict=True)
    )
    groups.end()
    return made


class _Groups:
    """The row groups of a file, one after another.

    Raises:
        ValueError: it is no such file.
    """

    def __init__(self, data: bytes | None) -> None:
        self._file = None if data is None else pq.ParquetFile(pa.BufferReader(data))
        self._next, self._count = 0, 0 if self._file is None else self._file.num_row_groups
        if self._file is not None and not self._file.schema_arrow.equals(_SCHEMA):
            raise ValueError("the file of rare values and cells has other columns")

    def take(self, rows: int, *columns: str) -> Iterator[list[pa.Array]]:
        """So many of the next rows, the arrays of these columns and of counts."""
        while rows > 0 and self._next < self._count:
            assert self._file is not None
            table = self._file.read_row_group(self._next, columns=[*columns, "count"])
            self._next, rows = self._next + 1, rows - len(table)
            yield [whole(column) for column in table.columns]
        if rows:
            raise ValueError("the file of rare values and cells has other numbers of them")

    def end(self) -> None:
        """Check that all was taken."""
        if self._next < self._count:
            raise ValueError("the file of rare values and cells holds more")


def _read(each: FittedOutput, saved: Mapping[str, Any], groups: _Groups | None) -> Counted:
    given = as_given(each)
    first, needs = _count("first", saved["first"]), wanted(given.chain, saved["first"])
    free = next(place for place, link in enumerate(given.chain) if link.needs)
    numbers = None if "numbers" not in saved or groups is None else _numbers(saved["numbers"], groups)
    values = None if "values" not in saved else _values(saved["values"], groups)
    own = tuple(saved["own"]) if "own" in saved else None
    made = Counted(first, numbers, values, own)
    if not free <= first < len(given.chain):
        raise ValueError("it was counted for no link")
    if groups is None:
        return made
    expected = needs & {"counts"} if first > free else needs - {"own"}
    if _kinds(made) != expected or (own is not None and (len(own) > 1 or "own" not in needs)):
        raise ValueError(f"{sorted(expected)} were counted, but {sorted(_kinds(made))} are there")
    if values is not None:
        _check_values(each, made, values)
    return made


def _kinds(counted: Counted) -> frozenset[str]:
    """The statistics that were counted, as transforms name them."""
    numbers, found = counted.numbers, {"counts"} if counted.values is not None else set()
    if numbers is not None:
        found |= {name for name, of in (("moments", numbers.sums), ("grid", numbers.grid)) if of is not None}
    return frozenset(found)


def _numbers(saved: Mapping[str, Any], groups: _Groups) -> NumberStatistics:
    counts = {name: _count(name, saved[name]) for name in _NUMBERS}
    sums = None if "sums" not in saved else Moments.from_json(saved["sums"])
    grid = None if "grid" not in saved else _grid(saved["grid"], groups)
    finite = counts["finite"]
    if sums is not None and (sums.count, sums.missing, sums.infinite) != (finite, 0, 0):
        raise ValueError("sums are of another number of values")
    if grid is not None and grid.count != finite:
        raise ValueError("cells are of another number of values")
    if sums is not None and grid is not None and finite:
        ends = grid.known()[[0, -1]].tolist()
        if ends != [sums.least, sums.greatest]:
            raise ValueError("cells have another least or greatest value than sums")
    return NumberStatistics(sums, grid, **counts)


def _grid(saved: Mapping[str, Any], groups: _Groups) -> Grid:
    parts: list[list[pa.Array]] = list(groups.take(_count("cells", saved["cells"]), "least", "greatest"))
    least, greatest, counts = (pa.chunked_array(column) for column in zip(*parts, strict=True)) if parts else _NO_CELLS
    greatest = pc.coalesce(greatest, least)
    arrays = {
        "shift": np.array(_count("shift", saved["shift"]), np.uint8),
        "least": least.to_numpy(),
        "greatest": greatest.to_numpy(),
        "counts": counts.to_numpy(),
    }
    return Grid.from_arrays(arrays)


def _values(saved: Mapping[str, Any], groups: _Groups | None) -> CountedValues:
    type_, by_bits = type_named(saved["type"]), saved["by_bits"]
    if counted_type(type_) != type_ or type(by_bits) is not bool:
        raise ValueError(f"values were counted as {type_}")
    if groups is None:
        return CountedValues(type_, by_bits, None)
    texts = type_ in (pa.large_string(), pa.large_binary())
    parts = groups.take(_count("rare", saved["rare"]), "bytes" if texts else "number")
    tables = (
        pa.table([typed(column.cast(type_) if texts else column, type_), counts], ["value", "count"])
        for column, counts in parts
    )
    rare = ValueCounts.from_tables(type_, tables, _count("missing", saved["missing"]), HELD)
    if rare.distinct != saved["rare"]:
        raise ValueError("rare values are there more than once")
    return CountedValues(type_, by_bits, rare)


def _check_values(each: FittedOutput, counted: Counted, values: CountedValues) -> None:
    """Check that values are those of the column, and the rare ones not among those that have ids."""
    last, rare, numeric = each.last, values.rare, each.output.numeric
    assert rare is not None
    first = next(link for link in each.output.chain[counted.first :] if "counts" in link.needs)
    # Decimals are saved as floats are, but not counted by bits.
    may, must = numeric or each.types[0].values == "double", numeric
    if not (must <= values.by_bits <= may if isinstance(first, Impute) else not values.by_bits):
        raise ValueError("values were counted in another way")
    as_numbers = values.by_bits or isinstance(last, Cross)
    common_type(values.type, pa.int64() if as_numbers else counted_type(type_named(each.types[0].values)))
    if is_learned_vocabulary(last) and not values.by_bits:
        unfilled(each, counted)
        distinct = rare.distinct
        rare.drop(each.fitted[-1]["vocabulary"].array)
        if rare.distinct != distinct:
            raise ValueError("a value is rare and has an id")
