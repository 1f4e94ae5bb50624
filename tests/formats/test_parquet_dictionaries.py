"""Text, and lists of it, as dictionaries where a file has few words and their numbers; else as it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import Delta, stream
from torch_dataloader_utils.formats.parquet.dictionaries import dictionary_leaves, holds_codes
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.preprocess import Categorize, Hash, Keep, Preprocess
from torch_dataloader_utils.schemas.dictionaries import as_dictionaries, decoded, numbered
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.storage.remote import RangeFile

CODED = pa.dictionary(pa.int32(), pa.string())
TEXT, LISTS = pa.string(), pa.list_(pa.string())

values = st.lists(st.none() | st.text("ab", max_size=2), max_size=9)
lists = st.lists(st.none() | values, max_size=9)


@given(values | lists, st.integers(0, 3), st.integers(0, 3), st.sampled_from(["string", "binary", "large", "wide"]))
def test_values_are_words_of_their_own_and_back(rows: list[Any], first: int, more: int, kind: str) -> None:
    nested = any(isinstance(row, list) for row in rows)
    text = {"binary": pa.binary(), "wide": pa.large_string()}.get(kind, pa.string())
    type_ = text if not nested else pa.large_list(text) if kind == "large" else pa.list_(text)
    array = pa.array(rows, type_)
    column = pa.chunked_array([array.slice(first), array], type_)
    coded = numbered(column, as_dictionaries(type_))
    coded.validate(full=True)
    assert coded.to_pylist() == coded.combine_chunks().to_pylist() == column.to_pylist()
    for part in (coded, coded.slice(more), coded.slice(1, more)):
        plain = decoded(part)
        plain.validate(full=True)
        assert plain.type == (type_ if kind != "wide" else pa.list_(TEXT) if nested else TEXT)
        assert plain.to_pylist() == part.to_pylist()


@pytest.mark.parametrize("engine", ["auto", "pyarrow"])
def test_text_declared_as_large_is_read_in_dictionaries(tmp_path: Path, engine: str) -> None:
    rows = pa.table({"tag": ["a", "b", None, "a"] * 50, "tags": [["a"], ["b", "a"], None, []] * 50})
    wide = pa.schema([("tag", pa.large_string()), ("tags", pa.large_list(pa.large_string()))])
    plain = pa.table({"tag": [f"{row}" for row in range(200)], "tags": [[f"{row}"] for row in range(200)]})
    pq.write_table(rows.cast(wide), tmp_path / "a.parquet")
    pq.write_table(plain.cast(wide), tmp_path / "b.parquet", use_dictionary=False)
    spec = {"tag": Categorize(), "tags": Categorize()}
    prep = Preprocess(spec).fit(pa.concat_tables([rows, plain]))
    loader = stream(tmp_path, transform=prep, batch_size=64, output_format="arrow", format_options={"engine": engine})
    assert loader.dataset._passes.source.scan.encoded == {"tag", "tags"}
    expected = prep(pa.concat_tables([rows, plain]))
    assert pa.Table.from_batches(list(loader)).to_pylist() == expected.to_pylist()


def test_dictionaries_are_decoded() -> None:
    words = pa.array(["a", None, "b"])
    for codes in ([0, 1, 2], [2, None, 1], [1, 2], [0, None, 2], [], [0, 1, 2, 0]):
        array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), words)
        assert decoded(pa.chunked_array([array])).to_pylist() == array.to_pylist()
        small = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(["a", "b", "c"]))
        assert decoded(pa.chunked_array([small])).to_pylist() == small.to_pylist()


def nested_table() -> pa.Table:
    return pa.table({
        "flat": ["a"] * 40,
        "tags": pa.array([["a", None], None, [], ["b"]] * 10, LISTS),
        "a.b": pa.array([["a"]] * 40, pa.large_list(pa.string())),
        "number": pa.array([[1]] * 40, pa.list_(pa.int64())),
        "deep": pa.array([[["a"]]] * 40, pa.list_(LISTS)),
        "pair": pa.array([[{"x": "a", "y": "b"}]] * 40, pa.list_(pa.struct({"x": TEXT, "y": TEXT}))),
        "map": pa.array([[("a", "b")]] * 40, pa.map_(TEXT, TEXT)),
        "delta": pa.array([["a"]] * 40, LISTS),
    })  # fmt: skip


@pytest.mark.parametrize("names", [("list", "element"), ("list", "item"), ("bags", "array_e")])
def test_the_leaves_of_lists_have_any_names(tmp_path: Path, names: tuple[str, str]) -> None:
    path, (outer, inner) = tmp_path / "f", names
    pq.write_table(nested_table(), path, use_compliant_nested_type=inner != "item", store_schema=False)
    if outer != "list":  # as other writers call them: names of the same length, in the schema and in paths
        path.write_bytes(path.read_bytes().replace(b"\x04list", b"\x04bags").replace(b"\x07element", b"\x07array_e"))
    metadata = pq.read_metadata(path)
    paths = {name: metadata.schema.column(leaf).path for name, leaf in leaves(metadata).items()}
    assert paths == {
        name: f"{name}.{outer}.{inner}" if name != "flat" else "flat" for name in ("flat", "tags", "a.b", "delta")
    }
    opened = pq.ParquetFile(path, read_dictionary=list(paths.values()))
    assert {str(opened.schema_arrow.field(name).type.value_type) for name in ("tags", "delta")} == {str(CODED)}


def leaves(metadata: Any) -> dict[str, int]:
    """The leaves of columns that are wanted as dictionaries, or as lists of these, whatever they are."""
    wanted = {
        "flat": CODED, "tags": pa.list_(CODED), "a.b": pa.large_list(CODED), "number": pa.list_(CODED),
        "deep": pa.list_(pa.list_(CODED)), "pair": pa.list_(CODED), "map": pa.list_(CODED),
        "delta": pa.list_(CODED), "absent": CODED,
    }  # fmt: skip
    return dictionary_leaves(metadata, pa.schema(wanted))


def test_delta_encodings_are_read_as_they_are(tmp_path: Path) -> None:
    encoding = {"delta.list.element": "DELTA_BYTE_ARRAY", "flat": "DELTA_LENGTH_BYTE_ARRAY"}
    pq.write_table(nested_table(), tmp_path / "f", use_dictionary=["tags.list.element"], column_encoding=encoding)
    assert leaves(pq.read_metadata(tmp_path / "f")).keys() == {"tags", "a.b"}


def words(count: int, rows: int, width: int = 8) -> list[str]:
    return [f"{number:0{width}}" for number in np.random.default_rng(count).integers(0, count, rows)]


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(
    ("count", "width", "options", "flat", "listed"),
    [
        (1, 8, {}, True, True),
        (1_000, 8, {}, True, True),
        (3_000, 300, {}, True, True),
        (8_000, 8, {}, True, False),  # more than an eighth
        (15_000, 300, {"dictionary_pagesize_limit": 100 << 20}, True, False),
        (60_000, 8, {"dictionary_pagesize_limit": 100 << 20}, False, False),  # more than half
        (15_000, 300, {}, False, False),  # the dictionary is given up at 1 MiB
        (5_000, 8, {"dictionary_pagesize_limit": 4096}, False, False),
        (1_000, 8, {"use_dictionary": False}, False, False),
    ],
)
def test_which_chunks_hold_codes(
    tmp_path: Path, codec: str, version: Any, count: int, width: int, options: dict[str, Any], flat: bool, listed: bool
) -> None:
    array = pa.array(words(count, 50_000, width))
    given = {"compression": codec, "data_page_version": version, **options}
    pq.write_table(pa.table({"x": array}), tmp_path / "f", **given)
    chunk = pq.read_metadata(tmp_path / "f").row_group(0).column(0)
    with pa.OSFile(str(tmp_path / "f")) as source:
        assert [holds_codes(source, chunk, in_lists) for in_lists in (False, True)] == [flat, listed]


def test_levels_of_nulls_and_short_lists_are_no_values(tmp_path: Path) -> None:
    rows = [[word] if n % 3 else None for n, word in enumerate(words(4_000, 90_000))]
    pq.write_table(pa.table({"x": pa.array(rows, LISTS)}), tmp_path / "f")
    chunk = pq.read_metadata(tmp_path / "f").row_group(0).column(0)
    with pa.OSFile(str(tmp_path / "f")) as source:
        assert holds_codes(source, chunk, True)


# As loaders read them.


def uneven(tmp_path: Path, groups: int = 6, rows: int = 400) -> tuple[Path, pa.Table]:
    """Row groups of text and of lists, of which some have few words, some many, and some no dictionary to the end."""
    schema = pa.schema({"x": TEXT, "y": LISTS, "z": pa.large_list(pa.binary()), "row": pa.int64()})
    random = np.random.default_rng(0)
    folder = tmp_path / "uneven"
    folder.mkdir(parents=True)
    tables = []
    for group in range(groups):
        text = words((7, rows * 4, 90)[group % 3], rows * 4, 20 + group)
        x = [None if n % 9 == 5 else text[n] for n in range(rows)]
        ends = random.integers(0, 5, rows).cumsum()
        y = [
            None if n % 7 == 3 else [None if n % 5 == 1 else word for word in text[ends[n] - (ends[n] > 2) : ends[n]]]
            for n in range(rows)
        ]
        z = [[word.encode() for word in (row or [])[:1] if word] for row in y]
        number = np.arange(group * rows, (group + 1) * rows)
        tables.append(pa.table({"x": x, "y": y, "z": z, "row": number}, schema=schema))
    for part, of in enumerate((tables[: groups // 2], tables[groups // 2 :])):
        with pq.ParquetWriter(folder / f"{part}.parquet", schema, dictionary_pagesize_limit=2_000) as writer:
            for table in of:
                writer.write_table(table)
    return folder, pa.concat_tables(tables)


SPEC: dict[str, Any] = {
    "x": {"xc": Categorize(min_count=2), "xh": Hash(1 << 30)},
    "y": {"yc": Categorize(min_count=2, unknown_ids=3), "yh": Hash(1 << 30)},
    "z": {"zc": Categorize(), "zh": Hash(1 << 30)},
    "row": Keep(),
}


def in_order(batches: Any) -> list[dict[str, Any]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["row"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 7, "num_workers": 2},
        {"batch_size": 5000},
        {"shuffle": True, "shuffle_seed": 3, "num_workers": 2},
        {"shuffle": {"open_splits": 3}, "split_rows": 100},
        {"filters": [("row", "!=", 3)]},
        {"limit": 1000},
        {"filters": [("row", "<", 60)]},
        {"format_options": {"engine": "pyarrow"}},
        pytest.param({"num_workers": 2, "worker_mode": "processes"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("remote", [False, True])
def test_ids_are_those_of_plain_values(tmp_path: Path, options: dict[str, Any], remote: bool) -> None:
    folder, table = uneven(tmp_path)
    prep = Preprocess(SPEC).fit(table)
    assert Preprocess(SPEC).fit(str(folder)).digest == prep.digest
    place = str(folder)
    if remote:
        if options.get("worker_mode"):
            pytest.skip("memory:// is that of one process")
        place = in_memory(folder)
    loader = loader_of(place, prep, options)
    found, whole = in_order(loader), prep(table).to_pylist()
    loader.close()
    assert len(found) == len(whole) or "filters" in options or "limit" in options
    assert found == [whole[row["row"]] for row in found]
    assert found


def in_memory(folder: Path) -> str:
    """The URL of a remote copy of the folder."""
    name = f"dictionaries/{folder.parent.name}"
    fsspec.filesystem("memory").put(str(folder), f"/{name}", recursive=True)
    return f"memory://{name}"


def loader_of(place: Any, prep: Preprocess, options: dict[str, Any]) -> Any:
    given = {"batch_size": 100, "num_ranks": 1, "rank": 0, **options}
    return stream(place, transform=prep, output_format="arrow", **given)


def test_what_is_read_as_dictionaries(tmp_path: Path) -> None:
    """Half of the lists have few words: these are dictionaries where a block begins; a reader returns no other type."""
    folder, _ = uneven(tmp_path, 6, 2_000)
    form, storage = format_named("parquet"), Storage()
    info = DataFileInfo(str(folder / "0.parquet"), (folder / "0.parquet").stat().st_size)
    layout, schema = form.layout(info, storage, {})
    wanted = pa.schema([item.with_type(as_dictionaries(item.type) or item.type) for item in schema])
    reader = form.open(info, layout, storage, {}, wanted)
    found = {name: [] for name in ("x", "y", "z")}
    for group in range(3):
        for name, column in zip(found, reader.read([group], list(found)), strict=True):
            assert column.type == wanted.field(name).type
            chunk = column.chunk(0) if name == "x" else column.chunk(0).flatten()
            found[name].append(len(chunk.dictionary) < len(chunk) // 4)
    together = reader.read([0, 1, 2], list(found))
    assert [column.type for column in together] == [wanted.field(name).type for name in found]
    assert (
        pa.table(together, list(found)).to_pylist()
        == pq.read_table(folder / "0.parquet", columns=list(found)).to_pylist()
    )
    reader.close()
    assert found == {"x": [True, False, True], "y": [True, False, True], "z": [True, False, True]}


def test_a_remote_file_is_requested_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, table = uneven(tmp_path)
    place = in_memory(folder)
    fetched: list[Any] = []
    get = RangeFile._get
    monkeypatch.setattr(RangeFile, "_get", lambda self, ranges: fetched.extend(ranges) or get(self, ranges))

    def requests(transform: Any) -> list[Any]:
        del fetched[:]
        options = {"columns": ["x", "y", "z", "row"], "num_workers": 0, "output_format": "arrow"}
        loader = stream(place, transform=transform, batch_size=100, num_ranks=1, rank=0, **options)
        assert sum(len(batch) for batch in loader) == len(table)
        return sorted(fetched)

    assert requests(Preprocess(SPEC).fit(table)) == requests(None)


def test_files_that_hold_lists_of_dictionaries(tmp_path: Path) -> None:
    """pyarrow joins no dictionaries within lists, which several row groups of a remote file need."""
    coded = pa.array(["a", "b", None, "c"] * 300).dictionary_encode()
    column = pa.ListArray.from_arrays(pa.array(range(0, 1201, 2), pa.int32()), coded)
    table = pa.table({"x": column, "row": range(600)})
    with fsspec.open("memory://coded/f.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=50)
    loader = stream("memory://coded", batch_size=64, num_ranks=1, rank=0, output_format="arrow")
    assert pa.Table.from_batches(list(loader)).to_pylist() == table.to_pylist()
    prep = Preprocess({"x": Categorize(), "row": Keep()}).fit(table)
    assert in_order(loader_of("memory://coded", prep, {})) == prep(table).to_pylist()


def test_pyarrow_makes_no_dictionary_of_many_words(tmp_path: Path) -> None:
    """Where a dictionary was given up, the package's own decoder reads the text itself."""
    rows = 60_000
    table = pa.table({"x": words(50_000, rows, 60)})
    pq.write_table(table, tmp_path / "f.parquet")
    loader = loader_of(str(tmp_path), Preprocess({"x": Hash(1 << 30)}).fit(table), {"num_workers": 0})
    assert sum(len(batch) for batch in loader) == rows
    found = loader.metrics(total=True)
    assert found["bytes_by_pyarrow"] == 0 < found["bytes_decoded"]


@pytest.mark.parametrize("table", ["delta"])
def test_lists_of_a_table(tmp_path: Path, table: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    _, rows = uneven(tmp_path)
    deltalake.write_deltalake(tmp_path / table, rows.drop_columns("z"))
    spec = {name: SPEC[name] for name in ("x", "y", "row")}
    prep = Preprocess(spec).fit(rows)
    loader = stream(
        Delta(str(tmp_path / table)), transform=prep, output_format="arrow", batch_size=100, num_ranks=1, rank=0
    )
    assert in_order(loader) == prep(rows).to_pylist()
