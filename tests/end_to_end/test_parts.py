"""The grid: each kind of loader obeys its law for 1, 2, 3 ranks and 0, 2 workers, resumed at any step, or by others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import pytest

from tests.end_to_end.mix_parts import COMBINED
from tests.end_to_end.packed_parts import PACKED
from tests.end_to_end.parts import OF_ONE, Part, Seen
from tests.end_to_end.table_parts import TABLES
from tests.packing.helpers import LENGTH
from tests.resume.helpers import batches, pass_with_states, plain, through_json
from torch_dataloader_utils import merge_state_dicts
from torch_dataloader_utils.errors import CountsRequiredError, ShardingError
from torch_dataloader_utils.options import PackOptions
from torch_dataloader_utils.options.buckets import BucketOptions

PARTS = OF_ONE | PACKED | COMBINED | TABLES
RANKS = (1, 2, 3)


def grid(*nightly: tuple[int, int]) -> pytest.MarkDecorator:
    """Each part with each number of ranks and of workers, some of them nightly."""
    places = [
        pytest.param(
            *(part, num_ranks, num_workers),
            marks=[pytest.mark.nightly] if (num_ranks, num_workers) in nightly else [],
            id=f"{name}-R{num_ranks}-W{num_workers}",
        )
        for name, part in PARTS.items()
        for num_ranks in RANKS
        for num_workers in (0, 2)
        if num_ranks == 1 or not part.refused
    ]
    return pytest.mark.parametrize(("part", "num_ranks", "num_workers"), places)


in_all_places = grid()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of few documents, so that there are several; and tokenizers without threads."""
    monkeypatch.setattr(PackOptions, "documents", 10)
    monkeypatch.setattr(PackOptions, "sequences", 2)
    monkeypatch.setattr(BucketOptions, "rows", 10)
    monkeypatch.setattr(BucketOptions, "batches", 1)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """From a function that writes data to what it returns; it is called once."""
    return cache(lambda write: write(tmp_path_factory.mktemp(write.__name__)))


@pytest.fixture(scope="module")
def whole_of(data_of: Callable[..., Any]) -> Callable[[Part], list[Seen]]:
    """What the first epochs of a part deliver to a single rank, in-line."""
    return cache(lambda part: epochs_of(part, [part.make(data_of(part.write), num_ranks=1, rank=0, num_workers=0)]))


@pytest.fixture
def whole(part: Part, whole_of: Callable[[Part], list[Seen]]) -> list[Seen]:
    return whole_of(part)


@pytest.fixture
def loader_of(part: Part, data_of: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """New loaders of the part, closed at the end."""
    made: list[Any] = []

    def loader(rank: int, of: int, workers: int, epoch: int = 0) -> Any:
        made.append(part.make(data_of(part.write), num_ranks=of, rank=rank, num_workers=workers))
        if epoch:
            made[-1].dataset.set_epoch(epoch)
        return made[-1]

    yield loader
    for each in made:
        each.dataset.close()


def epochs_of(part: Part, loaders: list[Any]) -> list[Seen]:
    """What the first epochs deliver over all ranks."""
    return [
        Counter(row for loader in loaders for batch in loader for row in part.held(batch))
        for _ in range(part.epoch + 1)
    ]


def check(part: Part, seen: list[Seen], whole: list[Seen], ranks: int) -> None:
    """Epochs obey the law and are those of a single rank; but each rank may lack the last tokens of a stream."""
    part.law(seen)
    if part.tokens:
        assert part.tokens - seen[-1].total() < LENGTH * ranks
    elif part.same:
        assert seen == whole


@in_all_places
def test_ranks_together_deliver_what_the_law_says(
    part: Part, num_ranks: int, num_workers: int, loader_of: Callable[..., Any], whole: list[Seen]
) -> None:
    loaders = [loader_of(rank, num_ranks, num_workers) for rank in range(num_ranks)]
    check(part, epochs_of(part, loaders), whole, num_ranks)


@grid((2, 0), (3, 2))
def test_a_state_of_every_step_resumes_batch_for_batch(
    part: Part, num_ranks: int, num_workers: int, loader_of: Callable[..., Any]
) -> None:
    for rank in range(num_ranks):
        expected, states = pass_with_states(loader_of(rank, num_ranks, num_workers, part.epoch))
        assert len(expected) > 1
        for step in range(rank, len(states), num_ranks):  # ranks take turns: each step on one of them
            resumed = loader_of(rank, num_ranks, num_workers)
            resumed.load_state_dict(states[step])
            assert batches(resumed) == expected[step:]


@in_all_places
def test_other_ranks_and_workers_deliver_the_rest(
    part: Part, num_ranks: int, num_workers: int, loader_of: Callable[..., Any], whole: list[Seen]
) -> None:
    steps = 2 if num_workers else 1
    taken: Seen = Counter()
    states = []
    for rank in range(num_ranks):
        loader = loader_of(rank, num_ranks, num_workers, part.epoch)
        for _, batch in zip(range(steps), loader, strict=False):
            taken.update(part.held(batch))
        states.append(through_json(loader.state_dict()))
    one_for_all = part.counted and steps == 1
    state = states[-1] if one_for_all else through_json(merge_state_dicts(states))
    then = 1 if part.refused else RANKS[(num_ranks - 1 + steps) % 3]  # over both numbers of steps, each of the others
    for rank in range(then):
        loader = loader_of(rank, then, 2 - num_workers)
        loader.load_state_dict(state)
        taken.update(row for batch in loader for row in part.held(batch))
    check(part, [*whole[:-1], taken], whole, then)


@pytest.mark.parametrize("part", [pytest.param(part, id=name) for name, part in PARTS.items() if part.refused])
def test_what_needs_a_job_is_refused_without_one(part: Part, loader_of: Callable[..., Any]) -> None:
    with pytest.raises(ShardingError, match=part.refused):
        next(iter(loader_of(1, 2, 0)))


# ----------------------------------------------------------------------------------------------------------------- head

OF_BATCHES = ("cu_seqlens", "max_seqlen")  # follow from all of a batch


def rows_of(batch: Any) -> list[Any]:
    """The rows of a plain batch: their values by key."""
    columns = {key: values_of(value) for key, value in batch.items() if not key.endswith(OF_BATCHES)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def values_of(value: Any) -> list[Any]:
    """The value of each row in an entry of a batch."""
    if not isinstance(value, dict):
        return list(value)
    values, ends = value["values"], value.get("offsets") or list(accumulate(value["lengths"], initial=0))
    lists = [values[first:last] for first, last in pairwise(ends)]
    size = len(lists) // len(value.get("keys", [0]))
    return list(zip(*(lists[at : at + size] for at in range(0, len(lists), size)), strict=True))


def counts(loader: Any) -> list[float]:
    found = loader.metrics(total=True)
    return [found.get(name, 0) for name in ("data_wait_s", "steps", "rows", "bytes_decoded", "bytes_by_pyarrow")]


@grid((2, 0), (3, 2))
def test_head_is_the_first_rows_of_an_epoch_and_changes_nothing(
    part: Part, num_ranks: int, num_workers: int, loader_of: Callable[..., Any]
) -> None:
    for rank in range(num_ranks):
        expected = batches(loader_of(rank, num_ranks, num_workers))
        rows = [row for batch in expected for row in rows_of(batch)]
        loader = loader_of(rank, num_ranks, num_workers)
        if part.follows:
            with pytest.raises(CountsRequiredError, match="follow=True"):
                loader.head(1)
        passing = iter(loader)
        for step, batch in enumerate(expected):
            # Ranks take turns: each step on one of them.
            if step % num_ranks == rank and (step or not part.follows):
                before = loader.state_dict(), loader.dataset._passes.live, counts(loader)
                n = (1, len(rows_of(expected[0])) + 1, len(rows) + 1)[step % 3]
                head = loader.head(n)
                assert set(head) == set(batch)
                assert rows_of(plain(head)) == rows[:n]
                if any(key.endswith(OF_BATCHES) for key in head):
                    part.held(head)  # which follow from all rows together
                assert (loader.state_dict(), loader.dataset._passes.live, counts(loader)) == before
            assert plain(next(passing)) == batch
        assert next(passing, None) is None
