"""The contract of `torch_dataloader_utils.testing`, over tables that Hypothesis draws: subclass `FormatContract`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.testing import check_format, check_table, sample_tables

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

SAMPLED = sample_tables()[0].schema.types


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
        cut_shows: whether a file without its last bytes can be distinguished from a whole one.
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

    @settings(suppress_health_check=[HealthCheck.differing_executors])  # subclasses differ on purpose
    @given(data=st.data(), segment_rows=st.integers(1, 15))
    def test_any_table_is_read_back_in_every_way(self, data: st.DataObject, segment_rows: int) -> None:
        table = data.draw(tables(self.types))
        write = partial(self.write, segment_rows=segment_rows)
        check_table(self.form, write, table, options=self.options, suffix=self.suffix)

    def test_the_whole_contract_holds(self) -> None:
        check_format(
            self.form,
            partial(self.write, segment_rows=8),
            tables=sample_tables([kind for kind in SAMPLED if kind in dict(self.types)]),
            options=self.options,
            suffix=self.suffix,
            wrong=self.wrong,
            cut_shows=self.cut_shows,
        )

    def test_rows_are_counted_without_reading_them_or_not(self, tmp_path: Path) -> None:
        path = tmp_path / f"data{self.suffix}"
        self.write(pa.table({"a": range(20)}), path, 8)
        layout, _ = self.form.layout(DataFileInfo(str(path), path.stat().st_size), Storage(), self.options)
        assert layout.known == self.counted
