"""`TargetEncode`: scikit-learn's values, exact sums for any parts, and no row that sees its own target."""

from __future__ import annotations

import gc
import json
import logging
import math
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import TargetEncoder

import torch_dataloader_utils as tdu
from torch_dataloader_utils.errors import (
    ColumnNotFoundError,
    OptionError,
    SavedPreprocessError,
    UnsupportedTypeError,
)
from torch_dataloader_utils.hashing import name_hash, number_hashes
from torch_dataloader_utils.preprocess import (
    Categorize,
    Clip,
    Impute,
    Keep,
    Preprocess,
    Standardize,
    TargetEncode,
)
from torch_dataloader_utils.preprocess.hashed import one_crossed, one_hash
from torch_dataloader_utils.preprocess.target_sums import TargetSums

ROWS = 4_000
SMOOTH = ["auto", 10.0, 0]


def rows_of(seed: int = 0, categories: int = 300) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "city": pa.array(rng.integers(0, categories, ROWS).astype(str), mask=rng.random(ROWS) < 0.05),
            "price": rng.lognormal(3, 2, ROWS),
            "click": rng.integers(0, 2, ROWS),
            "kind": rng.choice(["a", "b", "z"], ROWS, p=[0.6, 0.3, 0.1]),
        }
    )


ALL = {
    "price": TargetEncode("price", by="id"),
    "click": TargetEncode("click", by="id"),
    "kind": TargetEncode("kind", by="id"),
}


def fitted(link: TargetEncode | dict[str, Any], table: pa.Table, column: str = "city") -> Preprocess:
    return Preprocess({column: link}, dtype="float64").fit(table)


# Against scikit-learn, and against rational numbers.


@pytest.mark.parametrize("smooth", SMOOTH)
@pytest.mark.parametrize(
    ("target", "kind", "names"),
    [
        ("price", "continuous", ["city"]),
        ("click", "binary", ["city"]),
        ("kind", "multiclass", ["city_a", "city_b", "city_z"]),
    ],
)
def test_values_are_those_of_scikit_learn(smooth: Any, target: str, kind: str, names: list[str]) -> None:
    table = rows_of()
    cities = np.array(table["city"].to_pylist(), object)[:, None]
    theirs = TargetEncoder(smooth=smooth, target_type=kind).fit(cities, table[target].to_numpy(zero_copy_only=False))
    seen = np.vstack([cities, [["never seen"]]])
    made = fitted(TargetEncode(target, smooth=smooth, by="id"), table)
    assert made.outputs == made.numeric == names
    ours = made({"city": [*table["city"].to_pylist(), "never seen"]})
    expected = theirs.transform(seen)
    for place, name in enumerate(names):
        np.testing.assert_allclose(ours[name], expected[:, place], rtol=1e-13)


finite = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.1, 1e308, -1e308, 5e-324, 2.0**40, -(2.0**20), 2.0**20 - 1]),
)
pairs = st.lists(st.tuples(st.sampled_from(["a", "b", None]), finite), min_size=1, max_size=30)


def exact(pairs: Sequence[tuple[Any, float]], value: Any, smooth: Any) -> float:
    """The value of a category, by rational numbers, of which each mean and weight is rounded once."""
    own = [Fraction(y) for category, y in pairs if category == value]
    every = [Fraction(y) for _, y in pairs]

    def mean(ys: list[Fraction]) -> Fraction:
        return sum(ys, Fraction(0)) / len(ys) if ys else Fraction(0)

    def variance(ys: list[Fraction]) -> Fraction:
        return mean([y * y for y in ys]) - mean(ys) ** 2

    prior = float(mean(every))
    if not own:
        return prior
    if smooth == "auto":
        over, under = variance(every) * len(own), variance(own)
        weight = float(over / (over + under)) if over + under else 0.0
    else:
        weight = len(own) / (len(own) + smooth) if smooth else 1.0
    return weight * float(mean(own)) + (1 - weight) * prior if weight else prior


@given(pairs, st.sampled_from(SMOOTH))
@settings(deadline=None)
def test_sums_are_exact_for_any_numbers(rows: list[tuple[Any, float]], smooth: Any) -> None:
    table = pa.table(
        {"id": range(len(rows)), "city": pa.array([row[0] for row in rows], pa.string()), "y": [row[1] for row in rows]}
    )
    link = TargetEncode("y", smooth=smooth, by="id")
    made = fitted(link, table)
    for value in ("a", "b", None, "c"):
        seen = any(row[0] == value for row in rows)
        assert made({"city": value})["city"] == exact(rows, value if seen else "c", smooth)
    trained = made.for_training()(table)["city"].to_pylist()
    for i, value in enumerate(trained):
        fold = fold_of(i, link)
        others = [row for j, row in enumerate(rows) if fold_of(j, link) != fold]
        assert value == exact(others, rows[i][0], smooth)


def fold_of(key: int, link: TargetEncode) -> int:
    return int(link.folds_of(np.array([one_crossed([one_hash(key)])], np.uint64))[0])


# The same bits for any parts of the rows.


@given(st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
@settings(deadline=None, max_examples=15)
def test_any_parts_in_any_order_give_one_digest(random: Any, parts: int, pickled: bool) -> None:
    table = rows_of().slice(0, 600)
    whole = Preprocess({"city": ALL}).fit(table)
    order = list(range(len(table)))
    random.shuffle(order)
    cuts = sorted(random.randrange(len(table) + 1) for _ in range(parts - 1))
    prep = Preprocess({"city": ALL})
    scans = []
    for first, last in zip([0, *cuts], [*cuts, len(table)], strict=True):
        scan = prep.scan(table.schema)
        scan.add(table.take(pa.array(order[first:last], pa.int64())))
        scans.append(pickle.loads(pickle.dumps(scan)) if pickled else scan)
    random.shuffle(scans)
    first_scan = scans.pop()
    for scan in scans:
        first_scan.merge(scan)
    assert first_scan.finish() is None
    prep.learned(first_scan)
    assert prep.digest == whole.digest
    assert prep.for_training().mark == whole.for_training().mark
    assert prep.for_training()(table).equals(whole.for_training()(table))


def test_many_blocks_are_compacted_to_the_same_sums() -> None:
    rng = np.random.default_rng(3)
    rows = 300_000
    table = pa.table(
        {
            "id": np.arange(rows),
            "user": rng.integers(0, 40_000, rows),
            "y": rng.normal(0, 1e6, rows) * 10.0 ** rng.integers(-9, 9, rows),
        }
    )
    link = TargetEncode("y", smooth=0, by="id")
    made = fitted(link, table, "user")
    sums: dict[int, Fraction] = defaultdict(Fraction)
    counts: dict[int, int] = defaultdict(int)
    for user, y in zip(table["user"].to_pylist()[:], table["y"].to_pylist(), strict=True):
        if user < 50:
            sums[user] += Fraction(y)
            counts[user] += 1
    assert made({"user": list(sums)})["user"] == [float(total / counts[user]) for user, total in sums.items()]
    back = fitted(link, table.take(rng.permutation(rows)), "user")
    assert back.digest == made.digest
    assert back.for_training().mark == made.for_training().mark


# Sums that do not fit into memory.

SPILLED: dict[str, Any] = {
    "user": TargetEncode("y", by="id"),
    "word": {"mean": TargetEncode("y", by="id", smooth=3), "kinds": TargetEncode("kind", by="id")},
}


def many_categories(rows: int = 3_000) -> pa.Table:
    rng = np.random.default_rng(0)
    user = rng.integers(0, rows // 2, rows)
    return pa.table({
        "id": np.arange(rows),
        "user": pa.array(user, mask=user % 97 == 0),
        "word": [None if n % 89 == 0 else f"word {n}" for n in rng.integers(0, rows // 3, rows)],
        "y": rng.normal(0, 1, rows) * 10.0 ** rng.integers(-20, 20, rows),
        "kind": rng.choice(["p", "q", None, "r"], rows).tolist(),
    })  # fmt: skip


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.mark.parametrize("memory", [1, 20_000, 8 << 20])
@pytest.mark.parametrize("pickled", [False, True])
def test_sums_in_files_are_those_in_memory(memory: int, pickled: bool, temporary: Path) -> None:
    table = many_categories()
    whole = Preprocess(SPILLED).fit(table)
    prep = Preprocess(SPILLED)
    scan = prep.scan(table.schema, memory=memory)
    used = False
    for part in (table.slice(0, 1_200), table.slice(1_200, 1), table.slice(1_201)):
        counted = scan.part()
        counted.add(part)
        scan.merge(pickle.loads(pickle.dumps(counted)) if pickled else counted)
        used = used or any(temporary.iterdir())
        counted.close()
    assert used == (memory < 8 << 20)
    assert scan.finish() is None
    assert list(temporary.iterdir()) == []
    prep.learned(scan)
    assert prep.digest == whole.digest
    assert prep.for_training().mark == whole.for_training().mark
    assert prep.for_training()(table).equals(whole.for_training()(table))
    rows = {"user": [1, None, -7], "word": ["word 1", None, "?"]}
    assert prep(rows) == whole(rows)


def test_no_file_is_left_of_a_fit_that_ends_early(temporary: Path) -> None:
    table = many_categories()
    with pytest.raises(OptionError, match="classes or more"):
        Preprocess({"user": TargetEncode("id", by="id", classes=True)}).fit(table, memory=1)
    gc.collect()
    assert list(temporary.iterdir()) == []
    scan = Preprocess(SPILLED).scan(table.schema, memory=1)
    scan.add(table)
    assert len(list(temporary.iterdir())) == 3
    scan.close()
    assert list(temporary.iterdir()) == []


def test_many_categories_take_little_memory() -> None:
    """Of 200,000 categories and folds, within 8 MiB and what is learned of them."""
    rows, memory = 200_000, 8 << 20
    sums = TargetSums(TargetEncode("y", by="id"), pa.int64(), pa.float64(), memory)
    before, most = pa.total_allocated_bytes(), 0
    for first in range(0, rows, 20_000):
        keys = np.arange(first, first + 20_000)
        sums.add(pa.array(keys), pa.array(keys / 7), keys.astype(np.uint64))
        most = max(most, pa.total_allocated_bytes() - before)
    assert sums.rows == rows
    assert 0 < most < memory
    assert len(sums.learned("x")["vocabulary"]) == rows
    sums.close()


# No row sees its own target.


@pytest.mark.parametrize("target", ["click", "kind", "price"])
def test_a_row_never_sees_its_own_target(target: str) -> None:
    table = rows_of(categories=40).slice(0, 200)
    link = TargetEncode(target, by="id", folds=3)
    before = fitted(link, table).for_training()(table)
    ys = table[target].to_pylist()
    classes = sorted(set(ys))
    for row in range(0, 200, 9):
        flipped = list(ys)
        flipped[row] = -ys[row] - 1 if target == "price" else classes[(classes.index(ys[row]) + 1) % len(classes)]
        changed = table.set_column(table.schema.get_field_index(target), target, pa.array(flipped))
        after = fitted(link, changed).for_training()(table)
        assert after.slice(row, 1).equals(before.slice(row, 1))
        assert not after.equals(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 rows of 1,500 categories with a random target: Parquet in row groups, and CSV."""
    path = tmp_path_factory.mktemp("target")
    table = rows_of(categories=1_500)
    for kind in ("parquet", "csv"):
        (path / kind).mkdir()
        for file in range(4):
            part = table.slice(file * 1_000, 1_000)
            if kind == "csv":
                pcsv.write_csv(part, path / kind / f"{file}.csv")
            else:
                pq.write_table(part, path / kind / f"{file}.parquet", row_group_size=150)
    return path


def delivered(folder: Path, transform: Any, **options: Any) -> dict[int, float]:
    given: dict[str, Any] = {"batch_size": 256, "num_workers": 0, "num_ranks": 1, "rank": 0} | options
    found: dict[int, float] = {}
    for batch in tdu.stream(str(folder), transform=transform, **given):
        found |= dict(zip(batch["id"].tolist(), batch["e"].tolist(), strict=True))
    return found


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("by", [None, "id"])
def test_a_random_target_is_not_learned_from_training_values(folders: Path, kind: str, by: str | None) -> None:
    spec = {"id": Keep(), "city": {"e": TargetEncode("click", by=by)}}
    prep = Preprocess(spec).fit(str(folders / kind))
    target = np.array(rows_of(categories=1_500)["click"].to_pylist())
    values = {}
    for name, transform in (("plain", prep), ("trained", prep.for_training())):
        found = delivered(folders / kind, transform)
        values[name] = np.array([found[i] for i in range(ROWS)])
    assert np.corrcoef(values["plain"], target)[0, 1] > 0.4
    assert abs(np.corrcoef(values["trained"], target)[0, 1]) < 0.1


OTHER_ROWS: list[dict[str, Any]] = [
    {"shuffle": True, "num_workers": 2},
    {"num_workers": 2, "worker_mode": "processes"},
    {"filters": [("id", ">", 100), ("click", "=", 1)]},
    {"subset": tdu.Subsets({"a": 0.8, "b": 0.2})["a"]},
    {"subset": tdu.Subsets({"a": 0.8, "b": 0.2}, by="id")["a"]},
    {"columns": ["id", "city"]},
    {"class_weights": {"click": {1: 2.0}}},
    {"split_rows": 200, "shuffle": True, "count_rows": True},
    {"count_rows": True, "filters": [("click", "=", 0)]},
]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_row_has_one_fold_however_it_is_read(folders: Path, kind: str) -> None:
    spec = {"id": Keep(), "city": {"e": TargetEncode("click")}}
    training = Preprocess(spec).fit(str(folders / kind)).for_training()
    whole = delivered(folders / kind, training)
    assert len(whole) == ROWS
    for options in OTHER_ROWS:
        found = delivered(folders / kind, training, **options)
        assert found
        assert found.items() <= whole.items(), options


def test_places_are_those_of_subsets(folders: Path) -> None:
    link = TargetEncode("click", folds=4, seed=7)
    training = (
        Preprocess({"id": Keep(), "city": {"e": link}}, dtype="float64").fit(str(folders / "parquet")).for_training()
    )
    found = delivered(folders / "parquet", training)
    table = rows_of(categories=1_500)
    city, click = table["city"].to_pylist(), table["click"].to_pylist()
    folds = [
        int(fold)
        for file in range(4)
        for part in number_hashes(name_hash(f"{file}.parquet"), 0, 1_000)
        for fold in link.folds_of(part)
    ]
    for row in range(0, ROWS, 97):
        others = [(city[i], click[i]) for i in range(ROWS) if folds[i] != folds[row]]
        value = city[row] if any(pair[0] == city[row] for pair in others) else object()
        assert found[row] == exact(others, value, "auto")


def test_files_cut_otherwise_have_other_folds_but_one_digest(folders: Path, tmp_path: Path) -> None:
    pq.write_table(rows_of(categories=1_500), tmp_path / "all.parquet")
    spec = {"city": TargetEncode("click")}
    first, second = (Preprocess(spec).fit(str(path)) for path in (folders / "parquet", tmp_path))
    assert first.digest == second.digest
    assert first.for_training().mark != second.for_training().mark


# Warnings and errors.


def test_plain_encoding_of_the_rows_fitted_on_is_a_warning(
    folders: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    train, other = (tdu.Subsets({"train": 0.8, "val": 0.2})[side] for side in ("train", "val"))
    spec = {"city": {"e": TargetEncode("click", by="id")}}
    of_all = Preprocess(spec).fit(str(folders / "parquet"))
    of_part = Preprocess(spec).fit(str(folders / "parquet"), subset=train)
    of_part.save(tmp_path / "part.json")

    def warned(prep: Any, **options: Any) -> bool:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
            tdu.stream(str(folders / "parquet"), transform=prep, num_ranks=1, rank=0, **options)
        return any("for_training()" in record.getMessage() for record in caplog.records)

    assert warned(of_all)
    assert warned(of_all, subset=train)
    assert not warned(of_all.for_training())
    for prep in (of_part, Preprocess.load(tmp_path / "part.json")):
        assert warned(prep, subset=train)
        assert not warned(prep, subset=other)
        assert not warned(prep.for_training(), subset=train)
    assert not warned(Preprocess({"city": Categorize()}).fit(str(folders / "parquet")))


def test_files_given_by_another_name_are_an_error(tmp_path: Path) -> None:
    table, data = rows_of(), tmp_path / "data"
    for part in range(2):
        (data / f"part={part}").mkdir(parents=True)
        pq.write_table(table.slice(part * 2_000, 2_000), data / f"part={part}" / "0.parquet")
    file = data / "part=1" / "0.parquet"
    for by, raises in ((None, True), ("id", False)):
        prep = Preprocess({"city": TargetEncode("click", by=by)}).fit(str(data))
        prep.save(tmp_path / "prep.json")
        for each in (prep, Preprocess.load(tmp_path / "prep.json")):
            tdu.stream(str(data / "**" / "*.parquet"), transform=each.for_training(), num_ranks=1, rank=0)
            tdu.stream(str(file), transform=each, num_ranks=1, rank=0)
            with pytest.raises(OptionError, match="other folds") if raises else nullcontext():
                tdu.stream(str(file), transform=each.for_training(), num_ranks=1, rank=0)


def test_rows_in_memory_have_no_places() -> None:
    table = rows_of()
    with pytest.raises(OptionError, match=r"by=\['user_id'\]"):
        Preprocess({"city": TargetEncode("click")}).fit(table)
    scan = Preprocess({"city": TargetEncode("click")}).scan(table.schema)
    with pytest.raises(OptionError, match="none"):
        scan.add(table)


def test_training_on_rows_without_places_is_an_error(folders: Path) -> None:
    prep = Preprocess({"city": TargetEncode("click")}).fit(str(folders / "parquet"))
    with pytest.raises(OptionError, match="by="):
        prep.for_training()(rows_of())
    assert prep(rows_of()).num_rows == ROWS  # inference needs none


def test_what_has_no_target_is_not_trained() -> None:
    with pytest.raises(OptionError, match="TargetEncode"):
        Preprocess({"city": Categorize()}).fit(rows_of()).for_training()


@pytest.mark.parametrize(
    ("spec", "error", "match"),
    [
        ({"city": TargetEncode("nothing", by="none")}, ColumnNotFoundError, "none.*nothing"),
        ({"city": TargetEncode("city", by="id")}, OptionError, "by itself"),
        ({"city": TargetEncode("tags", by="id")}, UnsupportedTypeError, "tags"),
        ({"city": TargetEncode("click", by="tags")}, UnsupportedTypeError, "tags"),
        ({"tags": TargetEncode("click", by="id")}, UnsupportedTypeError, "no lists"),
        ({"price": TargetEncode("click", by="id")}, UnsupportedTypeError, "whole"),
        ({"city": TargetEncode("price", by="id", classes=True)}, UnsupportedTypeError, "'city'.*target 'price'.*whole"),
        ({"city": TargetEncode("money", by="id", classes=True)}, UnsupportedTypeError, "'city'.*target 'money'.*whole"),
        ({"city": TargetEncode("click", by="money")}, UnsupportedTypeError, r"'city'.*by=\['money'\].*whole"),
        ({"money": TargetEncode("click", by="id")}, UnsupportedTypeError, "'money'.*whole"),
        ({"city": TargetEncode("text", by="id")}, OptionError, "4,000 classes"),
        ({"city": [TargetEncode("click", by="id"), Clip(0, 1)]}, OptionError, "ends a chain"),
        ({"city": TargetEncode("kind", by="id"), "id": {"city_a": Keep()}}, OptionError, "city_a"),
    ],
)
def test_errors_name_column_and_remedy(spec: Any, error: type[Exception], match: str) -> None:
    table = rows_of()
    money = pa.array([Decimal("0.5")] * ROWS)
    table = table.append_column("tags", pa.array([[1]] * ROWS)).append_column("text", table["id"].cast(pa.string()))
    table = table.append_column("money", money)
    with pytest.raises(error, match=match):
        Preprocess(spec).fit(table)


@pytest.mark.parametrize("given", [{"smooth": -1}, {"smooth": math.nan}, {"smooth": "much"}, {"folds": 1}, {"by": []}])
def test_options_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        TargetEncode("y", **given)


# Kinds of targets and categories, forms of rows.


def test_targets_that_are_missing_or_infinite_are_left_out() -> None:
    table = pa.table({"id": range(6), "c": list("aaabbb"), "y": [1.0, 3.0, None, math.nan, math.inf, 7.0]})
    made = fitted(TargetEncode("y", smooth=0, by="id"), table, "c")
    assert made({"c": ["a", "b", "z"]}) == {"c": [2.0, 7.0, 11 / 3]}


@pytest.mark.parametrize("values", [[None, None], [math.nan, math.inf], ["text"]], ids=str)
def test_without_any_target_all_is_0_and_a_warning(values: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    none = values == ["text"]
    y = pa.nulls(2, pa.string()) if none else pa.array(values, pa.float64())
    table = pa.table({"id": [1, 2], "c": ["a", "b"], "y": y, "x": pa.nulls(2, pa.float64())})
    prep = Preprocess({"c": TargetEncode("y", by="id"), "x": Standardize()}).fit(table)
    assert prep({"c": ["a", None], "x": [1.0, 2.0]}) == {"c": [0.0, 0.0], "x": [1.0, 2.0]}
    (line,) = caplog.messages
    assert line.startswith("fit: nothing can be learned of 'y', 'x', where all values are missing or infinite: ")
    caplog.clear()
    fitted(TargetEncode("id", by="id"), table, "c")
    assert not caplog.messages


def test_means_beyond_a_dtype_are_infinite_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table({"id": [1, 2], "large": ["a", "b"], "y": [1e300, 1.0]})
    link = TargetEncode("y", by="id", smooth=0)
    assert fitted(link, table, "large")({"large": ["a", "b"]}) == {"large": [1e300, 1.0]}
    assert not caplog.messages
    prep = Preprocess({"large": link}).fit(table)
    assert prep({"large": ["a", "b"]}) == {"large": [math.inf, 1.0]}
    (line,) = caplog.messages
    assert "numbers beyond the range of float32 become infinite" in line


def test_classes_of_numbers_bools_and_bytes() -> None:
    rows = {
        "id": [1, 2, 3, 4], "c": list("aabb"), "n": [1, 2, 3, 1], "f": [1.0, 2.0, 2.0, 2.0],
        "b": [True, False, True, True], "x": [b"p", b"q", b"r", b"p"]
    }  # fmt: skip
    table = pa.table(rows)

    def outputs(target: str, classes: bool) -> list[str]:
        return fitted(TargetEncode(target, by="id", smooth=0, classes=classes), table, "c").outputs

    assert outputs("n", True) == ["c_1", "c_2", "c_3"]
    assert outputs("n", False) == outputs("f", True) == outputs("b", True) == outputs("b", False) == ["c"]
    assert outputs("x", False) == ["c_p", "c_q", "c_r"]
    of = fitted(TargetEncode("f", by="id", smooth=0, classes=True), table, "c")
    assert of({"c": ["a", "b"]}) == {"c": [0.5, 1.0]}  # the share of the last class, 2.0


def test_behind_other_links_categories_are_what_they_make() -> None:
    table = pa.table(
        {"id": range(5), "n": [1.0, 5.0, 9.0, None, 1.0], "c": ["a", "a", None, "b", None], "y": [1, 2, 6, 8, 9]}
    )
    spec = {
        "n": [Clip(0, 5), TargetEncode("y", smooth=0, by="id")],
        "c": [Impute("most_frequent", indicator=True), TargetEncode("y", smooth=0, by="id")],
    }
    made = Preprocess(spec, dtype="float64").fit(table)
    assert made.outputs == ["n", "c", "c_missing"]
    assert made.numeric == ["n", "c", "c_missing"]
    found = made(table).to_pydict()
    assert found == {
        "n": [5.0, 4.0, 4.0, 8.0, 5.0],
        "c": [4.5, 4.5, 4.5, 8.0, 4.5],
        "c_missing": [0.0, 0.0, 1.0, 0.0, 1.0],
    }
    for row, expected in zip(table.to_pylist(), made(table).to_pylist(), strict=True):
        assert made(row) == expected
    training = made.for_training()(table)
    assert training.column_names == made.outputs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_row_has_the_bits_of_many(dtype: Any) -> None:
    table = rows_of().slice(0, 500)
    made = Preprocess({"city": ALL, "id": {"n": TargetEncode("click", by="id")}}, dtype=dtype).fit(table)
    whole = made(table).to_pylist()
    for row, expected in zip(table.to_pylist(), whole, strict=True):
        assert made(row) == expected
    for city in (None, "never", math.nan):
        row = {"city": city, "id": 10**6}
        of_many = pa.table({"city": pa.array([None if city != "never" else city], pa.string()), "id": [10**6]})
        assert made(row) == made(of_many).to_pylist()[0]
    assert {str(item.type) for item in made(table).schema} == {{"float32": "float", "float64": "double"}[dtype]}


FORMS: dict[str, tuple[Any, Any]] = {  # what is given, and what comes back as a dict of lists
    "pandas": (lambda table: table.to_pandas(), lambda made: made.to_dict("list")),
    "polars": (pl.from_arrow, lambda made: made.to_dict(as_series=False)),
    "dict": (lambda table: table.to_pydict(), lambda made: made),
    "batch": (lambda table: table.combine_chunks().to_batches()[0], lambda made: made.to_pydict()),
}


@pytest.mark.parametrize("form", FORMS)
def test_training_takes_rows_in_memory_by_keys(form: str) -> None:
    table = rows_of().slice(0, 300)
    training = Preprocess({"city": ALL}).fit(table).for_training()
    given_as, lists_of = FORMS[form]
    assert lists_of(training(given_as(table))) == training(table).to_pydict()


def test_one_row_is_not_trained_on() -> None:
    table = rows_of().slice(0, 300)
    prep = Preprocess({"city": ALL}).fit(table)
    row = table.to_pylist()[7]
    with pytest.raises(UnsupportedTypeError, match=r"At inference.*prep\(row\)"):
        prep.for_training()(row)
    assert prep(row)
    assert prep.for_training()({name: [value] for name, value in row.items()})


def test_keys_of_another_kind_would_give_other_folds() -> None:
    table = rows_of()
    training = Preprocess({"city": ALL}).fit(table).for_training()
    with pytest.raises(UnsupportedTypeError, match="'id'"):
        training(table.set_column(0, "id", table["id"].cast(pa.string())))


# Fields of structs, several sources, columns of other types.


def nested_rows(first: int, rows: int) -> pa.Table:
    ids = list(range(first, first + rows))
    return pa.table(
        {
            "user": [{"id": i, "city": "ab"[i % 2]} for i in ids],
            "result": [{"click": i % 3} for i in ids],
            "size": pa.array([Decimal(i % 4) for i in ids], pa.decimal128(10, 0)),
        }
    )


@pytest.mark.parametrize("column", ["user.city", "size"])
def test_several_sources_and_fields_of_structs(tmp_path: Path, column: str) -> None:
    for name, first in (("a", 0), ("b", 50)):
        (tmp_path / name).mkdir()
        pq.write_table(nested_rows(first, 50), tmp_path / name / "0.parquet")
    table, a, b = nested_rows(0, 100), str(tmp_path / "a"), str(tmp_path / "b")
    spec = {column: {"e": TargetEncode("result.click", by="user.id")}}
    whole = Preprocess(spec).fit(table)
    assert Preprocess(spec, others="keep").fit(table).outputs == ["e", *[n for n in table.column_names if n != column]]
    loaders = [tdu.stream(each, num_ranks=1, rank=0) for each in (a, b)]
    for source in ([a, b], [nested_rows(50, 50), a], loaders):
        made = Preprocess(spec).fit(source)
        assert made.digest == whole.digest
        assert made.for_training().mark == whole.for_training().mark
    expected = whole.for_training()(nested_rows(0, 50))["e"].to_pylist()
    batches = tdu.stream(a, transform=whole.for_training(), batch_size=50, num_workers=0, num_ranks=1, rank=0)
    assert [value for batch in batches for value in batch["e"].tolist()] == expected
    placed = Preprocess({column: {"e": TargetEncode("result.click")}})
    assert placed.fit([a, b]).digest == whole.digest
    with pytest.raises(OptionError, match=r"by=\['user_id'\]"):
        placed.fit([table, a])


def test_rows_of_several_loaders_are_known_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sides = tdu.Subsets({"train": 0.8, "val": 0.2}, by="user.id")
    loaders = []
    for name, first in (("a", 0), ("b", 50)):
        (tmp_path / name).mkdir()
        pq.write_table(nested_rows(first, 50), tmp_path / name / "0.parquet")
        how = {"subset": sides["train"]} if name == "a" else {}
        loaders.append(tdu.stream(str(tmp_path / name), num_ranks=1, rank=0, **how))
    Preprocess({"size": TargetEncode("result.click", by="user.id")}).fit(loaders).save(tmp_path / "prep.json")
    prep = Preprocess.load(tmp_path / "prep.json")
    for name, side, warns in (("a", "train", True), ("a", "val", False), ("b", "val", True)):
        caplog.clear()
        tdu.stream(str(tmp_path / name), transform=prep, subset=sides[side], num_ranks=1, rank=0)
        assert ("for_training()" in caplog.text) == warns, (name, side)


def test_columns_without_a_value(tmp_path: Path) -> None:
    table = pa.table({"id": range(4), "none": pa.nulls(4), "y": [1, 2, 3, 6]})
    spec = {
        "none": {"a": TargetEncode("y", by="id")},
        "id": {"b": TargetEncode("none", by="id"), "c": TargetEncode("y", by="none")},
    }
    made = Preprocess(spec).fit(table)
    assert made(table).to_pydict() == {"a": [3.0] * 4, "b": [0.0] * 4, "c": [1.0, 2.0, 3.0, 6.0]}
    made.save(tmp_path / "prep.json")
    loaded = Preprocess.load(tmp_path / "prep.json")
    assert loaded.for_training()(table).equals(made.for_training()(table))
    assert made.for_training()(table)["c"].to_pylist() == [0.0] * 4  # all rows are of one fold


# Saved.


@pytest.mark.parametrize("categories", [300, 1_500])
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, categories: int) -> None:
    table = rows_of(categories=categories)
    made = Preprocess({"city": ALL}).fit(table)
    made.save(tmp_path / "prep.json")
    assert bool(list(tmp_path.glob("*.parquet"))) == (categories > 1_000)
    loaded = Preprocess.load(tmp_path / "prep.json")
    assert loaded.digest == made.digest
    assert loaded.for_training().mark == made.for_training().mark
    assert loaded(table).equals(made(table))
    assert loaded.for_training()(table).equals(made.for_training()(table))
    assert loaded({"city": None}) == made({"city": None})


def edits(content: dict[str, Any]) -> list[Any]:
    held = content["outputs"][0]["fitted"][0]
    vocabulary = held["vocabulary"]

    def edited(change: Any) -> dict[str, Any]:
        copy = json.loads(json.dumps(content))
        change(copy["outputs"][0]["fitted"][0]["vocabulary"], copy)
        return copy

    assert {"encoding", "others", "folds"} <= vocabulary.keys()
    return [
        edited(lambda v, _: v["encoding"][0][0].__setitem__(0, 0.5)),  # of all rows
        edited(lambda v, _: v["encoding"][0][1].__setitem__(0, 0.5)),  # without a fold
        edited(lambda v, _: v["encoding"].pop()),
        edited(lambda v, _: v["others"].pop()),
        edited(lambda v, _: v.pop("encoding")),
        edited(lambda v, _: v.__setitem__("folds", 4)),
        edited(lambda _, c: c["outputs"][0]["chain"][0].__setitem__("seed", 5)),
    ]


def test_edits_of_what_was_saved_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "prep.json"
    Preprocess({"city": TargetEncode("click", by="id")}).fit(rows_of()).save(path)
    for content in edits(json.loads(path.read_text())):
        path.write_text(json.dumps(content))
        with pytest.raises(SavedPreprocessError):
            Preprocess.load(path)


# Classes are counted.


def test_class_counts_are_those_of_the_rows() -> None:
    labels = pa.array([1.0, 0.0, None, 1.0, 5.0, 1.0])
    table = pa.table(
        {"y": labels, "name": ["b", "a", "b", None, "b", "c"], "flag": [True, False, None, True, True, True]}
    )
    made = Preprocess({"y": Keep(classes=True), "name": Categorize(min_count=2), "flag": Keep(classes=True)}).fit(table)
    assert made.class_counts("y") == {0: 1, 1: 3, 5: 1}
    assert made.class_counts("name") == {"b": 3}
    assert made.class_counts("flag") == {False: 1, True: 4}
    assert made(table)["y"].equals(pa.chunked_array([labels]))  # it is kept as it is
    uncounted = Preprocess({"y": Keep(), "name": Categorize(min_count=2), "flag": Keep()}).fit(table)
    assert uncounted.digest == made.digest
    with pytest.raises(OptionError, match=r"Keep\(classes=True\)"):
        uncounted.class_counts("y")


def test_class_counts_are_saved(tmp_path: Path) -> None:
    made = Preprocess({"click": Keep(classes=True)}).fit(rows_of())
    made.save(tmp_path / "prep.json")
    assert Preprocess.load(tmp_path / "prep.json").class_counts("click") == made.class_counts("click")


def test_what_is_no_class_is_an_error() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"'price'.*whole"):
        Preprocess({"price": Keep(classes=True)}).fit(rows_of())
    with pytest.raises(UnsupportedTypeError, match="list"):
        Preprocess({"tags": Keep(classes=True)}).fit(pa.table({"tags": [[1]]}))


def test_an_output_may_be_called_kind() -> None:
    assert Preprocess({"city": {"kind": Categorize()}}).fit(rows_of()).outputs == ["kind"]


def test_categories_beside_it_are_made_in_all_forms_of_rows() -> None:
    rows = {"c": ["a", "b"] * 20, "k": list(range(40)), "y": [0.0, 1.0] * 20}
    prep = Preprocess({"c": {"id": Categorize(), "mean": TargetEncode("y", by="k")}}).fit(pa.table(rows))
    expected = prep.for_training()(pa.table(rows)).to_pydict()
    assert prep.for_training()(rows) == expected
    assert prep.for_training()(pd.DataFrame(rows)).to_dict("list") == expected
