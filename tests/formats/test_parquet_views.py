"""Strings and bytes of files whose writer had views in memory, as those of DataFusion and delta-rs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.reading import read_all
from torch_dataloader_utils.formats.parquet import FORMAT
from torch_dataloader_utils.formats.parquet.footer import checked_footer

pytestmark = pytest.mark.skipif(not hasattr(pa, "string_view"), reason="this pyarrow has no views")

TEXTS = ["a", None, "longer than twelve bytes", ""]
VIEWS = {
    "text": pa.array(TEXTS, pa.string_view()),
    "bytes": pa.array([b"\xff", None, b"longer than twelve bytes", b""], pa.binary_view()),
    "in_struct": pa.array([{"a": text} for text in TEXTS], pa.struct({"a": pa.string_view()})),
    "in_list": pa.array([[text, "x"] for text in TEXTS], pa.list_(pa.string_view())),
}
PLAIN = {
    "text": pa.large_string(),
    "bytes": pa.large_binary(),
    "in_struct": pa.struct({"a": pa.large_string()}),
    "in_list": pa.list_(pa.large_string()),
}
OTHERS = pa.table(
    {
        "day": pa.array([1, 2, None, 4], pa.timestamp("ms", "Europe/Berlin")),
        "pair": pa.array([[1, 2]] * 4, pa.list_(pa.int8(), 2)),
        "word": pa.array(TEXTS, pa.large_string()),
        "code": pa.array(TEXTS).dictionary_encode(),
    }
)


def stored_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as source:
        return checked_footer(source)[2]


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_as_large_strings_and_binaries(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: VIEWS[name]}), path)
    read = read_all(FORMAT, path)
    assert read.schema.types == [PLAIN[name]]
    assert read.to_pydict() == pq.read_table(path).to_pydict()


def test_all_other_types_and_metadata_stay(tmp_path: Path) -> None:
    table = OTHERS.append_column("text", VIEWS["text"]).replace_schema_metadata({"made": "by hand"})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    place, plain = len(OTHERS.column_names), pq.read_schema(path)
    expected = plain.set(place, plain.field("text").with_type(pa.large_string()))
    assert stored_schema(path).equals(expected, check_metadata=True)
    assert read_all(FORMAT, path).to_pydict() == table.to_pydict()


def test_a_footer_without_views_stays_as_it_is(tmp_path: Path) -> None:
    pq.write_table(OTHERS, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.parquet")) as source:
        content, *_ = checked_footer(source)
    assert content[4:] == (tmp_path / "a.parquet").read_bytes()[-len(content) + 4 :]


def test_a_schema_among_the_values_is_not_the_files(tmp_path: Path) -> None:
    """The text of a file's own schema is a minimum in its statistics, too."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": VIEWS["text"], "word": pa.array([b"b", None, b"c", b"d"])})
    pq.write_table(table, path)
    stored = pq.read_metadata(path).metadata[b"ARROW:schema"]
    entry = b"ARROW:schema\x18" + bytes([len(stored) & 127 | 128, len(stored) >> 7]) + stored
    assert entry in path.read_bytes()
    twin = table.set_column(1, "word", pa.array([entry, None, b"c", b"d"]))
    pq.write_table(twin, path)
    assert path.read_bytes()[-8 - pq.read_metadata(path).serialized_size :].count(entry) > 1
    assert stored_schema(path).types == [pa.large_string(), pa.binary()]
    assert read_all(FORMAT, path).to_pydict() == twin.to_pydict()
