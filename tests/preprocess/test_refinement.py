"""Further scans for quantiles: exact ones are those of all rows, however these came, after no more scans than said."""

from __future__ import annotations

import math
import pickle
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_dataloader_utils as tdu
from tests.preprocess import golden
from tests.preprocess.tables import columns_of_doubles
from torch_dataloader_utils.errors import OptionError, SavedPreprocessError, UnsupportedTypeError
from torch_dataloader_utils.kernels import grid as kernel
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Impute,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
)
from torch_dataloader_utils.preprocess.cells import RefinedCells
from torch_dataloader_utils.preprocess.grid import FineGrid, Grid
from torch_dataloader_utils.preprocess.refinement import Accuracy, joined
from torch_dataloader_utils.preprocess.scan import FitScan

EACH = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHAINS: list[list[Any]] = [
    [Robust()],
    [Impute("median")],
    [Clip(quantiles=(0.1, 0.7))],
    [Bucketize(quantiles=2)],
    [Bucketize(quantiles=7)],
    [Clip(quantiles=(0.1, 0.9)), Standardize()],
    [Clip(quantiles=(0.2, 0.9)), Bucketize(quantiles=6)],
    [Clip(quantiles=(0.05, 0.9)), Impute("median"), Robust()],
    [Clip(quantiles=(0.1, 0.9)), Robust(0.1, 0.6), MinMax()],
    [Clip(-1e9, 1e9), Log1p(signed=True), Standardize()],
    [Clip(-1e9, 1e9), Impute("median"), Bucketize(quantiles=5)],
    [Impute("median"), Standardize(), Robust()],
    [Impute("mean"), Clip(quantiles=(0.2, 0.7)), MinMax(-1, 1)],
    [Impute(0.5), Bucketize(quantiles=4)],
    [Impute("most_frequent"), Robust()],
    [Impute("median"), Impute("most_frequent"), Robust()],
    [Standardize(), Robust(0.3, 0.8)],
]
NEAR = st.integers(0, 300).map(lambda i: 1 + i * 2**-52)
TIES = st.integers(-3, 3).map(float)
COLUMNS = columns_of_doubles | st.lists(st.none() | NEAR | TIES | st.floats(-1e3, 1e3), min_size=1, max_size=120)


@pytest.fixture
def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that few values need several scans."""
    monkeypatch.setattr(Grid, "limit", 4)
    monkeypatch.setattr(FineGrid, "limit", 64)


def by_parts(prep: Preprocess, parts: list[pa.Table], **how: Any) -> int:
    """Fit by parts that were sent to other processes and back; the number of scans."""
    scan: FitScan | None = prep.scan(parts[0].schema, **how)
    number = 0
    while scan is not None:
        number, sent = number + 1, pickle.dumps(scan.part())
        for each in parts:
            part = pickle.loads(sent)
            part.add(each)
            scan.merge(pickle.loads(pickle.dumps(part)))
        last, scan = scan, scan.finish()
    prep.learned(last)
    return number


def learned(prep: Preprocess) -> list[dict[str, Any]]:
    return [dict(each) for each in prep._fitted.outputs[0].fitted]


@pytest.mark.usefixtures("few_cells")
@settings(EACH, max_examples=200)
@given(COLUMNS, st.sampled_from(CHAINS), st.integers(0, 2**32), st.integers(1, 4))
def test_exact_quantiles_are_those_that_one_grid_of_all_values_knows(
    values: list[float | None], chain: list[Any], seed: int, parts: int
) -> None:
    prep, shuffler = Preprocess({"x": chain}, dtype="float64"), random.Random(seed)
    shuffled = values.copy()
    shuffler.shuffle(shuffled)
    cuts = [0, *sorted(shuffler.randrange(len(values) + 1) for _ in range(parts - 1)), len(values)]
    table = pa.table({"x": pa.array(shuffled, pa.float64())})
    by_parts(prep, [table.slice(a, b - a) for a, b in pairwise(cuts)], quantiles="exact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "limit", 65_536)
        expected = Preprocess({"x": chain}, dtype="float64").fit(table)
    assert learned(prep) == learned(expected)
    assert prep.digest == expected.digest
    assert set(prep.quantile_errors().values()) <= {0.0}


@pytest.mark.usefixtures("few_cells")
@settings(EACH, max_examples=150)
@given(
    st.lists(NEAR | TIES | st.floats(-1e3, 1e3), min_size=1, max_size=200),
    st.sampled_from([chain for chain in CHAINS if not any(isinstance(link, Bucketize) for link in chain)]),
    st.sampled_from(["exact", 0.001, 0.2, 1]),
)
def test_no_fit_takes_more_scans_than_said_before(values: list[float], chain: list[Any], quantiles: Any) -> None:
    table = pa.table({"x": [*values, None]})
    prep = Preprocess({"x": chain})
    said = prep.scans(table, quantiles=quantiles)
    assert by_parts(prep, [table], quantiles=quantiles) <= said.most
    assert said.most == len(said.columns)
    assert bool(said.reasons) == (said.most > 1)


@settings(EACH, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 16), st.data())
def test_cells_are_parted_in_as_many_scans_as_is_proved(seed: int, places: int, data: st.DataObject) -> None:
    """Values as close as floats are, in cells as wide as they come: only halving tells them apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "limit", 2)
        patch.setattr(FineGrid, "limit", 64)
        depths = data.draw(st.lists(st.integers(0, 51), min_size=1, max_size=51, unique=True))
        rng = np.random.default_rng(seed)
        base = rng.integers(0, 2**51, 40, dtype=np.uint64)
        bits = np.concatenate([base, *(base ^ np.uint64(1 << depth) for depth in depths)]) | np.uint64(1023 << 52)
        values = rng.permutation(bits.view(np.float64))
        chain = [Clip(quantiles=(i / 40, 1 - i / 41)) for i in range(1, 1 + places // 4)] or [Impute("median")]
        table = pa.table({"x": values})
        prep = Preprocess({"x": chain}, dtype="float64")
        assert by_parts(prep, [table], quantiles="exact") <= prep.scans(table, quantiles="exact").most
        first = prep._fitted.outputs[0].fitted[0]
        expected = np.quantile(values, [1 / 40, 1 - 1 / 41] if places >= 4 else [0.5]).tolist()
        assert [first[name] for name in ("low", "high", "value") if name in first] == expected


def rank_error(values: Any, share: float, found: float) -> float:
    below, upto = (int(np.searchsorted(values, found, side)) for side in ("left", "right"))
    at = share * (len(values) - 1)
    return max(below - 1 - at, at - upto, 0.0) / len(values)


@pytest.mark.usefixtures("few_cells")
@settings(EACH, max_examples=150)
@given(COLUMNS, st.sampled_from([0.001, 0.1, 0.4, 1]), st.integers(0, 2**32))
def test_errors_that_remain_are_said(values: list[float | None], quantiles: float, seed: int) -> None:
    there = sorted(value for value in values if value is not None and math.isfinite(value))
    table = pa.table({"x": pa.array(values, pa.float64())})
    prep = Preprocess({"x": Clip(quantiles=(0.25, 0.6))}, dtype="float64")
    scans = by_parts(prep, [table], quantiles=quantiles)
    shuffled = table.take(np.random.default_rng(seed).permutation(len(table)))
    again = Preprocess({"x": Clip(quantiles=(0.25, 0.6))}, dtype="float64").fit(shuffled, quantiles=quantiles)
    assert learned(again) == learned(prep)
    [error] = prep.quantile_errors().values()
    assert error is not None
    assert scans <= 2
    assert scans == 2 or error <= quantiles
    if there:
        found = prep.parameters("x")
        for share, name in ((0.25, "low"), (0.6, "high")):
            assert rank_error(there, share, found[name]) <= error


def nasty(rows: int) -> Any:
    """Half of the numbers so close together that they share a cell with few of the others."""
    rng = np.random.default_rng(0)
    close = 1e6 + rng.uniform(-1, 1, rows // 2)
    return rng.permutation(np.concatenate([close, 10.0 ** rng.uniform(-15, 15, rows - len(close))]))


SHARES = [i / 10 for i in range(1, 10)]
ROWS = 1_000_000


@pytest.mark.parametrize("name", ["normal", "nasty"])
def test_a_million_different_numbers_have_the_quantiles_of_numpy(name: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=ROWS) if name == "normal" else nasty(ROWS)
    pq.write_table(pa.table({"x": x}), tmp_path / "a.parquet", row_group_size=70_000)
    spec = {"x": {"b": Bucketize(quantiles=10), "r": Robust(), "m": Impute("median"), "c": Clip(quantiles=(0.01, 0.9))}}
    exact = Preprocess(spec).fit(str(tmp_path), quantiles="exact")
    assert exact.parameters("b") == {"bounds": np.quantile(x, SHARES).tolist()}
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75]).tolist()
    assert exact.parameters("r") == {"median": middle, "range": high - low}
    assert exact.parameters("m") == {"value": middle}
    assert list(exact.parameters("c").values()) == np.quantile(x, [0.01, 0.9]).tolist()
    assert exact.quantile_errors() == dict.fromkeys("brmc", 0.0)

    close = Preprocess(spec).fit(str(tmp_path))
    one = Preprocess(spec).fit(str(tmp_path), quantiles=1)
    assert all(error < 1e-3 for error in close.quantile_errors().values())
    assert (one.digest == close.digest) == (name == "normal")
    assert (max(one.quantile_errors().values()) > 0.4) == (name == "nasty")  # type: ignore[type-var]
    ordered = np.sort(x)
    for prep in (close, one):
        found = {
            0.5: prep.parameters("m")["value"],
            0.01: prep.parameters("c")["low"],
            0.9: prep.parameters("c")["high"],
        }
        for share, output in ((0.5, "m"), (0.01, "c"), (0.9, "c")):
            assert rank_error(ordered, share, found[share]) <= prep.quantile_errors()[output]  # type: ignore[operator]


@pytest.mark.usefixtures("few_cells")
def test_sources(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=900)
    table = pa.table({"x": pa.array(x, mask=x > 1.5), "y": x**3, "text": list(map(str, range(900)))})
    spec = {"x": [Impute("median"), Clip(quantiles=(0.05, 0.95)), Standardize()], "y": Robust(), "text": Categorize()}
    for i in range(3):
        pq.write_table(table.slice(300 * i, 300), tmp_path / f"{i}.parquet", row_group_size=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "limit", 65_536)
        expected = Preprocess(spec).fit(table)
    several = [str(tmp_path / "0.parquet"), table.slice(300, 300).to_pandas(), tdu.Files(str(tmp_path / "2.parquet"))]
    loader = tdu.stream(str(tmp_path), shuffle=True, num_ranks=3, rank=1, output_format="arrow", batch_size=33)
    for source in (table, table.to_pandas(), str(tmp_path), several, loader, loader.dataset):
        found = Preprocess(spec).fit(source, quantiles="exact")
        assert found.digest == expected.digest
        assert found.quantile_errors() == {"x": 0.0, "y": 0.0}
    loader.close()


@pytest.mark.usefixtures("few_cells")
def test_ids_of_numbers_are_filled_with_the_exact_median() -> None:
    """About which number it is, is not enough: it must be whole."""
    prep, even = Preprocess({"x": [Impute("median"), Categorize()]}), [*range(2, 400, 2), None]
    assert prep.fit(pa.table({"x": even}), quantiles="exact").vocabulary("x")[:2] == [200, 2]
    odd = pa.table({"x": [0, 1, *range(10, 400), None]})
    with pytest.raises(UnsupportedTypeError, match=r"203\.5, cannot be a category"):
        prep.fit(odd, quantiles="exact")


@pytest.mark.usefixtures("few_cells")
def test_a_scan_of_other_rows_is_told() -> None:
    rng = np.random.default_rng(0)
    table, other = (pa.table({"x": rng.normal(size=200)}) for _ in range(2))
    scan = Preprocess({"x": Robust()}).scan(table.schema)
    scan.add(table)
    following = scan.finish()
    assert following is not None
    following.add(other)
    with pytest.raises(OptionError, match="output 'x' of column 'x': a scan has counted other rows"):
        following.finish()


@pytest.mark.usefixtures("few_cells")
def test_what_remains_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    x = np.ldexp(1 + np.arange(5000) * 2.0**-52, np.arange(5000) % 5)
    table = pa.table({"x": x})
    prep = Preprocess({"x": Robust()}).fit(table)
    assert "quantiles of 'x' may be off by more than was allowed" in caplog.text
    assert prep.quantile_errors()["x"] > 0.001  # type: ignore[operator]
    caplog.clear()
    for quantiles in ("exact", 1):
        Preprocess({"x": Robust()}).fit(table, quantiles=quantiles)
    assert not caplog.records


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize("quantiles", [0.001, "exact"])
def test_an_update_that_would_count_again_says_so(quantiles: Any, tmp_path: Path) -> None:
    """It has no rows of before; the bound of one scan is exact again, as if there had been no other."""
    rng = np.random.default_rng(0)
    few, many = pa.table({"x": [1.0, 2.0, 3.0]}), pa.table({"x": rng.normal(size=300)})
    prep = Preprocess({"x": Robust()}).fit(many, quantiles=quantiles)
    prep.save(tmp_path / "prep.json")
    before, one = learned(prep), Preprocess({"x": Robust()}).fit([many, few], quantiles=1)
    for each in (prep, Preprocess.load(tmp_path / "prep.json")):
        with pytest.raises(OptionError, match=r"ranks of quantiles may be off.* or take .* with quantiles=1"):
            each.fit(few, update=True, quantiles=quantiles)
        assert learned(each) == before
        assert learned(each.fit(few, update=True, quantiles=1)) == learned(one) != before
        assert learned(each.fit(few, update="ids", quantiles=quantiles)) == learned(one)
    grown = Preprocess({"x": Robust()}).fit(few, quantiles=quantiles).fit(few, update=True, quantiles=quantiles)
    assert learned(grown) == learned(Preprocess({"x": Robust()}).fit([few, few]))


@pytest.mark.usefixtures("few_cells")
def test_a_part_is_small() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "limit", 4096)
        table = pa.table({"x": np.random.default_rng(0).normal(size=99_999)})
        scan = Preprocess({"x": Robust()}).scan(table.schema, quantiles="exact")
        scan.add(table)
        following = scan.finish()
    assert following is not None
    assert following.columns == ["x"]
    assert len(pickle.dumps(following)) > 50_000
    assert len(pickle.dumps(following.part())) < 9_000


def test_errors_are_saved(tmp_path: Path) -> None:
    spec = {"x": {"r": Robust(), "s": Standardize(), "c": [Clip(quantiles=(0.1, 0.9)), Bucketize(quantiles=4)]}}
    table = pa.table({"x": np.random.default_rng(0).normal(size=400_000)})
    prep = Preprocess(spec).fit(table)
    assert set(prep.quantile_errors()) == {"r", "c"}
    assert all(0 < error < 1e-3 for error in prep.quantile_errors().values())  # type: ignore[operator]
    assert "quantile_error" not in prep.parameters("r")
    prep.save(tmp_path / "prep.json")
    loaded = Preprocess.load(tmp_path / "prep.json")
    assert (loaded.quantile_errors(), loaded.digest) == (prep.quantile_errors(), prep.digest)
    assert Preprocess.load(golden.SAVED).quantile_errors()["robust"] is None
    for wrong in (-0.1, 1.5, "0"):
        links = [dict(learned) for learned in prep._fitted.outputs[0].fitted]
        links[0]["quantile_error"] = wrong
        with pytest.raises(OptionError, match="quantile_error"):
            Robust().check_fitted(links[0])


@pytest.mark.parametrize("wrong", ["exakt", 0, -1, 1.5, True, None, float("nan"), [0.1]])
def test_what_is_asked_for_is_checked(wrong: Any) -> None:
    table = pa.table({"x": [1.0]})
    for call in (Preprocess({"x": Robust()}).fit, Preprocess({"x": Robust()}).scans):
        with pytest.raises(OptionError, match=r"quantiles=.*expected 'exact', or by which share"):
            call(table, quantiles=wrong)


def test_scans_are_explained() -> None:
    schema = pa.schema([(name, pa.float64()) for name in "xyz"])
    prep = Preprocess({"x": [Clip(quantiles=(0.1, 0.9)), Standardize()], "y": Bucketize(quantiles=1000), "z": Robust()})
    said = prep.scans(schema)
    assert said.columns == (("x", "y", "z"), ("x", "y", "z"), ("x",))
    assert "z: Robust(): if ranks of quantiles may be off by more than 0.001 of the rows, another scan" in repr(said)
    exact = prep.scans(schema, quantiles="exact")
    assert [sum(name in columns for columns in exact.columns) for name in "xyz"] == [5, 7, 4]
    assert "z: Robust(): until quantiles are exact, at most 3 more scans" in repr(exact)
    assert prep.scans(schema, quantiles=1).most == 2
    assert Accuracy.of("exact").most_scans([Bucketize(quantiles=65_536)]) == 16


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=6)


@EACH
@given(RANGES, st.lists(st.integers(-5, 80), max_size=30))
def test_values_in_ranges_are_picked(pairs: list[tuple[int, int]], values: list[int]) -> None:
    ranges, end = [], -1
    for first, width in sorted(pairs):
        if first > end:
            ranges.append([first, first + width])
            end = first + width
    bits = kernel.ordered(np.array(ranges, np.float64).reshape(-1)).reshape(-1, 2)
    x = np.array([*values, math.nan, -math.nan, math.inf, -math.inf], np.float64)
    expected = [float(value) for value in values if any(a <= value <= b for a, b in ranges)]
    assert kernel.picked(x, bits).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "library", lambda: None)
        assert kernel.picked(x, bits).tolist() == expected
    nested = joined([bits, bits[::-1], bits[:, :1].repeat(2, axis=1)])
    assert nested.tolist() == bits.tolist()


@EACH
@given(st.lists(st.integers(0, 30).map(float), min_size=1), st.floats(-5, 40), st.integers(1, 9))
def test_a_repeated_value_joins_refined_cells(values: list[float], fill: float, times: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "limit", 4)
        grid = Grid()
        grid.add(np.array(values))
    cells = grid.cells()
    refined = RefinedCells(cells)
    refined.add_repeated(fill, times)
    after = refined.cells()
    assert refined.count == len(values) + times
    assert (np.diff(np.stack([after.least, after.greatest], axis=1).ravel().astype(object)) >= 0).all()
    known = np.sort([*values, *[fill] * times])
    ends = np.cumsum(after.counts).tolist()
    for first, last, least, greatest in zip([0, *ends], ends, after.least, after.greatest, strict=False):
        part = kernel.ordered(known[first:last])
        assert least <= part[0]
        assert part[-1] <= greatest


def test_an_edited_error_is_refused(tmp_path: Path) -> None:
    Preprocess({"x": Robust()}).fit(pa.table({"x": [1.0, 2.0]})).save(tmp_path / "p.json")
    text = (tmp_path / "p.json").read_text()
    assert '"quantile_error": 0.0' in text
    (tmp_path / "p.json").write_text(text.replace('"quantile_error": 0.0', '"quantile_error": 7.0'))
    with pytest.raises(SavedPreprocessError):
        Preprocess.load(tmp_path / "p.json")
