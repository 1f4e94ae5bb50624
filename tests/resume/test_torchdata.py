"""torch's and torchdata's loaders around our dataset: each of their workers is one shard, with a state of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.resume.helpers import KEPT, batches, make, plain, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, OptionError, merge_state_dicts
from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.testing import assert_resumes_everywhere

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


def rows(batch: Any) -> list[tuple[int, str]]:
    return list(zip(batch["id"].tolist(), batch["name"], strict=True))


def ids(found: list[Any]) -> list[int]:
    return sorted(row for batch in found for row in batch["id"])


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("options", [{}, {"filters": KEPT}, {"shuffle_buffer_size": 8}, {"steps_per_epoch": 17}])
def test_every_step(folder: str, workers: int, options: dict[str, Any]) -> None:
    def loader() -> Any:
        return foreign(folder, workers, **options)

    whole = batches(loader())
    if "steps_per_epoch" in options:
        assert len(whole) == 17
    else:
        assert ids(whole) == [row for row in range(38) if "filters" not in options or row % 3]
    assert_resumes_everywhere(loader, every=5 if workers else 1, id_column=rows)


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
    assert_resumes_everywhere(lambda: foreign(folder, 2, split_rows=20), id_column=rows)


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
    loader.load_state_dict(loader.state_dict())  # a pass that has begun goes on elsewhere by its state only
    theirs = torch.utils.data.DataLoader(
        loader.dataset, batch_size=None, num_workers=2, multiprocessing_context=context
    )
    assert ids(seen + batches(theirs)) == list(range(38))


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", ["torch", "torchdata"])
def test_foreign_workers_begin_an_abandoned_pass_afresh(folder: str, context: str, kind: str) -> None:
    """Whoever looked at the first batch in the main process has taken it from nobody."""
    loader = make(folder, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    made = torch.utils.data.DataLoader if kind == "torch" else stateful.StatefulDataLoader
    theirs = made(loader.dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert ids(batches(theirs)) == list(range(38))


def worker_states(state: Any) -> list[Any]:
    """What the iterators of all workers say in the state of a StatefulDataLoader."""
    if "_snapshot" not in state:
        return [state["fetcher_state"]["dataset_iter_state"]]
    workers = state["_snapshot"]["_worker_snapshots"].values()
    return [worker["fetcher_state"]["dataset_iter_state"] for worker in workers]


def own_state(state: Any) -> Any:
    states = worker_states(through_json(state))
    return merge_state_dicts(states) if "worker" in states[0] else states[0]


def some(loader: Any, steps: int) -> list[Any]:
    return [plain(batch) for _, batch in zip(range(steps), iter(loader), strict=False)]


WORKERS = st.integers(0, 3)
STEPS = st.integers(0, 6)
ORDERS = st.sampled_from(
    [{}, {"filters": KEPT}, {"shuffle_buffer_size": 8}, {"filters": KEPT, "shuffle_buffer_size": 8}]
)


@settings(max_examples=12)
@example(ours=2, theirs=2, last=2, steps=[4, 0], options={})
@example(ours=2, theirs=2, last=2, steps=[4, 3], options={"filters": KEPT})
@given(WORKERS, WORKERS, WORKERS, st.lists(STEPS, min_size=2, max_size=2), ORDERS)
def test_every_row_once_from_our_loader_through_theirs_to_ours(
    folder: str, ours: int, theirs: int, last: int, steps: list[int], options: dict[str, Any]
) -> None:
    loader = make(folder, shuffle=True, num_workers=ours, **options)
    seen = some(loader, steps[0])
    between = foreign(folder, theirs, num_workers=ours, **options)
    between.dataset.load_state_dict(through_json(loader.state_dict()))
    seen += some(between, steps[1])
    after = make(folder, shuffle=True, num_workers=last, **options)
    after.load_state_dict(own_state(between.state_dict()))
    assert ids(seen + batches(after)) == [row for row in range(38) if "filters" not in options or row % 3]


def test_their_state_continues_in_our_loader_with_canonical_ranks(folder: str) -> None:
    loader = foreign(folder, 1, canonical_ranks=3)
    batch = next(iter(loader))
    again = make(folder, shuffle=True, canonical_ranks=3)
    again.load_state_dict(own_state(loader.state_dict()))
    assert [plain(batch), *batches(again)] == batches(make(folder, shuffle=True, canonical_ranks=3))


@pytest.mark.parametrize("options", [{}, {"filters": KEPT}, {"shuffle_buffer_size": 8}])
def test_their_state_continues_in_our_loader_of_as_many_workers(folder: str, options: dict[str, Any]) -> None:
    loader = foreign(folder, 3, num_workers=3, **options)
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(plain(batch))
        states.append(loader.state_dict())
    for step, state in enumerate(states):
        again = make(folder, shuffle=True, num_workers=3, **options)
        again.load_state_dict(own_state(state))
        assert batches(again) == whole[step:]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"filters": KEPT}])
def test_a_begun_dataset_is_continued_by_as_many_foreign_workers(
    folder: str, workers: int, options: dict[str, Any]
) -> None:
    loader = make(folder, shuffle=True, num_workers=workers, **options)
    seen = some(loader, 4)
    loader.load_state_dict(loader.state_dict())
    theirs = torch.utils.data.DataLoader(
        loader.dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork"
    )
    assert ids(seen + batches(theirs)) == [row for row in range(38) if not options or row % 3]


def test_states_of_workers_that_are_not_of_one_moment(folder: str) -> None:
    loader = foreign(folder, 2)
    some(loader, 3)
    states = worker_states(through_json(loader.state_dict()))
    far = [sealed({**states[0], "links": [{**states[0]["links"][0], "batches": 7}]}), states[1]]
    next_epoch = [states[0], sealed({**states[1], "epoch": 1})]
    laps = foreign(folder, 2, steps_per_epoch=17)
    some(laps, 3)
    for wrong, told in (
        (states[:1], r"workers \[0\] of a foreign loader: expected one state of each of its 2 workers"),
        ([*states, make(folder, shuffle=True, num_workers=2).state_dict()], r"workers \[None, 0, 1\]"),
        (far, r"delivered \[7, 1\] batches, but one loader takes a batch from each in turn"),
        (next_epoch, "different epochs .give the states of the workers' iterators."),
        (worker_states(laps.state_dict()), "each worker repeats its own rows"),
    ):
        with pytest.raises(CheckpointMismatchError, match=told):
            merge_state_dicts(wrong)


def worker_state(folder: str) -> Any:
    loader = foreign(folder, 2)
    next(iter(loader))
    state = through_json(loader.state_dict())
    found = json.dumps(state)
    assert '"worker": 0' in found
    return state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]


def test_a_worker_s_state_is_no_state_of_a_loader(folder: str) -> None:
    state = worker_state(folder)
    with pytest.raises(CheckpointMismatchError, match="worker 0 of a foreign loader, but was loaded into this package"):
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
    with pytest.raises(OptionError, match="only this package's loader can leave out steps"):
        next(iter(theirs))
