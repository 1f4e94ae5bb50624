"""`class_weights`: every copy that the law gives is delivered, for any ranks, workers, batches, and states."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Pack, Sample, StructuredDataset, Subsets, combine, merge_state_dicts
from torch_dataloader_utils.class_weights.draws import ClassDraw
from torch_dataloader_utils.errors import CheckpointMismatchError, ColumnNotFoundError, CountsRequiredError, OptionError
from torch_dataloader_utils.hashing import name_hash

WEIGHTS = {0: 0.4, 1: 2.5, None: 0}
ROWS, FILES, GROUP = 60, 3, 25  # rows of each file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classes")
    for file in range(FILES):
        ids = np.arange(ROWS) + file * ROWS
        labels = pa.array([None if i % 7 == 0 else int(i % 3) for i in ids])
        names = pa.array([None if label is None else f"c{label}" for label in labels.to_pylist()]).dictionary_encode()
        table = pa.table({"id": ids, "label": labels, "name": names, "odd": pa.array(ids % 2 == 1)})
        pq.write_table(table, path / f"{file}.parquet", row_group_size=GROUP)
    return path


def expected(epoch: int, weights: dict[Any, float], seed: int = 0) -> Counter[int]:
    """The copies of each row, from the law and the rows' places alone."""
    counts: Counter[int] = Counter()
    for file in range(FILES):
        for segment, first in enumerate(range(0, ROWS, GROUP)):
            ids = [file * ROWS + row for row in range(first, min(first + GROUP, ROWS))]
            of_rows = np.array([weights.get(None if i % 7 == 0 else i % 3, 1.0) for i in ids], np.float64)
            copies = ClassDraw(seed, epoch).copies(of_rows, name_hash(f"{file}.parquet"), segment)
            counts.update(dict(zip(ids, copies.tolist(), strict=True)))
    return +counts


def loader(folder: Path, rank: int = 0, ranks: int = 1, **options: Any) -> tuple[Any, Any]:
    given: dict[str, Any] = {
        "class_weights": {"label": WEIGHTS}, "columns": ["id"], "batch_size": 7, "num_workers": 0, "split_rows": 25
    } | options  # fmt: skip
    return StructuredDataset.create_dataloader(str(folder), rank=rank, num_ranks=ranks, **given)


def ids_of(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_copies_do_not_depend_on_ranks_and_workers(folder: Path, ranks: int, workers: int, shuffle: bool) -> None:
    for epoch in (0, 1):
        seen: Counter[int] = Counter()
        for rank in range(ranks):
            batches, dataset = loader(folder, rank, ranks, num_workers=workers, shuffle=shuffle)
            dataset.set_epoch(epoch)
            got = list(batches)
            assert all(set(batch) == {"id"} for batch in got)  # the label is read, not delivered
            seen.update(ids_of(got))
        assert seen == expected(epoch, WEIGHTS)
    assert expected(0, WEIGHTS) != expected(1, WEIGHTS)


def test_processes_deliver_the_copies_of_their_epoch(folder: Path) -> None:
    batches, dataset = loader(folder, num_workers=2, worker_mode="processes", shuffle=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert Counter(ids_of(batches)) == expected(epoch, WEIGHTS)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_any_step_resumes_with_the_draws_of_its_epoch(folder: Path, workers: int, shuffle: bool) -> None:
    options: dict[str, Any] = {"num_workers": workers, "shuffle": shuffle}
    batches, dataset = loader(folder, **options)
    dataset.set_epoch(3)
    whole = [batch["id"].tolist() for batch in batches]
    for step in range(len(whole)):
        first, dataset = loader(folder, **options)
        dataset.set_epoch(3)
        live = iter(first)
        for _ in range(step):
            next(live)
        second, resumed = loader(folder, **options)
        resumed.load_state_dict(dataset.state_dict())
        assert [batch["id"].tolist() for batch in second] == whole[step:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_other_ranks_take_over_at_any_step(folder: Path, shuffle: bool) -> None:
    for steps in range(1, 14):
        seen: Counter[int] = Counter()
        states = []
        for rank in range(2):
            batches, dataset = loader(folder, rank, 2, shuffle=shuffle)
            dataset.set_epoch(2)
            live = iter(batches)
            for _, batch in zip(range(steps), live, strict=False):
                seen.update(batch["id"].tolist())
            states.append(dataset.state_dict())
        for rank in range(3):
            batches, dataset = loader(folder, rank, 3, shuffle=shuffle)
            dataset.load_state_dict(merge_state_dicts(states))
            seen.update(ids_of(batches))
        assert seen == expected(2, WEIGHTS)


def test_a_filter_leaves_the_draws_of_the_other_rows(folder: Path) -> None:
    got = Counter(ids_of(loader(folder, filters=[("odd", "=", True)])[0]))
    assert got == Counter({i: n for i, n in expected(0, WEIGHTS).items() if i % 2})


def test_a_subset_by_key_leaves_the_draws(folder: Path) -> None:
    sides = Subsets({"train": 0.5, "val": 0.5}, by="id")
    parts = [Counter(ids_of(loader(folder, subset=sides[name])[0])) for name in sides]
    assert parts[0] + parts[1] == expected(0, WEIGHTS)
    assert not set(parts[0]) & set(parts[1])


def test_a_subset_by_place_is_copied(folder: Path) -> None:
    options: dict[str, Any] = {"subset": Subsets({"train": 0.5, "val": 0.5})["train"]}
    chosen = ids_of(loader(folder, class_weights=None, **options)[0])
    got = Counter(ids_of(loader(folder, class_weights={"label": {0: 2, 1: 3, 2: 0}}, **options)[0]))
    assert got == +Counter({i: 1 if i % 7 == 0 else (2, 3, 0)[i % 3] for i in chosen})


def test_labels_are_strings_or_bools(folder: Path) -> None:
    names = {"c0": 0.4, "c1": 2.5, None: 0}
    assert Counter(ids_of(loader(folder, class_weights={"name": names})[0])) == expected(0, WEIGHTS)
    odd = Counter(ids_of(loader(folder, class_weights={"odd": {True: 2, False: 0}})[0]))
    assert odd == Counter(dict.fromkeys(range(1, ROWS * FILES, 2), 2))


def test_another_seed_makes_other_draws(folder: Path) -> None:
    got = Counter(ids_of(loader(folder, fraction=Sample(1.0, seed=5))[0]))
    assert got == expected(0, WEIGHTS, seed=5) != expected(0, WEIGHTS)


def test_csv_files_are_copied(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(50)))
    batches, _ = StructuredDataset.create_dataloader(
        str(tmp_path), batch_size=8, columns=["id"], class_weights={"label": {"a": 0, "b": 2}}, num_workers=0
    )
    assert Counter(ids_of(batches)) == Counter(dict.fromkeys(range(1, 50, 2), 2))


def test_steps_per_epoch_repeats_the_copies_of_the_epoch(folder: Path) -> None:
    of_one = expected(0, WEIGHTS)
    steps = 2 * of_one.total() // 7
    batches, _ = loader(folder, steps_per_epoch=steps, shuffle=True)
    got = ids_of(batches)
    assert len(got) == steps * 7
    assert Counter(got[: of_one.total()]) == of_one
    assert not Counter(got) - (of_one + of_one)


def test_a_combination_merges_splits_but_has_no_proportions(folder: Path) -> None:
    parts = [loader(folder)[0], loader(folder, class_weights=None)[0]]
    merged = combine(parts, batch_size=7, num_workers=0, batches="splits")
    assert Counter(ids_of(merged)) == expected(0, WEIGHTS) + Counter(range(ROWS * FILES))
    with pytest.raises(CountsRequiredError, match=r"class_weights of dataset 0 .*Use batches='splits'") as caught:
        combine(parts, batch_size=7, batches="proportional")
    assert "count_rows" not in str(caught.value)  # which a dataset with class_weights refuses


def test_what_needs_counts_is_refused(folder: Path) -> None:
    options: dict[str, Any]
    for options in ({"even": "pad"}, {"even": "drop"}, {"last_batch": "wrap"}, {"canonical_ranks": 2}):
        with pytest.raises(CountsRequiredError, match=r"class_weights draws the copies.*steps_per_epoch"):
            loader(folder, **options)
    with pytest.raises(OptionError, match="count_rows"):
        loader(folder, count_rows=True)
    with pytest.raises(OptionError, match="limit"):
        loader(folder, limit=3)
    with pytest.raises(TypeError, match="class_weights draws the copies"):
        len(loader(folder)[0])


def test_documents_are_not_packed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[1, 2], [3]], "label": [0, 1]}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"columns": ["ids"], "class_weights": {"label": {1: 2}}}
    packing: dict[str, Any] = {"pack": Pack(4, columns=["ids"])}
    with pytest.raises(OptionError, match="class_weights with pack"):
        StructuredDataset.create_dataloader(str(tmp_path), **options, **packing)
    part = StructuredDataset.create_dataloader(str(tmp_path), batch_size=2, **options)[0]
    with pytest.raises(OptionError, match="class_weights with pack"):
        combine([part, part], batch_size=2, batches="splits", **packing)


@pytest.mark.parametrize("output_format", ["arrow", "dict", "numpy"])
def test_copies_of_all_outputs_and_transforms(folder: Path, output_format: str) -> None:
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(np.asarray(batch["id"]) * 2)], ["id"])

    batches, _ = loader(folder, output_format=output_format, transform=doubled, shuffle=True)
    got = [
        value for batch in batches for value in (batch["id"].to_pylist() if output_format == "arrow" else batch["id"])
    ]
    assert Counter(int(value) // 2 for value in got) == expected(0, WEIGHTS)


def test_copies_are_adjacent_in_order_and_spread_by_shuffle(folder: Path) -> None:
    in_order = ids_of(loader(folder, class_weights={"odd": {True: 3, False: 3}})[0])
    assert in_order == [i for i in range(ROWS * FILES) for _ in range(3)]
    shuffled = ids_of(loader(folder, class_weights={"odd": {True: 3, False: 3}}, shuffle=True)[0])
    assert sum(a == b for a, b in pairwise(shuffled)) < len(shuffled) / 5


@pytest.mark.parametrize(
    "weights",
    [{}, {"label": {}}, {"label": {1: -1}}, {"label": {1: float("nan")}}, {"label": {1: 1001}}, {"label": {1.5: 1}},
     {"label": {1: 1}, "odd": {True: 1}}, {"label": {"1": 2}}, {"label": {True: 2}}, {"id": {2**70: 1}}],
)  # fmt: skip
def test_wrong_weights_are_refused(folder: Path, weights: Any) -> None:
    with pytest.raises(OptionError, match="class_weights"):
        loader(folder, class_weights=weights)


def test_a_field_of_a_struct_is_refused_as_such(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": [{"x": 1}]}), tmp_path / "a.parquet")
    with pytest.raises(OptionError, match=r"'s\.x' is a field of a struct"):
        StructuredDataset.create_dataloader(tmp_path, class_weights={"s.x": {1: 2}})


def test_a_missing_column_is_named(folder: Path) -> None:
    with pytest.raises(ColumnNotFoundError, match="lable"):
        loader(folder, class_weights={"lable": {1: 2}})


def test_describe_and_states_know_the_weights(folder: Path) -> None:
    batches, dataset = loader(folder)
    described = str(dataset.describe())
    assert "copies by 'label'" in described
    assert "class_weights draws the copies of rows in each epoch" in " ".join(described.split())
    assert "count_rows" not in described
    next(iter(batches))
    _, other = loader(folder, class_weights={"label": {1: 3}})
    with pytest.raises(CheckpointMismatchError, match="copies by 'label'"):
        other.load_state_dict(dataset.state_dict())


def test_codes_are_learned_of_all_rows_even_if_they_have_no_copies(folder: Path) -> None:
    options: dict[str, Any] = {"columns": ["id", "name"], "strings": "codes", "nulls": "drop"}
    batches, dataset = loader(folder, class_weights={"name": {"c0": 0, "c1": 1.5}}, **options)
    names = dataset.vocabulary("name")
    assert "c0" in names
    got = [(int(i), names[code]) for batch in batches for i, code in zip(batch["id"], batch["name"], strict=True)]
    assert all(name == f"c{i % 3}" for i, name in got)
    assert Counter(i for i, _ in got) == expected(0, {0: 0, 1: 1.5, None: 0})


def test_labels_of_another_type_are_named_with_the_right_one(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"label '1' of column 'label', of type int64: expected a whole number"):
        loader(folder, class_weights={"label": {"1": 2}})


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"label": {0: 2, 3: 5, 9: 1, None: 0}}, "the label(s) 3, 9 in column 'label', whose labels lie from 0 to 2;"),
        ({"label": {0: 2, 1: 5}}, None),
        ({"name": {"c0": 2, "spam": 5}}, "the label(s) 'spam' in column 'name', whose labels lie from 'c0' to 'c2';"),
        ({"name": {"c0": 2, "c11": 5}}, None),  # between the others: only reading would tell
        ({"odd": {True: 2, False: 1}}, None),
    ],
)
def test_labels_that_no_row_has_are_named_once(
    folder: Path, weights: dict[str, Any], words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    batches, _ = loader(folder, class_weights=weights)
    assert len(list(batches)) > 1
    found = [record.getMessage() for record in caplog.records if "no row has" in record.getMessage()]
    assert len(found) == (words is not None)
    assert all((words or "") in message and "no effect" in message for message in found)


def test_labels_of_folders_are_known_and_those_of_text_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for label in ("a", "b"):
        (tmp_path / "table" / f"label={label}").mkdir(parents=True)
        pq.write_table(pa.table({"id": range(9)}), tmp_path / "table" / f"label={label}" / "x.parquet")
    (tmp_path / "text.csv").write_text("id,label\n1,a\n2,b\n")
    pq.write_table(pa.table({"id": [1], "label": ["a"]}), tmp_path / "bare.parquet", write_statistics=False)
    weights = {"label": {"aa": 2, "b": 3}}
    for path in ("text.csv", "bare.parquet"):
        StructuredDataset.create_dataloader(tmp_path / path, class_weights=weights)
        assert "no row has" not in caplog.text
    StructuredDataset.create_dataloader(tmp_path / "table", class_weights=weights)
    assert "no row has the label(s) 'aa' in column 'label', whose labels are 'a', 'b';" in caplog.text


# Balanced weights, and labels that are floats.

RARE, KINDS = 0.05, [pa.int64(), pa.float32(), pa.string(), pa.bool_(), pa.dictionary(pa.int32(), pa.string())]


@pytest.fixture(scope="module")
def unbalanced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 rows, 1 in 20 of class 1 and as many without a class, under several types of labels."""
    path = tmp_path_factory.mktemp("unbalanced")
    rng = np.random.default_rng(0)
    rows = 4_000
    labels = pa.array((rng.random(rows) < RARE).astype(int), mask=rng.random(rows) < RARE)
    columns = {str(kind): labels.cast(pa.string()).cast(kind) for kind in KINDS}
    table = pa.table({"id": np.arange(rows), **columns})
    for file in range(4):
        pq.write_table(table.slice(file * 1_000, 1_000), path / f"{file}.parquet", row_group_size=150)
    return path


def law(folder: Path, column: str, rows: pa.Table) -> dict[Any, float]:
    """What balanced means: n / (k n_c)."""
    counts = Counter(label for label in rows.column(column).to_pylist() if label is not None)
    return {label: sum(counts.values()) / (len(counts) * count) for label, count in counts.items()}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filters": [("id", "<", 1_500)]},
        {"subset": Subsets({"a": 1, "b": 1})["a"]},
        {"columns": ["id", "int64"], "nulls": {"int64": "drop"}},
    ],
)
def test_balanced_weights_are_those_of_the_rows_that_are_read(
    unbalanced: Path, kind: pa.DataType, options: dict[str, Any]
) -> None:
    column = str(kind)
    plain = [int(i) for i in ids_of(loader(unbalanced, class_weights=None, **options)[0])]
    rows = pq.read_table(unbalanced).take(plain)
    weights = law(unbalanced, column, rows)
    given = {int(label) if isinstance(label, float) else label: weight for label, weight in weights.items()}
    balanced = ids_of(loader(unbalanced, class_weights={column: "balanced"}, **options)[0])
    assert balanced == ids_of(loader(unbalanced, class_weights={column: given}, **options)[0])
    made = Counter(pq.read_table(unbalanced)[column].take(balanced).to_pylist())
    first, second = (made[label] for label in weights)
    assert abs(first - second) < 0.1 * len(rows)
    assert abs(len(balanced) - len(rows)) < 0.05 * len(rows)
    assert made[None] == rows[column].null_count  # rows without a label stay as they are


def test_balanced_weights_are_counted_beside_codes_transforms_and_row_counts(unbalanced: Path) -> None:
    expected = ids_of(loader(unbalanced, class_weights={"int64": "balanced"})[0])
    ways: list[dict[str, Any]] = [
        {"columns": ["id", "string"], "strings": {"string": "codes"}, "nulls": {"string": "mask"}},
        {"columns": ["id"], "transform": lambda batch: batch.select(["id"])},
        {"num_workers": 2, "worker_mode": "processes"},
    ]
    for options in ways:
        assert sorted(ids_of(loader(unbalanced, class_weights={"int64": "balanced"}, **options)[0])) == sorted(expected)


def test_more_copies_than_a_row_may_have_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = np.zeros(5_000, np.int64)
    labels[17] = 1
    pq.write_table(pa.table({"id": np.arange(5_000), "label": labels}), tmp_path / "0.parquet")
    with caplog.at_level("WARNING", "torch_dataloader_utils"):
        got = ids_of(loader(tmp_path, class_weights={"label": "balanced"})[0])
    assert got.count(17) == 1_000
    assert any("1,000 copies" in record.getMessage() for record in caplog.records)


def test_what_cannot_be_balanced_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(20_000), "half": np.arange(20_000) / 2}), tmp_path / "0.parquet")
    with pytest.raises(OptionError, match=r"'id' has more than 10,000 labels"):
        loader(tmp_path, class_weights={"id": "balanced"})
    with pytest.raises(OptionError, match=r"'half'"):
        loader(tmp_path, class_weights={"half": "balanced"})


def test_labels_of_floats_are_whole_numbers(tmp_path: Path) -> None:
    labels = pa.array([0.0, -0.0, 1.0, None, np.nan, 2.5], pa.float64())
    pq.write_table(pa.table({"id": np.arange(6), "label": labels}), tmp_path / "0.parquet")
    for weights in ({0: 2, 1: 0, None: 3}, {0.0: 2, np.float32(1): 0, None: 3}):
        got = Counter(ids_of(loader(tmp_path, class_weights={"label": weights})[0]))
        assert got == {0: 2, 1: 2, 3: 3, 4: 3, 5: 1}
    with pytest.raises(OptionError, match="whole numbers"):
        loader(tmp_path, class_weights={"label": {0.5: 2}})


def test_states_know_balanced_weights(unbalanced: Path) -> None:
    batches, dataset = loader(unbalanced, class_weights={"int64": "balanced"})
    next(iter(batches))
    _, other = loader(unbalanced, class_weights={"int64": {0: 1.0}})
    with pytest.raises(CheckpointMismatchError, match="balanced"):
        other.load_state_dict(dataset.state_dict())
