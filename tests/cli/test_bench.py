"""`tdu bench`: what it measures, and what it advises."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Buckets, Pack, StructuredDataset
from torch_dataloader_utils.cli.benchmark import layouts, passes, settings
from torch_dataloader_utils.cli.benchmark.decoding import decoded
from torch_dataloader_utils.cli.benchmark.layouts import Layout
from torch_dataloader_utils.cli.benchmark.passes import MeasuredPasses, first_pass, measured
from torch_dataloader_utils.cli.benchmark.settings import Trial, groups, trials
from torch_dataloader_utils.cli.benchmark.units import unit_of
from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.metrics.totals import Totals

SECONDS = ("--seconds", "1")


def test_loader_raw_decoding_settings_and_layouts_are_measured(tdu):
    report = tdu.json("bench", "data", "--nulls", "mask", *SECONDS, "--shuffle")
    loader = report["loader"]
    assert loader["rows"] >= loader["steps"] >= 1
    assert loader["rows_per_s"] == pytest.approx(loader["rows"] / loader["seconds"])
    assert report["ratio_to_raw"] == pytest.approx(loader["rows_per_s"] / report["raw_rows_per_s"])
    assert 0 < loader["waited"] <= loader["seconds"]
    assert loader["worker_seconds"]["decode"] > 0
    tried = [set(trial["keywords"]) for trial in report["trials"]]
    assert all(trial["gain"] == pytest.approx(trial["rate"] / trial["base"]) for trial in report["trials"])
    assert {"num_workers", "worker_mode"} in tried
    assert any("split_bytes" in keywords for keywords in tried)
    assert {layout["codec"] for layout in report["layouts"]} == {"SNAPPY", "LZ4", "ZSTD", "NONE"}
    (now,) = [layout for layout in report["layouts"] if layout["as_now"]]
    assert (now["row_group_rows"], now["codec"]) == (100, "SNAPPY")


def test_report_for_people_has_all_of_it(tdu):
    shown = tdu("bench", "data", "--nulls", "mask", *SECONDS)
    for part in (
        "rows/s",
        "raw decode",
        "Where the time of reading goes",
        "Other settings",
        "As given",
        "SNAPPY (now)",
    ):
        assert part in shown
    assert "too short for a verdict" in shown  # 800 rows


def test_the_culprit_is_where_the_time_goes(tdu):
    rows = pa.table({"id": np.arange(700_000)})
    pq.write_table(rows, "ids.parquet", row_group_size=70_000)  # too large to be read together: ten tasks
    found = tdu.json("bench", "ids.parquet", *SECONDS, "--set", "transform=doctored:slow", "--num-workers", "0")
    seconds = found["loader"]["worker_seconds"]
    assert (found["limit"], max(seconds, key=seconds.get)) == ("transform", "transform")
    found = tdu.json("bench", "ids.parquet", *SECONDS, "--step-ms", "20", "--batch-size", "16384")
    assert found["limit"] == "consumer"


@pytest.mark.parametrize(
    ("options", "unit", "amount"),
    [
        ({"pack": 64}, "tokens", 60_000),
        ({"pack": Pack(64, keys="hf")}, "tokens", 60_000),
        ({"pack": Pack(64, columns=["ids"], method="wrap")}, "tokens", 60_000 - 60_000 % 64),
        ({"batch_tokens": 256, "shuffle": True}, "rows", 3000),
        ({"batch_tokens": Buckets(256, by="number")}, "rows", 3000),
        ({"batch_tokens": 256, "lists": "padded"}, "rows", 3000),
        ({"columns": ["ids"]}, "rows", 3000),
    ],
)
def test_the_loader_and_raw_decoding_are_counted_in_one_unit(tmp_path, options, unit, amount):
    lengths = np.tile([10, 20, 30], 1000)
    ids = pa.ListArray.from_arrays(np.concatenate([[0], lengths.cumsum()]), np.arange(lengths.sum()))
    pq.write_table(pa.table({"ids": ids, "number": lengths}), tmp_path / "a.parquet", row_group_size=500)
    if "pack" in options:
        options = {**options, "columns": ["ids"]}
    data = Data("files", str(tmp_path), {"batch_size": 8, **options})
    found = unit_of(data, 0.0)
    assert (found.name, found.known) == (unit, True)
    whole = measured(data, 0.0, 10_000, unit=unit_of(data, 60.0))  # of all batches
    assert whole.amount == amount
    assert whole.values()[unit] == amount
    _, dataset = data.open()
    assert decoded(dataset._source, 0.0, found).rows == 0
    raw = decoded(dataset._source, 0.05, found)
    assert raw.rows % (10_000 if unit == "tokens" else 500) == 0  # whole row groups
    assert raw.rows > 0


def test_tokens_of_a_transform_are_not_compared_with_rows(tdu):
    pq.write_table(pa.table({"text": ["some words", "more"] * 500}), "text.parquet")
    options = ("--set", "transform=doctored:spelled", "--set", "pack=32")
    found = tdu.json("bench", "text.parquet", *SECONDS, *options)
    assert found["unit"] == "tokens"
    assert found["ratio_to_raw"] is None
    assert {"raw_rows_per_s"} == {name for name in found if name.startswith("raw_")}
    assert "tokens_per_s" in found["loader"]
    shown = tdu("bench", "text.parquet", *SECONDS, *options)
    assert "tokens/s" in shown
    assert "not comparable: the transform makes the tokens" in shown


def test_no_row_to_measure_is_bad_input(tdu):
    assert "no row" in tdu.error("bench", "data", "--nulls", "mask", *SECONDS, "--filters", '[["id", "<", 0]]')


def test_measured_rows_are_those_delivered(tdu):
    data = Data("files", "data", {"nulls": "mask", "batch_size": 30})
    assert (found := measured(data, 0.0, 5)).passes == 1
    assert (found.totals.rows, found.totals.steps) == (150, 5)
    whole = measured(data, 0.0, 1000)
    assert (whole.totals.rows, whole.totals.steps) == (800, 27)


def test_passes_are_long_enough_for_a_shuffle_window(tdu):
    """A pass that time ends at its first batches would seem slow: the window was read for many more."""
    data = Data("files", "data", {"nulls": "mask", "batch_size": 10, "shuffle": True})
    steps, first = first_pass(data, 0.0)
    assert steps == 80  # one window holds all 800 rows
    assert first > 0


def rate(rows: float) -> MeasuredPasses:
    return MeasuredPasses(Totals(rows=int(rows), seconds=1.0))


def test_the_best_setting_of_a_group_is_kept_for_the_next():
    rates = {(): 100, (2,): 90, (3,): 200, (3, "2MiB"): 150, (3, "9MiB"): 300}
    given = Data("files", "data", {})
    chosen = [[{"num_workers": 2}, {"num_workers": 3}], [{"split_bytes": "2MiB"}, {"split_bytes": "9MiB"}]]
    found = list(trials(given, chosen, lambda data: rate(rates[tuple(data.keywords.values())])))
    assert [trial.gain for trial in found] == pytest.approx([0.9, 2.0, 1.5, 3.0])
    best = settings.best_of(found)
    assert best is not None
    assert best.keywords == {"num_workers": 3, "split_bytes": "9MiB"}


def test_a_gain_of_some_per_cent_is_no_advice():
    assert settings.best_of([Trial({"a": 1}, 105.0, 1.05)]) is None


def test_settings_given_are_not_tried_again():
    given = Data("files", "data", {"num_workers": None, "split_bytes": "2MiB", "shuffle": True})
    found = list(trials(given, groups(given.keywords), lambda data: rate(100)))
    assert {"num_workers": None, "worker_mode": "threads"} not in [trial.keywords for trial in found]
    assert {"split_bytes": "2MiB"} not in [trial.keywords for trial in found]


def test_the_best_setting_is_advised_only_if_it_is_again():
    rates = iter([200, 100])  # the second measurement, then that of the call given
    given, found = (
        Data("files", "data", {}),
        [Trial({"num_workers": 2}, 300.0, 3.0), Trial({"num_workers": 4}, 99, 0.9)],
    )
    first, other = settings.confirmed(given, found, lambda data: rate(next(rates)))
    assert (first.gain, other.gain) == (2.0, 0.9)
    rates = iter([100, 100])
    assert settings.best_of(settings.confirmed(given, found, lambda data: rate(next(rates)))) is None


def test_a_setting_is_advised_only_if_it_was_measured_again():
    rates = iter([100, 100, 100, 100])  # none of the two is faster when measured again
    found = [Trial({"num_workers": 2}, 300.0, 3.0), Trial({"num_workers": 4}, 200.0, 2.0)]
    again = settings.confirmed(Data("files", "data", {}), found, lambda data: rate(next(rates)))
    assert settings.best_of(again) is None


def test_a_refused_setting_says_why(tdu):
    given = Data("files", "data", {"transform": lambda rows: rows, "nulls": "mask"})
    (found,) = trials(given, [[{"num_workers": 2, "worker_mode": "processes"}]], lambda data: rate(len(data.open())))
    assert found.rate is None
    assert "cannot be sent to worker processes" in found.problem


def test_the_call_to_copy_makes_the_loader_and_hides_credentials():
    given = Data("files", "data", {"batch_size": 7, "shuffle": False, "storage_options": {"secret": "hunter2"}})
    call = settings.call_of(given)
    assert call == "StructuredDataset.create_dataloader('data', batch_size=7, storage_options=...)"


def test_more_bytes_are_no_advice_for_a_remote_store():
    now, plain = Layout(100, "ZSTD", 10, 100.0, True), Layout(100, "NONE", 20, 200.0, False)
    assert layouts.best_of([now, plain], local=True) is plain
    assert layouts.best_of([now, plain], local=False) is None


def test_the_sample_is_of_the_rows_that_are_read(tdu):
    _, dataset = StructuredDataset.create_dataloader("data", columns=["id", "x"])
    found = layouts.layouts(dataset._source, 0.0, lambda what, share: None)
    assert {layout.row_group_rows for layout in found} == {100}  # no larger one fits 800 rows
    assert all(layout.rate > 0 for layout in found)


def test_a_slow_beginning_does_not_shorten_the_passes(tdu):
    data = Data("files", "data", {"nulls": "mask", "batch_size": 10, "transform": BeginsSlowly(), "num_workers": 0})
    steps, first = first_pass(data, 0.1)
    assert first > 0.2
    assert steps == 80


class BeginsSlowly:
    """Takes long once."""

    seconds = 0.25

    def __call__(self, rows):
        if len(rows):  # not while the loader is made
            time.sleep(self.seconds)
            self.seconds = 0
        return rows


def test_data_too_small_to_judge_is_not_to_be_written_again(tdu, monkeypatch):
    monkeypatch.setattr(passes, "_SHORT", 1.0)  # seconds: on a busy machine, a pass takes more than a tenth of one
    shown = tdu("bench", "data", "--nulls", "mask", *SECONDS)
    assert "too short for a verdict" in shown
    assert "Writing the files" not in shown
    assert "leave the files as they are" not in shown


def test_raw_decoding_reads_small_row_groups_together(tdu):
    _, dataset = StructuredDataset.create_dataloader("data", columns=["id"])
    calls: list[list[int]] = []
    opener = dataset._source.scan.opener

    class Counting:
        def open(self, *given):
            reader = opener.open(*given)
            read = reader.read
            reader.read = lambda numbers, names: [calls.append(list(numbers)), read(numbers, names)][1]
            return reader

    source = replace(dataset._source, scan=replace(dataset._source.scan, opener=Counting()))
    assert decoded(source, 0.02).rows % 400 == 0
    assert all(numbers == [0, 1, 2, 3] for numbers in calls)


def test_files_of_other_formats_have_no_layouts(tdu, tmp_path):
    pc.write_csv(pa.table({"id": range(100)}), tmp_path / "ids.csv")
    assert tdu.json("bench", "ids.csv", *SECONDS)["layouts"] == []
