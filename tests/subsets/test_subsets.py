"""Subsets end to end: every row in exactly one, the same one under all other options."""

from __future__ import annotations

import logging
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.resume.helpers import batches, make, plain, through_json, write_files
from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import Fill, Rotate, Sample, StructuredDataset, Subsets, TableDataset, combine
from torch_dataloader_utils.errors import CheckpointMismatchError, ColumnNotFoundError, NullValueError, OptionError

SIDES = Subsets({"train": 0.6, "val": 0.3, "test": 0.1})
KEYED = SIDES.replace(by="name")
CASES: list[tuple[Subsets, dict[str, Any]]] = [
    (SIDES, {}),
    (SIDES.replace(unit="segment"), {}),
    (SIDES.replace(unit="file"), {}),
    (KEYED, {}),
    (SIDES.replace(by=["id", "name"]), {"count_rows": True}),
]


def ids(path: str, **options: Any) -> list[int]:
    return [int(row) for batch in make(path, **options) for row in batch["id"]]


def each(path: str, sides: Subsets = SIDES, **options: Any) -> dict[str, list[int]]:
    return {name: ids(path, subset=sides[name], **options) for name in sides}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """38 rows in four files of few row groups."""
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def count(data: str) -> int:
    return len(ids(data))


@pytest.mark.parametrize(("sides", "options"), CASES, ids=str)
def test_each_row_is_in_one_subset_under_all_other_options(
    data: str, count: int, sides: Subsets, options: dict[str, Any]
) -> None:
    parts = each(data, sides, **options)
    assert sorted(chain.from_iterable(parts.values())) == list(range(count))
    val, given = parts["val"], {"subset": sides["val"], **options}
    others: list[dict[str, Any]] = [
        {"shuffle": True}, {"columns": ["id"]}, {"num_workers": 2}, {"split_rows": 100}, {"output_format": "numpy"}
    ]  # fmt: skip
    for other in others:
        assert sorted(ids(data, **given | other)) == val
    kept = ids(data, filters=[("id", ">", 20)], **given)
    assert kept == [row for row in val if row > 20]
    ranks = [ids(data, num_ranks=3, **given | {"rank": rank}) for rank in range(3)]
    assert sorted(chain.from_iterable(ranks)) == val


@settings(max_examples=15, deadline=None)
@given(weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=4), seed=st.integers(0, 9), by=st.booleans())
def test_subsets_are_a_partition_for_any_weights(
    data: str, count: int, weights: list[float], seed: int, by: bool
) -> None:
    shares = {f"s{i}": weight for i, weight in enumerate(weights)}
    parts = each(data, Subsets(shares, by="name" if by else None, seed=seed)).values()
    assert sorted(chain.from_iterable(parts)) == list(range(count))


@pytest.mark.parametrize(("sides", "options"), CASES, ids=str)
def test_appended_files_move_no_row(tmp_path: Path, sides: Subsets, options: dict[str, Any]) -> None:
    path = write_files(tmp_path)
    before = each(path, sides, **options)
    first = sum(map(len, before.values()))
    rows = np.arange(first, first + 50)
    pq.write_table(pa.table({"id": rows, "name": [f"row {row}" for row in rows]}), tmp_path / "a-new.parquet")
    after = each(path, sides, **options)
    assert {name: [row for row in part if row < first] for name, part in after.items()} == before


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"subset": KEYED["train"], "count_rows": True}, {"fraction": 0.7}], ids=str)
def test_a_subset_resumes_at_any_step_on_other_ranks(data: str, options: dict[str, Any], num_workers: int) -> None:
    given = {"subset": SIDES["train"], "shuffle": True, "num_workers": num_workers, **options}
    expected = sorted(ids(data, **given))
    steps = min(len(batches(make(data, num_ranks=2, **given | {"rank": rank}))) for rank in range(2))
    for taken in range(steps + 1):
        done, states = [], []
        for rank in range(2):
            loader = make(data, num_ranks=2, **given | {"rank": rank})
            taking = iter(loader)
            done += [row for _ in range(taken) for row in plain(next(taking))["id"]]
            states.append(through_json(loader.state_dict()))
        same = []
        for rank in range(2):
            loader = make(data, num_ranks=2, **given | {"rank": rank})
            loader.load_state_dict(states[rank])
            same += [row for batch in loader for row in plain(batch)["id"]]
        assert sorted(done + same) == expected
        for ranks in (1, 3):
            rest = []
            for rank in range(ranks):
                loader = make(data, num_ranks=ranks, **given | {"rank": rank})
                loader.load_state_dict(states[0])
                rest += [row for batch in loader for row in plain(batch)["id"]]
            assert sorted(done + rest) == expected


@pytest.mark.parametrize(
    "options", [{}, {"fraction": Sample(0.8, by="name"), "count_rows": True}, {"limit": 23}], ids=str
)
@pytest.mark.parametrize("even", ["drop", "pad"])
def test_ranks_take_equal_steps_of_a_subset(data: str, even: str, options: dict[str, Any]) -> None:
    given = {"fraction": 0.8, "shuffle": True, "even": even, "num_ranks": 3, "batch_size": 2, **options}
    loaders = [make(data, **given | {"rank": rank}) for rank in range(3)]
    passes = [list(loader) for loader in loaders]
    assert len({*map(len, loaders), *map(len, passes)}) == 1
    every = [batch.get("valid", batch["id"] >= 0) for batch in chain.from_iterable(passes)]
    rows = [
        int(row) for batch, real in zip(chain.from_iterable(passes), every, strict=True) for row in batch["id"][real]
    ]
    whole = ids(data, **{"fraction": 0.8, **options})
    assert sorted(rows) == whole if even == "pad" else set(rows) <= set(whole) and len(set(rows)) == len(rows)


def test_worker_processes_deliver_the_batches_of_threads(data: str) -> None:
    def both(mode: str) -> list[Any]:
        place = StructuredDataset.create_dataloader(data, subset=SIDES["train"], split_rows=6)[1]
        keyed = StructuredDataset.create_dataloader(data, fraction=Sample(0.6, by="name"), split_rows=6)[1]
        options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "worker_mode": mode}
        return batches(combine([place, keyed], batches="splits", **options))

    assert both("processes") == both("threads")


@settings(max_examples=15, deadline=None)
@given(names=st.permutations(list(SIDES)), by=st.booleans())
def test_equal_dicts_are_equal_subsets_in_whatever_order(data: str, names: list[str], by: bool) -> None:
    """One loader has its options from code, the other from a file, whose writer may sort keys."""
    sides = KEYED if by else SIDES
    other = sides.replace(shares={name: sides.shares[name] for name in names})
    rows = [ids(data, subset=sides["train"], num_workers=0), ids(data, subset=other["val"], num_workers=0)]
    assert not set(rows[0]) & set(rows[1])
    loader = make(data, subset=other["train"], num_workers=0)
    loader.load_state_dict(through_json(make(data, subset=sides["train"], num_workers=0).state_dict()))
    assert [int(row) for batch in loader for row in batch["id"]] == rows[0]


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"subset": Subsets({"a": 1, "b": 1})["a"]}, {"subset": {"name": "a", "of": {"b": 1.0, "a": 1.0}}}),
    ({"fraction": 1}, {"fraction": Sample(1.0)}),
    (
        {"subset": KEYED["train"], "fraction": 0.5},
        {"subset": KEYED["train"], "fraction": {"share": 0.5, "by": ["name"], "unit": "row", "seed": 0}},
    ),
    ({"class_weights": {"id": {1: 2, 7: 0.5}}}, {"class_weights": {"id": {7: 0.5, 1: 2.0}}}),
    ({"nulls": {"id": "mask", "name": "drop"}}, {"nulls": {"name": "drop", "id": "mask"}}),
    ({"dtypes": {"id": "int32", "int64": "int16"}}, {"dtypes": {"int64": "int16", "id": "int32"}}),
    ({"strings": {"name": "codes"}}, {"strings": "codes"}),
    (
        {"nulls": Fill({"id": 0, "name": ""})},
        {"nulls": Fill({"name": "", "id": 0})},
    ),
    ({"sharding": {"kind": "rotate", "stick_to_shard": True}}, {"sharding": Rotate(stick_to_shard=True)}),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_equal_options_have_equal_batches_and_states(data: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    found = []
    for options in (one, other):
        loader = make(data, shuffle=True, num_workers=0, **options)
        taking = iter(loader)
        next(taking)
        found.append((loader.state_dict(), list(map(plain, taking))))
    assert found[0] == found[1]


def test_a_state_of_another_subset_is_refused(data: str) -> None:
    train = make(data, subset=SIDES.replace(unit="row")["train"])
    state = through_json(train.state_dict())
    with pytest.raises(CheckpointMismatchError, match="subset: 'train'"):
        make(data, subset=SIDES["val"]).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="subset: the first 9 rows"):
        make(data, limit=8).load_state_dict(through_json(make(data, limit=9).state_dict()))


def test_a_combination_knows_which_of_its_datasets_is_a_subset(data: str) -> None:
    def both(*given: dict[str, Any]) -> Any:
        datasets = [StructuredDataset.create_dataloader(data, columns=["id"], **options)[1] for options in given]
        return combine(datasets, batches="splits", batch_size=4)

    keyed = {"fraction": Sample(0.5, by="name")}
    with pytest.raises(CheckpointMismatchError, match="subset: all; fraction"):
        both(keyed, {}).load_state_dict(through_json(both({}, keyed).state_dict()))


def test_counts_by_place_are_known_before_reading(data: str) -> None:
    loader, dataset = StructuredDataset.create_dataloader(data, subset=SIDES["train"], batch_size=3)
    assert dataset.shard_size(0) == len(ids(data, subset=SIDES["train"]))
    assert len(loader) == len(list(loader))
    assert "'train' of" in str(dataset.describe())


@pytest.mark.parametrize("count_rows", [False, True])
def test_text_without_row_counts_is_split_too(tmp_path: Path, count_rows: bool) -> None:
    for number in range(3):
        rows = np.arange(number * 40, number * 40 + 40)
        pacsv.write_csv(pa.table({"id": rows}), tmp_path / f"{number}.csv")
    parts = each(str(tmp_path), count_rows=count_rows, split_rows=None)
    assert sorted(chain.from_iterable(parts.values())) == list(range(120))
    assert all(parts.values())


def test_a_folder_that_moves_keeps_its_subsets(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = write_files(tmp_path / "a")
    before = each(path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert each(str(tmp_path / "b")) == before
    file = tmp_path / "b" / "part-0.parquet"
    assert ids(str(file), subset=SIDES["val"]) == [row for row in before["val"] if row < 14]


def test_parts_of_a_combination_keep_their_subsets(data: str) -> None:
    parts = [
        StructuredDataset.create_dataloader(data, subset=SIDES["val"])[1],
        StructuredDataset.create_dataloader(data, limit=5)[1],
    ]
    loader = combine(parts, batches="splits", batch_size=4)
    rows = [int(row) for batch in loader for row in batch["id"]]
    assert sorted(rows) == sorted(ids(data, subset=SIDES["val"]) + list(range(5)))


def test_nulls_are_one_key_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table({"id": np.arange(60), "key": pa.array([None if i % 2 else str(i) for i in range(60)])})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=7)
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        parts = each(str(tmp_path), sides=SIDES.replace(by="key"), split_rows=None)
    assert sum(any(row % 2 for row in part) for part in parts.values()) == 1
    assert "column 'key' has nulls" in caplog.text


def test_a_key_in_a_struct_is_that_of_a_column(tmp_path: Path) -> None:
    users = [f"u{row % 7}" for row in range(40)]
    table = pa.table({"id": np.arange(40), "user": users, "of": [{"user": user, "x": 1.0} for user in users]})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=9)
    given: dict[str, Any] = {"split_rows": None, "columns": ["id"]}
    parts = [each(str(tmp_path), SIDES.replace(by=by), **given) for by in ("of.user", "user")]
    assert parts[0] == parts[1]


def test_a_finer_unit_of_time_in_an_appended_file_moves_no_row(tmp_path: Path) -> None:
    times = np.arange(50).astype("datetime64[s]")
    pq.write_table(pa.table({"id": np.arange(50), "at": times.astype("datetime64[ms]")}), tmp_path / "0.parquet")
    before = each(str(tmp_path), SIDES.replace(by="at"))
    pq.write_table(
        pa.table({"id": np.arange(50, 99), "at": times[1:].astype("datetime64[ns]")}), tmp_path / "1.parquet"
    )
    after = each(str(tmp_path), SIDES.replace(by="at"))
    assert {name: [row for row in part if row < 50] for name, part in after.items()} == before


# ----------------------------------------------------------------------------------------------- fraction and limit


def test_a_smaller_fraction_is_contained_in_a_larger_one(data: str, count: int) -> None:
    small, large = (set(ids(data, fraction=fraction)) for fraction in (0.3, 0.6))
    assert small < large < set(range(count))
    assert ids(data, fraction=1.0) == list(range(count))


@settings(max_examples=10, deadline=None)
@given(limit=st.integers(1, 45), shuffle=st.booleans(), split_rows=st.integers(1, 10), workers=st.sampled_from([0, 2]))
def test_limit_delivers_the_first_rows(
    data: str, count: int, limit: int, shuffle: bool, split_rows: int, workers: int
) -> None:
    rows = ids(data, limit=limit, shuffle=shuffle, split_rows=split_rows, num_workers=workers)
    assert sorted(rows) == list(range(min(limit, count)))


def test_limit_counts_rows_after_filters_and_subsets(data: str) -> None:
    chosen: dict[str, Any] = {"subset": KEYED["train"]}
    whole = ids(data, filters=[("id", ">", 6)], **chosen)
    assert ids(data, filters=[("id", ">", 6)], limit=9, count_rows=True, **chosen) == whole[:9]


def test_limit_without_counts_is_refused(data: str) -> None:
    with pytest.raises(OptionError, match=r"limit=3: .* Use count_rows=True"):
        make(data, limit=3, filters=[("id", ">", 6)])


def test_nulls_of_rows_that_are_not_chosen_are_no_error(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    empty = pa.table({"id": pa.array([None] * 4, pa.int64()), "name": ["null"] * 4})
    pq.write_table(empty, tmp_path / "z.parquet")
    assert ids(path, limit=30) == list(range(30))
    sides = Subsets({f"s{i}": 1 for i in range(4)}, by="name")
    failed = 0
    for side in sides:
        loader = make(path, subset=sides[side])  # all nulls are in one of them
        try:
            list(loader)
        except NullValueError:
            failed += 1
    assert failed == 1


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": SIDES}, r"expected one of its subsets\. Use subset=Subsets\(.*\)\['test'\]"),
        ({"subset": 3}, r"subset=3: expected one of Subsets\(\.\.\.\)"),
        ({"subset": {"name": "train"}}, "of is missing"),
        ({"subset": {"name": "eval", "of": SIDES.shares}}, "subset='eval': expected one of 'test', 'train', 'val'"),
        ({"subset": {"name": "val", "of": SIDES.shares, "by": "id", "unit": "file"}}, "expected one of the two"),
        ({"subset": {"name": "b", "of": {"a": 0, "b": 1}}}, "weight above 0"),
        ({"subset": {"name": "a", "of": {"a": float("nan")}}}, "weight above 0"),
        ({"subset": {"name": "b", "of": {"a": float("inf"), "b": 1}}}, "weight above 0"),
        ({"subset": {"name": "a", "of": {"a": 1e-300, "b": 1}}}, "weight above 0"),
        ({"subset": {"name": "a", "of": {"a": 1, "b": 10**400}}}, "weight above 0"),
        (
            {"fraction": {"share": 0.5, "by": "id", "unit": "file"}},
            r"Sample: by=\['id'\] with unit='file': expected one of",
        ),
        (
            {"fraction": Sample(0.5, by="id"), "subset": KEYED["val"]},
            r"one key and one unit .* Use fraction=Sample\(0\.5\)",
        ),
        ({"fraction": Sample(0.5, unit="file"), "subset": SIDES["val"]}, "one key and one unit choose rows"),
        ({"fraction": 1.5}, "above 0 and at most 1"),
        ({"fraction": 0}, "above 0 and at most 1"),
        ({"limit": 0}, "at least 1"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(data: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(data, **options)


def test_subsets_are_of_their_names_in_order() -> None:
    assert list(Subsets({"val": 1, "a": 2})) == ["a", "val"]
    side = KEYED.replace(seed=3)["val"]
    assert repr(side) == "Subsets({'test': 0.1, 'train': 0.6, 'val': 0.3}, by=['name'], seed=3)['val']"
    assert eval(repr(side)) == side
    with pytest.raises(OptionError, match="subset='eval': expected one of 'test', 'train', 'val'"):
        SIDES["eval"]


def test_a_sample_of_a_subset_may_have_a_seed_of_its_own(data: str) -> None:
    whole = set(ids(data, subset=SIDES["train"]))
    some = [ids(data, subset=SIDES["train"], fraction=Sample(0.5, seed=seed)) for seed in (None, 0, 1)]
    assert some[0] == some[1] != some[2]
    assert set(some[2]) < whole
    other = make(data, subset=SIDES["train"], fraction=Sample(0.5, seed=1))
    with pytest.raises(CheckpointMismatchError, match=r"fraction 0\.5 with seed 1"):
        make(data, subset=SIDES["train"], fraction=0.5).load_state_dict(through_json(other.state_dict()))


def test_files_of_one_name_are_refused_as_units(tmp_path: Path) -> None:
    paths = [str(tmp_path / day / "part.parquet") for day in ("monday", "tuesday")]
    for path in paths:
        Path(path).parent.mkdir()
        pq.write_table(pa.table({"id": range(9)}), path)
    for unit in ("file", "segment"):
        given: dict[str, Any] = {"fraction": {"share": 0.5, "unit": unit}}
        with pytest.raises(OptionError, match=r"2 of the given files are called 'part.parquet'.*Give the folder"):
            StructuredDataset.create_dataloader(paths, **given)
        StructuredDataset.create_dataloader(str(tmp_path), **given)
    StructuredDataset.create_dataloader(paths, fraction=0.5)


def test_keys_that_are_not_exact_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "x": [0.5], "l": [[1]]}), tmp_path / "f.parquet")
    for column in ("x", "l"):
        with pytest.raises(OptionError, match=f"column '{column}' has type"):
            make(str(tmp_path), fraction=Sample(0.5, by=column))
    with pytest.raises(ColumnNotFoundError, match="by: no column 'idd'"):
        make(str(tmp_path), fraction=Sample(0.5, by="idd"))


# ---------------------------------------------------------------------------------------------------------- tables


def test_rows_of_a_table_keep_their_subset_when_others_are_deleted(tmp_path: Path) -> None:
    whole = [data_file(tmp_path, f"{number}.parquet", range(number * 25, number * 25 + 25)) for number in range(3)]
    commit(tmp_path, 1, dict(chain.from_iterable(file.items() for file in whole)))
    some = [
        data_file(tmp_path, f"{number}.parquet", range(number * 25, number * 25 + 25), deleted=range(number, 25, 4))
        for number in range(3)
    ]
    commit(tmp_path, 2, dict(chain.from_iterable(file.items() for file in some)))
    left = {number * 25 + row for number in range(3) for row in range(25) if (row - number) % 4 or row < number}

    def rows(version: int, name: str) -> list[int]:
        given: dict[str, Any] = {"subset": SIDES[name], "batch_size": 4, "shuffle": version == 2}
        loader, dataset = TableDataset.create_dataloader(LogTable(tmp_path, version), **given)
        delivered = [int(row) for batch in loader for row in batch["id"]]
        assert dataset.shard_size(0) == len(delivered)
        return sorted(delivered)

    before = {name: rows(1, name) for name in SIDES}
    assert sorted(chain.from_iterable(before.values())) == list(range(75))
    assert {name: rows(2, name) for name in SIDES} == {
        name: [row for row in part if row in left] for name, part in before.items()
    }
