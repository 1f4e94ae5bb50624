"""The shipped contract of formats finds what breaks it: Parquet, with one fault at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.parquet import ParquetFormat, ParquetReader
from torch_dataloader_utils.model import FileLayout
from torch_dataloader_utils.testing import check_format, check_table, sample_tables

write = partial(pq.write_table, row_group_size=8)
TABLE = pa.table({"a": pa.array([*range(29), None])})


class Changed(ParquetReader):
    change: Callable[[list[pa.ChunkedArray], Sequence[int]], list[pa.ChunkedArray]]

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        return type(self).change(super().read(segment_numbers, columns), segment_numbers)


class LosesRows(Changed):
    change = staticmethod(lambda arrays, numbers: [array.slice(len(numbers) > 1) for array in arrays])


class SwapsSegments(ParquetReader):
    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        return super().read(sorted(segment_numbers), columns)


class ClaimsAllColumns(ParquetReader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.schema = given[-1]


class NamesNoColumns(ParquetReader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        del self.schema


class NamesColumnsTwice(ParquetReader):
    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        return [*columns, *columns]


class ForgetsNulls(Changed):
    change = staticmethod(lambda arrays, numbers: [array.fill_null(0) for array in arrays])


class CountsRowsFromTheEnd(ParquetReader):
    def read_rows(self, segment_numbers: Sequence[int], columns: Sequence[str], rows: Any) -> Any:
        arrays = self.read(segment_numbers, columns)
        taken = [array.take(pa.array(len(array) - 1 - rows)) for array in arrays]
        return dict(zip(columns, taken, strict=True))


class RaisesItsOwn(ParquetReader):
    def __init__(self, *given: Any) -> None:
        try:
            super().__init__(*given)
        except DataLoaderUtilsError:
            raise MemoryError("what a decoder says") from None


class Parquet(ParquetFormat):
    """Parquet, read by another reader or laid out otherwise."""

    def __init__(self, reader: type[ParquetReader] = ParquetReader, change: Mapping[str, Any] | None = None) -> None:
        self.reader = reader
        self.change = change or {}

    def inspect(self, *given: Any) -> tuple[FileLayout, pa.Schema]:
        layout, schema = super().inspect(*given)
        segments = tuple(replace(segment, **self.change) for segment in layout.segments)
        return replace(layout, segments=segments), schema


class PrunesTooMuch(ParquetFormat):
    def pruner(self, expression: Any, schema: pa.Schema) -> Any:
        return lambda layout, file_schema, constants: replace(layout, segments=layout.segments[:1])


class SeesNulls(ParquetFormat):
    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        return frozenset({"a"})


class PacksNothing(ParquetFormat):
    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        layout, schema = super().unpack(data)
        return replace(layout, segments=layout.segments[1:]), schema


def in_a_function() -> Format:
    class Local(ParquetFormat):
        pass

    return Local()


class UnpacksAnything(ParquetFormat):
    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        return super().unpack(data) if len(data) > 99 else (FileLayout(()), pa.schema([]))


FAULTS: list[tuple[Format, str]] = [
    (Parquet(LosesRows), "column a, .*: got"),
    (Parquet(SwapsSegments), "segments backwards"),
    (Parquet(ClaimsAllColumns), "reader.schema has absent columns"),
    (Parquet(NamesNoColumns), "the reader has no schema"),
    (Parquet(NamesColumnsTwice), r"together\(\['a'\]\) returned \['a', 'a'\]"),
    (Parquet(ForgetsNulls), "column a, .*: got"),
    (Parquet(CountsRowsFromTheEnd), r"column a, rows .* by read_rows\(\): got"),
    (Parquet(change={"rows": 5}), "the rows of all segments of layout"),
    (Parquet(change={"first_row": 1}), "first_row of the segments"),
    (Parquet(change={"number": 0}), "numbers of segments repeat"),
    (Parquet(change={"size_bytes": -1}), "negative size_bytes"),
    (PrunesTooMuch(), "rows that match .* in the segments that pruner"),
    (PacksNothing(), r"layout and schema after pack\(\) and unpack\(\)"),
    (in_a_function(), "cannot be sent to worker processes by pickle: .*Local"),
    (UnpacksAnything(), r"unpack\(\) took bytes that are not of pack"),
]


@pytest.mark.parametrize(("form", "message"), FAULTS, ids=[message[:25] for _, message in FAULTS])
def test_a_fault_of_a_format_is_found(form: Format, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_table(form, write, TABLE)


def test_nulls_that_are_not_there_are_found() -> None:
    with pytest.raises(AssertionError, match="column a holds no null"):
        check_table(SeesNulls(), write, TABLE.slice(0, 20))


def test_errors_that_do_not_name_the_file_are_found() -> None:
    with pytest.raises(AssertionError, match="expected a FileReadError, got MemoryError: what a decoder says"):
        check_format(Parquet(RaisesItsOwn), write)


def test_wrong_bytes_that_are_read_are_found(tmp_path: Path) -> None:
    write(sample_tables()[0], tmp_path / "f")
    with pytest.raises(AssertionError, match=r"a file of b'PAR1.*was read without an error"):
        check_format(ParquetFormat(), write, wrong=[(tmp_path / "f").read_bytes()])


def test_samples_have_the_types_asked_for_and_nulls() -> None:
    full, with_nulls, one = sample_tables([pa.string(), pa.int8()])
    assert [column.type for column in full.columns] == [pa.string(), pa.int8()]
    assert (full.num_rows, with_nulls.num_rows, one.num_rows) == (60, 60, 1)
    assert full["b"].null_count == 0 < with_nulls["b"].null_count
    with pytest.raises(ValueError, match=r"date32.*expected some of int64"):
        sample_tables([pa.date32()])
