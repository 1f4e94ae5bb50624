"""A fit is a function of the multiset of rows, whatever they come from and however they are cut."""

import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_dataloader_utils as tdu
from tests.preprocess.tables import SPEC, columns_of_doubles, mixed_table
from torch_dataloader_utils.errors import ColumnNotFoundError, EmptyDatasetError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.kernels import grid, hashes, moments, table
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
)
from torch_dataloader_utils.preprocess.columns import kind_of
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.learning import Learning
from torch_dataloader_utils.preprocess.scan import FitScan
from torch_dataloader_utils.preprocess.sources import rows_of
from torch_dataloader_utils.preprocess.spec import OutputSpec

ROWS = 2000
TABLE = mixed_table(ROWS)
TRAIN = tdu.Subsets({"train": 0.8, "val": 0.2})["train"]


@pytest.fixture(scope="module")
def digest() -> str:
    return Preprocess(SPEC).fit(TABLE).digest


def scanned(spec: Any, parts: list[Any], merged: Callable[[list[FitScan]], FitScan]) -> Preprocess:
    """Fitted by one scan for each part of the rows, merged."""
    prep = Preprocess(spec)
    scan: FitScan | None = prep.scan(parts[0].schema)
    while scan is not None:
        last = scan
        scans = [deepcopy(scan) for _ in parts]
        for each, part in zip(scans, parts, strict=True):
            each.add(part)
        last = merged(scans)
        scan = last.finish()
    return prep.learned(last)


def in_order(scans: list[FitScan]) -> FitScan:
    first, *others = scans
    for other in others:
        first.merge(other)
    return first


@given(st.integers(0, 2**32), st.integers(1, 9))
@settings(max_examples=8, deadline=None)
def test_cuts_and_orders_and_merges(digest: str, seed: int, parts: int) -> None:
    shuffler = random.Random(seed)
    rows = list(range(ROWS))
    shuffler.shuffle(rows)
    shuffled = TABLE.take(rows)
    cuts = sorted(shuffler.randrange(ROWS + 1) for _ in range(parts - 1))
    pieces = [shuffled.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, ROWS], strict=True)]

    def as_tree(scans: list[FitScan]) -> FitScan:
        while len(scans) > 1:
            one = scans.pop(shuffler.randrange(len(scans)))
            other = scans.pop(shuffler.randrange(len(scans)))
            one.merge(pickle.loads(pickle.dumps(other)))
            scans.append(one)
        return scans[0]

    made = scanned(SPEC, pieces, as_tree)
    assert made.digest == digest
    assert made._fitted.rows == ROWS


def encoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a wider type, or as a dictionary."""
    type_ = column.type
    if pa.types.is_string(type_):
        return column.dictionary_encode()
    if pa.types.is_list(type_) and pa.types.is_string(type_.value_type):
        return column.cast(pa.large_list(pa.large_string()))
    if type_ in (pa.int8(), pa.float32()):
        return column.cast(pa.float64())
    if pa.types.is_timestamp(type_):
        return column.cast(pa.timestamp("us", type_.tz))
    return column


WIDER = pa.table([encoded(column) for column in TABLE.columns], names=TABLE.column_names)


def test_encodings_and_widths(digest: str) -> None:
    # A large list is another kind of column to none but Arrow.
    assert [kind_of(one.type) for one in WIDER.columns] == [kind_of(one.type) for one in TABLE.columns]
    wide = Preprocess(SPEC).fit(WIDER)
    narrow = Preprocess(SPEC).fit(TABLE)
    assert wide.digest == narrow.digest == digest
    assert str(wide(TABLE).to_pydict()) == str(narrow(TABLE).to_pydict())
    assert str(narrow(WIDER).to_pydict()) == str(narrow(TABLE).to_pydict())


def test_threads_with_a_scan_each(digest: str) -> None:
    prep = Preprocess(SPEC)
    scan: FitScan | None = prep.scan(TABLE.schema)
    with ThreadPoolExecutor(8) as pool:
        while scan is not None:
            parts = [(deepcopy(scan), TABLE.slice(first, 250)) for first in range(0, ROWS, 250)]
            list(pool.map(lambda part: part[0].add(part[1]), parts))
            last = in_order([own for own, _ in parts])
            scan = last.finish()
    assert prep.learned(last).digest == digest
    assert prep._fitted.rows == ROWS


def test_plain_numpy(digest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (grid, moments, hashes, table):
        monkeypatch.setattr(kernel, "library", lambda *_: None)
    made = Preprocess(SPEC).fit(TABLE)
    assert made.digest == digest


def write(folder: Path, rows: pa.Table = TABLE, files: int = 3, group: int = 100) -> Path:
    folder.mkdir(exist_ok=True)
    size = -(-len(rows) // files)
    for i in range(files):
        pq.write_table(rows.slice(i * size, size), folder / f"{i}.parquet", row_group_size=group)
    return folder


@pytest.mark.parametrize(("files", "group"), [(1, 5000), (3, 77), (7, 400)])
def test_files(tmp_path: Path, digest: str, files: int, group: int) -> None:
    path = write(tmp_path / "data", files=files, group=group)
    assert Preprocess(SPEC).fit(str(path)).digest == digest


def test_sources(tmp_path: Path, digest: str) -> None:
    path = str(write(tmp_path / "data"))
    loader = tdu.stream(path, batch_size=33, shuffle=True, num_ranks=4, rank=2, output_format="arrow")
    assert Preprocess(SPEC).fit(loader).digest == digest  # the rows of all ranks
    assert Preprocess(SPEC).fit(loader.dataset).digest == digest
    loader.close()
    batches = TABLE.to_batches(500)
    assert (
        Preprocess(SPEC).fit([pa.Table.from_batches(batches[:1]), pa.Table.from_batches(batches[1:])]).digest == digest
    )
    simple = {"age": [Impute("median"), Standardize()], "city": Categorize(), "hour": Bucketize(quantiles=5)}
    expected = Preprocess(simple).fit(TABLE).digest
    small = TABLE.select(["age", "city", "hour", "label"])
    assert Preprocess(simple).fit(small.to_pandas()).digest == expected
    assert Preprocess(simple).fit(pl.from_arrow(small)).digest == expected
    assert Preprocess(simple).fit(small.combine_chunks().to_batches()[0]).digest == expected
    assert Preprocess(simple).fit([small.slice(0, 9), str(write(tmp_path / "rest", small.slice(9)))]).digest == expected


def test_a_delta_table(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    rows = TABLE.select(["age", "city"])
    deltalake.write_deltalake(str(tmp_path / "t"), rows.slice(0, 900))
    first = Preprocess({"age": Standardize(), "city": Categorize()}).fit(rows.slice(0, 900))
    deltalake.write_deltalake(str(tmp_path / "t"), rows.slice(900), mode="append")
    spec = {"age": Standardize(), "city": Categorize()}
    table = str(tmp_path / "t")
    assert Preprocess(spec).fit(tdu.Delta(table, version=0)).digest == first.digest
    assert Preprocess(spec).fit(tdu.Delta(table)).digest == Preprocess(spec).fit(rows).digest != first.digest


def test_rows_as_the_loader_reads_them(tmp_path: Path) -> None:
    path = str(write(tmp_path / "data"))
    spec = {"age": {"age": Standardize(), "b": Bucketize(quantiles=7)}, "city": Categorize()}

    def same(rows: Any, **options: Any) -> None:
        loader = tdu.stream(path, output_format="arrow", **options)
        expected = Preprocess(spec).fit(rows)
        assert Preprocess(spec).fit(loader).digest == expected.digest
        assert Preprocess(spec).fit(path, **options).digest == expected.digest
        loader.close()

    hours = TABLE.filter(pa.compute.field("hour") < 12)
    same(hours, filters=[("hour", "<", 12)])
    chosen = tdu.stream(path, num_ranks=1, rank=0, subset=TRAIN, output_format="arrow")
    same(pa.Table.from_batches(list(chosen)), subset=TRAIN)
    chosen.close()
    assert Preprocess(spec).fit(path).digest != Preprocess(spec).fit(hours).digest
    numbers = {"age": Standardize()}
    assert Preprocess(numbers).fit(path, limit=300)._fitted.rows == 300


def test_only_needed_columns_are_read(tmp_path: Path) -> None:
    wide = pa.table({"x": np.arange(20_000.0), **{f"c{i}": np.random.default_rng(i).random(20_000) for i in range(30)}})
    path = write(tmp_path / "data", wide, group=20_000)
    prep = Preprocess({"x": Standardize(), "c0": Keep()})
    scan = prep.scan(wide.schema)
    assert scan.columns == ["x"]
    read = [part.schema.names for part in rows_of(str(path), {}).tables(scan.columns, ())]
    assert read
    assert all(names == ["x"] for names in read)
    loader = tdu.stream(str(path), transform=prep.fit(str(path)), num_ranks=1, rank=0, batch_size=5000)
    assert list(next(iter(loader))) == ["x", "c0"]
    loader.close()
    prep.fit(str(path))
    whole = tdu.stream(str(path), num_ranks=1, rank=0, batch_size=5000)
    for batch in whole:
        assert len(batch) == 31
    loader = tdu.stream(str(path), transform=prep, num_ranks=1, rank=0, batch_size=5000)
    for batch in loader:
        assert len(batch) == 2
    bytes_of_two = loader.metrics()["bytes_decoded"]
    assert 0 < bytes_of_two < whole.metrics()["bytes_decoded"] / 10
    whole.close()
    loader.close()


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
def test_text_of_few_words_is_counted_by_its_dictionary(tmp_path: Path, type_: pa.DataType) -> None:
    words = pa.array([None, *(f"{row % 7}" for row in range(4999))]).cast(type_)
    ids = pa.array([f"id-{row}" for row in range(5000)]).cast(type_)
    table = pa.table({"word": words, "id": ids, "filled": words})
    spec: dict[str, Any] = {"word": Categorize(), "id": Categorize(), "filled": [Impute("none"), Categorize()]}
    path = str(write(tmp_path / "data", table, group=3000))
    scan = Preprocess(spec).scan(table.schema)
    assert scan.counted_columns == ["word", "id"]
    for block in rows_of(path, {}).tables(scan.columns, scan.counted_columns):
        assert [pa.types.is_dictionary(kind) for kind in block.schema.types] == [True, False, False]
    assert Preprocess(spec).fit(path).digest == Preprocess(spec).fit(table).digest


CHAINS: list[list[Any]] = [
    [Standardize(), MinMax()],
    [Clip(quantiles=(0.1, 0.9)), Standardize()],
    [Impute("median"), Standardize(), Robust()],
    [Impute("mean"), Clip(quantiles=(0.2, 0.7)), MinMax(-1, 1)],
    [MinMax(), Log1p(), Standardize()],
    [Standardize(), Log1p(signed=True), Bucketize(quantiles=5)],
    [Robust(), Impute("mean"), MinMax()],
    [Log1p(), Robust(), Standardize()],
    [Standardize(), Impute("most_frequent"), Robust()],
    [Impute("most_frequent"), Log1p(), Impute("most_frequent"), Standardize()],
]


def one_link_at_a_time(chain: list[Any], x: pa.Array) -> list[Any]:
    """What each link learns of what those before it return for all rows: the definition."""
    learned = []
    for place, link in enumerate(chain):
        single = Preprocess({"x": [link]}, dtype="float64").fit(pa.table({"x": x}))
        learned.append(dict(single._fitted.outputs[0].fitted[0]))
        if place + 1 < len(chain):
            x = single(pa.table({"x": x}))["x"].combine_chunks()
    return learned


@given(columns_of_doubles, st.sampled_from(CHAINS))
@settings(max_examples=200, deadline=None)
def test_chains_learn_of_what_comes_before(values: list[float | None], chain: list[Any]) -> None:
    x = pa.array(values, pa.float64())
    whole = Preprocess({"x": chain}, dtype="float64").fit(pa.table({"x": x}))
    assert [dict(fitted) for fitted in whole._fitted.outputs[0].fitted] == one_link_at_a_time(chain, x)


@given(columns_of_doubles, st.sampled_from(CHAINS), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_chains_of_more_values_than_cells(values: list[float | None], chain: list[Any], seed: int) -> None:
    """What is derived of a grid that is not exact still depends on the multiset alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "limit", 8)
        shuffled = values.copy()
        random.Random(seed).shuffle(shuffled)
        one, other = (
            Preprocess({"x": chain}).fit(pa.table({"x": pa.array(each, pa.float64())})) for each in (values, shuffled)
        )
        assert one.digest == other.digest


def test_scans() -> None:
    random = np.random.default_rng(0)
    table = pa.table({"few": random.integers(0, 9, 100_000), "many": random.normal(0, 1, 100_000)})

    def scans(column: str, *chain: Any) -> int:
        count = 0
        scan: FitScan | None = Preprocess({column: list(chain)}).scan(table.schema)
        while scan is not None and scan.columns:
            scan.add(table)
            scan = scan.finish()
            count += 1
        return count

    assert scans("few", Clip(0, 5)) == 0
    assert scans("few", Clip(0, 5), Log1p(), Standardize()) == 1
    assert scans("few", Clip(quantiles=(0.1, 0.9)), Standardize(), Bucketize(quantiles=3)) == 1
    assert scans("many", Clip(quantiles=(0.1, 0.9)), Standardize()) == 2
    assert scans("many", Impute("median"), Standardize()) == 1
    assert scans("many", Standardize(), Bucketize(quantiles=9)) == 1
    assert scans("many", Impute("mean"), Robust(), Bucketize(quantiles=9)) == 1


def test_what_cannot_be_fitted(tmp_path: Path) -> None:
    path = str(write(tmp_path / "data"))
    with pytest.raises(EmptyDatasetError, match="no rows"):
        Preprocess({"age": Standardize()}).fit(TABLE.slice(0, 0))
    with pytest.raises(EmptyDatasetError):
        Preprocess({"age": Standardize()}).fit(path, filters=[("hour", ">", 99)])
    with pytest.raises(OptionError, match="in memory"):
        Preprocess({"age": Standardize()}).fit(TABLE, limit=3)
    with pytest.raises(OptionError, match=r"replace\(\)"):
        Preprocess({"age": Standardize()}).fit(tdu.stream(path, output_format="arrow"), limit=3)
    with pytest.raises(ColumnNotFoundError, match="'a', 'b'"):
        Preprocess({"a": Standardize(), "b": Standardize()}).fit(path)
    odd = pd.DataFrame({"x": [1.0, 2.0], "odd": [1, "a"]})
    with pytest.raises(UnsupportedTypeError, match="odd"):
        Preprocess({"x": Standardize()}).fit(odd)
    prep = Preprocess({"age": Standardize()})
    with pytest.raises(OptionError, match="not fitted"):
        prep(TABLE)
    scan = prep.scan(TABLE.schema)
    with pytest.raises(OptionError, match="not finished"):
        prep.learned(scan)
    with pytest.raises(ColumnNotFoundError, match="'age'"):
        scan.add(TABLE.select(["city"]))


def test_another_fit_forgets_the_first() -> None:
    prep = Preprocess({"age": Standardize()}).fit(TABLE)
    first = prep.digest
    assert prep.fit(TABLE.slice(0, 100)) is prep
    assert prep.digest != first
    assert prep.fit(TABLE).digest == first


def test_spilled_counts(digest: str) -> None:
    assert Preprocess(SPEC).fit(TABLE, memory="1KiB").digest == digest


def test_learning_pickles() -> None:
    learning = Learning(OutputSpec("x", ("x",), (Standardize(), Bucketize(quantiles=3))), [pa.float64()], 1 << 20)
    scan = FitScan([learning])
    scan.add(pa.table({"x": [1.0, 2.0, 3.0]}))
    copy = pickle.loads(pickle.dumps(scan))
    assert copy.finish() is None
    assert scan.finish() is None
    assert copy.outputs[0].learned == scan.outputs[0].learned
