"""torch's and torchdata's loaders around our dataset: each of their workers is one shard, with a state of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.resume.helpers import KEPT, batches, make, plain, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, OptionError

stateful = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's own call
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def foreign(folder: str, workers: int, *, persistent: bool = False, **options: Any) -> Any:
    dataset = make(folder, shuffle=True, **options).dataset
    start = {"multiprocessing_context": "fork", "persistent_workers": persistent} if workers else {}
    return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **start)


def ids(found: list[Any]) -> list[int]:
    return sorted(row for batch in found for row in batch["id"])


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("options", [{}, {"filters": KEPT}, {"shuffle_buffer_size": 8}, {"steps_per_epoch": 17}])
def test_every_step(folder: str, workers: int, options: dict[str, Any]) -> None:
    loader = foreign(folder, workers, **options)
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(plain(batch))
        states.append(loader.state_dict())
    if "steps_per_epoch" in options:
        assert len(whole) == 17
    else:
        assert ids(whole) == [row for row in range(38) if "filters" not in options or row % 3]
    for step in range(0, len(states), 5 if workers else 1):
        again = foreign(folder, workers, **options)
        again.load_state_dict(through_json(states[step]))
        assert batches(again) == whole[step:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_after_the_end_comes_a_whole_epoch(folder: str, workers: int, persistent: bool) -> None:
    loader = foreign(folder, workers, persistent=persistent and workers > 0)
    first = batches(loader)
    ended = through_json(loader.state_dict())
    second = batches(loader)
    assert ids(first) == ids(second) == list(range(38))
    assert (first == second) is (workers > 0 and not persistent)  # new workers know of no epoch before
    again = foreign(folder, workers, persistent=persistent and workers > 0)
    again.load_state_dict(ended)
    found = batches(again)
    assert ids(found) == list(range(38))
    assert found == second


def test_workers_that_ended_early_stay_ended(tmp_path: Any) -> None:
    folder = write_files(tmp_path, ((3,), (12,)))
    loader = foreign(folder, 2, split_rows=20)
    whole, states = [], []
    for batch in loader:
        whole.append(plain(batch))
        states.append(through_json(loader.state_dict()))
    for step, state in enumerate(states):
        again = foreign(folder, 2, split_rows=20)
        again.load_state_dict(state)
        assert batches(again) == whole[step + 1 :]


def test_set_epoch_reaches_new_workers(folder: str) -> None:
    loader = foreign(folder, 2)
    loader.dataset.set_epoch(3)
    third = batches(loader)
    state = None
    for step, _ in enumerate(loader):
        if step == 4:
            state = through_json(loader.state_dict())
            break
    again = foreign(folder, 2)
    again.load_state_dict(state)
    assert batches(again) == third[5:]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_rest_of_our_own_epoch_in_foreign_workers(folder: str, context: str) -> None:
    loader = make(folder, shuffle=True)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(5)]
    theirs = torch.utils.data.DataLoader(
        loader.dataset, batch_size=None, num_workers=2, multiprocessing_context=context
    )
    assert ids(seen + batches(theirs)) == list(range(38))


def worker_state(folder: str) -> Any:
    loader = foreign(folder, 2)
    next(iter(loader))
    state = through_json(loader.state_dict())
    found = json.dumps(state)
    assert '"worker": 0' in found
    return state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]


def test_a_worker_s_state_is_no_state_of_a_loader(folder: str) -> None:
    state = worker_state(folder)
    with pytest.raises(CheckpointMismatchError, match="worker 0 of a foreign loader, and was loaded into this package"):
        make(folder, shuffle=True).load_state_dict(state)


def skip_in_worker(dataset: Any) -> Any:
    class Skipping(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            dataset.skip_steps(0, 1)
            return iter(dataset)

    return Skipping()


def test_steps_are_not_left_out_in_workers(folder: str) -> None:
    theirs = torch.utils.data.DataLoader(
        skip_in_worker(make(folder).dataset), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(OptionError, match="only this package's loader leaves out steps"):
        next(iter(theirs))
