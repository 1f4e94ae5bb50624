"""Steps of a scan: which columns each decoder call reads, and which of the rows belong to a piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.model import Piece, Rows
from torch_dataloader_utils.reading.files import FileReader

Numbers: TypeAlias = npt.NDArray[np.int64]  # of rows, ascending

_CALL_BYTES = 1 << 19  # decoded bytes per decoder call: what fits in a core's cache besides the input
_RUNS_BYTES = 1 << 24  # decoded bytes of these columns in all runs that are read one after another


def decoder_calls(items: Sequence[pa.Field], rows: int, alone: bool, runs: int = 1) -> Iterator[list[pa.Field]]:
    """The columns grouped into decoder calls.

    Args:
        items: the columns.
        rows: number of rows, of all runs together.
        runs: the number of runs of about as many rows each, with a call for each of them.
        alone: whether columns can be read separately at no cost. A call then decodes so few values that they stay in
            the processor's cache: either columns of fixed width, or a single column of variable width. Otherwise one
            call reads all columns: from a remote store, to coalesce ranges; from text, because each line holds all.
    """
    if not alone:
        yield from [list(items)] if items else []
        return
    run: list[pa.Field] = []
    size = 0
    most = min(_CALL_BYTES * runs, max(_RUNS_BYTES, _CALL_BYTES))
    for item in items:
        width = item.type.bit_width // 8 * rows if pt.is_primitive(item.type) else most
        if run and (size + width > most or pt.is_primitive(item.type) != pt.is_primitive(run[0].type)):
            yield run
            run, size = [], 0
        run.append(item)
        size += width
    if run:
        yield run


def calls_of(reader: FileReader, items: Sequence[pa.Field], rows: int) -> tuple[list[list[pa.Field]], list[pa.Field]]:
    """The columns that a reader decodes best in one call of so many rows, by call; and the others."""
    calls: list[list[pa.Field]] = []
    rest = {item.name: item for item in items}
    while rest and (names := reader.together(list(rest), rows)):
        calls.append([rest.pop(name) for name in names])
    return calls, list(rest.values())


def read_columns(
    reader: FileReader, numbers: Sequence[int], items: Sequence[pa.Field], alone: bool
) -> list[pa.ChunkedArray]:
    """The columns of one decoder call over some segments.

    Nested and string columns that can be read alone are read one segment at a time: merging them would cost more.

    Args:
        reader: of the file.
        numbers: of the segments.
        items: the columns.
        alone: as in `decoder_calls`.
    """
    names = [item.name for item in items]
    if len(numbers) == 1 or not alone or pt.is_primitive(items[0].type):
        return reader.read(numbers, names)
    by_segment = [reader.read([number], names) for number in numbers]
    return [
        pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)
        for parts in zip(*by_segment, strict=True)
    ]


def narrow(table: pa.Table, piece: Piece, start: int, rows: Numbers | None = None) -> pa.Table:
    """The piece's rows, of those that a table has.

    Args:
        table: rows of a run.
        piece: lies in the run.
        start: the plan row number of the run's first row.
        rows: the numbers of the table's rows in the run; None if it has all.
    """
    if piece.rows is None:
        return table
    if piece.rows.contiguous:
        first = piece.rows.start - start
        last = first + len(piece.rows)
        if rows is not None:
            first, last = np.searchsorted(rows, [first, last]).tolist()
        return table if last - first == table.num_rows else table.slice(first, last - first)
    numbers = piece.rows.numbers() - start
    if rows is not None:
        numbers = np.searchsorted(rows, numbers[np.isin(numbers, rows)])
    return table.take(as_arrow(numbers))


def numbers_in(rows: Rows, start: int) -> slice | Numbers:
    """The numbers that rows of a plan have in a run, as an index of an array.

    Args:
        rows: of a piece that lies in the run.
        start: the plan row number of the run's first row.
    """
    return slice(rows.start - start, rows.stop - start) if rows.contiguous else rows.numbers() - start


def numbers_of(mask: pa.Array) -> Numbers:
    """The numbers of the rows for which a mask is true."""
    return np.asarray(pc.indices_nonzero(mask), np.int64)


def mask_of(numbers: Numbers, rows: int) -> pa.Array:
    """The mask, over so many rows, that is true for those with these numbers."""
    mask = np.zeros(rows, np.bool_)
    mask[numbers] = True
    return as_arrow(mask)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables (at least one), without a copy."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def addresses(table: pa.Table) -> Iterator[int]:
    """The memory addresses of the table's buffers."""
    for column in table.columns:
        for chunk in column.chunks:
            yield from (buffer.address for buffer in chunk.buffers() if buffer is not None)
