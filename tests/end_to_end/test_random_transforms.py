"""Transforms that draw: a row draws the same wherever and whenever it is read, and anew where it should."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.resume.helpers import KEPT, through_json
from torch_dataloader_utils import (
    OptionError,
    Pack,
    Processes,
    RoundRobinSplitStrategy,
    Rows,
    Shard,
    Split,
    Transform,
    combine,
    stream,
)
from torch_dataloader_utils.preprocess import Keep, Preprocess, TargetEncode

ROWS, FILES = 40, 3


def drawing(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
    assert len(rng) == rows.num_rows
    drawn = np.concatenate([rng.random(2), rng.normal()[:, None]], axis=1)
    return rows.append_column("drawn", pa.FixedSizeListArray.from_arrays(pa.array(drawn.reshape(-1)), 3))


RANDOM = Transform(drawing, random=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for file in range(FILES):
        write(folder / f"{file}.parquet", file * ROWS)
    return folder


def write(file: Path, first: int) -> None:
    ids = range(first, first + ROWS)
    pq.write_table(pa.table({"id": ids, "label": [row % 2 for row in ids]}), file, row_group_size=7)


def draws_of(loaders: Iterable[Any], epoch: int = 0) -> dict[int, list[tuple[float, ...]]]:
    """What each row draws, as often as it comes."""
    found: dict[int, list[tuple[float, ...]]] = {}
    for loader in loaders:
        loader.set_epoch(epoch)
        for batch in loader:
            for row, drawn in zip(batch["id"].tolist(), batch["drawn"].tolist(), strict=True):
                found.setdefault(row, []).append(tuple(drawn))
        loader.close()
    return found


@pytest.fixture(scope="module")
def expected(path: Path) -> dict[int, tuple[float, ...]]:
    """What each row draws in the first epoch."""
    found = draws_of([stream(path, transform=RANDOM, batch_size=8, num_workers=0)])
    return {row: drawn for row, (drawn,) in found.items()}


WAYS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "num_workers": 0},
    "shuffled wholly": {"shuffle": "all"},
    "in small windows": {"shuffle": True, "shuffle_buffer_size": 11},
    "on threads": {"num_workers": 2},
    "in processes": {"num_workers": 2, "worker_mode": Processes(context="fork"), "shuffle": True},
    "in small splits": {"split_rows": 7},
    "by rows": {"sharding": "strided"},
    "contiguous": {"sharding": "contiguous"},
    "canonical": {"canonical_ranks": 6, "batch_size": 6},
    "padded": {"even": "pad"},
    "filtered": {"filters": KEPT},
    "a subset": {"fraction": 0.6},
    "in batches by rank": {"sharding": "rotate", "batch_size": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_row_draws_the_same_on_any_ranks_and_workers(
    path: Path, expected: dict[int, tuple[float, ...]], way: str, num_ranks: int
) -> None:
    given = {"batch_size": 8, **WAYS[way]}
    found = draws_of(stream(path, transform=RANDOM, num_ranks=num_ranks, rank=r, **given) for r in range(num_ranks))
    assert len(found) > 50
    for row, drawn in found.items():
        assert set(drawn) == {expected[row]}  # padding, too


def test_rows_epochs_and_seeds_differ(path: Path, expected: dict[int, tuple[float, ...]]) -> None:
    later = draws_of([stream(path, transform=RANDOM)], 1)
    other = draws_of([stream(path, transform=RANDOM, shuffle_seed=1)])
    every = [*expected.values(), *(drawn for found in (later, other) for (drawn,) in found.values())]
    assert len(set(every)) == 3 * ROWS * FILES
    assert len({number for drawn in every for number in drawn}) == 9 * ROWS * FILES


def test_files_that_are_added_and_folders_that_are_moved_change_nothing(
    tmp_path: Path, expected: dict[int, tuple[float, ...]]
) -> None:
    for file, first in (("00.parquet", 1000), ("0.parquet", 0), ("1.parquet", ROWS), ("2.parquet", 2 * ROWS)):
        write(tmp_path / file, first)
    found = draws_of([stream(tmp_path, transform=RANDOM)])
    assert len(found) == 4 * ROWS
    assert {row: drawn for row, (drawn,) in found.items() if row < 1000} == expected


def test_copies_and_laps_draw_anew(path: Path, expected: dict[int, tuple[float, ...]]) -> None:
    weighted = draws_of([stream(path, transform=RANDOM, class_weights={"label": {1: 3.0}})])
    for row, drawn in weighted.items():
        assert len(set(drawn)) == len(drawn) == (3 if row % 2 else 1)
        assert drawn[0] == expected[row]
    for num_workers in (0, 2):
        given: dict[str, Any] = {"steps_per_epoch": 12, "batch_size": 8, "shuffle": True, "num_workers": num_workers}
        found = draws_of(stream(path, transform=RANDOM, num_ranks=2, rank=rank, **given) for rank in range(2))
        assert {len(drawn) for drawn in found.values()} >= {1, 2}
        for row, drawn in found.items():
            assert len(set(drawn)) == len(drawn)
            assert drawn[0] == expected[row]


class PerFile:
    """A strategy that makes the shards."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        return [Shard(0, tuple(Split(file, Rows(0, file.record_count)) for file in files[rank::num_ranks]))]


@pytest.mark.parametrize("strategy", [PerFile(), RoundRobinSplitStrategy()], ids=["shards", "splits"])
def test_with_a_strategy_of_one_s_own(path: Path, expected: dict[int, tuple[float, ...]], strategy: Any) -> None:
    given: dict[str, Any] = {"split_strategy": strategy, "num_ranks": 2, "batch_size": 8}
    found = draws_of(stream(path, transform=RANDOM, rank=rank, **given) for rank in range(2))
    assert {row: drawn for row, (drawn,) in found.items()} == expected
    if isinstance(strategy, PerFile):
        laps = draws_of([stream(path, transform=RANDOM, rank=1, steps_per_epoch=10, **given)])
        assert all(len(set(drawn)) == len(drawn) == 2 for drawn in laps.values())


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"filters": KEPT, "shuffle": True}], ids=str)
def test_a_resume_draws_what_is_left_as_before(
    path: Path, expected: dict[int, tuple[float, ...]], options: Any
) -> None:
    first = stream(path, transform=RANDOM, batch_size=8, num_workers=0, **options)
    for _, batch in zip(range(4), first, strict=False):
        assert len(batch["id"]) == 8
    state = through_json(first.state_dict())
    first.close()
    found: dict[int, tuple[float, ...]] = {}
    for rank in range(2):
        other = stream(path, transform=RANDOM, batch_size=5, num_ranks=2, rank=rank, num_workers=0, **options)
        other.load_state_dict(state)
        for batch in other:
            found |= dict(zip(batch["id"].tolist(), map(tuple, batch["drawn"].tolist()), strict=True))
    assert len(found) > 40
    assert all(drawn == expected[row] for row, drawn in found.items())


def test_halves_of_a_block_that_fails_draw_the_same(path: Path, expected: dict[int, tuple[float, ...]]) -> None:
    def fails(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        made = drawing(rows, rng)
        if {5, 6, 77} & set(rows.column("id").to_pylist()):
            raise ValueError("a bad row")
        return made

    found: dict[int, tuple[float, ...]] = {}
    for batch in stream(path, transform=Transform(fails, random=True, on_error="skip"), batch_size=8):
        for row, drawn, real in zip(*(batch[key].tolist() for key in ("id", "drawn", "valid")), strict=True):
            found |= {row: tuple(drawn)} if real else {}
    assert found == {row: drawn for row, drawn in expected.items() if row not in (5, 6, 77)}


def test_each_function_of_a_chain_has_its_own_numbers(path: Path, expected: dict[int, tuple[float, ...]]) -> None:
    def other(rows: pa.RecordBatch, rng: Any = None) -> pa.RecordBatch:
        return rows.append_column("other", pa.array(rng.random()))

    def plain(rows: pa.RecordBatch, name: str = "id") -> pa.RecordBatch:
        assert name == "id"
        return rows

    loader = stream(path, transform=Transform([drawing, plain, other], random=True), batch_size=ROWS * FILES)
    (batch,) = loader
    drawn = dict(zip(batch["id"].tolist(), map(tuple, batch["drawn"].tolist()), strict=True))
    assert drawn == expected  # the first of several draws what it would draw alone
    assert not set(batch["other"].tolist()) & {number for each in drawn.values() for number in each}


@pytest.mark.parametrize("form", ["numpy", "torch", "pandas", "polars"])
def test_in_each_format_of_rows(path: Path, expected: dict[int, tuple[float, ...]], form: Any) -> None:
    pytest.importorskip(form)

    def transform(rows: Any, rng: Any) -> Any:
        drawn = rng.random(2)[:, 1]
        if form == "torch":
            import torch

            drawn = torch.from_numpy(drawn.copy())
        if form in ("numpy", "torch"):
            return {**rows, "drawn": drawn}
        return rows.assign(drawn=drawn) if form == "pandas" else rows.with_columns(drawn=drawn)

    found: dict[int, float] = {}
    for batch in stream(path, transform=Transform(transform, random=True, format=form), batch_size=8):
        found |= dict(zip(batch["id"].tolist(), batch["drawn"].tolist(), strict=True))
    assert found == {row: drawn[1] for row, drawn in expected.items()}


@pytest.mark.parametrize("pack", [Pack(32), Pack(32, method="wrap")])
def test_documents_draw_before_they_are_packed(path: Path, pack: Pack) -> None:
    def documents(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        ids, drawn = rows.column("id").to_numpy(), rng.integers(1, 10**9)
        tokens = np.stack([ids, drawn, drawn], axis=1)
        offsets = np.arange(0, 3 * len(ids) + 1, 3, dtype=np.int32)
        return pa.record_batch({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(tokens.reshape(-1)))})

    def tokens(num_ranks: int, epoch: int, **options: Any) -> list[int]:
        found: list[int] = []
        for rank in range(num_ranks):
            given: dict[str, Any] = {"pack": pack, "count_rows": pack.method == "wrap", "batch_size": 2, **options}
            loader = stream(path, transform=Transform(documents, random=True), num_ranks=num_ranks, rank=rank, **given)
            loader.set_epoch(epoch)
            for batch in loader:
                found += batch["input_ids"].reshape(-1).tolist()
        return sorted(token for token in found if token > ROWS * FILES)

    whole = tokens(1, 0)
    assert len(set(whole)) > 100
    ranks, later = tokens(2, 0, shuffle=True), tokens(1, 1)
    assert len(set(whole) & set(ranks)) > 90  # each rank may lack the last tokens of a stream
    assert not set(whole) & set(later)


def test_documents_of_a_mix_draw_anew_in_each_lap(path: Path) -> None:
    def documents(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        tokens = rng.integers(1, 10**15, shape=3)
        offsets = np.arange(0, tokens.size + 1, 3, dtype=np.int32)
        return pa.record_batch({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(tokens.reshape(-1)))})

    transform = Transform(documents, random=True)
    parts = {
        "a": {"source": path / "0.parquet", "transform": transform},
        "b": {"source": path / "1.parquet", "filters": [("id", "<", ROWS + 7)], "transform": transform},
    }
    given: dict[str, Any] = {"weights": {"a": 1, "b": 1}, "pack": Pack(8, method="wrap"), "count_rows": True}
    for num_ranks in (1, 2):
        seen: list[int] = []
        for rank in range(num_ranks):
            place: dict[str, Any] = {
                "num_ranks": num_ranks,
                "rank": rank,
                "tokens_per_epoch": 384,
                "shuffle": True,
                "num_workers": 0,
            }
            loader = combine(parts, batch_size=2, **given, **place)
            for _ in range(2):
                seen += [token for batch in loader for token in batch["input_ids"].reshape(-1).tolist()]
        assert len(seen) == 2 * 384
        assert len(set(seen)) == len(seen)  # the 21 tokens of b come in several laps, never the same


def test_datasets_of_a_combination_draw_by_its_seed(path: Path) -> None:
    part = {"source": path, "transform": RANDOM}
    both = [draws_of([combine({"a": part, "b": part}, shuffle_seed=seed, num_workers=0)]) for seed in (1, 1, 2)]
    assert both[0] == both[1]
    assert all(len(set(drawn)) == len(drawn) == 2 for drawn in both[0].values())  # a and b draw on their own
    assert not {drawn for each in both[0].values() for drawn in each} & {d for each in both[2].values() for d in each}


def test_after_a_preprocess_that_reads_places_itself(tmp_path: Path) -> None:
    for file in range(2):
        ids = range(file * 50, file * 50 + 50)
        table = pa.table({"id": ids, "city": [f"c{row % 3}" for row in ids], "y": [float(row % 7) for row in ids]})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=10)
    prep = Preprocess({"city": TargetEncode("y"), "id": Keep()}).fit(stream(tmp_path)).for_training()

    def cities(loader: Any) -> dict[int, float]:
        return {
            row: value
            for batch in loader
            for row, value, real in zip(
                batch["id"].tolist(), batch["city"].tolist(), batch.get("valid", batch["id"] >= 0).tolist(), strict=True
            )
            if real
        }

    def fails(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        if 55 in rows.column("id").to_pylist():
            raise ValueError("a bad row")
        return rows.append_column("u", pa.array(rng.random()))

    plain = cities(stream(tmp_path, transform=prep))
    transform = Transform([prep, fails], random=True, on_error="skip")
    expected = {row: value for row, value in plain.items() if row != 55}
    assert cities(stream(tmp_path, transform=transform, shuffle=True)) == expected
    part = {"source": tmp_path, "transform": transform}
    assert cities(combine([part, part], num_workers=0, shuffle=True)) == expected


def test_rows_of_text_draw_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "".join(f"{row}\n" for row in range(50)))
    for options in ({}, {"count_rows": True}):
        found = draws_of([stream(tmp_path, transform=RANDOM, shuffle=True, batch_size=8, **options)])  # type: ignore[arg-type]
        again = draws_of([stream(tmp_path, transform=RANDOM, batch_size=8, num_workers=2)])
        assert found == again
        assert len({drawn for each in found.values() for drawn in each}) == 50


def test_a_fit_of_other_options_is_refused(path: Path) -> None:
    with pytest.raises(OptionError, match="takes rows alone"):
        Transform(lambda rows: rows, random=True)
    with pytest.raises(OptionError, match="rows='any'"):
        Transform(drawing, random=True, rows="any")
    with pytest.raises(OptionError, match=r"draws, as f\(rows, rng\)"):
        stream(path, transform=drawing)
    with pytest.raises(OptionError, match="random='yes'"):
        Transform(drawing, random="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError) as caught:
        Transform(drawing)
    assert caught.value.remedies[0].applied({})["transform"] == RANDOM
