"""What every file format must pass: subclass `FormatContract` in a test module of the format."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats import Format, Reader
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
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of 1 to 40 rows and 1 to 4 columns, with nulls."""
    rows = draw(st.integers(1, 40))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    columns = {
        f"c{i}": pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for i, (kind, values) in enumerate(kinds)
    }
    return pa.table(columns)


def column(reader: Reader, segments: list[int], name: str) -> list[object]:
    return reader.read(segments, [name])[0].to_pylist()


class FormatContract:
    """Subclasses say which format, and how a file of it with several segments is written."""

    form: Format

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        raise NotImplementedError

    def opened(self, table: pa.Table, folder: Path, segment_rows: int) -> tuple[DataFileInfo, FileLayout, Reader]:
        path = folder / "data"
        self.write(table, path, segment_rows)
        info = DataFileInfo(str(path), path.stat().st_size)
        layout, _ = self.form.layout(info, Storage(), {})
        return info, layout, self.form.open(info, layout, Storage(), {})

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("format")

    @given(table=tables(), segment_rows=st.integers(1, 15))
    def test_segments_tile_the_file_and_any_range_equals_the_full_read(
        self, folder: Path, table: pa.Table, segment_rows: int
    ) -> None:
        _, layout, reader = self.opened(table, folder, segment_rows)
        starts = layout.plan_starts()
        assert starts[0] == 0
        assert starts[-1] == table.num_rows
        numbers = [segment.number for segment in layout.segments]
        assert all(segment.rows and segment.size_bytes >= 0 for segment in layout.segments)
        for name in table.column_names:
            expected = table[name].to_pylist()
            assert column(reader, numbers, name) == expected
            for first in range(len(numbers)):
                last = min(first + 2, len(numbers))
                assert column(reader, numbers[first:last], name) == expected[starts[first] : starts[last]]
        reader.close()

    @given(table=tables(), data=st.data())
    def test_columns_come_in_the_order_asked_for_and_types_are_kept(
        self, folder: Path, table: pa.Table, data: st.DataObject
    ) -> None:
        _, layout, reader = self.opened(table, folder, 7)
        names = data.draw(st.permutations(table.column_names)) if table.num_columns > 1 else table.column_names
        names = names[: data.draw(st.integers(0, len(names)))]
        arrays = reader.read([segment.number for segment in layout.segments], names)
        assert [array.to_pylist() for array in arrays] == [table[name].to_pylist() for name in names]
        assert [array.type for array in arrays] == [reader.schema.field(name).type for name in names]
        reader.close()

    def test_a_pickled_layout_reads_the_same(self, tmp_path: Path) -> None:
        info, layout, reader = self.opened(pa.table({"a": range(20)}), tmp_path, 8)
        reader.close()
        info, layout, storage, form = pickle.loads(pickle.dumps((info, layout, Storage(), self.form)))
        again = form.open(info, layout, storage, {})
        assert column(again, [1], "a") == list(range(8, 16))
        again.close()

    def test_arrays_outlive_their_reader(self, tmp_path: Path) -> None:
        _, _, reader = self.opened(pa.table({"a": range(20)}), tmp_path, 20)
        (array,) = reader.read([0], ["a"])
        reader.close()
        assert array.to_pylist() == list(range(20))

    @pytest.mark.parametrize("content", [b"", b"no such format at all", b"PAR1" * 5])
    def test_wrong_bytes_are_an_error_that_names_the_file(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "wrong").write_bytes(content)
        with pytest.raises(FileReadError, match="wrong") as caught:
            self.form.layout(DataFileInfo(str(tmp_path / "wrong"), len(content)), Storage(), {})
        assert caught.value.__cause__ is not None

    def test_a_truncated_file_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        path = tmp_path / "cut"
        self.write(pa.table({"a": range(1000)}), path, 100)
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(FileReadError, match="cut"):
            self.form.layout(DataFileInfo(str(path), 0), Storage(), {})

    def test_a_file_that_has_gone_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        info, layout, reader = self.opened(pa.table({"a": [1]}), tmp_path, 1)
        reader.close()
        Path(info.path).unlink()
        with pytest.raises(FileReadError, match="data"):
            self.form.open(info, layout, Storage(), {})
