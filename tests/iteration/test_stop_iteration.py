"""A StopIteration that a function of the user's raises is an error, as in Python's generators: it ends no epoch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.executors.helpers import DRIVERS
from tests.resume.helpers import batches, make, write_files
from torch_dataloader_utils import Shard, Split


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def stop_at_20(batch: Any) -> Any:
    """Raises at the batch of row 20; for `transform` and `collate_fn`."""
    rows = batch.column("id").to_pylist() if isinstance(batch, pa.RecordBatch) else batch["id"].tolist()
    return next(iter(())) if 20 in rows else batch


def stop_in_epoch_1(order: Any, world: Any) -> Any:
    """A policy of one rank."""
    return order if world.epoch != 1 else next(iter(()))


class StopInEpoch1:
    """A strategy that generates shards."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        splits = [Split(file) for file in files] if epoch != 1 else next(iter(()))
        return [Shard(0, splits, None, None)]


def raised_twice(loader: Any) -> None:
    """Raised where the batch was due, and again by the next `next`: asking again does not end the epoch quietly."""
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            for _ in iterator:
                pass
        assert isinstance(caught.value.__cause__, StopIteration)
    assert loader.dataset.plan().epoch == 0
    loader.dataset.close()


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("function", ["collate_fn", "transform"])
def test_stop_iteration_of_a_function_on_batches_is_an_error(folder: str, driver: str, function: str) -> None:
    raised_twice(make(folder, **DRIVERS[driver], **{function: stop_at_20}))


LENGTHS: list[dict[str, Any]] = [{"even": "sync"}, {"steps_per_epoch": 30}, {"canonical_ranks": 2, "batch_size": 4}]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("function", ["collate_fn", "transform"])
def test_so_it_is_whatever_ends_the_pass(folder: str, lengths: dict[str, Any], function: str) -> None:
    raised_twice(make(folder, **lengths, **{function: stop_at_20}))


@pytest.mark.parametrize(
    "options", [{"sharding": stop_in_epoch_1}, {"split_strategy": StopInEpoch1(), "split_rows": None}]
)
def test_stop_iteration_of_a_function_that_plans_is_an_error(folder: str, options: dict[str, Any]) -> None:
    loader = make(folder, **options)
    first = batches(loader)
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            batches(loader)
        assert isinstance(caught.value.__cause__, StopIteration)
    loader.set_epoch(0)
    assert batches(loader) == first


def test_stop_iteration_while_a_pass_is_looked_at_is_raised_in_its_turn(folder: str) -> None:
    """The look whether a batch follows is no end of the epoch either."""
    from accelerate import Accelerator

    loader = Accelerator().prepare(make(folder, filters=[("id", ">=", 2)], collate_fn=stop_at_20))
    raised_twice(loader)
