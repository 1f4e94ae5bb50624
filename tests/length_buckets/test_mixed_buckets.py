"""Batches with a budget of tokens, mixed by weight: a batch is of one dataset, and all ranks have as many."""

import logging
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.packing.helpers import documents, write_documents
from torch_dataloader_utils import Buckets, combine, merge_state_dicts

LENGTHS = {"a": [17, 3, 40, 9, 22, 1, 30, 8] * 100, "b": [5, 12, 7] * 30, "c": [4, 6]}
BUDGET = 64


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        name: write_documents(tmp_path_factory.mktemp(name), lengths, row_group_size=20)
        for name, lengths in LENGTHS.items()
    }


def mixed(paths: dict[str, str], **options: Any) -> Any:
    given = {"columns": ["input_ids"], "num_workers": 0, "num_ranks": 1, "rank": 0, "split_rows": 40, "shuffle": True}
    budget = Buckets(BUDGET, by="input_ids")
    weights = {"a": 2, "b": 1, "c": 1}
    return combine(paths, **{**given, "batch_tokens": budget, "weights": weights, "source_key": "dataset", **options})


def rows_of(batches: Any) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
    """The dataset of each batch, which all of its rows are of, and its rows."""
    found = []
    for batch in batches:
        (number,) = set(batch["dataset"].tolist())
        ends, values = batch["input_ids"]["offsets"].tolist(), batch["input_ids"]["values"].tolist()
        rows = tuple(tuple(values[a:b]) for a, b in pairwise(ends))
        assert len(batch["dataset"]) == len(rows)
        assert len(rows) * max(map(len, rows)) <= BUDGET
        found.append((number, rows))
    return found


def test_each_batch_is_of_one_dataset_by_weight_and_ranks_have_as_many(paths: dict[str, str]) -> None:
    taken: Counter[int] = Counter()
    for rank in range(3):
        loader = mixed(paths, tokens_per_epoch=BUDGET * 3 * 40 + 9, num_ranks=3, rank=rank)
        found = rows_of(loader)
        assert len(found) == len(loader) == 40
        whole = {name: set(documents(lengths)) for name, lengths in LENGTHS.items()}
        assert all(set(rows) <= whole[list(LENGTHS)[number]] for number, rows in found)
        taken.update(number for number, _ in found)
    assert taken == {0: 60, 1: 30, 2: 30}
    assert "each batch of 64 tokens is of one dataset" in loader.describe().mix
    metrics = loader.metrics(total=True)
    assert metrics["tokens/a"] + metrics["tokens/b"] + metrics["tokens/c"] == metrics["tokens"]
    assert all(metrics[f"real_tokens/{name}"] <= metrics[f"tokens/{name}"] for name in LENGTHS)


def test_a_batch_size_that_leaves_batches_unfilled_changes_shares(
    paths: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loader = mixed(paths, batch_size=2, tokens_per_epoch=BUDGET * 6000)
        found = rows_of(loader)
    real = sum(len(row) for number, rows in found if number == 2 for row in rows)
    assert real == 10 * 1500
    (warned,) = {record.getMessage() for record in caplog.records if "are filled to" in record.getMessage()}
    assert "the batches of dataset" in warned
    assert "A larger batch_size" in warned
    assert "and 2 rows" in str(loader.describe())


def test_every_state_resumes_and_other_ranks_go_on(paths: dict[str, str]) -> None:
    loader = mixed(paths, steps_per_epoch=60)
    whole, states = [], []
    for batch in loader:
        whole += rows_of([batch])
        states.append(loader.state_dict())
    for taken in (1, 13, 40):
        again = mixed(paths, steps_per_epoch=60)
        again.load_state_dict(states[taken - 1])
        assert rows_of(again) == whole[taken:]
    found, state = [], None
    for ranks, steps in ((2, 9), (3, 8), (1, 70)):
        saved = []
        for rank in range(ranks):
            part = mixed(paths, tokens_per_epoch=BUDGET * 400, num_ranks=ranks, rank=rank)
            if state is not None:
                part.load_state_dict(state)
            found += rows_of(batch for _, batch in zip(range(steps), part, strict=False))
            saved.append(part.state_dict())
        state = merge_state_dicts(saved)
    times = Counter(row for number, rows in found if number == 0 for row in rows)
    assert max(times.values()) == 1
