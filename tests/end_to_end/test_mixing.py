"""Mixed datasets, from files to batches: exact quotas on all ranks, laps, equal steps, resume, elasticity."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from tests.end_to_end.sharded import Plain, ids
from torch_dataloader_utils import StructuredDataset, Weights, combine
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    CountsRequiredError,
    EmptyDatasetError,
    OptionError,
    ShardingError,
)
from torch_dataloader_utils.iteration.passes import Passes

ROWS = {"web": 61, "code": 23, "books": 11}
FIRST = {"web": 0, "code": 1000, "books": 2000}
EQUAL = dict.fromkeys(ROWS, 1)
PARTS: dict[Path, StructuredDataset] = {}
MIX: dict[str, Any] = {"batch_size": 5, "split_rows": 6, "shuffle": True, "shuffle_buffer_size": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mix")
    for name, rows in ROWS.items():
        numbers = np.arange(FIRST[name], FIRST[name] + rows)
        words = [f"{name} {number}" for number in numbers]
        table = pa.table({"id": numbers, "word": words, "tokens": [[n] * (n % 3) for n in numbers]})
        pq.write_table(table, path / f"{name}.parquet", row_group_size=3)
    return path


def parts(folder: Path, names: Any = ROWS, **options: Any) -> dict[str, StructuredDataset]:
    return {name: part(folder / f"{name}.parquet", **options) for name in names}


def part(path: Path, **options: Any) -> StructuredDataset:
    """The dataset of a file; one without options may be part of any combination."""
    if options:
        return StructuredDataset.create_dataloader(path, **options)[1]
    if path not in PARTS:
        PARTS[path] = StructuredDataset.create_dataloader(path)[1]
    return PARTS[path]


def source(row: int) -> str:
    return "web" if row < 1000 else "code" if row < 2000 else "books"


def counts(batch: Any) -> dict[str, int]:
    return dict(Counter(map(source, batch["id"].tolist())))


def on_ranks(folder: Path, ranks: int, epoch: int = 0, names: Any = ROWS, **options: Any) -> list[list[Any]]:
    """The batches of each rank; every value of a row is checked."""
    found = []
    for rank in range(ranks):
        loader = combine(parts(folder, names), num_ranks=ranks, rank=rank, **options)
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader) == loader.plan(epoch).steps
        assert sum(len(batch["id"]) for batch in real(batches)) == loader.plan(epoch).rows
        for batch in batches:
            check_values(batch)
        found.append(batches)
        loader.close()
    return found


def check_values(batch: Any) -> None:
    rows = batch["id"].tolist()
    assert batch["word"] == [f"{source(row)} {row}" for row in rows]
    assert batch["tokens"]["offsets"].diff().tolist() == [row % 3 for row in rows]
    assert batch["tokens"]["values"].tolist() == [row for row in rows for _ in range(row % 3)]


def real(batches: list[Any]) -> Iterator[Any]:
    for batch in batches:
        yield {"id": batch["id"][batch["valid"]] if "valid" in batch else batch["id"]}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_has_rows_of_each_dataset_in_proportion(folder: Path, ranks: int, workers: int) -> None:
    """Of each dataset, the global batches have its share within 2 rows, and each batch its part of the global one."""
    found = on_ranks(folder, ranks, num_workers=workers, **MIX)
    assert sorted(row for batches in found for row in ids(batches)) == sorted(
        FIRST[name] + row for name, rows in ROWS.items() for row in range(rows)
    )
    total = sum(ROWS.values())
    so_far: Counter[str] = Counter()
    for batches in zip_longest(*found):
        step = Counter(source(row) for batch in batches if batch is not None for row in batch["id"].tolist())
        so_far.update(step)
        for name, rows in ROWS.items():
            assert abs(so_far[name] - Fraction(so_far.total() * rows, total)) <= 2
            of_ranks = [counts(batch).get(name, 0) if batch is not None else 0 for batch in batches]
            assert set(of_ranks) <= {step[name] // ranks, -(-step[name] // ranks)}


def test_no_global_batch_holds_a_burst(folder: Path) -> None:
    """A small dataset comes as evenly over the steps of all ranks as over those of one."""
    mix = {"rows_per_epoch": 240, "weights": {"web": 9, "code": 1}, "batch_size": 1, "shuffle": True}
    found = on_ranks(folder, 8, 0, ["web", "code"], **mix)
    steps = [sum(counts(batch).get("code", 0) for batch in batches) for batches in zip(*found, strict=True)]
    assert len(steps) == 30
    assert sum(steps) == 24
    assert set(steps) <= {0, 1}
    of_ranks = [sum(counts(batch).get("code", 0) for batch in batches) for batches in found]
    assert max(of_ranks) <= 3 + 3 * 30**0.5 / 2


def test_workers_and_processes_do_not_change_the_order(folder: Path) -> None:
    options = {**MIX, "stop": "all"}
    found = [
        ids(on_ranks(folder, 1, **options, **worker)[0])
        for worker in ({"num_workers": 0}, {}, {"num_workers": 2}, {"num_workers": 2, "worker_mode": "processes"})
    ]
    assert all(rows == found[0] for rows in found[1:])
    assert ids(on_ranks(folder, 1, 1, **options)[0]) != found[0]


def test_more_processes_than_datasets_read_two_passes_and_a_part_of_one(folder: Path) -> None:
    names = ["web", "code"]
    (expected,) = on_ranks(folder, 1, 0, names, num_workers=0, **MIX)
    workers: dict[str, Any] = {"num_workers": 3, "worker_mode": "processes"}
    loader = combine(parts(folder, names), num_ranks=1, rank=0, **workers, **MIX)
    loader.set_epoch(0)
    assert ids([next(iter(loader))]) == ids(expected[:1])
    for _ in range(2):
        loader.set_epoch(0)
        assert ids(loader) == ids(expected)
    loader.close()


@pytest.mark.parametrize("shuffle", [False, "splits", True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_row_before_any_twice_within_and_across_epochs(folder: Path, ranks: int, shuffle: Any) -> None:
    """`code` is repeated 3.5 times an epoch, `web` is read in part: after any number of epochs, counts differ by 1."""
    mix = {"rows_per_epoch": 120, "weights": {"web": 1, "code": 2}, "batch_size": 10, "shuffle": shuffle}
    taken: Counter[int] = Counter()
    for epoch in range(3):
        found = on_ranks(folder, ranks, epoch, ["web", "code"], split_rows=6, **mix)
        rows = [row for batches in found for row in ids(batches)]
        assert Counter(map(source, rows)) == {"web": 40, "code": 80}
        taken.update(rows)
        for name in ("web", "code"):
            times = [taken[FIRST[name] + row] for row in range(ROWS[name])]
            assert max(times) - min(times) <= 1


def test_laps_have_orders_of_their_own(folder: Path) -> None:
    (batches,) = on_ranks(folder, 1, 0, ["code"], repeat={"code": 3}, **{**MIX, "batch_size": 23})
    laps = [tuple(batch["id"].tolist()) for batch in batches]
    assert len(set(laps)) == 3
    assert all(sorted(lap) == list(range(1000, 1023)) for lap in laps)


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_take_equal_steps(folder: Path, ranks: int, even: str) -> None:
    found = on_ranks(folder, ranks, even=even, **MIX)
    assert len({len(batches) for batches in found}) == 1
    assert {len(batch["id"]) for batches in found for batch in batches} == {5}
    rows = [row for batches in found for row in ids(list(real(batches)))]
    total = sum(ROWS.values())
    assert len(set(rows)) == len(rows) == (total - total % (5 * ranks) if even == "drop" else total)


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"stop": "all", "weights": dict.fromkeys(ROWS, 1)},
        {"batches": "single", "weights": dict.fromkeys(ROWS, 1)},
        {"rows_per_epoch": 47},
        {"rows_per_epoch": 47, "shuffle": False},
    ],
    ids=str,
)
def test_full_steps_leave_no_row_out_for_ever(folder: Path, mode: dict[str, Any]) -> None:
    """Each epoch leaves out up to 9 rows, but after any number of epochs, a dataset's rows came equally often."""
    taken: Counter[int] = Counter()
    for epoch in range(6):
        found = on_ranks(folder, 2, epoch, even="drop", **{**MIX, **mode})
        assert {len(batch["id"]) for batches in found for batch in batches} == {5}
        rows = [row for batches in found for row in ids(batches)]
        assert mode.keys() & {"stop", "rows_per_epoch"} or len(set(rows)) == len(rows)
        taken.update(rows)
        for name in ROWS:
            times = [taken[FIRST[name] + row] for row in range(ROWS[name])]
            assert max(times) - min(times) <= 1


@pytest.mark.parametrize(
    "mode",
    [
        {"rows_per_epoch": 95},
        {"repeat": {"books": 1}},
        {"stop": "first"},
        {"stop": "all"},
        {"repeat": {"books": 1}, "weights": [(0, EQUAL), (3, {**EQUAL, "web": 2})]},
    ],
    ids=str,
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_epochs_that_happen_to_have_every_row_leave_none_out_for_ever(
    folder: Path, mode: dict[str, Any], shuffle: bool
) -> None:
    taken: Counter[int] = Counter()
    for epoch in range(7):
        found = on_ranks(folder, 2, epoch, even="drop", **{**MIX, "shuffle": shuffle, "batch_size": 7, **mode})
        taken.update(row for batches in found for row in ids(batches))
    for name in ROWS:
        times = [taken[FIRST[name] + row] for row in range(ROWS[name])]
        assert max(times) - min(times) <= 1
        assert min(times) >= 5


def test_a_dataset_smaller_than_a_step_may_be_part_of_a_mix_of_every_row(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"batches": "single", "even": "drop", "batch_size": 6, "num_ranks": 2, "rank": 0, "num_workers": 0}
    with caplog.at_level("WARNING", "torch_dataloader_utils"):
        loader = combine(parts(folder), **options)
    assert (
        "takes N=11 rows of dataset 'books', which fill no batch of B=6 on R=2 ranks: it is never read" in caplog.text
    )
    assert len(ids(loader)) == (61 // 12 + 23 // 12) * 6
    nothing = parts(folder, ["books"], filters=[("id", "<", 0)], count_rows=True)
    loader = combine({**parts(folder, ["web"]), **nothing}, **options)
    assert len(ids(loader)) == 61 // 12 * 6


def test_a_resumed_run_of_full_steps_continues_where_it_was(folder: Path) -> None:
    """Interrupted in epoch 1 and resumed on as many ranks, each row still comes before any comes twice."""
    mode = {"rows_per_epoch": 47, "even": "drop"}
    found, state = run(folder, 2, 2, None, **mode)  # begins with epoch 1
    more, state = run(folder, 2, None, state, **mode)
    following, _ = run(folder, 2, None, state, **mode)
    assert len(found + more) == len(following) == 40
    taken = Counter([*ids_of_epoch(folder, 0, **mode), *found, *more, *following])
    for name in ROWS:
        times = [taken[FIRST[name] + row] for row in range(ROWS[name])]
        assert max(times) - min(times) <= 1


def ids_of_epoch(folder: Path, epoch: int, **options: Any) -> list[int]:
    return [row for batches in on_ranks(folder, 2, epoch, **{**MIX, **options}) for row in ids(batches)]


def test_single_batches_are_of_one_dataset_the_same_on_all_ranks(folder: Path) -> None:
    found = on_ranks(folder, 2, batches="single", even="drop", weights={**EQUAL, "web": 2}, stop="all", **MIX)
    orders = [[counts(batch) for batch in batches] for batches in found]
    assert orders[0] == orders[1]
    assert all(len(batch) == 1 and sum(batch.values()) == 5 for batch in orders[0])
    (alone,) = on_ranks(folder, 1, batches="single", **MIX)
    assert sorted(ids(alone)) == sorted(FIRST[name] + row for name, rows in ROWS.items() for row in range(rows))
    assert sum(len(batch["id"]) < 5 for batch in alone) == 3  # a last batch for each


MODES: list[dict[str, Any]] = [
    {"stop": "all", "weights": EQUAL, "even": "pad"},
    {"batches": "single", "stop": "all"},
    {"rows_per_epoch": 90, "even": "drop"},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_resume_at_every_step_is_exact(folder: Path, mode: dict[str, Any]) -> None:
    options = {**MIX, **mode, "num_ranks": 2, "rank": 1, "num_workers": 0}
    loader = combine(parts(folder), **options)
    loader.set_epoch(1)
    expected, states = [], []
    for batch in loader:
        expected.append(batch["id"].tolist())
        states.append(loader.state_dict())
    resumed = combine(parts(folder), **options)
    for step, state in enumerate(states[:-1], 1):
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == expected[step:]
        if step < 3:
            assert resumed.dataset.rows_of(1, step - 1) == loader.dataset.rows_of(1, step - 1)
    resumed.load_state_dict(states[-1])
    assert list(resumed) == []


@pytest.mark.parametrize(
    ("mode", "ranks", "then"), [*((mode, 2, 3) for mode in MODES), ({}, 1, 3), ({}, 2, 1), ({}, 3, 2)], ids=str
)
def test_an_elastic_resume_delivers_each_row_as_often_as_planned(
    folder: Path, mode: dict[str, Any], ranks: int, then: int
) -> None:
    """Twice in a row, in the middle of windows and laps, to another number of ranks and another batch size."""
    whole = Counter(planned(folder, **{**mode, "even": "none"}))
    taken, state = run(folder, ranks, 3, None, **mode)
    for now, size in ((then, 4), (ranks, 3)):
        more, state = run(folder, now, 2, state, **{**mode, "batch_size": size})
        taken += more
    rest, _ = run(folder, 1, None, state, **{**mode, "even": "none"})
    assert Counter(taken + rest) == whole


def planned(folder: Path, **options: Any) -> list[int]:
    return ids(on_ranks(folder, 1, 1, **{**MIX, **options})[0])


def run(folder: Path, ranks: int, steps: int | None, state: Any, **options: Any) -> tuple[list[int], Any]:
    """The rows of a few steps on all ranks, and the state after them."""
    taken: list[int] = []
    for rank in range(ranks):
        loader = combine(parts(folder), num_ranks=ranks, rank=rank, num_workers=0, **{**MIX, **options})
        if state is None:
            loader.set_epoch(1)
        else:
            loader.load_state_dict(state)
        batches = [batch for _, batch in zip(range(steps or 1000), loader, strict=False)]
        taken += ids(list(real(batches)))
        after = loader.state_dict()
    return taken, after


def test_changed_weights_begin_a_new_phase_of_the_same_rows(folder: Path) -> None:
    taken, state = run(folder, 1, 4, None, weights=EQUAL)
    rest, _ = run(folder, 1, None, state, weights={**EQUAL, "web": 5})
    assert Counter(taken + rest) == Counter(planned(folder))
    assert 12 <= sum(row < 1000 for row in rest[:18]) <= 14  # 5 of 7
    with pytest.raises(CheckpointMismatchError, match="mixed by rows"):
        run(folder, 1, None, state, batches="splits")


def test_skipped_steps_keep_the_quotas(folder: Path) -> None:
    (expected,) = on_ranks(folder, 1, **MIX)
    loader = combine(parts(folder), num_ranks=1, rank=0, **MIX)
    loader.skip_steps(2, 6)
    assert ids(loader) == ids([*expected[:2], *expected[6:]])


def test_laps_are_those_of_all_ranks_and_epochs(folder: Path) -> None:
    wanted = dict.fromkeys(ROWS, 1.5)
    laps: dict[str, list[float]] = {name: [] for name in ROWS}
    for rank in range(2):
        loader = combine(parts(folder), repeat=wanted, num_ranks=2, rank=rank, batch_size=7)
        epochs = [list(loader) and loader.metrics() for _ in range(2)]
        for name in ROWS:
            laps[name].append(loader.metrics(total=True)[f"laps/{name}"])
            assert laps[name][-1] == pytest.approx(sum(epoch[f"laps/{name}"] for epoch in epochs))
    for name, rows in ROWS.items():  # ranks differ by a row in each epoch
        assert laps[name] == pytest.approx([3, 3], abs=5 / rows)
        assert sum(laps[name]) / 2 == pytest.approx(2 * (rows * 3 // 2) / rows)


def test_metrics_and_a_column_name_the_datasets(folder: Path) -> None:
    loader = combine(parts(folder), source_key="source", num_ranks=1, rank=0, **MIX)
    for batch in loader:
        names = [sorted(ROWS)[number] for number in batch["source"].tolist()]
        assert names == [source(row) for row in batch["id"].tolist()]
    metrics = loader.metrics(total=True)
    assert {name: metrics[f"rows/{name}"] for name in ROWS} == ROWS
    assert {metrics[f"laps/{name}"] for name in ROWS} == {1.0}
    assert loader.describe().keys[-1].dtype == "int64"
    arrow = combine(parts(folder, output_format="arrow"), source_key="source", output_format="arrow", even="pad")
    table = pa.Table.from_batches(list(arrow))
    assert table["source"].to_pylist() == [source(row) for row in table["id"].to_pylist()]
    numbered = combine([Plain(4), Plain(4, first=4)], source_key="source", batch_size=4, worker_mode="processes",
                          num_workers=1)  # fmt: skip
    assert [batch["source"].tolist() for batch in numbered] == [[0, 0, 1, 1]] * 2


def test_datasets_may_be_loaders_and_paths(folder: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder / "web.parquet")
    mixed = combine({"web": loader, "code": folder / "code.parquet"}, weights={"web": 3, "code": 1})
    assert len(ids(mixed)) == 84
    assert mixed.describe().mix == "each batch has rows of each: 27.4% 'code' (23 rows), 72.6% 'web' (61 rows)"
    repeated = combine([folder / "web.parquet", folder / "code.parquet"], batches="single", stop="all", weights=[1, 1])
    assert repeated.describe().mix == "each batch is of one: 50.4% 0 (61 rows), 49.6% 1 (60 rows, 2.61 laps)"


def test_merged_splits_are_described(folder: Path, tmp_path: Path) -> None:
    def mix(**options: Any) -> str:
        return combine(parts, batches="splits", num_ranks=1, rank=0, **options).describe().mix

    parts: Any = {"web": folder / "web.parquet", "code": folder / "code.parquet"}
    in_proportion = "splits are merged in proportion to their size: 27.4% 'code' (23 rows), 72.6% 'web' (61 rows)"
    assert mix() == in_proportion
    by_weight = "splits are merged by weight, until one of them ends: 75.0% 'code' (23 rows), 25.0% 'web' (61 rows)"
    assert mix(weights={"web": 1, "code": 3}) == by_weight
    filtered = StructuredDataset.create_dataloader(folder / "web.parquet", filters=[("id", ">", 3)], columns=["id"])
    (tmp_path / "more.csv").write_text("id\n1\n2\n")
    parts = {"web": filtered, "more": tmp_path / "more.csv"}
    assert mix() == (
        "splits are merged in proportion to their size: 'more' (rows known only after reading), 'web' (58 rows before "
        "filters)"
    )
    assert combine({"web": filtered}, batches="splits", num_ranks=1, rank=0).describe().mix == ""


def test_the_subsets_of_datasets_are_named(folder: Path) -> None:
    def part(name: str, **options: Any) -> Any:
        return StructuredDataset.create_dataloader(folder / f"{name}.parquet", **options)[1]

    def subset(datasets: Any) -> str:
        return combine(datasets, num_ranks=1, rank=0).describe().subset

    web, code = part("web", limit=5), part("code", fraction=0.5)
    inner = combine({"web": web, "books": part("books")})
    sample = "fraction 0.5, rows by place"
    assert subset({"text": inner, "code": code}) == (
        f"'code': {sample}; 'text/books': all rows; 'text/web': the first 5 rows"
    )
    assert subset([part("web"), code]) == f"0: all rows; 1: {sample}"
    assert subset({"web": part("web"), "code": part("code")}) == ""


def test_a_dataset_may_be_a_list_of_paths_and_not_a_dict(folder: Path) -> None:
    files = [folder / "web.parquet", str(folder / "code.parquet")]
    loader = combine({"text": files, "books": (folder / "books.parquet",)}, num_ranks=1, rank=0)
    assert sorted(ids(loader)) == sorted(FIRST[name] + row for name, rows in ROWS.items() for row in range(rows))
    assert "'text' (84 rows)" in loader.describe().mix
    with pytest.raises(OptionError, match=r"dataset 'text' is dict: .*pass combine\({...}\)"):
        combine({"text": {"web": files[0]}, "books": folder / "books.parquet"})


def test_shuffled_halves_are_mixed_without_further_options(folder: Path) -> None:
    loader = combine([folder / "web.parquet", folder / "code.parquet"], weights=[1, 1], shuffle=True, batch_size=10)
    assert [counts(batch) for batch in loader][:4] == [{"web": 5, "code": 5}] * 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": {"web": 1}}, OptionError, "for each of 'books', 'code', 'web', but 'books', 'code' have none"),
        ({"weights": {"web": 1, "code": 1, "books": 1, "x": 1}}, OptionError, "but 'x' is not a dataset"),
        ({"weights": [1, 2]}, OptionError, "for 3 dataset"),
        ({"weights": [1, 2, 3]}, OptionError, "in a list, but datasets is a dict, whose order has no meaning"),
        ({"repeat": [1, 2, 3]}, OptionError, "for each name, repeat={'books': ...}"),
        ({"repeat": {"wbe": 2}}, OptionError, "for some of .* but 'wbe' is not a dataset"),
        (
            {"stop": "all", "repeat": {"web": 2}},
            OptionError,
            "repeat={'web': 2} with stop='all': each decides how long an epoch is",
        ),
        (
            {"weights": {"kind": "weights", "values": [1, 1, 1], "temperature": 2}},
            OptionError,
            "temperature=2 with values",
        ),
        ({"batches": "splits", "stop": "all"}, OptionError, "stop='all' with batches='splits'"),
        ({"batches": "splits", "source_key": "s"}, OptionError, "source_key='s' with batches='splits'"),
        ({"rows_per_epoch": 10**6, "weights": Weights(max_repeats=2)}, OptionError, "give at most 190 rows"),
        ({"sharding": "rotate"}, OptionError, "sharding='rotate' with batches='proportional'.*batches='splits'"),
        ({"canonical_ranks": 4}, OptionError, "canonical_ranks=4 with batches"),
        ({"steps_per_epoch": 4}, OptionError, r"rows_per_epoch=steps \* batch_size \* ranks and even='drop'"),
        ({"last_batch": "wrap"}, OptionError, "last_batch='wrap' with batches"),
        ({"batches": "single", "even": "pad"}, OptionError, "even='pad' with batches='single'"),
        ({"source_key": "word"}, OptionError, "source_key='word' is already a key"),
        ({"even": "drop", "batch_size": 96, "num_ranks": 1, "rank": 0}, ShardingError, "N=95 rows in an epoch"),
        (
            {"batches": "single", "even": "drop", "batch_size": 6, "num_ranks": 2, "rank": 1, "stop": "first"},
            ShardingError,
            "takes N=11 rows of dataset 'books', which fill no batch of B=6 on R=2 ranks",
        ),
        (
            {"batches": "single", "last_batch": "drop", "batch_size": 24, "num_ranks": 1, "rank": 0, "stop": "first"},
            ShardingError,
            "last_batch='drop' with batches='single': an epoch takes N=11 rows of dataset 'books'",
        ),
        ({"weights": {"kind": "weights", "max_repeats": 0.5}}, OptionError, "a number of at least 1"),
        ({"weights": [10**400, 1, 1]}, OptionError, "expected a positive number"),
        ({"weights": [2, 1, 0]}, OptionError, "Leave out a dataset of which no row is wanted"),
        ({"repeat": {"web": 0.001, "code": 0.01, "books": 0.01}}, OptionError, "an epoch would have no row"),
        ({"stop": "all", "weights": {**EQUAL, "books": 10**-9}}, OptionError, "at most 10,000 repeats"),
    ],
    ids=str,
)
def test_what_cannot_be_mixed_is_an_error_at_construction(
    folder: Path, options: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        combine(parts(folder), **options)


def test_the_order_of_names_decides_and_not_that_of_a_dict(folder: Path) -> None:
    """Writers of YAML sort keys: a run that continues from such a file has the same rows, and takes the states."""
    found = []
    for names in (list(ROWS), sorted(ROWS)):
        weights = {name: ROWS[name] // 10 for name in names}
        options: dict[str, Any] = {**MIX, "weights": weights, "stop": "all", "source_key": "source", "num_workers": 0}
        loader = combine(parts(folder, names), num_ranks=1, rank=0, **options)
        found.append((loader, [(batch["id"].tolist(), batch["source"].tolist()) for batch in loader]))
    assert found[0][1] == found[1][1]
    (loader, _), (other, _) = found
    following = iter(loader)
    next(following)
    other.load_state_dict(loader.state_dict())
    assert ids(other) == ids(following)


def named(numbers: Any) -> dict[str, Any]:
    return dict(zip(ROWS, numbers, strict=True))


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"weights": named(np.array([7, 3, 1]))}, {"weights": named([7, 3, 1])}),
        (
            {"weights": {"web": np.float32(0.5), "code": Fraction(1, 4), "books": np.int8(1)}},
            {"weights": {"web": 0.5, "code": 0.25, "books": 1}},
        ),
        ({"repeat": {"web": np.int64(2)}}, {"repeat": {"web": 2}}),
        (
            {"weights": Weights(temperature=np.int64(2)), "stop": "all"},
            {"weights": Weights(temperature=2), "stop": "all"},
        ),
        (
            {"rows_per_epoch": np.int64(90), "weights": Weights(max_repeats=np.float64(1.5))},
            {"rows_per_epoch": 90, "weights": Weights(max_repeats=1.5)},
        ),
        (
            {
                "weights": [
                    (np.int64(0), named(np.array([1, 0, 2]))),
                    (np.int64(40), {"web": np.int64(1), "code": 0, "books": 1}),
                ]
            },
            {"weights": [(0, {"web": 1, "code": 0, "books": 2}), (40, {"web": 1, "code": 0, "books": 1})]},
        ),
    ],
    ids=str,
)
def test_numbers_of_numpy_are_numbers(folder: Path, options: dict[str, Any], plain: dict[str, Any]) -> None:
    found = [on_ranks(folder, 1, **MIX, **each) for each in (options, plain)]
    assert ids(found[0][0]) == ids(found[1][0])


def test_unknown_row_counts_name_the_dataset_and_the_remedy(folder: Path) -> None:
    filtered = parts(folder, ["web"], filters=[("id", "<", 40)])
    with pytest.raises(CountsRequiredError, match=r"that of dataset 'web' .*count_rows=True.*batches='splits'"):
        combine({**filtered, **parts(folder, ["code"])})
    counted = parts(folder, ["web"], filters=[("id", "<", 40)], count_rows=True)
    loader = combine({**counted, **parts(folder, ["code"])}, **MIX)
    assert sorted(ids(loader)) == [*range(40), *range(1000, 1023)]
    nothing = parts(folder, ["web"], filters=[("id", "<", 0)], count_rows=True)
    with pytest.raises(EmptyDatasetError, match=r"dataset 'web' has no rows"):
        combine({**nothing, **parts(folder, ["code"])}, stop="all")


def test_a_foreign_loader_may_have_one_worker(folder: Path) -> None:
    dataset = combine(parts(folder), **MIX).dataset
    assert len(ids(DataLoader(dataset, batch_size=None, num_workers=0))) == sum(ROWS.values())
    with pytest.raises(OptionError, match="a mix within 2 workers"):
        Passes(dataset._source, dataset._options, worker=(0, 2))


def test_batches_of_blocks_of_many_steps_are_those_cut_alone(tmp_path: Path) -> None:
    """Large blocks, of which the rows of many steps are put in order together; tensors do not share memory."""
    for name, rows, first in (("a", 5_000, 0), ("b", 3_333, 10_000)):
        numbers = np.arange(first, first + rows)
        table = pa.table({"id": numbers, "x": [[float(n)] * 2 for n in numbers]})
        pq.write_table(table.cast(pa.schema({"id": pa.int64(), "x": pa.list_(pa.float32(), 2)})), tmp_path / name)
    loader = combine([tmp_path / "a", tmp_path / "b"], batch_size=64, num_ranks=1, rank=0)
    batches = list(loader)
    at = {0: 0, 10_000: 10_000}
    for step, batch in enumerate(batches):
        low = int((batch["id"] < 10_000).sum())
        assert batch["id"].tolist() == [
            *range(at[0], at[0] + low), *range(at[10_000], at[10_000] + len(batch["id"]) - low)
        ]  # fmt: skip
        assert batch["x"].tolist() == [[float(row)] * 2 for row in batch["id"].tolist()]
        at = {0: at[0] + low, 10_000: at[10_000] + len(batch["id"]) - low}
        if step == 0:
            batch["id"].zero_()
    assert at == {0: 5_000, 10_000: 13_333}
    assert loader.plan().schedule is not None
