"""The public helpers pass on our loaders, and fail with a message that helps on doctored ones."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.resume.helpers import LAYOUT, write_files
from torch_dataloader_utils import Processes, Rotate, StructuredDataset
from torch_dataloader_utils.testing import assert_resumes_everywhere, assert_rows_once

ROWS = sum(map(sum, LAYOUT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def loader_of(folder: str, **options: Any) -> Callable[..., Any]:
    def make(rank: int = 0, num_ranks: int = 1) -> Any:
        given = {"batch_size": 3, "split_rows": 6, "num_workers": 0} | options
        return StructuredDataset.create_dataloader(folder, num_ranks=num_ranks, rank=rank, **given)

    return make


class Doctored:
    """A loader whose batches, or states, are others than those it was made with."""

    def __init__(self, loader: Any, batches: Callable[[Iterator[Any]], Iterator[Any]], late: int = 0) -> None:
        self._loader, self._batches, self._late = loader, batches, late
        self._states: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self._batches(iter(self._loader))

    def state_dict(self) -> Any:
        self._states.append(copy.deepcopy(self._loader.state_dict()))
        return self._states[max(0, len(self._states) - 1 - self._late)]

    def load_state_dict(self, state: Any) -> None:
        self._loader.load_state_dict(state)


def doctored(make: Callable[..., Any], batches: Callable[[Any], Any], rank: int) -> Callable[[int, int], Any]:
    """The loaders of `make`, of which that of one rank gives other batches."""

    def made(own: int, num_ranks: int) -> Any:
        loader, dataset = make(own, num_ranks)
        return (Doctored(loader, batches) if (own, num_ranks) == (rank, 2) else loader), dataset

    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "sharding": "contiguous", "num_workers": 2},
        {"shuffle": True, "sharding": "strided", "shuffle_buffer_size": 10, "output_format": "arrow"},
        {"sharding": "rotate", "even": "pad", "num_workers": 2, "output_format": "numpy"},
        {"filters": [("id", ">", 11)], "output_format": "dict"},
        {"num_workers": 2, "worker_mode": Processes(context="fork")},
        {"canonical_ranks": 6, "batch_size": 6},
    ],
    ids=str,
)
def test_our_loaders_pass(folder: str, options: dict[str, Any]) -> None:
    make = loader_of(folder, **options)
    expected = range(12, ROWS) if "filters" in options else range(ROWS)
    assert_rows_once(make, 3, expected=expected, epochs=[1])
    assert_rows_once(make, 2)
    assert_resumes_everywhere(lambda: make(1, 2), every=2, epoch=1)
    assert_resumes_everywhere(make()[0])


def test_a_rotation_is_complete_over_its_epochs(folder: str) -> None:
    make = loader_of(folder, sharding=Rotate(4))
    assert_rows_once(make, 2, epochs=range(2), expected=range(ROWS))
    with pytest.raises(AssertionError, match=rf"{ROWS} rows exactly once in epoch\(s\) 0: \d+ missing"):
        assert_rows_once(make, 2, expected=range(ROWS))


def test_ids_may_be_a_function_of_the_batch(folder: str) -> None:
    assert_rows_once(loader_of(folder), 2, id_column=lambda batch: batch["name"])
    assert_resumes_everywhere(loader_of(folder), id_column=lambda batch: [tuple(batch["name"])])


def test_repeated_rows_are_named_with_their_ranks(folder: str) -> None:
    def twice(batches: Iterator[Any]) -> Iterator[Any]:
        first = next(batches)
        assert first["id"].tolist() == [5, 6, 14]
        yield first
        yield {"id": torch.tensor([6, 0])}
        yield from batches

    message = f"2 rank(s) do not deliver each of {ROWS} rows exactly once in epoch(s) 0: "
    message += "2 repeated: 0 (ranks 0, 1), 6 (ranks 1, 1)"
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_rows_once(doctored(loader_of(folder), twice, rank=1), 2)


def test_missing_and_unexpected_rows_are_named(folder: str) -> None:
    def others(batches: Iterator[Any]) -> Iterator[Any]:
        next(batches)
        yield {"id": [99]}
        yield from batches

    with pytest.raises(AssertionError, match=r"3 missing: 5, 6, 14; 1 unexpected: 99 \(rank 1\)$"):
        assert_rows_once(doctored(loader_of(folder), others, rank=1), 2)


def test_many_missing_rows_are_counted(folder: str) -> None:
    with pytest.raises(AssertionError, match=r"20 missing: 38, 39, 40, 41, 42, 43, 44, 45 and 12 more$"):
        assert_rows_once(loader_of(folder), 2, expected=range(ROWS + 20))


def test_unmarked_repeats_are_an_error_and_marked_ones_are_not(folder: str) -> None:
    make = loader_of(folder, even="pad", valid_key="is_real")
    assert_rows_once(make, 4, valid_key="is_real")
    with pytest.raises(AssertionError, match="repeated"):
        assert_rows_once(make, 4)


def test_a_state_one_batch_late_is_found(folder: str) -> None:
    def late() -> Any:
        return Doctored(loader_of(folder)()[0], iter, late=1)

    message = "the state after batch 1 of 13 does not resume exactly: batch 2 has the rows 0, 1, 2, expected 3, 4, 5"
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_resumes_everywhere(late)


def test_a_resumed_pass_that_ends_too_early_is_found(folder: str) -> None:
    made = []

    def ends_early() -> Any:
        made.append(1)
        return Doctored(loader_of(folder)()[0], iter if len(made) == 1 else lambda batches: iter(list(batches)[:-1]))

    with pytest.raises(
        AssertionError, match="the state after batch 0 of 13 does not resume exactly: 12 batches follow"
    ):
        assert_resumes_everywhere(ends_early)


def test_the_last_state_is_checked_whatever_the_interval(folder: str) -> None:
    loader = Doctored(loader_of(folder)()[0], iter, late=1)
    loader.state_dict()  # so that the state before the first batch is right
    with pytest.raises(
        AssertionError, match="after batch 13 of 13 does not resume exactly: 1 batches follow, expected 0"
    ):
        assert_resumes_everywhere(loader, every=100)


def test_a_state_that_is_no_plain_data_is_an_error(folder: str) -> None:
    loader = loader_of(folder)()[0]

    class Opaque(Doctored):
        def state_dict(self) -> Any:
            return {"state": object()}

    with pytest.raises(AssertionError, match="the state after batch 0 is not plain data"):
        assert_resumes_everywhere(Opaque(loader, iter))


def test_what_cannot_be_checked_is_an_error(folder: str) -> None:
    with pytest.raises(KeyError, match="id_column='row': the batch has id, name"):
        assert_rows_once(loader_of(folder), 2, id_column="row")
    with pytest.raises(TypeError, match="epoch 3 was requested"):
        assert_rows_once(lambda rank, num_ranks: [{"id": [1]}], 1, epochs=[3])
    with pytest.raises(ValueError, match="every=0"):
        assert_resumes_everywhere(loader_of(folder), every=0)
