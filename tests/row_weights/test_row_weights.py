"""Loaders that draw rows by weights: the same everywhere, resumed by their digest, updated by the names of rows."""

from __future__ import annotations

import json
import logging
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from deltalake import write_deltalake

from tests.distributed.launching import run_ranks
from tests.iceberg.test_advance import config_of
from tests.iceberg.test_advance import table as table
from torch_dataloader_utils import (
    Delta,
    Files,
    Iceberg,
    Pack,
    Processes,
    Split,
    StructuredDataset,
    Subsets,
    Transform,
    Weights,
    combine,
    stream,
)
from torch_dataloader_utils.errors import CheckpointMismatchError, CountsRequiredError, OptionError

ROWS, FILES = 20, 3
EVERY = range(ROWS * FILES)
VALUES = np.arange(len(EVERY), dtype=np.float64) ** 2
PLAIN: dict[str, Any] = {"batch_size": 4, "num_ranks": 1, "rank": 0, "num_workers": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files of an id and a list of it, in row groups of five rows."""
    path = tmp_path_factory.mktemp("weighted")
    for file in range(FILES):
        rows = range(file * ROWS, file * ROWS + ROWS)
        table = pa.table({"id": rows, "ids": [[row] * (row % 7 + 1) for row in rows]})
        pq.write_table(table, path / f"{file}.parquet", row_group_size=5)
    return str(path)


@pytest.fixture
def open_loader(folder: str) -> Iterator[Callable[..., Any]]:
    """New loaders of the files, closed at the end."""
    made: list[Any] = []

    def opened(**options: Any) -> Any:
        made.append(stream(folder, **{"columns": ["id"], **PLAIN, **options}))
        return made[-1]

    yield opened
    for loader in made:
        loader.close()


def ids(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["id"][batch.get("valid", slice(None))].tolist()]


def check(seen: Counter[int], values: Any, rows: Any, number: int) -> None:
    """Each of these rows is drawn as often as its share, rounded down or up: so many in all."""
    total = float(np.sum(values))
    assert seen.total() == number
    for row, value in zip(rows, values, strict=True):
        share = number * value / total
        assert share - 1 - 1e-5 < seen[row] < share + 1 + 1e-5


# ----------------------------------------------------------------------------------------------------- where it is read


@pytest.mark.parametrize("mode", ["threads", Processes(), Processes(persistent=False)], ids=["threads", "kept", "new"])
def test_threads_and_processes_read_the_rows_of_the_calling_thread(open_loader: Callable[..., Any], mode: Any) -> None:
    shape = {"shuffle": True, "split_rows": 7, "shuffle_buffer_size": 10}
    inline = open_loader(**shape)
    other = open_loader(**shape, num_workers=2, worker_mode=mode)
    for loader in (inline, other):
        assert sorted(ids(loader)) == list(EVERY)
    for number in (None, 30, 150):  # weights are others in each epoch, of files that workers know
        for loader in (inline, other):
            loader.set_row_weights(np.roll(VALUES, number or 0), rows_per_epoch=number)
        for _ in range(2):
            expected = ids(inline)
            assert Counter(ids(other)) == Counter(expected)
            check(Counter(expected), np.roll(VALUES, number or 0), EVERY, number or len(EVERY))
    for loader in (inline, other):
        loader.set_row_weights(None)
        assert sorted(ids(loader)) == list(EVERY)
        assert loader.row_weights() is None


def test_worker_processes_stay_when_weights_change(open_loader: Callable[..., Any]) -> None:
    loader = open_loader(num_workers=1, worker_mode="processes")
    pools = []
    for epoch in range(3):
        loader.set_row_weights(np.roll(VALUES, epoch))
        ids(loader)
        pools.append(loader.dataset._passes._workers._pool)
    assert len(set(map(id, pools))) == 1
    assert not pools[0].closed


class Thirds:
    """A strategy that cuts within row groups."""

    def split(self, files: Any) -> list[Split]:
        return [Split(file.info, (a, b)) for file in files for a, b in ((0, 3), (3, 11), (11, ROWS))]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"filters": [("id", ">=", 23)], "count_rows": True, "shuffle": True}, range(23, 60)),
        ({"filters": [("id", ">=", 23)], "count_rows": True, "limit": 11}, range(23, 34)),
        ({"limit": 13}, range(13)),
        ({"split_strategy": Thirds(), "shuffle": True, "shuffle_buffer_size": 6, "num_workers": 2}, EVERY),
        ({"columns": ["id", "ids"], "batch_tokens": 20, "num_workers": 2, "shuffle": True}, EVERY),
        ({"sharding": "contiguous", "canonical_ranks": 2}, EVERY),
    ],
    ids=["filter", "limit of a filter", "limit", "splits within row groups", "batch_tokens", "canonical ranks"],
)
def test_what_is_chosen_is_drawn(open_loader: Callable[..., Any], options: dict[str, Any], rows: range) -> None:
    loader = open_loader(**options)
    loader.set_row_weights(VALUES[rows.start : rows.stop], rows_per_epoch=50)
    seen = [Counter(ids(loader)) for _ in range(2)]
    for each in seen:
        check(each, VALUES[rows.start : rows.stop], rows, 50)


def test_documents_are_drawn_before_they_are_packed(open_loader: Callable[..., Any]) -> None:
    loader = open_loader(columns=["ids"], pack=Pack(16))
    loader.set_row_weights(VALUES, rows_per_epoch=40)
    tokens: Counter[int] = Counter()
    for batch in loader:
        tokens.update(batch["ids"][batch["document_ids"] >= 0].tolist())
    check(Counter({row: tokens[row] // (row % 7 + 1) for row in tokens}), VALUES, EVERY, 40)


def test_a_combination_by_splits_has_one_list_of_rows(folder: str) -> None:
    parts = [stream(folder, columns=["id"], filters=keep, count_rows=True) for keep in (None, [("id", "<", 25)])]
    loader = combine(parts, batches="splits", shuffle=True, **PLAIN)
    values = np.concatenate([np.zeros(60), VALUES[:25]])
    loader.set_row_weights(values, rows_per_epoch=33)
    check(Counter(ids(loader)), VALUES[:25], range(25), 33)


def test_parts_of_a_combination_have_no_weights_of_their_own(open_loader: Callable[..., Any]) -> None:
    loader, other = open_loader(), open_loader()
    loader.set_row_weights(VALUES)
    with pytest.raises(OptionError, match="set_row_weights of the combination"):
        combine([loader, other], batches="splits", **PLAIN)
    within = combine([other, other], batches="splits", **PLAIN)
    within.set_row_weights(np.ones(120))
    with pytest.raises(OptionError, match="set_row_weights of the combination"):
        combine([within, other], batches="splits", **PLAIN)


def test_a_map_style_dataset_is_not_drawn(open_loader: Callable[..., Any]) -> None:
    samples = [{"id": torch.tensor(row)} for row in range(7)]
    loader = combine([open_loader(), samples], batches="splits", **PLAIN)
    with pytest.raises(OptionError, match="map-style"):
        loader.set_row_weights(np.ones(67))


def test_rows_of_weight_0_are_not_read(open_loader: Callable[..., Any]) -> None:
    loader = open_loader()
    ids(loader)
    whole = loader.metrics(total=True)["bytes_decoded"]
    loader.set_row_weights(np.where(np.arange(60) < 5, 1.0, 0.0), rows_per_epoch=60)
    assert Counter(ids(loader)) == Counter(list(range(5)) * 12)
    assert loader.metrics(total=True)["bytes_decoded"] - whole <= whole / 12


def test_ranks_get_equal_steps_and_len_is_exact(open_loader: Callable[..., Any]) -> None:
    ranks = [open_loader(num_ranks=3, rank=rank, even="pad", shuffle=True) for rank in range(3)]
    for loader in ranks:
        loader.set_row_weights(VALUES)
    for _ in range(3):
        lengths = {len(loader) for loader in ranks}
        assert len(lengths) == 1
        seen: Counter[int] = Counter()
        for loader in ranks:
            batches = list(loader)
            assert len(batches) in lengths
            seen.update(row for batch in batches for row in batch["id"][batch["valid"]].tolist())
        check(seen, VALUES, EVERY, 60)


# --------------------------------------------------------------------------------------------------------------- states


def test_a_call_during_a_pass_holds_from_the_next_epoch(open_loader: Callable[..., Any]) -> None:
    loader, plain = open_loader(shuffle=True), open_loader(shuffle=True)
    passing = iter(loader)
    first = next(passing)["id"].tolist()
    loader.set_row_weights(VALUES)
    assert loader.row_weights() is None
    rest = [row for batch in passing for row in batch["id"].tolist()]
    assert first + rest == ids(plain)
    assert loader.row_weights() is not None
    check(Counter(ids(loader)), VALUES, EVERY, 60)


def test_a_state_has_a_digest_and_needs_the_weights_again(open_loader: Callable[..., Any]) -> None:
    loader = open_loader(shuffle=True)
    loader.set_row_weights(VALUES, rows_per_epoch=33)
    ids(loader)
    passing = iter(loader)
    next(passing)
    state = json.loads(json.dumps(loader.state_dict()))
    saved = loader.row_weights()
    rest = [batch["id"].tolist() for batch in passing]
    assert len(json.dumps(state)) < 4000

    resumed = open_loader(shuffle=True)
    with pytest.raises(CheckpointMismatchError, match=r"loader\.row_weights\(\)"):
        resumed.load_state_dict(state)
    resumed.set_row_weights(saved)  # of another number of rows
    with pytest.raises(CheckpointMismatchError, match=r"33 of 60 rows.* in the state.*60 of 60 rows"):
        resumed.load_state_dict(state)
    resumed.set_row_weights(saved, rows_per_epoch=33)  # the remedy
    resumed.load_state_dict(state)
    assert [batch["id"].tolist() for batch in resumed] == rest

    before = open_loader(shuffle=True).state_dict()
    with pytest.raises(CheckpointMismatchError, match="nothing in the state"):
        resumed.load_state_dict(before)
    resumed.set_row_weights(None)
    resumed.load_state_dict(before)
    assert sorted(ids(resumed)) == list(EVERY)


def test_weights_of_a_state_can_be_set_in_the_middle_of_a_pass(open_loader: Callable[..., Any]) -> None:
    loader = open_loader(shuffle=True)
    loader.set_row_weights(VALUES)
    passing = iter(loader)
    next(passing)
    state, saved, rest = loader.state_dict(), loader.row_weights(), [batch["id"].tolist() for batch in passing]
    loader.set_row_weights(np.ones(60))
    live = iter(loader)
    next(live)
    loader.set_row_weights(saved)
    loader.load_state_dict(state)
    assert [batch["id"].tolist() for batch in loader] == rest
    loader.set_row_weights(np.arange(60.0))
    with pytest.raises(CheckpointMismatchError, match="row_weights"):
        loader.load_state_dict(state)


def test_a_copy_has_the_weights(open_loader: Callable[..., Any]) -> None:
    loader = open_loader(shuffle=True)
    loader.set_row_weights(VALUES)
    copy = pickle.loads(pickle.dumps(loader.dataset))
    assert (copy.row_weights() == loader.row_weights()).all()
    foreign = torch.utils.data.DataLoader(copy, batch_size=None, num_workers=2)
    assert Counter(ids(foreign)) == Counter(ids(loader))


# ----------------------------------------------------------------------------------------------------- updates by names


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_updates_by_the_names_of_rows(table: Any, tmp_path: Path, deleted: bool, named: bool) -> None:
    """Through deletes, a filter and a limit; files by number, or by what their codes stand for."""
    left = [row for row in range(100) if not deleted or row % 10 != 3]
    if deleted:
        table.delete(" or ".join(f"id == {row}" for row in range(3, 100, 10)))
    source = Iceberg("ns.t", catalog=config_of(tmp_path), metadata_columns=["_file", "_pos", "_draws"])
    kept = [row for row in left if row >= 15][:70]
    options = {**PLAIN, "filters": [("id", ">=", 15)], "count_rows": True, "limit": 70, "shuffle": True}
    loader = stream(source, strings={"_file": "codes"}, **options)
    rows = {
        row: (code, place)
        for batch in loader
        for row, code, place in zip(batch["id"].tolist(), batch["_file"].tolist(), batch["_pos"].tolist(), strict=True)
    }
    assert sorted(rows) == kept
    chosen = kept[::7]
    codes, places = (torch.tensor(part) for part in zip(*(rows[row] for row in chosen), strict=True))
    if not named:
        names = loader.vocabulary("_file")
        loader = stream(source, columns=["id"], **options)
        numbers = {file.layout.metadata.table_path: at for at, file in enumerate(loader.dataset._source.files)}
        codes = torch.tensor([numbers[names[code]] for code in codes])
    loader.set_row_weights(np.full(len(chosen), 5.0), rows=(codes, places))
    loader.set_row_weights([0.0, 3.0], rows=(codes[:2], places[:2]))
    loader.set_row_weights([1.0, 2.0], rows=(codes[[2, 2]], places[[2, 2]]), rows_per_epoch=40)
    weights = dict.fromkeys(kept, 1.0) | dict.fromkeys(chosen, 5.0)
    weights |= dict(zip(chosen, [0.0, 3.0, 2.0], strict=False))
    assert loader.row_weights() == pytest.approx(list(weights.values()))
    check(Counter(ids(loader)), list(weights.values()), kept, 40)
    with pytest.raises(OptionError, match="row 99999 is not read"):
        loader.set_row_weights([1.0], rows=(codes[:1], [99_999]))
    with pytest.raises(OptionError, match="no file -1"):
        loader.set_row_weights([1.0], rows=([-1], [0]))


def test_the_share_of_a_row_is_a_column(table: Any, tmp_path: Path) -> None:
    del table
    source = Iceberg("ns.t", catalog=config_of(tmp_path), metadata_columns=["_draws"])
    for options in ({}, {"num_workers": 2, "shuffle": True}, {"filters": [("id", ">=", 0)], "count_rows": True}):
        loader = stream(source, **{**PLAIN, **options})
        assert all(batch["_draws"].tolist() == [1.0] * len(batch["id"]) for batch in loader)
        values = np.arange(100.0) + 1
        loader.set_row_weights(values, rows_per_epoch=70)
        shares = {row: share for b in loader for row, share in zip(b["id"].tolist(), b["_draws"].tolist(), strict=True)}
        order = dict(zip(ids(stream(source, **PLAIN)), values, strict=True))
        assert shares == pytest.approx({row: 70 * order[row] / 5050 for row in shares}, rel=1e-5)
        assert loader.head(1)["_draws"].dtype == torch.float32
        loader.close()
    with pytest.raises(OptionError, match="decides nothing"):
        stream(source, filters=[("_draws", ">", 1)], **PLAIN)


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta"])
def test_the_share_of_a_row_of_files_is_a_column(tmp_path: Path, kind: str) -> None:
    rows = pa.table({"id": np.arange(100), "x": np.arange(100.0)})
    added = ["_draws", "_pos"]
    if kind == "delta":
        write_deltalake(str(tmp_path / "t"), rows)
        source: Any = Delta(tmp_path / "t", metadata_columns=added)
    else:
        write = pacsv.write_csv if kind == "csv" else pq.write_table
        write(rows, tmp_path / f"rows.{kind}")
        source = Files(tmp_path, metadata_columns=added)
    for options in ({}, {"num_workers": 2, "shuffle": True}, {"columns": ["id", "_draws"]}):
        loader = stream(source, count_rows=True, **{**PLAIN, **options})
        assert all(batch["_draws"].tolist() == [1.0] * len(batch["id"]) for batch in loader)
        loader.set_row_weights(np.arange(100.0) + 1, rows_per_epoch=70)
        shares = {row: share for b in loader for row, share in zip(b["id"].tolist(), b["_draws"].tolist(), strict=True)}
        assert shares == pytest.approx({row: 70 * (row + 1) / 5050 for row in shares}, rel=1e-5)
        loader.close()


def test_rows_of_text_have_their_numbers(tmp_path: Path) -> None:
    for file in range(2):
        pacsv.write_csv(pa.table({"id": range(file * 10, file * 10 + 10)}), tmp_path / f"{file}.csv")
    loader = stream(str(tmp_path), count_rows=True, **PLAIN)
    loader.set_row_weights([0.0] * 19, rows=([0] * 10 + [1] * 9, [*range(10), *range(9)]))
    assert ids(loader) == [19] * 20
    filtered = stream(str(tmp_path), count_rows=True, filters=[("id", ">", 3)], **PLAIN)
    with pytest.raises(CountsRequiredError, match="give the weights of all rows"):
        filtered.set_row_weights([1.0], rows=([0], [5]))


@pytest.mark.slow
def test_ranks_join_their_updates_and_their_errors(folder: str, tmp_path: Path) -> None:
    found = run_ranks(Path(__file__).parent / "weight_jobs.py", [folder, str(tmp_path)], tmp_path, 2)
    one, other = found
    expected = np.ones(60)
    expected[[0, 1, 22, 59]] = [2.0, 7.0, 7.0, 0.5]
    assert one["weights"] == other["weights"] == expected.tolist()
    check(Counter(one["ids"] + other["ids"]), expected, EVERY, 60)
    assert "row 20 is not read" in other["failed"]
    assert "rank 1" in one["failed"]
    assert "row 20 is not read" in one["failed"]
    assert all("set the same row weights" in each["differ"] for each in found)
    assert one["after"] == other["after"] == expected.tolist()  # what failed has changed nothing


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"class_weights": {"id": {1: 2.0}}}, OptionError, "Leave out class_weights"),
        ({"filters": [("id", ">=", 23)]}, CountsRequiredError, "count_rows=True"),
        ({"transform": Transform(lambda rows: rows, rows="any")}, CountsRequiredError, "transform may change"),
        ({"columns": ["ids"], "pack": Pack(16, method="wrap"), "count_rows": True}, OptionError, "Pack"),
    ],
)
def test_what_decides_itself_how_often_rows_are_read(
    open_loader: Callable[..., Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        open_loader(**options).set_row_weights(VALUES)
    for remedy in raised.value.remedies:  # each works
        loader = open_loader(**remedy.applied(options))
        loader.set_row_weights(np.ones(37 if "filters" in options else 60))
        next(iter(loader))


def test_a_mix_decides_how_many_rows_it_takes_of_each_dataset(folder: str) -> None:
    parts = [stream(folder, columns=["id"]) for _ in range(2)]
    with pytest.raises(OptionError, match="batches='splits'") as raised:
        combine(parts, weights=Weights([1, 2]), **PLAIN).set_row_weights(np.ones(120))
    (remedy,) = raised.value.remedies
    loader = combine(parts, **remedy.applied(PLAIN))
    loader.set_row_weights(np.ones(120))
    assert Counter(ids(loader)) == Counter([*EVERY, *EVERY])


def test_a_loader_that_follows_reads_each_row_once(table: Any, tmp_path: Path) -> None:
    del table
    source = Iceberg("ns.t", catalog=config_of(tmp_path))
    with pytest.raises(OptionError, match="Leave out follow"):
        stream(source.replace(follow=True), **PLAIN).set_row_weights(np.ones(100))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [1.0]}, r"shape \[60\]"),
        ({"values": np.ones(60), "rows_per_epoch": 0}, "rows_per_epoch=0"),
        ({"values": np.ones(60), "rows_per_epoch": 1.5}, "rows_per_epoch=1.5"),
        ({"values": None, "rows": ([0], [0])}, "expected nothing else"),
        ({"values": [1.0], "rows": [0]}, "a pair"),
        ({"values": [1.0], "rows": ([0], [0, 1])}, "a pair"),
        ({"values": [1.0], "rows": ([0.5], [0])}, "a pair"),
        ({"values": [1.0, 2.0], "rows": ([0], [0])}, r"shape \[1\]"),
        ({"values": [1.0], "rows": ([3], [0])}, "no file 3"),
        ({"values": [1.0], "rows": ([0], [20])}, "row 20 is not read"),
    ],
)
def test_wrong_arguments(open_loader: Callable[..., Any], arguments: dict[str, Any], message: str) -> None:
    loader = open_loader()
    with pytest.raises(ValueError, match=message):
        loader.set_row_weights(arguments.pop("values"), **arguments)
    assert loader.row_weights() is None


def test_no_rows_to_update_is_no_error(open_loader: Callable[..., Any]) -> None:
    loader = open_loader()
    loader.set_row_weights([], rows=([], []))
    assert loader.row_weights().tolist() == [1.0] * 60


def test_rows_of_a_batch_are_no_range(open_loader: Callable[..., Any]) -> None:
    loader = open_loader()
    loader.set_row_weights(VALUES)
    with pytest.raises(OptionError, match="'_pos'"):
        loader.rows_of(0, 0)


def test_description_and_plan_page(open_loader: Callable[..., Any], tmp_path: Path) -> None:
    loader = open_loader(shuffle=True)
    loader.set_row_weights(VALUES, rows_per_epoch=33)
    text = str(loader.describe())
    assert "each epoch draws 33 of 60 rows, 59 of which have a weight above 0" in text
    assert loader.describe(4).rows == 33
    assert "rows are drawn by weights" in loader.plan_page(tmp_path / "plan.html").read_text()


def test_a_table_that_moves_has_no_weights(table: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = stream(Iceberg("ns.t", catalog=config_of(tmp_path)), **PLAIN)
    loader.set_row_weights(np.ones(100))
    table.append(pa.table({"id": range(100, 110), "x": [0] * 10}))
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        assert loader.dataset.advance()
    assert "row weights" in caplog.text
    assert loader.row_weights() is None
    assert len(ids(loader)) == 110


def test_a_subset_by_key_is_drawn_if_its_rows_are_counted(folder: str) -> None:
    side = Subsets({"train": 0.6, "val": 0.4}, by="id")["train"]
    loader, _ = StructuredDataset.create_dataloader(folder, columns=["id"], subset=side, count_rows=True, **PLAIN)
    rows = ids(loader)
    loader.set_row_weights(VALUES[rows], rows_per_epoch=45)
    check(Counter(ids(loader)), VALUES[rows], rows, 45)
