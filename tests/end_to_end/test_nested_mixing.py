"""Combinations of combinations, from files to batches: shares, names, resume, elasticity, and what is refused."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.sharded import Plain, ids, structured
from torch_dataloader_utils import Pack, StructuredDataset, Weights, combine
from torch_dataloader_utils.errors import CountsRequiredError, OptionError

ROWS = {"text/web": 61, "text/books": 23, "code": 31}
FIRST = {"text/web": 0, "text/books": 1000, "code": 2000}
EVERY = Counter(FIRST[name] + row for name, rows in ROWS.items() for row in range(rows))
MIX: dict[str, Any] = {"batch_size": 6, "split_rows": 6, "shuffle": True, "shuffle_buffer_size": 12}
SHARES: dict[str, Any] = {"weights": {"text": 2, "code": 1}}  # half web, a sixth books, a third code


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StructuredDataset]:
    path = tmp_path_factory.mktemp("nested")
    for name, rows in ROWS.items():
        table = pa.table({"id": np.arange(FIRST[name], FIRST[name] + rows)})
        pq.write_table(table, path / f"{Path(name).name}.parquet", row_group_size=3)
    return {name: structured(path / f"{Path(name).name}.parquet") for name in ROWS}


def nested(datasets: Any, inner: Any = None, **options: Any) -> Any:
    given = {"weights": {"web": 3, "books": 1}} if inner is None else inner
    text = combine({"web": datasets["text/web"], "books": datasets["text/books"]}, **given)
    return combine({"text": text, "code": datasets["code"]}, **options)


def name_of(row: int) -> str:
    return next(name for name in reversed(FIRST) if row >= FIRST[name])


def counts(rows: list[int]) -> Counter[str]:
    return Counter(map(name_of, rows))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_the_product_of_the_shares_on_every_rank(datasets: Any, ranks: int, workers: int) -> None:
    options = {**MIX, **SHARES, "rows_per_epoch": 36 * ranks, "num_workers": workers}
    seen: list[int] = []
    for rank in range(ranks):
        loader = nested(datasets, num_ranks=ranks, rank=rank, **options)
        batches = [batch["id"].tolist() for batch in loader]
        assert [counts(rows) for rows in batches] == [{"text/web": 3, "text/books": 1, "code": 2}] * 6
        seen += sum(batches, [])
        loader.close()
    times = Counter(seen)
    for name, rows in ROWS.items():
        each = [times[FIRST[name] + row] for row in range(rows)]
        assert max(each) - min(each) <= 1


@pytest.mark.parametrize("inner", [None, {}])
def test_a_nested_mix_is_the_flat_one_with_the_weights_multiplied(datasets: Any, inner: Any) -> None:
    of_each = [1.5, 0.5, 1] if inner is None else [61 * 2 / 84, 23 * 2 / 84, 1]
    weights = dict(zip(ROWS, of_each, strict=True))
    for more in ({"stop": "all"}, {"stop": "first"}, {}, {"rows_per_epoch": 100}, {"batches": "single"}):
        shares = {"weights": {"web": 3, "books": 1}} if inner is None else {}
        within = {**shares, "batches": more.get("batches", "proportional")}
        one = nested(datasets, within, num_ranks=1, rank=0, **MIX, **SHARES, **more)
        flat = combine(datasets, num_ranks=1, rank=0, weights=weights, **MIX, **more)
        assert [batch["id"].tolist() for batch in one] == [batch["id"].tolist() for batch in flat]


def test_without_weights_nesting_changes_nothing(datasets: Any) -> None:
    one = nested(datasets, {}, num_ranks=1, rank=0, **MIX)
    flat = combine(datasets, num_ranks=1, rank=0, **MIX)
    assert [batch["id"].tolist() for batch in one] == [batch["id"].tolist() for batch in flat]


def test_splits_are_merged_by_the_same_weights(datasets: Any) -> None:
    inner: dict[str, Any] = {"batches": "splits", "weights": {"web": 3, "books": 1}}
    options: dict[str, Any] = {"num_ranks": 1, "rank": 0, "split_rows": 6, "batches": "splits"}
    one = nested(datasets, inner, **options, **SHARES)
    flat = combine(datasets, weights=dict(zip(ROWS, [1.5, 0.5, 1], strict=True)), **options)
    assert ids(one) == ids(flat)
    assert Counter(ids(one)) == EVERY


@pytest.mark.parametrize("worker_mode", ["threads", "processes"])
def test_resume_at_every_step_is_exact(datasets: Any, worker_mode: str) -> None:
    options = {**MIX, **SHARES, "stop": "all", "even": "pad", "num_ranks": 2, "rank": 1}
    options |= {"num_workers": 2, "worker_mode": worker_mode} if worker_mode == "processes" else {"num_workers": 0}
    loader = nested(datasets, **options)
    loader.set_epoch(1)
    expected, states = [], []
    for batch in loader:
        expected.append(batch["id"].tolist())
        states.append(loader.state_dict())
    loader.close()
    resumed = nested(datasets, **options)
    for step, state in list(enumerate(states, 1))[:: 1 if worker_mode == "threads" else 7]:
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == expected[step:]
    resumed.close()


@pytest.mark.parametrize(("ranks", "then"), [(1, 3), (2, 1), (3, 2)])
def test_an_elastic_resume_delivers_every_row_once(datasets: Any, ranks: int, then: int) -> None:
    taken: list[int] = []
    state = None
    for now, steps, size in ((ranks, 2, 6), (then, 2, 4), (1, None, 5)):
        for rank in range(now):
            loader = nested(datasets, num_ranks=now, rank=rank, num_workers=0, **{**MIX, **SHARES, "batch_size": size})
            if state is None:
                loader.set_epoch(1)
            else:
                loader.load_state_dict(state)
            taken += ids([batch for _, batch in zip(range(steps or 1000), loader, strict=False)])
            after = loader.state_dict()
        state = after
    assert Counter(taken) == EVERY


def test_names_are_paths(datasets: Any) -> None:
    loader = nested(datasets, source_key="source", num_ranks=1, rank=0, **MIX, **SHARES)
    for batch in loader:
        assert [sorted(ROWS)[number] for number in batch["source"].tolist()] == list(map(name_of, batch["id"].tolist()))
    assert {name: loader.metrics(total=True)[f"rows/{name}"] for name in ROWS} == ROWS
    assert "27.0% 'code' (31 rows), 20.0% 'text/books' (23 rows), 53.0% 'text/web' (61 rows)" in loader.describe().mix


def test_any_depth_lists_map_style_datasets_and_pickled_combinations(datasets: Any) -> None:
    inner = combine([Plain(20, first=5000), Plain(10, first=6000)], weights=[1, 1])
    middle = combine({"samples": inner, "code": Plain(30, first=7000)}).dataset
    outer = combine([pickle.loads(pickle.dumps(middle)), Plain(60, first=8000)], weights=[1, 1], stop="all")
    assert outer.describe().mix == (
        "each batch has rows of each: 25.2% '0/code' (39 rows, 1.3 laps), 12.9% '0/samples/0' (20 rows), "
        "12.3% '0/samples/1' (19 rows, 1.9 laps), 49.7% '1' (77 rows, 1.28 laps)"
    )
    assert len(ids(outer)) == 155


def test_arrow_names_rows_by_path_and_pairs_may_be_parts(datasets: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(4)}), tmp_path / "a.parquet")
    pair = StructuredDataset.create_dataloader(tmp_path / "a.parquet", output_format="arrow")
    inner = combine({"b": pair}, output_format="arrow", even="pad")
    loader = combine({"a": inner, "c": pair}, output_format="arrow", source_key="s", batch_size=8)
    (batch,) = loader
    assert batch.schema.names == ["id", "s"]
    assert batch.column("s").to_pylist() == ["a/b"] * 4 + ["c"] * 4


@pytest.mark.parametrize(
    ("repeat", "rows"),
    [
        ({"text": 2}, (122, 46, 31)),
        ({"text": 2, "text/books": 3}, (122, 69, 31)),
        ({"code": 1, "text": 2}, (122, 46, 31)),
        ({"text/web": 0.5, "code": 2}, (30, 23, 62)),
    ],
)
def test_repeat_names_combinations_or_datasets(datasets: Any, repeat: Any, rows: tuple[int, ...]) -> None:
    loader = nested(datasets, repeat=repeat, num_ranks=1, rank=0, **MIX)
    assert counts(ids(loader)) == dict(zip(ROWS, rows, strict=True))


@pytest.mark.parametrize(
    ("inner", "options", "message"),
    [
        ({"stop": "all"}, {}, "combination 'text' has stop='all'.*pass stop= to the outer combine"),
        ({"repeat": {"web": 2}}, {}, "has repeat=.*by path, such as"),
        ({"rows_per_epoch": 9}, {}, "has rows_per_epoch=9"),
        ({"weights": Weights(max_repeats=2)}, {}, r"has weights=Weights\(max_repeats=2"),
        ({"source_key": "s"}, {}, "has source_key='s'"),
        ({"batches": "single"}, {}, "has batches='single', but the outer one has batches='proportional'"),
        ({}, {"batches": "single"}, "has batches='proportional', but the outer one has batches='single'"),
        ({}, {"weights": {"text": 1, "web": 2}}, "'web' is not a dataset and 'code' has none"),
        ({}, {"weights": [1, 2, 3]}, "for 2 dataset"),
        ({}, {"repeat": {"web": 2}}, "expected names among 'code', 'text', 'text/books', 'text/web'; 'web' is none"),
    ],
    ids=str,
)
def test_what_cannot_be_within_another_is_an_error(datasets: Any, inner: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        nested(datasets, inner, **options)


def test_repeat_tells_a_name_with_a_slash_from_a_combination(datasets: Any) -> None:
    parts = {"text/web": datasets["text/web"], "more": combine({"code": datasets["code"]})}
    loader = combine(parts, repeat={"text/web": 2}, num_ranks=1, rank=0, **MIX)
    assert counts(ids(loader)) == {"text/web": 122, "code": 31}
    with pytest.raises(OptionError, match="expected names among 'more', 'more/code', 'text/web'; 'text' is none"):
        combine(parts, repeat={"text": 2})
    loader = combine({**parts, "text": datasets["text/books"]}, repeat={"text": 2}, num_ranks=1, rank=0, **MIX)
    assert counts(ids(loader)) == {"text/web": 61, "code": 31, "text/books": 46}


def test_two_datasets_of_one_path_are_an_error(datasets: Any) -> None:
    inner = combine({"web": datasets["text/web"]})
    with pytest.raises(OptionError, match="two datasets would have the name 'text/web'"):
        combine({"text": inner, "text/web": datasets["text/web"]})


def test_unknown_row_counts_need_weights(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "\n".join(map(str, range(9))))
    part = structured(tmp_path / "a.csv")
    outer: dict[str, Any] = {"batches": "splits", "weights": [1, 1]}
    with pytest.raises(CountsRequiredError, match=r"that of dataset '0/0' .*pass weights= to each combination"):
        combine([combine([part, part], batches="splits"), part], **outer)
    loader = combine([combine([part, part], **outer), part], **outer)
    assert sorted(ids(loader)) == sorted([*range(9)] * 3)


def test_packing_belongs_to_the_outer_combination(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1, 2], [3]]}), tmp_path / "a.parquet")
    part = structured(tmp_path / "a.parquet")
    inner = combine([part, part], pack=Pack(4, columns=["tokens"]), batches="splits")
    with pytest.raises(OptionError, match="combination 0 has pack: pass it to the outer combine"):
        combine([inner, part], batches="splits")
