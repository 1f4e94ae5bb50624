"""What every file format must pass: subclass `FormatContract` in a test module of the format."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

TYPES = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    (pa.list_(pa.float32(), 2), st.lists(st.sampled_from([0.0, 1.5]), min_size=2, max_size=2)),
    (pa.struct({"x": pa.int32()}), st.fixed_dictionaries({"x": st.integers(0, 9)})),
]

if int(pa.__version__.split(".")[0]) < 21:  # pyarrow 17 cannot read null fixed-size lists
    TYPES = [(kind, values) for kind, values in TYPES if not pa.types.is_fixed_size_list(kind)]


@st.composite
def tables(draw: st.DrawFn, types: Sequence[tuple[pa.DataType, st.SearchStrategy[Any]]] = TYPES) -> pa.Table:
    """Tables of 1 to 40 rows and 1 to 4 columns of these types, with nulls."""
    rows = draw(st.integers(1, 40))
    kinds = draw(st.lists(st.sampled_from(types), min_size=1, max_size=4))
    columns = {
        f"c{i}": pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for i, (kind, values) in enumerate(kinds)
    }
    return pa.table(columns)


def column(reader: Reader, segments: Sequence[int], name: str) -> list[object]:
    return reader.read(segments, [name])[0].to_pylist()


def numbers_of(layout: FileLayout) -> list[int]:
    return [segment.number for segment in layout.segments]


class FormatContract:
    """Subclasses say which format, how a file of it with several segments is written, and what it cannot do.

    Attributes:
        form: the format.
        types: the types that it stores, each with its values.
        counted: whether segments tell their rows.
        suffix: of the files' names.
        options: the `format_options` given.
        wrong: contents that are no such file.
        cut_shows: whether a file without its last bytes can be told from a whole one.
    """

    form: Format
    types = TYPES
    counted = True
    suffix = ""
    options: Mapping[str, Any] = {}
    wrong: tuple[bytes, ...] = (b"", b"no such format at all", b"PAR1" * 5)
    cut_shows = True

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        """Write the table as a file with segments of about so many rows."""
        raise NotImplementedError

    def opened(self, table: pa.Table, folder: Path, segment_rows: int) -> tuple[DataFileInfo, FileLayout, Reader]:
        """A file of the table; open, and wanted as the table's types where files do not say theirs."""
        path = folder / f"data{self.suffix}"
        self.write(table, path, segment_rows)
        info = DataFileInfo(str(path), path.stat().st_size)
        layout, found = self.form.layout(info, Storage(), self.options)
        return info, layout, self.form.open(info, layout, Storage(), self.options, self.wanted(table, found))

    def wanted(self, table: pa.Table, found: pa.Schema) -> pa.Schema:
        return found if self.form.typed else table.schema

    def read_whole(self, path: Path) -> None:
        """Do all that is done to a file of a column "a"."""
        info = DataFileInfo(str(path), path.stat().st_size)
        layout, found = self.form.layout(info, Storage(), self.options)
        reader = self.form.open(info, layout, Storage(), self.options, self.wanted(pa.table({"a": [1]}), found))
        try:
            reader.read(numbers_of(layout), ["a"])
        finally:
            reader.close()

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("format")

    @settings(suppress_health_check=[HealthCheck.differing_executors])  # subclasses differ on purpose
    @given(data=st.data(), segment_rows=st.integers(1, 15))
    def test_segments_tile_the_file_and_any_range_equals_the_full_read(
        self, folder: Path, data: st.DataObject, segment_rows: int
    ) -> None:
        table = data.draw(tables(self.types))
        _, layout, reader = self.opened(table, folder, segment_rows)
        numbers = numbers_of(layout)
        for name in table.column_names:
            expected = table[name].to_pylist()
            alone = [column(reader, [number], name) for number in numbers]
            assert sum(alone, []) == column(reader, numbers, name) == expected
            self.check_counts(layout, [len(values) for values in alone])
            for first in range(len(numbers)):
                assert column(reader, numbers[first : first + 2], name) == sum(alone[first : first + 2], [])
        reader.close()

    def check_counts(self, layout: FileLayout, rows: list[int]) -> None:
        """The layout tells these rows per segment, or none at all."""
        assert all(segment.size_bytes >= 0 for segment in layout.segments)
        if not self.counted:
            assert {(segment.first_row, segment.rows) for segment in layout.segments} == {(0, None)}
            return
        assert [segment.rows for segment in layout.segments] == rows
        assert 0 not in rows
        assert list(layout.plan_starts()) == [sum(rows[:i]) for i in range(len(rows) + 1)]

    @settings(suppress_health_check=[HealthCheck.differing_executors])  # subclasses differ on purpose
    @given(data=st.data())
    def test_columns_come_in_the_order_asked_for_and_types_are_kept(self, folder: Path, data: st.DataObject) -> None:
        table = data.draw(tables(self.types))
        _, layout, reader = self.opened(table, folder, 7)
        names = data.draw(st.permutations(table.column_names)) if table.num_columns > 1 else table.column_names
        names = names[: data.draw(st.integers(0, len(names)))]
        arrays = reader.read(numbers_of(layout), names)
        assert [array.to_pylist() for array in arrays] == [table[name].to_pylist() for name in names]
        assert [array.type for array in arrays] == [reader.schema.field(name).type for name in names]
        if not self.form.typed:
            assert [array.type for array in arrays] == [table.schema.field(name).type for name in names]
        reader.close()

    def test_a_pickled_or_packed_layout_reads_the_same(self, tmp_path: Path) -> None:
        table = pa.table({"a": range(20)})
        info, layout, reader = self.opened(table, tmp_path, 8)
        segment = layout.segments[-1].number
        expected = column(reader, [segment], "a")
        reader.close()
        info, layout, storage, form = pickle.loads(pickle.dumps((info, layout, Storage(), self.form)))
        schema = self.wanted(table, form.layout(info, storage, self.options)[1])
        unpacked, found = form.unpack(form.pack(layout, schema))
        assert (unpacked, found) == (layout, schema)
        for again in (layout, unpacked):
            reader = form.open(info, again, storage, self.options, schema)
            assert column(reader, [segment], "a") == expected
            assert column(reader, numbers_of(again), "a") == list(range(20))
            reader.close()

    def test_wrong_bytes_cannot_be_unpacked(self) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - of whichever decoder
            self.form.unpack(b"no such thing")

    def test_arrays_outlive_their_reader(self, tmp_path: Path) -> None:
        _, layout, reader = self.opened(pa.table({"a": range(20)}), tmp_path, 20)
        (array,) = reader.read(numbers_of(layout), ["a"])
        reader.close()
        assert array.to_pylist() == list(range(20))

    def test_wrong_bytes_are_an_error_that_names_the_file(self, tmp_path: Path) -> None:
        for content in self.wrong:
            path = tmp_path / f"wrong{self.suffix}"
            path.write_bytes(content)
            with pytest.raises(FileReadError, match="wrong"):
                self.read_whole(path)

    def test_a_truncated_file_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        path = tmp_path / f"cut{self.suffix}"
        self.write(pa.table({"a": range(1000)}), path, 100)
        self.read_whole(path)
        if self.cut_shows:
            path.write_bytes(path.read_bytes()[:-20])
            with pytest.raises(FileReadError, match="cut"):
                self.read_whole(path)

    def test_a_file_that_has_gone_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        table = pa.table({"a": [1]})
        info, layout, reader = self.opened(table, tmp_path, 1)
        reader.close()
        Path(info.path).unlink()
        with pytest.raises(FileReadError, match="data"):
            self.form.open(info, layout, Storage(), self.options, table.schema)
