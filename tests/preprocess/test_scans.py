"""Scans of parts of the rows, merged by hand; how many are needed; what shows of them, and what they leave behind."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import ColumnNotFoundError, EmptyDatasetError, OptionError
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
    TargetEncode,
)
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.scan import FitScan

ROWS = 400
ONE: Any = {"quantiles": 1}  # no further scan for quantiles, of which test_refinement.py is
SPEC: dict[Any, Any] = {
    "x": [Clip(quantiles=(0.1, 0.9)), Standardize()],
    "text": Categorize(min_count=2),
    ("text", "few"): Cross(Categorize()),
    "few": {"few": [Impute("most_frequent"), MinMax()], "few_id": Categorize()},
}
LINKS = st.sampled_from(
    [
        Clip(quantiles=(0.1, 0.9)),
        Clip(-1, 1),
        Impute("mean"),
        Impute("median"),
        Impute("most_frequent"),
        Impute(0.5),
        Log1p(signed=True),
        MinMax(),
        Robust(),
        Standardize(),
    ]
)


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grid, "limit", 32)


def rows(seed: int = 0, count: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "x": pa.array(rng.normal(size=count), mask=rng.random(count) < 0.1),
            "text": pa.array(list(map(str, rng.integers(0, 40, count))), mask=rng.random(count) < 0.1),
            "few": rng.integers(0, 5, count),
        }
    )


def merged(prep: Preprocess, table: pa.Table, cuts: list[int]) -> tuple[Preprocess, int]:
    """The fit by parts that were sent to other processes and back, and the number of scans."""
    scan: FitScan | None = prep.scan(table.schema, **ONE)
    number = 0
    while scan is not None:
        number, sent = number + 1, pickle.dumps(scan.part())
        ends = [0, *sorted(cuts), len(table)]
        for first, last in pairwise(ends):
            part = pickle.loads(sent)
            part.add(table.slice(first, last - first))
            scan.merge(pickle.loads(pickle.dumps(part)))
        last_scan, scan = scan, scan.finish()
    return prep.learned(last_scan), number


@pytest.mark.usefixtures("small_grid")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, ROWS), max_size=4))
def test_parts_that_travel_are_fitted_as_one(cuts: list[int]) -> None:
    found, scans = merged(Preprocess(SPEC), rows(), cuts)
    assert found.digest == Preprocess(SPEC).fit(rows(), **ONE).digest
    assert scans == 2


@pytest.mark.usefixtures("small_grid")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINKS, min_size=1, max_size=4), st.booleans(), st.integers(0, 30))
def test_no_fit_takes_more_scans_than_said(chain: list[Any], buckets: bool, count: int) -> None:
    prep = Preprocess({"x": [*chain, Bucketize(quantiles=3) if buckets else Clip(-9, 9)]})
    for table in (rows(), rows(count=count + 1)):  # with more values than the grid holds, and with fewer
        said = prep.scans(table.schema, **ONE)
        assert said.most == len(said.columns)
        assert bool(said.reasons) == (said.most > 1)
        if said.most:
            assert merged(prep, table, [])[1] <= said.most


@pytest.mark.parametrize("first", [[], [Clip(0, 3)]])
@pytest.mark.parametrize("fill", [Impute("most_frequent"), Impute("median"), Impute(2)])
def test_scans_for_categories_of_numbers(first: list[Any], fill: Impute) -> None:
    table = pa.table({"few": pa.array([*range(6), 4, 5, 4, 5, None] * 9)})
    prep = Preprocess({"few": [*first, fill, Categorize()]})
    assert merged(prep, table, [3])[1] <= prep.scans(table.schema, **ONE).most


@pytest.mark.usefixtures("small_grid")
def test_a_second_scan_is_said_and_explained(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "a.parquet")
    prep = Preprocess(SPEC)
    said = prep.scans(str(tmp_path), **ONE)
    assert said == prep.scans(rows().schema, **ONE) == prep.scans(rows(), **ONE)
    assert said.columns == (("x", "text", "few"), ("x",))
    assert list(said.reasons) == ["x"]
    assert repr(said).splitlines()[:3] == ["<at most 2 scans", "  1: x, text, few", "  2: x"]
    assert "Standardize() is fitted on what Clip(quantiles=[0.1, 0.9]) makes" in repr(said)
    assert Preprocess({"x": Keep()}).scans(rows().schema).most == 0
    behind_a_fill = Preprocess({"x": [Clip(quantiles=(0.1, 0.9)), Impute("median"), Robust()]})
    assert merged(behind_a_fill, rows(), [])[1] == behind_a_fill.scans(rows().schema, **ONE).most == 2
    for last, name in ((Bucketize(quantiles=3), "bounds"), (Clip(quantiles=(0.2, 0.8)), "low")):
        made, scans = merged(Preprocess({"x": [Clip(quantiles=(0.1, 0.9)), Impute("median"), last]}), rows(), [])
        assert (scans, len(made.parameters("x")[name])) == (2, 2)  # not as if there were no numbers behind the fill
    assert repr(Preprocess({"x": Standardize()}).scans(rows().schema)) == "<at most 1 scan\n  1: x>"
    target = Preprocess({"text": [Impute("most_frequent"), TargetEncode("x", by="few")]})
    assert merged(target, rows(), [])[1] == target.scans(rows().schema).most == 2
    assert target.scans(rows().schema).columns == (("text", "x", "few"),) * 2
    assert Preprocess({"text": TargetEncode("x")}).scans(rows().schema).columns == (("text", "x"),)


@pytest.mark.usefixtures("small_grid")
def test_scans_of_other_things_do_not_merge() -> None:
    table = rows()
    scan, other = Preprocess(SPEC).scan(table.schema), Preprocess({**SPEC, "x": Standardize()}).scan(table.schema)
    with pytest.raises(OptionError, match="count different things"):
        scan.merge(other)
    early = scan.part()
    scan.add(table)
    following = scan.finish()
    assert following is not None
    with pytest.raises(OptionError, match="count different things"):
        following.merge(early)  # of the scan before


def test_what_is_missing_is_named() -> None:
    table = rows()
    scan = Preprocess(SPEC).scan(table.schema)
    with pytest.raises(ColumnNotFoundError, match=r"no column 'text', 'few'"):
        scan.add(table.select(["x"]))
    with pytest.raises(EmptyDatasetError, match="no rows"):
        scan.finish()
    with pytest.raises(OptionError, match="not finished"):
        Preprocess(SPEC).learned(scan)
    part = scan.part()
    part.add(table)
    while (following := part.finish()) is not None:
        part = following
        part.add(table)
    with pytest.raises(OptionError, match="merge all parts in one that is none"):
        Preprocess(SPEC).learned(part)


@pytest.mark.usefixtures("small_grid")
def test_a_part_takes_no_vocabulary_along() -> None:
    words = pa.table({"x": np.random.default_rng(0).normal(size=9999), "text": [f"word {i}" for i in range(9999)]})
    scan = Preprocess({"x": SPEC["x"], "text": Categorize()}).scan(words.schema)
    scan.add(words)
    assert len(pickle.dumps(scan)) > 90_000
    assert len(pickle.dumps(scan.part())) < 9_000
    following = scan.finish()
    assert following is not None
    assert len(pickle.dumps(following)) > 90_000
    assert len(pickle.dumps(following.part())) < 9_000


@pytest.mark.usefixtures("small_grid")
def test_progress_and_the_end_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("torch_dataloader_utils.progress._SHORT", 0)
    pq.write_table(rows(), tmp_path / "a.parquet")
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        Preprocess(SPEC).fit(str(tmp_path), show_progress=True, **ONE)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fitting: 400 of 400 rows (100%)")
    assert second.startswith("fitting, scan 2: 400 of 400 rows (100%)")
    assert caplog.messages[-1].startswith("fitted on 400 rows in ")
    assert caplog.messages[-1].endswith(" s: 2 scans")

    Preprocess(SPEC).fit(rows(), show_progress=True)
    assert capsys.readouterr().err.startswith("fitting: 400 of 400 rows (100%)")
    Preprocess(SPEC).fit(str(tmp_path), filters=[("few", ">", 2)], show_progress=True)
    assert "of" not in capsys.readouterr().err.splitlines()[0].split(" rows")[0]  # how many match is not known
    Preprocess(SPEC).fit(str(tmp_path))
    assert capsys.readouterr().err == ""


def many(count: int = 200_000) -> pa.Table:
    return pa.table({"id": np.random.default_rng(0).permutation(count)})


def test_temporary_files_are_gone_after_a_fit_and_after_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[int] = []
    finish, add = FitScan.finish, FitScan.add

    def finished(scan: FitScan) -> FitScan | None:
        made.append(len(list(tmp_path.iterdir())))
        return finish(scan)

    monkeypatch.setattr(FitScan, "finish", finished)
    Preprocess({"id": Categorize(max_size=9)}).fit(many(), memory="256KiB")
    assert made == [1]
    assert not list(tmp_path.iterdir())

    def added(scan: FitScan, table: Any) -> None:
        add(scan, table)
        if scan.rows == 200_000:
            made.append(len(list(tmp_path.iterdir())))
            raise KeyboardInterrupt

    monkeypatch.setattr(FitScan, "add", added)
    gc.disable()  # nothing waits for the collector
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            Preprocess({"id": Categorize(max_size=9)}).fit(many(), memory="256KiB")
    finally:
        gc.enable()
    assert made == [1, 1]
    assert caught.tb is not None  # holds the frames, as a notebook's does
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import sys, threading, pathlib, os, signal, time
from torch_dataloader_utils.preprocess import Categorize, Preprocess
folder = pathlib.Path(os.environ["TMPDIR"])
def interrupt():
    while not list(folder.glob("tdu-*")):
        time.sleep(0.01)
    while True:  # once, unless it comes where Python ignores errors, as in a finalizer
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(15)
threading.Thread(target=interrupt, daemon=True).start()
while True:
    Preprocess({"id": Categorize(max_size=9)}).fit(sys.argv[1], memory="64KiB", batch_size=1000)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_fit_of_files(tmp_path: Path) -> None:
    data, temporary = tmp_path / "data", tmp_path / "temporary"
    data.mkdir()
    temporary.mkdir()
    pq.write_table(many(), data / "a.parquet")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(data)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGINT or "KeyboardInterrupt" in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert not list(temporary.iterdir())
