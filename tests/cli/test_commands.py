"""What each command shows of data, as text and as JSON."""

from __future__ import annotations

import datetime
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from torch_dataloader_utils import StructuredDataset

SPLITS = ("--set", "split_rows=100", "--nulls", "mask")  # every row group is a split


def test_schema_shows_types_shapes_and_nulls_that_footers_count(tdu):
    columns = {item["key"]: item for item in tdu.json("schema", "data")["columns"]}
    assert columns["id"] | {"nulls": 0, "problem": ""} == columns["id"]
    assert (columns["x"]["arrow"], columns["x"]["dtype"], columns["x"]["shape"]) == ("double", "float64", "[B]")
    assert columns["tags"]["shape"] == "values [*], offsets [B + 1]"
    assert columns["tags"]["nulls"] is None  # no footer counts the nulls of lists
    assert columns["age"]["nulls"] == 80
    assert "nulls mask" in columns["age"]["problem"]


def test_schema_counts_the_rows_of_files_that_lack_a_column_as_nulls(tdu):
    pq.write_table(pa.table({"id": range(7)}), "data/c.parquet")
    columns = {item["key"]: item for item in tdu.json("schema", "data")["columns"]}
    assert (columns["id"]["nulls"], columns["x"]["nulls"], columns["age"]["nulls"]) == (0, 7, 87)


def test_schema_warns_only_of_nulls_that_batches_refuse(tdu):
    assert "Column age" in tdu("schema", "data")
    assert "Column age" not in tdu("schema", "data", "--nulls", "mask")


def test_what_schema_says_of_nulls_mends_batches(tdu):
    ids, text = range(40), [None, "a"] * 20
    columns = {"id": ids, "day": [None, datetime.date(2024, 5, 1)] * 20, "text": text, "blob": [None, b"a"] * 20}
    pq.write_table(pa.table(columns), "blanks.parquet")
    strings = ("--set", "strings=bytes")
    found = {item["key"]: item["problem"] for item in tdu.json("schema", "blanks.parquet", *strings)["columns"]}
    assert not found["id"]
    for key in ("day", "text", "blob"):
        ways = re.findall(r"--nulls (\w+|'.*?')", found[key])
        assert len(ways) == (2 if key == "blob" else 3)
        for way in ways:
            tdu("head", "blanks.parquet", "--columns", key, *strings, "--nulls", way.strip("'"))


def test_describe_shows_what_the_dataset_says(tdu):
    _, dataset = StructuredDataset.create_dataloader("data", nulls="mask", even="pad", num_ranks=3, rank=0)
    arguments = ("describe", "data", "--nulls", "mask", "--even", "pad", "--num-ranks", "3")
    assert tdu.json(*arguments) == json.loads(json.dumps(dataset.describe().to_dict()))
    shown = tdu(*arguments)
    assert "800" in shown
    assert "age_valid" in shown


def test_plan_shows_rows_of_ranks_workers_and_files(tdu):
    found = tdu.json("plan", "data", *SPLITS, "--num-ranks", "3", "--num-workers", "2", "--batch-size", "50")
    assert [rank["rows"] for rank in found["ranks"]] == [300, 300, 200]
    assert [rank["steps"] for rank in found["ranks"]] == [6, 6, 4]
    assert [[worker["rows"] for worker in rank["workers"]] for rank in found["ranks"]] == [[200, 100]] * 2 + [[100] * 2]
    assert [(file["rows"], file["segments"], file["splits"], file["ranks"]) for file in found["file_shares"]] == [
        (400, 4, 4, [0, 1, 2]),
        (400, 4, 4, [0, 1, 2]),
    ]


def test_plan_shows_what_a_named_rank_reads(tdu):
    ranks = (*SPLITS, "--num-ranks", "3", "--batch-size", "50")
    assert "reads" not in tdu.json("plan", "data", *ranks)
    found = tdu.json("plan", "data", *ranks, "--rank", "2")
    assert sum(read["rows"] for read in found["reads"]) == found["ranks"][2]["rows"] == 200
    assert "rank 2 of 3" in tdu("plan", "data", *ranks, "--rank", "2")


def test_plan_marks_the_steps_that_not_every_rank_has(tdu):
    shown = tdu("plan", "data", *SPLITS, "--num-ranks", "3", "--batch-size", "50")
    assert shown.count("+2") == 2
    assert "different numbers of steps" in shown
    assert "different numbers of steps" not in tdu.done.stderr  # not a second time


def test_an_error_about_nulls_names_the_flag(tdu):
    assert "On the command line: --nulls mask or --nulls drop" in tdu.error("describe", "data")


def test_a_plan_needs_no_rule_for_nulls(tdu):
    shape = ("--num-ranks", "3", "--even", "pad", "--shuffle", "--batch-size", "50")
    found = tdu.json("plan", "data", *shape)
    expected = tdu.json("plan", "data", "--nulls", "mask", *shape)
    for part in ("ranks", "file_shares", "rows", "splits", "read_amplification"):
        assert found[part] == expected[part]
    tdu("plan", "data", *shape)
    assert "a loader which raises an error: column 'age' has a null in" in tdu.done.stderr
    assert "--nulls mask or --nulls drop" in tdu.done.stderr
    tdu("plan", "data", "--nulls", "mask", *shape)
    assert "age" not in tdu.done.stderr
    tokens = ("--set", "batch_tokens={tokens: 100, by: id}")  # these rows are converted to be planned
    assert "column 'age' has a null in" in tdu.error("plan", "data", *tokens)


def test_plan_is_written_as_a_page(tdu, tmp_path):
    shown = tdu("plan", "data", *SPLITS, "--num-ranks", "3", "--html", "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert page.startswith("<!")
    assert "a.parquet" in page
    assert "wrote plan.html" in tdu.done.stderr
    assert "a.parquet" in shown  # the plan is printed, too
    assert "there is no folder" in tdu.error("plan", "data", *SPLITS, "--html", "none/plan.html")


def test_plan_shows_padding_and_rows_of_short_last_batches(tdu):
    shared = ("plan", "data", *SPLITS, "--num-ranks", "3", "--batch-size", "64")
    padded = tdu.json(*shared, "--even", "pad")["ranks"]
    assert sum(rank["padding"] for rank in padded) == 3 * 5 * 64 - 800
    dropped = tdu.json(*shared, "--last-batch", "drop")["ranks"]
    assert [rank["dropped"] for rank in dropped] == [300 % 64, 300 % 64, 200 % 64]


def test_plan_of_a_stream_of_tokens_counts_tokens(tdu):
    packing = ("--columns", "tags", "--set", "pack={length: 4, method: wrap}")
    arguments = ("plan", "data", *packing, "--batch-size", "3")
    (share,) = tdu.json(*arguments, "--num-ranks", "1", "--rank", "0")["ranks"]
    assert share["rows"] > 4 * 3  # several batches of 3 sequences of 4 tokens
    assert share["dropped"] == 0
    assert "tokens" in tdu(*arguments)
    for share in tdu.json(*arguments, "--num-ranks", "2", "--even", "drop")["ranks"]:
        assert share["rows"] == share["steps"] * 4 * 3
        assert share["dropped"] == 0


def test_plan_of_counted_text_says_how_often_ranges_are_decoded(tdu):
    Path("csv").mkdir()
    for number in range(3):
        pc.write_csv(pa.table({"id": range(100)}), f"csv/{number}.csv")
    arguments = ("plan", "csv", "--num-ranks", "2", "--count-rows", "--even", "drop", "--batch-size", "10")
    assert tdu.json(*arguments)["read_amplification"] == pytest.approx(4 / 3)


def test_plan_of_uncounted_text_leaves_numbers_open(tdu):
    pc.write_csv(pa.table({"id": range(100)}), "ids.csv")
    (rank,) = tdu.json("plan", "ids.csv")["ranks"]
    assert (rank["rows"], rank["steps"], rank["dropped"]) == (None, None, None)
    assert "unknown" in tdu("plan", "ids.csv")


def test_head_shows_the_first_rows_after_filters_and_columns(tdu):
    rows = tdu.json("head", "data", "-n", "3", "--columns", "id,x", "--filters", '[["id", ">=", 397]]')
    assert rows == [{"id": 397, "x": 198.5}, {"id": 398, "x": 199.0}, {"id": 399, "x": 199.5}]


def test_head_has_the_rows_of_the_epoch_in_the_order_of_batches(tdu):
    loader, dataset = StructuredDataset.create_dataloader("data", columns=["id"], shuffle=True)
    dataset.set_epoch(2)
    first = next(iter(loader))["id"][:5].tolist()
    rows = tdu.json("head", "data", "--columns", "id", "--shuffle", "--epoch", "2", "-n", "5")
    assert [row["id"] for row in rows] == first


def test_head_shows_nulls_and_brackets_as_they_are(tdu):
    pq.write_table(pa.table({"[red]": ["[b]x[/b]", None]}), "odd.parquet")
    shown = tdu("head", "odd.parquet")
    assert "[red]" in shown
    assert "[b]x[/b]" in shown


def test_json_of_values_that_json_lacks_is_valid(tdu):
    pq.write_table(pa.table({"x": [float("nan"), float("inf"), 1.5, None]}), "odd.parquet")
    (nan, inf, number, null) = (row["x"] for row in tdu.json("head", "odd.parquet"))
    assert (nan, inf, number, null) == ("nan", "inf", 1.5, None)
    assert "null" in tdu("head", "odd.parquet")


def test_head_batch_shows_tensors(tdu):
    entries = {
        item["key"]: item for item in tdu.json("head", "data", "--batch", "--nulls", "mask", "--batch-size", "8")
    }
    assert entries["x"] | {"type": "Tensor", "dtype": "float64", "shape": "[8]"} == entries["x"]
    assert entries["age_valid"]["dtype"] == "bool"
    assert entries["tags.offsets"]["shape"] == "[9]"
    pq.write_table(pa.table({"s": [None, "a"]}), "odd.parquet")
    (text,) = tdu.json("head", "odd.parquet", "--batch")
    assert (text["type"], text["dtype"]) == ("list", "str")  # of a value, though the first is null


def test_index_writes_a_manifest_that_loaders_read(tdu, tmp_path):
    written = tdu.json("index", "data", "--manifest", "m.manifest")
    assert (written["files"], written["segments"], written["rows"]) == (2, 8, 800)
    assert written["bytes"] == (tmp_path / "m.manifest").stat().st_size
    _, dataset = StructuredDataset.create_dataloader("data", manifest="m.manifest", nulls="mask")
    assert dataset._source.splits.rows == 800
    assert "up to date" in tdu("index", "data", "--manifest", "m.manifest", "--check")


def test_index_check_finds_files_that_came_went_and_changed(tdu, tmp_path):
    write = pq.write_table
    write(pa.table({"id": range(5)}), "data/c.parquet")
    tdu("index", "data", "--manifest", "m.manifest")
    before = (tmp_path / "m.manifest").read_bytes()
    write(pa.table({"id": range(6)}), "data/c.parquet")
    write(pa.table({"id": range(6)}), "data/d.parquet")
    Path("data/a.parquet").unlink()
    found = tdu.json("index", "data", "--manifest", "m.manifest", "--check", code=1)
    names = {kind: [Path(path).name for path in found[kind]] for kind in ("added", "removed", "changed")}
    assert names == {"added": ["d.parquet"], "removed": ["a.parquet"], "changed": ["c.parquet"]}
    assert (tmp_path / "m.manifest").read_bytes() == before
    said = tdu("index", "data", "--manifest", "m.manifest", "--check", code=1) + tdu.done.stderr
    assert "no longer those of m.manifest: run this command without --check" in " ".join(said.split())
    tdu("index", "data", "--manifest", "m.manifest")
    assert not tdu.json("index", "data", "--manifest", "m.manifest", "--check")["stale"]


def test_index_refuses_tables_missing_names_and_places_among_the_data(tdu):
    assert "--manifest FILE" in tdu.error("index", "data")
    assert "Tables need none" in tdu.error("index", "--table", "a.b", "--manifest", "m")
    assert "lies among the data" in tdu.error("index", "data", "--manifest", "data/m.parquet")
    assert "no such file" in tdu.error("index", "data", "--manifest", "none", "--check")


def test_iceberg_tables_are_read_by_catalog_and_name(tdu, tmp_path, monkeypatch):
    catalog = load_catalog("default", type="sql", uri="sqlite:///t.db", warehouse=str(tmp_path / "warehouse"))
    catalog.create_namespace("db")
    rows = pa.table({"id": range(50)})
    table = catalog.create_table("db.events", schema=rows.schema)
    table.append(rows)
    table.delete("id < 10")
    catalog.close()
    Path("catalog.yaml").write_text("type: sql\nuri: sqlite:///t.db\n")
    by_options = ("--table", "db.events", "--catalog", "type=sql", "--catalog", "uri=sqlite:///t.db")
    by_file = ("--table", "db.events", "--catalog-config", "catalog.yaml")
    assert tdu.json("head", *by_options, "-n", "1") == tdu.json("head", *by_file, "-n", "1") == [{"id": 10}]
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", "sqlite:///t.db")
    assert tdu.json("head", "--table", "db.events", "--catalog", "default", "-n", "1") == [{"id": 10}]
    for catalog in ({"type": "sql", "uri": "sqlite:///t.db"}, "default"):
        source = {"kind": "iceberg", "table": "db.events", "catalog": catalog}
        Path("loader.json").write_text(json.dumps({"source": source}))
        assert tdu.json("head", "--config", "loader.json", "-n", "1") == [{"id": 10}]
    read = tdu.json("verify", *by_file, "--num-ranks", "2", "--read")
    assert read["ok"]
    assert read["read"] | {"rows": 40, "ids": ["_file", "_pos"]} == read["read"]


def test_delta_tables_are_read_by_path_or_a_config(tdu, tmp_path):
    for first in (0, 25):
        write_deltalake("t", pa.table({"id": range(first, first + 25)}), mode="append")
    DeltaTable("t").delete("id < 10")
    target = "torch_dataloader_utils.DeltaDataset.create_dataloader"
    Path("loader.json").write_text(json.dumps({"_target_": target, "table": "t", "version": 0}))
    assert tdu.json("head", "--delta", "t", "-n", "1") == [{"id": 25}]
    assert tdu.json("head", "--config", "loader.json", "-n", "1") == [{"id": 0}]
    Path("loader.yaml").write_text("source: {kind: delta, table: t, version: 0}")
    assert tdu.json("head", "--config", "loader.yaml", "-n", "1") == [{"id": 0}]
    read = tdu.json("verify", "--delta", "t", "--num-ranks", "2", "--read")
    assert (read["ok"], read["read"]["rows"]) == (True, 40)
    assert "a Delta table" in tdu.error("head", "t")
    assert "expected one of PATH" in tdu.error("head", "--delta", "t", "--table", "a.b")


def damage(path: Path, start: int, stop: int) -> None:
    """Overwrite a part of the file; its size and time stay."""
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * (stop - start) + data[stop:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("command", ["describe", "plan", "verify"])
def test_damaged_files_are_named_and_left_out(tdu, command):
    damage(Path("data/a.parquet"), 4, 60)
    shown = tdu(command, "data", "--nulls", "mask", "--on-error", "skip")
    assert "a.parquet" in shown + tdu.done.stderr
    assert "1 damaged file with at least 400 rows" in shown + tdu.done.stderr


def test_index_checks_files_and_keeps_the_result(tdu):
    damage(Path("data/a.parquet"), 4, 60)
    assert "1 file" in tdu("index", "data", "--manifest", "m.parquet", "--on-error", "skip")
    assert "up to date: 2 files" in tdu("index", "data", "--manifest", "m.parquet", "--check")
    damage(Path("data/b.parquet"), 4, 60)  # decoding it again would find this
    _, dataset = StructuredDataset.create_dataloader("data", manifest="m.parquet", on_error="skip", nulls="mask")
    assert [file.relative for file in dataset._source.skipped] == ["a.parquet"]
    Path("data/a.parquet").touch()
    assert "changed" in tdu("index", "data", "--manifest", "m.parquet", "--check", code=1)


@pytest.mark.parametrize(
    "command", [["describe"], ["plan"], ["schema"], ["head", "-n", "1"], ["verify", "--read"], ["index"]]
)
def test_what_only_looks_at_data_needs_no_gpu(tdu, command):
    """A config of a training job, on a machine without its GPUs; 99 of them are nowhere."""
    config = {"path": "data", "columns": ["id"], "batch_size": 50, "device": "cuda:99", "manifest": "files.idx"}
    Path("loader.json").write_text(json.dumps(config))
    tdu(*command, "--config", "loader.json")
