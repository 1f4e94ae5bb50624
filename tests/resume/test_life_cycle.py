"""Which place a pass begins at: `set_epoch`, `load_state_dict`, abandoned and finished passes, in any order."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.resume.helpers import KEPT, batches, make, pass_with_states, plain, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, OptionError, StaleIteratorError

EPOCHS = 40
OPS = st.lists(
    st.tuples(st.sampled_from(["next", "drain", "iter", "set", "save", "load", "same", "drop"]), st.integers(0, 4)),
    max_size=25,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"), ((4, 4), (4, 4)))


@pytest.fixture(scope="module")
def ref(folder: str) -> list[list[Any]]:
    """The batches of each epoch: eight of two rows."""
    return reference(folder)


def new(folder: str, **options: Any) -> Any:
    return make(folder, **{"batch_size": 2, "shuffle": True, "split_rows": 4} | options)


def reference(folder: str, epochs: int = EPOCHS, **options: Any) -> list[list[Any]]:
    loader = new(folder, **options)
    found = []
    for epoch in range(epochs):
        loader.dataset.set_epoch(epoch)
        found.append(batches(loader))
    return found


def saved(folder: str, epoch: int, steps: int) -> Any:
    loader = new(folder)
    loader.dataset.set_epoch(epoch)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return through_json(loader.state_dict())


class Model:
    """What the loader promises, in a few lines: the place of the next pass, and of the live one."""

    def __init__(self, lengths: list[int], known: bool) -> None:
        self.lengths, self.known = lengths, known
        self.next_epoch, self.explicit = 0, False
        self.pending: tuple[int, int] | None = None
        self.live: list[Any] | None = None  # [epoch, steps, whose]

    @property
    def place(self) -> tuple[int, int]:
        if self.pending is not None:
            return self.pending
        return (self.next_epoch, 0) if self.live is None else (self.live[0], self.live[1])

    def set_epoch(self, epoch: int) -> None:
        if self.pending is not None and self.pending[0] != epoch:
            self.pending = None
        self.next_epoch, self.explicit = epoch, True

    def load(self, place: tuple[int, int]) -> None:
        self.live, self.explicit, self.next_epoch, self.pending = None, False, place[0], place

    def begin(self, whose: object, seen: bool) -> None:
        """`seen`: whether the iterator of the pass before is still there to be looked at."""
        if self.live is not None and not self.explicit and self.pending is None:
            done = self.live[1] >= self.lengths[self.live[0]] and (self.known or seen)
            self.next_epoch = self.live[0] + done
        epoch, steps = self.pending or (self.next_epoch, 0)
        self.live, self.pending, self.explicit, self.next_epoch = [epoch, steps, whose], None, False, epoch

    def finish(self) -> None:
        assert self.live is not None
        if not self.explicit and self.pending is None:
            self.next_epoch = self.live[0] + 1
        self.live = None


class Pair:
    """A loader and its model, driven together."""

    def __init__(self, loader: Any, ref: list[list[Any]], known: bool) -> None:
        self.loader, self.ref = loader, ref
        self.model = Model([len(epoch) for epoch in ref], known)
        self.iterator = iter(loader)
        self.begun = self.over = False
        self.saved = loader.state_dict(), self.model.place

    def new_iterator(self) -> None:
        self.iterator, self.begun, self.over = iter(self.loader), False, False

    def check(self) -> None:
        state = through_json(self.loader.state_dict())
        assert (state["epoch"], state["links"][-1]["batches"]) == self.model.place
        if self.model.known:
            assert len(self.loader) == len(self.ref[self.model.place[0]])

    def next(self) -> bool:
        """Whether there was a batch."""
        if not self.begun:
            self.begun = True
            self.model.begin(self.iterator, seen=self.model.live is not None and self.model.live[2] is not None)
        elif self.over:
            with pytest.raises(StopIteration):
                next(self.iterator)
            return False
        elif self.model.live is None or self.model.live[2] is not self.iterator:
            with pytest.raises(StaleIteratorError, match="another pass"):
                next(self.iterator)
            self.new_iterator()
            return False
        assert self.model.live is not None
        epoch, steps, _ = self.model.live
        batch = next(self.iterator, None)
        if steps >= len(self.ref[epoch]):
            assert batch is None
            self.over = True
            self.model.finish()
            return False
        assert plain(batch) == self.ref[epoch][steps]
        self.model.live[1] += 1
        return True

    def do(self, op: str, number: int) -> None:
        if op == "iter":
            # The iterator before is kept by the model's `live`, if its pass is.
            self.new_iterator()
        elif op == "drop":
            if self.model.live is not None:
                self.model.live[2] = None
            self.new_iterator()
        elif op == "set":
            self.loader.dataset.set_epoch(number)
            self.model.set_epoch(number)
        elif op == "same":
            self.loader.dataset.set_epoch(self.model.place[0])
            self.model.set_epoch(self.model.place[0])
        elif op == "save":
            self.saved = through_json(self.loader.state_dict()), self.model.place
        elif op == "load":
            self.loader.load_state_dict(self.saved[0])
            self.model.load(self.saved[1])
        else:
            for _ in range(number if op == "next" else 10**6):
                if not self.next():
                    break
        self.check()


@settings(max_examples=60)
@given(OPS, st.sampled_from([0, 2]))
def test_life_cycle(folder: str, ref: list[list[Any]], ops: list[tuple[str, int]], workers: int) -> None:
    pair = Pair(new(folder, num_workers=workers), ref if workers < 2 else two_workers(folder), known=True)
    for op, number in ops:
        pair.do(op, number)


@settings(max_examples=40)
@given(OPS)
def test_life_cycle_of_unknown_counts(folder: str, ops: list[tuple[str, int]]) -> None:
    pair = Pair(new(folder, filters=KEPT), filtered(folder), known=False)
    for op, number in ops:
        pair.do(op, number)


_KEPT_REFERENCES: dict[str, list[list[Any]]] = {}


def two_workers(folder: str) -> list[list[Any]]:
    if "two" not in _KEPT_REFERENCES:
        _KEPT_REFERENCES["two"] = reference(folder, num_workers=2)
    return _KEPT_REFERENCES["two"]


def filtered(folder: str) -> list[list[Any]]:
    if "filtered" not in _KEPT_REFERENCES:
        _KEPT_REFERENCES["filtered"] = reference(folder, filters=KEPT)
    return _KEPT_REFERENCES["filtered"]


def test_the_later_call_wins(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    loader.dataset.set_epoch(7)
    loader.load_state_dict(saved(folder, 3, 2))
    assert [batches(loader), batches(loader)] == [ref[3][2:], ref[4]]
    loader.load_state_dict(saved(folder, 3, 2))
    loader.dataset.set_epoch(3)
    assert batches(loader) == ref[3][2:]
    loader.load_state_dict(saved(folder, 3, 2))
    loader.set_epoch(5)
    assert batches(loader) == ref[5]


@pytest.mark.parametrize("caller", ["loader", "dataset"])
def test_a_loaded_position_is_given_up_with_a_warning(
    folder: str, ref: list[list[Any]], caplog: pytest.LogCaptureFixture, caller: str
) -> None:
    """Once; the remedies that it names work."""
    loader = new(folder)
    loader.load_state_dict(saved(folder, 3, 2))
    for _ in range(2):
        (loader if caller == "loader" else loader.dataset).set_epoch(0)
    assert batches(loader) == ref[0]
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "set_epoch(0) gives up the position" in record.message
    assert "after 2 step(s) of epoch 3: the next pass begins epoch 0" in record.message
    caplog.clear()
    loader.load_state_dict(saved(folder, 3, 2))
    loader.set_epoch(loader.state_dict()["epoch"])
    assert batches(loader) == ref[3][2:]
    loader.set_epoch(0)
    loader.load_state_dict(saved(folder, 3, 2))
    assert batches(loader) == ref[3][2:]
    loader.load_state_dict(saved(folder, 0, len(ref[0])))  # nothing is left of it
    loader.set_epoch(1)
    assert batches(loader) == ref[1]
    assert not caplog.records


@pytest.mark.parametrize("epoch", [0, 3, 5])
def test_a_sampler_never_gives_up_a_loaded_position(
    folder: str, ref: list[list[Any]], caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    loader = new(folder)
    loader.load_state_dict(saved(folder, 3, 2))
    loader.sampler.set_epoch(epoch)
    assert batches(loader) == ref[3][2:]
    assert not caplog.records
    loader.sampler.set_epoch(epoch)  # the position has been used
    assert batches(loader) == ref[epoch]


def test_a_refused_state_keeps_the_loaded_position(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    loader.load_state_dict(saved(folder, 2, 3))
    with pytest.raises(CheckpointMismatchError):
        loader.load_state_dict(new(folder, shuffle_seed=8).state_dict())
    assert batches(loader) == ref[2][3:]


def test_iter_before_load_and_set_epoch(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    iterator = iter(loader)
    loader.load_state_dict(saved(folder, 3, 2))
    assert [plain(batch) for batch in iterator] == ref[3][2:]
    iterator = iter(loader)
    loader.dataset.set_epoch(8)
    assert [plain(batch) for batch in iterator] == ref[8]


def test_loading_ends_a_pass(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(StaleIteratorError, match="a state was loaded"):
        next(iterator)
    assert batches(loader) == two_workers(folder)[0][1:]


def test_the_end_of_an_epoch(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)  # never exhausted: counts as completed
    assert loader.state_dict()["links"][-1]["batches"] == 8
    assert batches(loader) == ref[1]
    assert (loader.state_dict()["epoch"], loader.state_dict()["links"][-1]["batches"]) == (2, 0)
    loader.load_state_dict(saved(folder, 2, 8))
    assert [batches(loader), batches(loader)] == [[], ref[3]]
    loader.load_state_dict(saved(folder, 2, 8))
    loader.dataset.set_epoch(3)
    assert batches(loader) == ref[3]


def test_a_loop_that_was_left_keeps_its_place_in_the_state(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    state = loader.state_dict()
    again = new(folder)
    again.load_state_dict(state)
    assert batches(again) == ref[0][3:]
    assert batches(loader) == ref[0]  # the same loader begins afresh


def test_a_state_loads_twice_and_a_resumed_run_resumes(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    for _ in range(2):
        loader.load_state_dict(saved(folder, 0, 3))
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(2)] == ref[0][3:5]
    again = new(folder)
    again.load_state_dict(loader.state_dict())
    assert len(again) == 8
    assert batches(again) == ref[0][5:]


def copies(loader: Any) -> list[Any]:
    """Copies of a loader and of its dataset."""
    datasets = [pickle.loads(pickle.dumps(loader.dataset)), copy.deepcopy(loader.dataset), copy.copy(loader.dataset)]
    return [pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), *datasets]


@pytest.mark.parametrize("filtered", [False, True])
def test_a_copy_begins_an_abandoned_pass_afresh(folder: str, filtered: bool) -> None:
    """As a second `iter` does, whatever the copy; also if the pass has been closed."""
    options: dict[str, Any] = {"filters": KEPT} if filtered else {}
    ref = reference(folder, **options)
    loader = new(folder, **options)
    iterator = iter(loader)
    next(iterator)
    for twin in copies(loader):
        assert [batches(twin), batches(twin)] == ref[:2]
    loader.dataset.close()
    for twin in copies(loader):
        assert [batches(twin), batches(twin)] == ref[:2]
    assert batches(loader) == ref[0]


def test_a_copy_begins_after_a_pass_that_is_over(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    iterator = iter(loader)
    for _ in ref[0]:
        next(iterator)  # its StopIteration is never reached
    for twin in copies(loader):
        assert batches(twin) == ref[1]
    loader.set_epoch(5)
    for twin in copies(loader):
        assert batches(twin) == ref[5]


def test_a_copy_keeps_a_loaded_position_until_it_is_used(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    loader.load_state_dict(saved(folder, 2, 3))
    for twin in copies(loader):
        assert [batches(twin), batches(twin)] == [ref[2][3:], ref[3]]
    iterator = iter(loader)
    next(iterator)  # used
    for twin in copies(loader):
        assert batches(twin) == ref[2]
        twin.load_state_dict(loader.state_dict())  # how a pass that has begun goes on in a copy
        assert batches(twin) == ref[2][4:]


def test_copies_keep_their_epoch(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    loader.dataset.set_epoch(5)
    twin = pickle.loads(pickle.dumps(new(folder).dataset))
    assert [plain(batch) for batch in twin] == ref[0]


def test_steps_are_left_out(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    loader.skip_steps(2, 4)
    loader.skip_steps(3, 5)
    assert len(loader) == 5
    whole, states = pass_with_states(loader)
    assert whole == ref[0][:2] + ref[0][5:]
    assert [state["links"][-1]["batches"] for state in states] == [0, 1, 2, 6, 7, 8]
    assert all(state["skip"] == [[2, 5]] for state in states)
    assert loader.state_dict()["skip"] == []
    for step, state in enumerate(states):
        loader.load_state_dict(state)
        assert len(loader) == 5
        assert batches(loader) == whole[step:]
    assert batches(loader) == ref[1]


@pytest.mark.parametrize("workers", [0, 2, None])
def test_steps_are_left_out_of_a_pass_that_runs(folder: str, ref: list[list[Any]], workers: int | None) -> None:
    loader = new(folder, num_workers=workers)
    expected = ref[0] if workers != 2 else two_workers(folder)[0]
    iterator = iter(loader)
    found = [plain(next(iterator)) for _ in range(3)]
    loader.skip_steps(0, 4)  # those that were delivered stay so
    loader.skip_steps(6, 100)
    assert len(loader) == 5
    assert found + [plain(batch) for batch in iterator] == expected[:3] + expected[4:6]
    assert loader.state_dict()["epoch"] == 1


def test_leaving_out_the_last_steps_completes_the_epoch(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    loader.skip_steps(5, 8)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    assert batches(loader) == ref[1]


def test_steps_are_left_out_of_the_pass_after_a_completed_one(folder: str, ref: list[list[Any]]) -> None:
    loader = new(folder)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    loader.skip_steps(0, 6)
    assert list(iterator) == []
    assert batches(loader) == ref[1][6:]
    loader.skip_steps(0, 6)
    loader.dataset.set_epoch(9)
    assert batches(loader) == ref[9]


def test_steps_are_left_out_where_counts_are_unknown(folder: str) -> None:
    expected = filtered(folder)
    loader = new(folder, filters=KEPT)
    loader.skip_steps(1, 3)
    whole, states = pass_with_states(loader)
    assert whole == expected[0][:1] + expected[0][3:]
    for step, state in enumerate(states):
        loader.load_state_dict(state)
        assert batches(loader) == whole[step:]
    assert batches(loader) == expected[1]


def test_leaving_out_no_step_changes_nothing(folder: str) -> None:
    loader = make(folder)
    steps = len(loader)
    batch = iter(loader)
    for _ in range(steps):
        next(batch)
    before = loader.state_dict()
    loader.skip_steps(0, 0)
    assert loader.state_dict() == before


def test_skip_steps_checks_its_numbers(folder: str) -> None:
    with pytest.raises(OptionError, match=r"skip_steps\(3, 1\): expected"):
        new(folder).skip_steps(3, 1)
    with pytest.raises(OptionError, match=r"skip_steps\('a', True\): expected"):
        new(folder).skip_steps("a", True)


def test_skip_steps_takes_whole_numbers_of_any_kind(folder: str) -> None:
    one, other = new(folder), new(folder)
    one.skip_steps(np.int64(1), np.int32(3))
    other.skip_steps(1, 3)
    assert json.dumps(one.state_dict()) == json.dumps(other.state_dict())


class Failing:
    """A `collate_fn` or `transform` that raises once, at the batch that holds a row."""

    def __init__(self) -> None:
        self.row: int | None = None

    def __call__(self, batch: Any) -> Any:
        rows = batch.column("id").to_pylist() if isinstance(batch, pa.RecordBatch) else batch["id"].tolist()
        if self.row in rows:
            self.row = None
            raise ValueError("an old error")
        return batch


def csv_files(folder: Path) -> str:
    for number in range(2):
        rows = range(number * 8, number * 8 + 8)
        (folder / f"part-{number}.csv").write_text("id,name\n" + "".join(f"{row},row {row}\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("kind", ["filter", "csv", "sync"])
@pytest.mark.parametrize("function", ["collate_fn", "transform"])
def test_an_error_ahead_of_an_abandoned_pass_is_not_the_next_one_s(
    folder: str, tmp_path: Path, kind: str, function: str
) -> None:
    """If only reading shows whether the pass was complete, the next pass checks; errors of that check are forgotten."""
    path = csv_files(tmp_path) if kind == "csv" else folder
    options = {"filter": {"filters": KEPT}, "sync": {"even": "sync"}, "csv": {"split_rows": None}}[kind]
    first, second = reference(path, 2, shuffle=False, **options)
    failing = Failing()
    loader = new(path, shuffle=False, **options, **{function: failing})
    iterator = iter(loader)
    failing.row = 8  # the first of a block
    for _ in range(next(number for number, batch in enumerate(first) if failing.row in batch["id"])):
        next(iterator)
    assert batches(loader) == first  # the epoch afresh
    assert failing.row is None
    assert batches(loader) == second


def test_a_batch_may_be_none(folder: str) -> None:
    """A `collate_fn` may return anything; None in the look ahead is a batch, too."""
    loader = new(folder, filters=KEPT, collate_fn=lambda _: None)
    iterator = iter(loader)
    assert next(iterator) is None
    assert list(loader) == [None] * len(filtered(folder)[0])
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("options", [{"filters": KEPT}, {"even": "sync"}])
def test_a_batch_that_was_looked_at_is_left_out_too(folder: str, options: dict[str, Any]) -> None:
    expected = batches(new(folder, **options))
    loader = new(folder, **options)
    iterator: Any = iter(loader)
    found = [plain(next(iterator))]
    assert not iterator.at_end()
    loader.skip_steps(1, 3)
    assert found + [plain(batch) for batch in iterator] == expected[:1] + expected[3:]
