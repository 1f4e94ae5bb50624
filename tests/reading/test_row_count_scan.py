"""The row count scan: what it counts and collects, what it reads for that, and how ranks share it."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import Codes, Transform, progress
from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.errors import FileReadError, OptionError, PlanMismatchError, WorkerError
from torch_dataloader_utils.features import with_features
from torch_dataloader_utils.formats.parquet import ParquetFormat, ParquetReader
from torch_dataloader_utils.model import Piece, Rows, Split, Task
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.progress import LOGGED
from torch_dataloader_utils.reading.row_count_scan import RowCounts, Sharing, scan_labels, scan_row_counts, with_counts
from torch_dataloader_utils.sources.source import Source, open_files

THIRDS = pc.field("id") - pc.field("id") / 3 * 3 == 0  # every third row, which no statistics can prune
QUIET = partial(LOGGED.over, work="counting rows", unit="row groups")


def write(folder: Path, files: list[list[int]]) -> pa.Table:
    """Files of row groups of these sizes, under `part=` folders; all of their rows in file order."""
    tables, at = [], 0
    for number, groups in enumerate(files):
        ids = np.arange(at, at + sum(groups))
        at += sum(groups)
        table = pa.table(
            {
                "id": ids,
                "maybe": pa.array([None if i % 5 == 1 else int(i) for i in ids], pa.int64()),
                "city": pa.array([None if i % 7 == 3 else f"{number}-{i % 4}" for i in ids], pa.string()),
                "pair": pa.array([{"tag": f"t{i % 3}"} for i in ids], pa.struct([("tag", pa.string())])),
                "wide": ids * 1.5,
            }
        )
        (folder / f"part={number}").mkdir()
        with pq.ParquetWriter(folder / f"part={number}" / "a.parquet", table.schema) as writer:
            for start, size in zip(np.cumsum([0, *groups[:-1]]), groups, strict=True):
                writer.write_table(table.slice(start, size))
        tables.append(table.append_column("part", pa.array(np.full(len(ids), number), pa.int32())))
    return pa.concat_tables(tables)


def source(folder: Path, **options: Any) -> Source:
    return open_files(str(folder), parse_options({"num_ranks": 1, "rank": 0, **options}))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """What is read while the test runs: (path, row groups, columns)."""
    found = []
    read = ParquetReader.read

    def noting(self: ParquetReader, numbers: Any, columns: Any) -> Any:
        found.append((self.path, tuple(numbers), tuple(columns)))
        return read(self, numbers, columns)

    monkeypatch.setattr(ParquetReader, "read", noting)
    return found


FILES = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=40)
@given(files=FILES, data=st.data())
def test_counts_and_values_are_those_of_the_rows(files: list[list[int]], data: st.DataObject) -> None:
    filters = data.draw(st.sampled_from([None, THIRDS, [("wide", ">", 20.0)], [("part", "=", 1)]]))
    drop = data.draw(st.sets(st.sampled_from(["maybe", "city"])))
    codes = data.draw(st.sets(st.sampled_from(["city", "pair.tag"])))
    nulls = {"maybe": "mask", "city": "mask", "pair.tag": "mask", **dict.fromkeys(drop, "drop")}
    if "city" not in codes and "city" not in drop:
        del nulls["city"]
    del nulls["pair.tag"]
    with tempfile.TemporaryDirectory() as name:
        table = write(Path(name), files)
        found = source(
            Path(name),
            filters=filters,
            count_rows=True,
            nulls=nulls,
            strings=dict.fromkeys(codes, "codes"),
        )
    live = table if filters is None else table.filter(found.scan.predicate)
    for column in drop:
        live = live.filter(live[column].is_valid())
    assert found.exact
    assert sum(len(split.row_range) for split in found.splits) == live.num_rows
    counts = (
        {file.info.path: sum(segment.live_rows for segment in file.layout.segments) for file in found.files}
        if (filters is not None and not found.scan.decided) or drop
        else {}
    )
    parts = live["part"].to_pylist()
    for path, count in counts.items():
        assert count == parts.count(int(path.split("part=")[1].split("/")[0])) > 0
    if "city" in codes:
        assert found.scan.converter.vocabulary("city") == sorted(set(live["city"].drop_null().to_pylist()))
    if "pair.tag" in codes:
        assert found.scan.converter.vocabulary("pair.tag") == sorted({row["tag"] for row in live["pair"].to_pylist()})


def test_only_needed_columns_are_read_once(tmp_path: Path, reads: list[Any]) -> None:
    write(tmp_path, [[5, 5], [7]])
    source(
        tmp_path,
        filters=[("wide", ">=", 0.0)],
        count_rows=True,
        nulls={"maybe": "drop", "city": "mask"},
        strings={"city": "codes"},
    )
    columns = [column for _, _, names in reads for column in names]
    assert sorted(columns) == sorted(["wide", "maybe", "city"] * 3)
    assert len(set(reads)) == len(reads)


@pytest.mark.parametrize(
    "options",
    [
        {"count_rows": True},
        {"count_rows": True, "strings": "codes", "output_format": "arrow"},
        {"strings": Codes({"city": ["x"]}), "nulls": {"city": "mask"}},
        {"filters": THIRDS},
    ],
)
def test_no_scan_where_none_is_needed(tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [[5], [7]])
    opened = []
    monkeypatch.setattr(ParquetFormat, "open", lambda *given: opened.append(given))
    found = source(tmp_path, columns=["id", "city"], **options)
    assert not opened
    assert not any(file.layout.counted for file in found.files)


def test_segments_and_files_without_live_rows_are_gone(tmp_path: Path) -> None:
    write(tmp_path, [[3, 1, 1], [1], [4]])  # ids 3, then 4, then 5; then 6 to 9
    found = source(tmp_path, filters=THIRDS & (pc.field("id") != 0), count_rows=True)
    assert [len(file.layout.segments) for file in found.files] == [1, 1]
    assert [file.info.record_count for file in found.files] == [1, 2]
    assert [segment.number for segment in found.files[0].layout.segments] == [1]


def test_nothing_is_live(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, [[3]])
    found = source(tmp_path, filters=THIRDS & (pc.field("wide") == 1.5), count_rows=True)
    assert found.exact
    assert not found.splits
    assert not found.files
    assert "the loader is empty" in caplog.text


def test_a_filter_without_columns(tmp_path: Path) -> None:
    write(tmp_path, [[3, 2]])
    found = source(tmp_path, filters=pc.scalar(True), count_rows=True)
    assert [len(split.row_range) for split in found.splits] == [5]
    assert not source(tmp_path, filters=[("id", "not in", [None, 1])], count_rows=True).splits


def test_uncountable(tmp_path: Path) -> None:
    write(tmp_path, [[3]])
    with pytest.raises(OptionError, match=r"count_rows=True with Transform\(rows='any'\)"):
        source(tmp_path, count_rows=True, transform=Transform(lambda batch: batch, rows="any"))


def test_values_are_those_of_the_transform(tmp_path: Path) -> None:
    write(tmp_path, [[5]])

    def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pc.utf8_upper(pc.struct_field(batch["pair"], "tag"))], ["TAG"])

    found = source(tmp_path, columns=["pair"], transform=upper, strings="codes", filters=THIRDS, count_rows=True)
    assert found.scan.converter.vocabulary("TAG") == ["T0"]
    assert [len(split.row_range) for split in found.splits] == [2]


def test_many_values_are_merged_as_they_come(tmp_path: Path) -> None:
    names = [f"name {i}" for i in range(150_000)]
    pq.write_table(pa.table({"name": names[:100_000]}), tmp_path / "a.parquet", row_group_size=30_000)
    pq.write_table(pa.table({"name": names[50_000:]}), tmp_path / "b.parquet", row_group_size=30_000)
    assert source(tmp_path, strings="codes").scan.converter.vocabulary("name") == sorted(names)


# ------------------------------------------------------------------------------------- reading by live row numbers


@pytest.mark.parametrize("drop", [False, True])
@settings(max_examples=30)
@given(files=FILES, data=st.data())
def test_any_live_rows_are_read(drop: bool, files: list[list[int]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        table = write(Path(name), files)
        nulls = "drop" if drop else {"maybe": "mask"}
        found = source(Path(name), columns=["id", "maybe"], filters=THIRDS, nulls=nulls, count_rows=True)
        if not found.files:
            return
        file = data.draw(st.sampled_from(found.files))
        live = table.filter(THIRDS & (pc.field("part") == int(dict(file.partition)["part"])))
        ids = live.filter(live["maybe"].is_valid())["id"] if drop else live["id"]
        pieces = []
        for _ in range(data.draw(st.integers(1, 3))):
            start = data.draw(st.integers(0, len(ids) - 1))
            stop = data.draw(st.integers(start + 1, len(ids)))
            whole = Rows(start, stop)
            turns = data.draw(st.integers(1, min(3, len(whole))))
            turn = data.draw(st.integers(0, turns - 1))
            (rows,) = whole.at(Rows(turn, len(whole), turns, 1, turn))
            pieces.append(Piece(Split(file.info), rows))
        reader = found.scan.open(found.by_key)
        block = reader.block(Task(tuple(pieces), None, 0))
        reader.close()
    wanted = [ids[row].as_py() for piece in pieces for row in piece.rows.numbers().tolist()]
    assert block.columns["id"].array.tolist() == wanted


# ----------------------------------------------------------------------------------------------------------- ranks


class Ranks:
    """Threads as ranks: an exchange that all of them come to."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=20)
        self._given: list[object] = [None] * count

    def sharing(self, rank: int) -> Sharing:
        def exchange(own: object) -> list[object]:
            self._given[rank] = own
            self._barrier.wait()
            return list(self._given)

        return Sharing(rank, len(self._given), exchange)


def scanned_by(folder: Path, sharing: Sharing, **options: Any) -> RowCounts:
    """As a rank takes it."""
    found = source(folder, output_format="arrow", **options)  # arrow: no scan yet
    converter = build_converter(found.scan.output_schema, parse_options(options).convert, "torch")
    with sharing.failing_together():
        own = scan_row_counts(replace(found.scan, converter=converter, arrow=False), found.files, sharing, 2, QUIET)
    return sharing.joined(own)


def on_ranks(count: int, work: Any) -> list[Any]:
    """The results, or errors, of `work(rank, sharing)` on so many ranks."""
    ranks, found = Ranks(count), [None] * count

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank, ranks.sharing(rank))
        except Exception as error:  # noqa: BLE001 - handed to the test
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


OPTIONS: dict[str, Any] = {
    "filters": THIRDS,
    "strings": {"city": "codes"},
    "nulls": {"city": "mask", "maybe": "drop"},
}


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("count", [2, 5])
def test_ranks_share_the_files(tmp_path: Path, reads: list[Any], count: int) -> None:
    write(tmp_path, [[5, 5], [7], [9, 2]])
    alone = scanned_by(tmp_path, Sharing(), **OPTIONS)
    one_scan = sorted(reads)
    reads.clear()
    shared = on_ranks(count, lambda rank, sharing: scanned_by(tmp_path, sharing, **OPTIONS))
    assert sorted(reads) == one_scan
    for scanned in shared:
        assert dict(sorted(scanned.live_rows.items())) == alone.live_rows
        assert sorted(scanned.values["city"].to_pylist()) == sorted(alone.values["city"].to_pylist())


@pytest.mark.usefixtures("no_leaks")
def test_an_error_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    write(tmp_path, [[5], [7]])
    damaged = tmp_path / "part=1" / "a.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:200] = bytes(196)
    damaged.write_bytes(content)
    found = on_ranks(2, lambda rank, sharing: scanned_by(tmp_path, sharing, **OPTIONS))
    assert isinstance(found[1], FileReadError)
    assert isinstance(found[0], WorkerError)
    assert "rank 1: DamagedFileError" in str(found[0])
    assert "part=1/a.parquet" in str(found[0])


def test_ranks_share_the_count_of_labels(tmp_path: Path) -> None:
    table = write(tmp_path, [[5, 6, 7], [8], [3]])
    weighted = {"class_weights": {"city": {"0-1": 2.0}}, "filters": THIRDS, "num_ranks": 1, "rank": 0}
    found = open_files(str(tmp_path), with_features(parse_options(weighted)))

    def counted(rank: int, sharing: Sharing) -> Mapping[Any, int]:
        return sharing.joined(scan_labels(found.scan, found.files, sharing, 2, QUIET)).labels

    alone = counted(0, Sharing())
    assert alone == Counter(table.filter(THIRDS)["city"].drop_null().to_pylist())
    for ranks in (2, 5):
        assert on_ranks(ranks, counted) == [alone] * ranks


def test_other_files_on_another_rank(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        write(tmp_path / str(rank), [[5], [7 + rank]])
    found = on_ranks(2, lambda rank, sharing: scanned_by(tmp_path / str(rank), sharing, **OPTIONS))
    assert all(isinstance(error, PlanMismatchError) for error in found)
    (tmp_path / "same").mkdir()
    write(tmp_path / "same", [[5, 5]])
    # The same files, but other row groups of them.
    options = [{**OPTIONS, "filters": [("id", word, 5)]} for word in ("<", ">=")]
    found = on_ranks(2, lambda rank, sharing: scanned_by(tmp_path / "same", sharing, **options[rank]))
    assert all(isinstance(error, PlanMismatchError) for error in found)
    found = on_ranks(2, lambda rank, sharing: sharing.joined(RowCounts("" if rank else "all")))
    assert all(isinstance(error, PlanMismatchError) for error in found)


def test_counts_do_not_depend_on_where_the_files_are(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        write(tmp_path / str(rank), [[5], [8]])
    found = on_ranks(2, lambda rank, sharing: scanned_by(tmp_path / str(rank), sharing, **OPTIONS))
    assert found[0].live_rows == found[1].live_rows
    files = source(tmp_path / "1", filters=THIRDS).files
    assert [file.info.record_count for file in with_counts(files, found[0])] == [
        sum(counts) for _, counts in sorted(found[0].live_rows.items()) if sum(counts)
    ]


# -------------------------------------------------------------------------------------------------------- progress


def test_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, [[5, 5, 5], [7, 1]])
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        source(tmp_path, filters=THIRDS, count_rows=True, strings={"pair.tag": "codes"}, columns=["pair.tag"])
        pruned, counted = caplog.records
        assert "filters keep 2 of 2 files" in pruned.message
        assert counted.message == f"counted 2 file(s) in {counted.args[1]:.1f} s: 8 live rows; pair.tag: 1 values"


def test_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHORT", 0)  # quick work shows none
    write(tmp_path, [[5, 5, 5], [7]])
    source(tmp_path, filters=THIRDS, count_rows=True, show_progress=True)
    shown = capsys.readouterr().err
    assert "counting rows: 4 of 4 row groups (100%)" in shown
    source(tmp_path, strings={"pair.tag": "codes"}, columns=["pair.tag"], show_progress=True)
    assert "collecting values: 4 of 4 row groups (100%)" in capsys.readouterr().err
