"""`canonical_ranks`: the same rows in every global step, for any number of ranks and workers, resumed or not."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.resume.helpers import batches, make, pass_with_states, plain, through_json, write_files
from torch_dataloader_utils import CheckpointMismatchError, OptionError, Processes

GLOBAL = 16
PROCESSES = {"worker_mode": Processes(context="fork"), "num_workers": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"), ((5, 12, 7), (14, 4), (9,), (11, 13, 30), (20,), (8, 8, 8)))


def ranks_of(folder: str, ranks: int, **options: Any) -> list[Any]:
    given = {"canonical_ranks": 8, "batch_size": GLOBAL // ranks, "shuffle": True} | options
    return [make(folder, num_ranks=ranks, rank=rank, **given) for rank in range(ranks)]


def steps_of(found: list[list[Any]]) -> list[Counter[tuple[int, bool]]]:
    """What all ranks had in each global step."""
    length = max(map(len, found))
    return [
        sum(
            (Counter(zip(mine[step]["id"], mine[step].get("valid", [True] * 99), strict=False)) for mine in found
             if step < len(mine)),
            Counter(),
        )
        for step in range(length)
    ]  # fmt: skip


def whole(folder: str, ranks: int, **options: Any) -> list[Counter[tuple[int, bool]]]:
    return steps_of([batches(loader) for loader in ranks_of(folder, ranks, **options)])


ORDERS: list[dict[str, Any]] = [
    {},
    {"even": "drop"},
    {"even": "pad"},
    {"shuffle_buffer_size": 11},
    {"sharding": "strided"},
    {"steps_per_epoch": 17},
]


@pytest.mark.parametrize("options", ORDERS)
def test_the_same_global_batches(folder: str, options: dict[str, Any]) -> None:
    expected = whole(folder, 1, **options)
    assert all(sum(step.values()) == GLOBAL for step in expected[:-1])
    for ranks in (1, 2, 4, 8):
        for workers in (0, 1, 3):
            assert whole(folder, ranks, num_workers=workers, **options) == expected


def test_processes_share_the_virtual_ranks(folder: str) -> None:
    (loader,) = ranks_of(folder, 1, **PROCESSES)
    expected = whole(folder, 1)
    assert steps_of([batches(loader)]) == expected
    loader.dataset.set_epoch(0)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert steps_of([batches(loader)]) == expected[4:]
    loader.dataset.close()


@pytest.mark.parametrize("options", ORDERS)
def test_a_state_continues_at_any_number_of_ranks(folder: str, options: dict[str, Any]) -> None:
    expected = whole(folder, 1, **options)
    (loader,) = ranks_of(folder, 1, **options)
    _, states = pass_with_states(loader)
    for step, state in enumerate(states):
        ranks, workers = ((1, 0), (2, 3), (8, 0))[step % 3]
        resumed = ranks_of(folder, ranks, num_workers=workers, **options)
        for mine in resumed:
            mine.load_state_dict(state)
            assert len(mine.state_dict()["links"]) == 1
        rest = [batches(mine) for mine in resumed]
        assert (steps_of(rest) if any(rest) else []) == expected[step:]


@pytest.mark.parametrize("options", ORDERS)
def test_the_state_s_bytes_are_those_of_every_rank_and_worker(folder: str, options: dict[str, Any]) -> None:
    found = set()
    for ranks, workers in ((1, 0), (1, 3), (2, 3), (8, 1)):
        loaders = ranks_of(folder, ranks, num_workers=workers, **{"sharding": "auto"} | options)
        for loader in (loaders[0], loaders[-1]):
            for _ in zip(range(3), loader, strict=False):
                pass
            found.add(json.dumps(loader.state_dict()))
    assert len(found) == 1


def test_auto_chooses_for_the_virtual_ranks(folder: str) -> None:
    """13 splits: at least two for each of 4 virtual ranks, though not for each of 3 workers of 4 ranks."""
    for ranks, workers in ((1, 0), (2, 3), (4, 3)):
        options: dict[str, Any] = {"num_workers": workers, "split_rows": 4, "canonical_ranks": 4}
        loader = ranks_of(folder, ranks, sharding="auto", **options)[0]
        assert len(loader.dataset._source.splits) == 13
        assert loader.state_dict()["links"][0]["policy"] == "interleave"
        assert whole(folder, ranks, sharding="auto", **options) == whole(folder, 1, **options)


def test_processes_do_not_begin_again(folder: str) -> None:
    with pytest.raises(OptionError, match="Use worker_mode='threads'"):
        ranks_of(folder, 1, steps_per_epoch=20, **PROCESSES)


def test_another_global_batch_is_refused(folder: str) -> None:
    loader = ranks_of(folder, 2)[0]
    next(iter(loader))
    state = through_json(loader.state_dict())
    for other in (ranks_of(folder, 2, batch_size=GLOBAL), ranks_of(folder, 2, canonical_ranks=4)):
        with pytest.raises(CheckpointMismatchError, match="canonical_ranks"):
            other[0].load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="canonical_ranks"):
        make(folder, shuffle=True).load_state_dict(state)


def test_steps_are_left_out(folder: str) -> None:
    (loader,) = ranks_of(folder, 1)
    loader.skip_steps(2, 5)
    expected = whole(folder, 1)
    assert steps_of([batches(loader)]) == expected[:2] + expected[5:]


def in_workers(dataset: Any, count: int) -> list[Any]:
    import torch

    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=count, multiprocessing_context="fork")
    return [plain(batch) for batch in loader]


def test_one_foreign_worker_at_most(folder: str) -> None:
    (loader,) = ranks_of(folder, 1)
    assert steps_of([in_workers(loader.dataset, 1)]) == whole(folder, 1)
    with pytest.raises(OptionError, match="canonical_ranks within 2 workers"):
        in_workers(loader.dataset, 2)
