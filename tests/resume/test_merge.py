"""States of other numbers of ranks and workers: what is left of an epoch is dealt out again, each row once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.resume.helpers import KEPT, batches, make, plain, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, OptionError, merge_state_dicts
from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.planning.strategies import RoundRobinSplitStrategy

ROWS = list(range(38))
KEPT_ROWS = [row for row in ROWS if row % 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def real_rows(found: list[Any]) -> list[int]:
    return [row for batch in found for row, real in zip(batch["id"], batch.get("valid", batch["id"]), strict=True)
            if "valid" not in batch or real]  # fmt: skip


class Job:
    """The ranks of a job in one process."""

    def __init__(self, folder: str, state: Any, ranks: int, **options: Any) -> None:
        self.loaders = [make(folder, num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)

    def run(self, steps: list[int]) -> list[int]:
        """Let each rank take so many batches (as far as it has them): the rows."""
        seen: list[int] = []
        for loader, count in zip(self.loaders, steps, strict=True):
            iterator = iter(loader)
            found = [plain(batch) for _, batch in zip(range(count), iterator, strict=False)]
            seen += real_rows(found)
        return seen

    def rest(self) -> list[int]:
        return [row for loader in self.loaders for row in real_rows(batches(loader))]

    def merged(self) -> Any:
        return through_json(merge_state_dicts([loader.state_dict() for loader in self.loaders]))


LINKS = st.lists(
    st.fixed_dictionaries(
        {
            "ranks": st.integers(1, 3),
            "num_workers": st.sampled_from([0, 2, 3]),
            "batch_size": st.integers(1, 5),
            "sharding": st.sampled_from(["interleave", "contiguous", "rotate", "strided", "auto"]),
            "shuffle_buffer_size": st.sampled_from([None, 6]),
        }
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=40)
@example(
    links=[{"ranks": ranks, "num_workers": 0, "batch_size": size} for ranks, size in ((2, 20), (3, 1))],
    shuffle=False,
    unknown=True,
    lockstep=False,
    seed=0,
)  # one rank has finished, the other has not begun
@given(LINKS, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**20))
def test_chains_of_jobs(
    folder: str, links: list[dict[str, Any]], shuffle: bool, unknown: bool, lockstep: bool, seed: int
) -> None:
    draw = random.Random(seed)
    state, seen = None, []
    options: dict[str, Any] = {"shuffle": shuffle} | ({"filters": KEPT} if unknown else {})
    for number, link in enumerate(links):
        job = Job(folder, state, **options, **link)
        if number == len(links) - 1:
            seen += job.rest()
            break
        count = draw.randrange(4)
        steps = [count if lockstep else draw.randrange(4) for _ in job.loaders]
        seen += job.run(steps)
        if not any(steps):
            continue
        state = job.merged()
        if state["epoch"] == 1:  # all ranks had been at their ends
            return
    assert sorted(seen) == (KEPT_ROWS if unknown else ROWS)


@pytest.mark.parametrize("even", ["none", "pad", "drop"])
@pytest.mark.parametrize("order", [{}, {"shuffle": True}, {"shuffle": True, "shuffle_buffer_size": 9}])
def test_the_state_of_one_rank_serves_any_number(folder: str, even: str, order: dict[str, Any]) -> None:
    for before, after in ((4, 2), (2, 3), (3, 1)):
        job = Job(folder, None, before, even=even, **order)
        seen = job.run([2] * before)
        state = through_json(job.loaders[-1].state_dict())
        resumed = Job(folder, state, after, even=even, batch_size=2, num_workers=2, **order)
        lengths = {len(loader) for loader in resumed.loaders}
        assert even == "none" or len(lengths) == 1
        seen += resumed.rest()
        assert len(seen) == len(set(seen))
        assert sorted(seen) == ROWS if even != "drop" else len(ROWS) - len(seen) < 2 * after
        assert {loader.state_dict()["epoch"] for loader in resumed.loaders} == {1}


def test_every_step_behind_a_change_of_ranks(folder: str) -> None:
    state = through_json(Job(folder, None, 3, shuffle=True).loaders[0].state_dict())
    job = Job(folder, None, 3, shuffle=True)
    job.run([2, 2, 2])
    state = through_json(job.loaders[0].state_dict())
    loader = make(folder, shuffle=True, num_workers=2)
    loader.load_state_dict(state)
    length = len(loader)
    whole, states = [], [through_json(loader.state_dict())]
    for batch in loader:
        whole.append(plain(batch))
        states.append(through_json(loader.state_dict()))
    assert length == 2 + len(whole)
    assert [len(state["links"]) for state in states] == [2] * len(states)
    for step, state in enumerate(states):
        again = make(folder, shuffle=True, num_workers=2)
        again.load_state_dict(state)
        assert len(again) == length
        assert batches(again) == whole[step:]


def test_rows_of_a_step_behind_a_change_of_ranks(folder: str) -> None:
    job = Job(folder, None, 3, shuffle=True)
    job.run([2, 2, 2])
    loader = make(folder, shuffle=True, num_workers=2)
    loader.load_state_dict(job.loaders[0].state_dict())
    rows = [loader.dataset.rows_of(0, step) for step in range(2, len(loader))]
    assert [sum(part.stop - part.start for part in step) for step in rows] == [len(b["id"]) for b in batches(loader)]
    loader.load_state_dict(job.loaders[0].state_dict())
    with pytest.raises(IndexError, match=r"taken under other options.*expected a step of at least 2"):
        loader.dataset.rows_of(0, 1)


def test_a_state_without_a_step_leaves_no_trace(folder: str) -> None:
    state = through_json(make(folder, num_ranks=3, rank=0).state_dict())
    loader = make(folder)
    loader.load_state_dict(state)
    assert len(loader.state_dict()["links"]) == 1
    assert sorted(real_rows(batches(loader))) == ROWS


def test_merged_states_continue_each_rank_where_it_was(folder: str) -> None:
    for options in ({}, {"filters": KEPT}):
        job = Job(folder, None, 3, shuffle=True, **options)
        whole = [batches(loader) for loader in Job(folder, None, 3, shuffle=True, **options).loaders]
        job.run([1, 1, 0])
        state = job.merged()
        assert state["links"][0]["batches"] == [1, 1, 0]
        resumed = Job(folder, state, 3, shuffle=True, **options)
        for rank, steps in enumerate([1, 1, 0]):
            iterator = iter(resumed.loaders[rank])
            assert plain(next(iterator)) == whole[rank][steps]
            assert resumed.loaders[rank].state_dict()["links"][0]["batches"] == [2, 2, 1]
            assert [plain(batch) for batch in iterator] == whole[rank][steps + 1 :]


def test_a_rank_that_is_an_epoch_ahead_has_finished(folder: str) -> None:
    for options in ({}, {"filters": KEPT}):
        job = Job(folder, None, 2, shuffle=True, **options)
        first = real_rows(batches(job.loaders[0]))
        next(iter(job.loaders[0]))
        second = job.run([0, 2])
        state = job.merged()
        assert state["epoch"] == 0
        assert state["links"][0]["batches"] == [None, 2]
        same = Job(folder, state, 2, shuffle=True, **options)
        assert batches(same.loaders[0]) == []
        assert same.loaders[0].state_dict()["epoch"] == 1
        rest = real_rows(batches(same.loaders[1]))
        rows = KEPT_ROWS if options else ROWS
        assert sorted(first + second + rest) == rows
        other = Job(folder, state, 3, shuffle=True, **options)
        assert sorted(first + second + other.rest()) == rows


def test_states_in_lockstep_are_one(folder: str) -> None:
    job = Job(folder, None, 2, even="pad")
    job.run([2, 2])
    assert job.merged() == through_json(job.loaders[0].state_dict())


def test_unknown_counts_need_all_ranks_to_change(folder: str) -> None:
    job = Job(folder, None, 2, filters=KEPT)
    job.run([2, 2])
    with pytest.raises(CheckpointMismatchError, match=r"the position of rank\(s\) 1.*num_ranks=2; here: num_ranks=3"):
        make(folder, num_ranks=3, rank=0, filters=KEPT).load_state_dict(job.loaders[0].state_dict())


def test_what_cannot_be_merged(folder: str) -> None:
    job = Job(folder, None, 2, filters=KEPT)
    job.run([2, 2])
    states = [loader.state_dict() for loader in job.loaders]
    for wrong, told in (
        ([], "expected the states of all ranks"),
        (states[:1], "merge_state_dicts got 1 states that were taken with num_ranks=2"),
        (states[::-1], "at index 0 holds the position of rank"),
        ([states[0], make(folder, num_ranks=2, rank=1).state_dict()], "different data"),
        ([states[0], make(folder, num_ranks=2, rank=1, filters=KEPT, batch_size=5).state_dict()], "different options"),
    ):
        with pytest.raises(CheckpointMismatchError, match=told):
            merge_state_dicts(wrong)


def test_all_ranks_needs_a_process_group(folder: str) -> None:
    assert make(folder).state_dict(all_ranks=True) == make(folder).state_dict()
    with pytest.raises(OptionError, match=r"torch\.distributed is not initialised"):
        make(folder, num_ranks=2, rank=0).state_dict(all_ranks=True)


def test_generate_strategies_stay_as_they_are(folder: str) -> None:
    class Generating(RoundRobinSplitStrategy):
        def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> Any:
            from torch_dataloader_utils import Shard, Split

            mine = [Split(file, (0, file.record_count)) for file in files[rank::num_ranks]]
            return [Shard(worker, tuple(mine[worker::num_workers])) for worker in range(num_workers)]

    options: dict[str, Any] = {"split_strategy": Generating(), "num_workers": 2, "split_rows": None}
    loader = make(folder, **options)
    whole = batches(loader)
    loader.dataset.set_epoch(0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = through_json(loader.state_dict())
    loader.load_state_dict(state)
    assert batches(loader) == whole[3:]
    with pytest.raises(
        CheckpointMismatchError, match=r"generate\(\) assigns rows itself.*num_shards=2; here: num_shards=3"
    ):
        make(folder, **options | {"num_workers": 3}).load_state_dict(state)


def test_a_function_as_policy_must_be_there_to_change_ranks(folder: str) -> None:
    def every_other(order: Any, world: Any) -> Any:
        return order.take_turns(world.num_ranks, world.rank) if hasattr(order, "take_turns") else order

    state = make(folder).state_dict()
    state["links"][0]["options"]["sharding"] = "function somewhere.every_other"
    state["links"][0]["batches"] = 2
    with pytest.raises(CheckpointMismatchError, match=r"sharding=function somewhere\.every_other, but"):
        len_after_load(make(folder), sealed(state))


def len_after_load(loader: Any, state: Any) -> int:
    loader.load_state_dict(state)
    return len(loader)


@pytest.mark.parametrize("options", [{"last_batch": "drop"}, {"steps_per_epoch": 3}], ids=["drop", "steps"])
def test_rows_that_a_finished_rank_left_out_are_not_lost_in_silence(tmp_path: Path, options: dict[str, Any]) -> None:
    """If counts are known only after reading; the same options can continue."""
    folder = write_files(tmp_path)
    given = {"num_ranks": 2, "filters": KEPT, "batch_size": 2, **options}
    loaders = [make(folder, rank=rank, **given) for rank in range(2)]
    for _ in loaders[0]:
        pass
    next(iter(loaders[1]))
    merged = merge_state_dicts([through_json(loader.state_dict()) for loader in loaders])
    alone = make(folder, filters=KEPT, batch_size=2)
    with pytest.raises(CheckpointMismatchError, match=r"had finished the epoch .* left out rows"):
        alone.load_state_dict(merged)
    again = make(folder, rank=1, **given)
    again.load_state_dict(merged)
    assert len(batches(again)) > 0
