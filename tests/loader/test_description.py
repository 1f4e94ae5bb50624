"""`describe()`: true, without a look at the data, for all options; as text, HTML and plain values."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.covering import covering
from tests.end_to_end.sharded import Plain, Utterances
from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import DataLoaderUtilsError, Description, Shuffle, StructuredDataset, TableDataset, combine
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.loader import describing
from torch_dataloader_utils.planning.windows import ShuffleWindow

ROWS = 120
RANDOM = np.random.default_rng(5)


def table(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "x": pa.array([None if number % 10 == 3 else number * 2 for number in ids.tolist()], pa.int32()),
            "city": [("Oslo", "Lima")[number % 2] for number in ids],
            "tags": pa.array([list(range(number % 3)) for number in ids], pa.list_(pa.int32())),
            "vector": pa.array([[0.5, float(number)] for number in ids], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows in three files of four row groups."""
    path = tmp_path_factory.mktemp("described")
    for number in range(3):
        pq.write_table(table(number * 40, 40), path / f"part-{number}.parquet", row_group_size=10)
    return path


def described(path: Any, **options: Any) -> Description:
    _, dataset = StructuredDataset.create_dataloader(str(path), **{"nulls": "mask", "batch_size": 8, **options})
    return dataset.describe()


def words(description: Description) -> str:
    return " ".join(str(description).split())


def problems(description: Description) -> list[str]:
    return [advice.problem for advice in description.warnings]


def test_the_text_of_a_small_dataset(folder: Path) -> None:
    options = {"columns": ["id", "x", "city", "tags"], "nulls": {"x": "mask"}}
    shown = described(folder, num_ranks=2, rank=1, even="pad", batch_size=16, **options)
    sizes = re.compile(r"\(.* stored, about .* decoded\)")
    decoder = "the package itself" if pages_library() is not None else shown.decoder
    assert sizes.sub("(...)", str(shown)).splitlines() == [
        "StructuredDataset",
        "  files       3 (...)",
        "  rows        120",
        "  row groups  12",
        f"  decoder     {decoder}",
        "  splits      3: runs of row groups, shared among ranks and workers",
        "  shuffle     off: each epoch delivers the rows in file order",
        "",
        "A batch: a dict of torch tensors, B = 16 rows",
        "  key      dtype  shape",
        "  id       int64  [B]",
        "  x        int32  [B]",
        "  x_valid  bool   [B]",
        "  city     str    list of B",
        "  tags     int32  values [*], offsets [B + 1]",
        "  valid    bool   [B]",
        "",
        "Epoch 0 on 2 ranks: sharding='interleave', even='pad'",
        "  rank          rows  steps  padding",
        "  0               60      4        4",
        "  1 (this one)    60      4        4",
        "",
        "  ranks  from the arguments",
        "",
        "Warnings",
        "  - The rows are sorted by 'x', and not shuffled: each batch holds neighbouring values. For",
        "    training, use shuffle=True.",
    ]


def test_what_only_reading_shows_is_said_to_be_unknown(folder: Path) -> None:
    shown = described(folder, filters=[("id", ">", 5)])
    assert (shown.rows, shown.rows_unfiltered, shown.not_delivered) == (None, 120, None)
    assert "rows known only after reading (120 before filters and transform); count_rows=True" in words(shown)
    assert [(share.rows, share.steps) for share in shown.ranks] == [(None, None)]
    counted = described(folder, filters=[("id", ">", 5)], count_rows=True)
    assert (counted.rows, counted.ranks[0].rows, counted.ranks[0].steps) == (114, 114, 15)


OPTIONS = {
    "shuffle": [False, True, "splits", "all"],
    "shuffle_buffer_size": [None, 30],
    "sharding": ["interleave", "contiguous", "strided", "auto"],
    "ends": ["", "even=drop", "even=pad", "even=sync", "last_batch=drop", "last_batch=pad", "last_batch=wrap", "steps"],
    "output_format": ["torch", "numpy", "arrow", "dict"],
    "lists": ["ragged", "padded", "nested"],
    "strings": ["list", "bytes", "codes"],
    "num_workers": [None, 0, 3],
    "split_rows": [None, 10],
    "rows": ["all", "filtered", "counted", "dropped"],
    "ranks": [1, 2, 5],
}
READS = {
    "all": {},
    "filtered": {"filters": [("id", ">", 5)]},
    "counted": {"filters": [("id", ">", 5)], "count_rows": True},
    "dropped": {"nulls": {"x": "drop"}},
}


def _configurations() -> list[dict[str, Any]]:
    """Options in which each pair of values of each half of them occurs: of all of them there are too many."""
    names, half = [*OPTIONS], len(OPTIONS) // 2
    first, second = (covering(*(OPTIONS[name] for name in part)) for part in (names[:half], names[half:]))
    count = max(len(first), len(second))
    rows = [(*first[number % len(first)], *second[number % len(second)]) for number in range(count)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _kinds(value: Any) -> set[tuple[str, ...]]:
    """The dtypes and shapes, without their first size, of a batch's value."""
    if isinstance(value, dict):
        return {kind for part in value.values() for kind in _kinds(part)}
    return {(str(value.dtype).removeprefix("torch."), *map(str, value.shape[1:]))}


def _check_keys(shown: Description, batch: Any, output_format: str) -> None:
    """The keys are those of a batch, and so are dtypes and shapes of arrays."""
    if output_format == "arrow":
        assert [(key.key, key.dtype) for key in shown.keys] == [(item.name, str(item.type)) for item in batch.schema]
        return
    assert [key.key for key in shown.keys] == list(batch)
    if output_format == "dict":
        return
    for key in shown.keys:
        if key.shape == "list of B":
            assert isinstance(batch[key.key], list)
        elif key.shape.startswith("[B") and "nested" not in key.shape:
            assert _kinds(batch[key.key]) == {(key.dtype, *key.shape.strip("[]").split(", ")[1:])}
        elif "values" in key.shape:
            assert [*batch[key.key]] == re.findall("[a-z]+(?= \\[)", key.shape)
            assert str(batch[key.key]["values"].dtype).removeprefix("torch.") == key.dtype


@pytest.mark.parametrize("chosen", _configurations(), ids=str)
def test_it_is_what_ranks_then_deliver(folder: Path, chosen: dict[str, Any]) -> None:
    chosen = dict(chosen)
    ranks, read, ends = chosen.pop("ranks"), READS[chosen.pop("rows")], chosen.pop("ends")
    end = {"steps_per_epoch": 3} if ends == "steps" else dict([ends.split("=")]) if ends else {}
    options = {"batch_size": 8, "nulls": "mask", **chosen, **end, **read}
    try:
        pairs = [
            StructuredDataset.create_dataloader(str(folder), num_ranks=ranks, rank=rank, **options)
            for rank in range(ranks)
        ]
        shown = pairs[0][1].describe()
    except DataLoaderUtilsError:
        return  # refused, with a reason
    assert json.loads(json.dumps(shown.to_dict())) == shown.to_dict()
    assert max(map(len, str(shown).splitlines())) <= 100
    ElementTree.fromstring(shown._repr_html_())
    assert shown.idle_ranks == tuple(share.rank for share in shown.ranks if share.rows == 0)
    if ends == "even=sync" and ranks > 1:
        return  # needs peers
    for (loader, dataset), share in zip(pairs, shown.ranks, strict=True):
        assert dataset.describe().ranks == shown.ranks
        batches = list(loader)
        if share.steps is not None:
            assert len(batches) == share.steps
        if batches:
            _check_keys(shown, batches[0], chosen["output_format"])
        if share.rows is not None and chosen["output_format"] == "torch":
            real = sum(int(batch["valid"].sum()) if "valid" in batch else len(batch["id"]) for batch in batches)
            assert real == min(share.rows, len(batches) * shown.batch_rows)
            assert sum(len(batch["id"]) for batch in batches) - real == share.padding
    if shown.not_delivered is not None and shown.rows is not None:
        rows = [min(share.rows or 0, (share.steps or 0) * shown.batch_rows) for share in shown.ranks]
        assert shown.not_delivered + sum(rows) == shown.rows


def test_nothing_is_read_for_it(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data")
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path / "data"), nulls="mask", batch_size=8)
    shutil.rmtree(tmp_path / "data")
    assert problems(dataset.describe()) == [
        "the rows are sorted by 'x', and not shuffled: each batch holds neighbouring values."
    ]
    assert loader._repr_html_() == dataset._repr_html_() == dataset.describe()._repr_html_()
    assert "part-0.parquet" in str(dataset.plan())
    assert "StructuredDataset" in repr(loader)


def test_one_huge_row_group_is_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(table(0, 40), tmp_path / "a.parquet")
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), num_ranks=4, rank=0, nulls="mask")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "3 of the 4 ranks have no rows in epoch 0 (rows per rank: 40, 0, 0, 0)" in caplog.text
    shown = dataset.describe()
    assert shown.idle_ranks == (1, 2, 3)
    assert [str(advice) for advice in shown.warnings] == [caplog.records[0].getMessage()]
    assert "idle 3 ranks have no rows: ranks 1, 2, 3" in words(shown)
    assert len(list(loader)) == 1
    assert len(caplog.records) == 1


def test_an_idle_rank_says_so_of_itself_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(table(0, 40), tmp_path / "a.parquet")
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), num_ranks=4, rank=1, nulls="mask")
    assert not caplog.records  # what concerns all ranks, the first one says
    assert "idle 3 ranks have no rows: ranks 1, 2, 3" in words(dataset.describe())
    assert list(loader) == list(loader) == []
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("epoch 0: rank 1 has no batch")


def test_workers_without_splits_are_warned_about(folder: Path) -> None:
    shown = described(folder, num_workers=5, shuffle=True)
    assert sorted(shown.worker_splits)[:2] == [0, 0]
    idle, few = problems(shown)
    assert "2 of the rank's 5 workers have nothing to read" in idle
    assert "each of the 3 workers shuffles the splits that it reads" in few
    assert "workers this rank's, with" in words(shown)


def test_sorted_data_are_warned_about_unless_they_are_shuffled(tmp_path: Path) -> None:
    labels = pa.table({"label": np.arange(ROWS) // 30, "x": RANDOM.permutation(ROWS)})
    pq.write_table(labels, tmp_path / "a.parquet", row_group_size=10)
    (problem,) = problems(described(tmp_path))
    assert problem.startswith("the rows are sorted by 'label', and not shuffled")
    assert problems(described(tmp_path, columns=["x"])) == []
    assert problems(described(tmp_path, shuffle=True)) == problems(described(tmp_path, shuffle_buffer_size=20)) == []


def test_a_shuffle_without_compiled_kernels_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "compiled", lambda: False)
    assert "no C compiler when the package was installed" in described(folder, shuffle=True).shuffle
    assert "no C compiler" not in described(folder, shuffle="splits").shuffle


def test_the_windows_of_a_shuffle_are_described(folder: Path) -> None:
    shown = described(folder, shuffle=True, split_rows=10)  # all of it fits
    assert shown.shuffle_window == ShuffleWindow(120, 12, 12)
    assert shown.batch_variance == 1
    assert "rows are permuted in one window of 120 rows: every order is equally likely" in shown.shuffle
    small = described(folder, shuffle=Shuffle(window_bytes=1200), split_rows=10, columns=["id"])
    assert small.shuffle_window is not None
    assert small.shuffle_window.splits == 2
    assert small.batch_variance == pytest.approx(1 + 8 / 2 * (1 - 2 / 12))
    assert "2 of 12 splits (batch variance up to 4.33 times" in small.shuffle
    (problem,) = problems(small)
    assert "shuffle window holds 2 of 12 splits" in problem
    assert described(folder, shuffle="splits").shuffle_window is None
    assert problems(described(folder, shuffle="splits"))[0].startswith("the rows are sorted by 'x'")


def test_an_empty_dataset_says_so(folder: Path) -> None:
    shown = described(folder, filters=[("id", "<", -1)], num_ranks=2, rank=0)
    assert problems(shown) == ["There is nothing to read."]
    assert (shown.files, shown.rows, shown.splits) == (0, 0, 0)
    assert [share.steps for share in shown.ranks] == [0, 0]


def test_it_does_not_settle_how_many_ranks_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, dataset = StructuredDataset.create_dataloader(str(folder), nulls="mask")
    shown = dataset.describe()
    assert (shown.num_ranks, shown.ranks_from) == (1, "default: no launcher detected")
    assert "rank" not in repr(loader) + repr(dataset)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (dataset.describe().num_ranks, dataset.describe().rank) == (3, 1)
    assert len(loader) == 1
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert (dataset.describe().num_ranks, dataset.describe().rank) == (3, 1)


def test_text_of_which_nothing_is_counted(tmp_path: Path) -> None:
    pyarrow.csv.write_csv(table(0, 40).select(["id", "city"]), tmp_path / "a.csv")
    shown = described(tmp_path, num_ranks=2, rank=0, collate_fn=list)
    assert (shown.rows, shown.rows_unfiltered) == (None, None)
    assert "rows known only after reading; count_rows=True counts them" in words(shown)
    assert shown.batch_type == "a dict of torch tensors, given to collate_fn"
    assert "1 of the 2 ranks has no rows in epoch 0 (rank 1)" in problems(shown)[0]


def test_many_keys_and_ranks_are_cut(tmp_path: Path) -> None:
    wide = pa.table({f"column_{number:03}_{'x' * number}": [1.0] for number in range(100)})
    pq.write_table(wide, tmp_path / "a.parquet")
    shown = described(tmp_path, num_ranks=1000, rank=700)
    assert len(shown.keys) == 100
    assert len(shown.ranks) == 1000
    lines = str(shown).splitlines()
    assert len(lines) <= 81
    assert max(map(len, lines)) <= 100
    assert any(line.split()[:3] == ["...", "60", "more"] for line in lines)
    assert any(line.split()[:3] == ["700", "(this", "one)"] for line in lines)
    assert any(line.split()[:2] == ["983", "more"] for line in lines)


def test_a_combination(folder: Path) -> None:
    _, files = StructuredDataset.create_dataloader(str(folder), columns=["id"])
    shown = combine([files, files], batch_size=10, num_ranks=2, rank=0).describe()
    assert (shown.dataset, shown.files, shown.rows, shown.segment_name) == ("CombinedDataset", 6, 240, "segment")
    assert [key.key for key in shown.keys] == ["id"]
    samples = combine([Utterances(40, total_shards=4, dist_world_size=1), Utterances(16, 4, 1)], batch_size=4).dataset
    shown = samples.describe()
    assert [(key.key, key.dtype, key.shape) for key in shown.keys] == [
        ("id", "int64", "[B]"),
        ("speech", "float32", "values [*], offsets [B + 1]"),
        ("text", "str", "list of B"),
    ]
    assert (shown.files, shown.rows, shown.stored_bytes) == (8, 56, 0)
    assert "stored" not in str(shown)
    assert combine([Plain(5)], output_format="arrow").describe().keys[0].dtype == "int64"


def test_a_table_with_deleted_rows(tmp_path: Path) -> None:
    files = {}
    for number, name in enumerate(["a", "b", "c"]):
        files |= data_file(tmp_path, f"{name}.parquet", range(number * 30, number * 30 + 30), deleted=[3, 4])
    commit(tmp_path, 1, files)
    shown = TableDataset.create_dataloader(LogTable(tmp_path), batch_size=10)[1].describe()
    assert (shown.dataset, shown.rows, shown.segments) == ("TableDataset", 84, 9)
    assert "snapshot 1" in words(shown)
    assert "sorted by 'id' and by 'x' and by 'day'" in problems(shown)[0]


class Everything:
    """Makes the shards of a rank itself."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Any]:
        from torch_dataloader_utils import Shard, Split

        return [Shard(0, tuple(Split(file, (0, file.record_count)) for file in files[rank::num_ranks]))]


def test_shards_that_a_strategy_makes_are_described_for_this_rank(folder: Path) -> None:
    shown = described(folder, split_strategy=Everything(), num_ranks=2, rank=1)
    assert [(share.rank, share.rows, share.steps) for share in shown.ranks] == [(1, 40, 5)]
    assert (shown.sharding, shown.num_ranks, shown.not_delivered) == ("Everything", 2, None)


def test_the_repr_of_loader_and_dataset(folder: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        str(folder), num_ranks=2, rank=1, batch_size=8, shuffle=True, nulls="mask"
    )
    dataset.set_epoch(3)
    assert repr(dataset) == (
        "<StructuredDataset: files 3, splits 3, rows 120; batch_size 8; rank 1 of 2, 5 steps in epoch 3>"
    )
    assert repr(loader) == f"<StructuredLoader of {repr(dataset)[1:]}"
    next(iter(loader))
    dataset.load_state_dict(loader.state_dict())
    assert "rank 1 of 2" in repr(loader)
    loader, _ = StructuredDataset.create_dataloader(str(folder), batch_size=8, nulls="mask")
    assert repr(loader) == "<StructuredLoader of StructuredDataset: files 3, splits 3, rows 120; batch_size 8>"


def test_a_repr_never_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, dataset = StructuredDataset.create_dataloader(str(folder), even="drop", batch_size=64, nulls="mask")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=r"num_ranks=4|4 ranks"):
        len(loader)  # there are fewer rows than a batch for each
    assert repr(dataset) == "<StructuredDataset: files 3, splits 3, rows 120; batch_size 64; rank unknown>"


def test_no_secret_is_shown(folder: Path) -> None:
    secret = "hunter2"
    loader, dataset = StructuredDataset.create_dataloader(
        str(folder), storage_options={"password": secret}, nulls="mask"
    )
    shown = dataset.describe()
    assert secret not in str(shown) + shown._repr_html_() + str(shown.to_dict()) + repr(loader)
