"""Every row of a table with deleted rows is read once: by any ranks and workers, resumed anywhere, by other ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.delta.by_hand import delete_rows, live, require
from tests.delta.reading import ids, opened

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "split_rows": 6}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows in two partitions, with a later column; a fifth of the rows are deleted by vectors."""
    folder = tmp_path_factory.mktemp("table")
    for first in (0, 30):
        numbers = range(first, first + 30)
        data = {"id": numbers, "p": [f"p {number % 2}" for number in numbers]}
        write_deltalake(
            folder,
            pa.table(data if first == 0 else {**data, "later": [number / 2 for number in numbers]}),
            mode="append",
            schema_mode="merge" if first else None,
            partition_by=["p"],
        )
    require(folder, "deletionVectors")
    delete_rows(folder, {path: [0, 7, 14] for path in live(folder)})
    return folder


@pytest.fixture(scope="module")
def every(table: Path) -> list[int]:
    numbers = sorted(ids(opened(table)[0]))
    assert len(numbers) == 48
    return numbers


def loaders(table: Path, ranks: int, workers: int, **options: Any) -> Iterator[Any]:
    for rank in range(ranks):
        yield opened(table, num_ranks=ranks, rank=rank, num_workers=workers, **{**OPTIONS, **options})[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_read_every_row_once_resumed_at_every_step(
    table: Path, every: list[int], ranks: int, workers: int
) -> None:
    found = []
    for loader in loaders(table, ranks, workers):
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append(batch["id"].tolist())
            states.append(loader.state_dict())
        assert len(loader) == len(batches)
        for step, state in enumerate(states[:-1]):
            loader.load_state_dict(state)
            assert [batch["id"].tolist() for batch in loader] == batches[step:]
        found += sum(batches, [])
    assert sorted(found) == every


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 1), (3, 2)])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_epoch_is_resumed_by_another_number_of_ranks(
    table: Path, every: list[int], before: int, after: int, steps: int
) -> None:
    found, states = [], []
    for loader in loaders(table, before, 0):
        batches = iter(loader)
        found += ids(next(batches) for _ in range(steps))
        states.append(loader.state_dict())
    assert states[0]["source"]["end"] == 2
    for loader in loaders(table, after, 2):
        loader.load_state_dict(states[0])
        found += ids(loader)
    assert sorted(found) == every


def test_worker_processes_read_the_same(table: Path) -> None:
    options = {**OPTIONS, "num_workers": 2}
    assert ids(opened(table, worker_mode="processes", **options)[0]) == ids(opened(table, **options)[0])


def test_all_ranks_have_equal_steps(table: Path, every: list[int]) -> None:
    of_each = [list(loader) for loader in loaders(table, 3, 0, even="pad")]
    assert {len(batches) for batches in of_each} == {4}
    found = [number for batches in of_each for batch in batches for number in batch["id"][batch["valid"]].tolist()]
    assert sorted(found) == every
