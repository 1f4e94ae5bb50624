"""Tokens in metrics: places in sequences, tokens of documents, and those that are trained, in all and by dataset."""

import logging
from typing import Any

import pytest

from tests.packing.helpers import write_documents
from torch_dataloader_utils import Pack, combine, stream

LENGTHS = {"long": [30] * 400, "short": [3, 5, 7, 1] * 300}
LENGTH = 48


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: write_documents(tmp_path_factory.mktemp(name), lengths) for name, lengths in LENGTHS.items()}


def test_a_pass_counts_places_real_tokens_and_trained_ones(paths: dict[str, str]) -> None:
    loader = stream(paths["short"], pack=Pack(LENGTH), batch_size=2, num_workers=0)
    batches = list(loader)
    found = loader.metrics(total=True)
    assert found["tokens"] == sum(batch["input_ids"].numel() for batch in batches)
    assert found["real_tokens"] == sum(LENGTHS["short"])
    assert found["trained_tokens"] == sum(int((batch["labels"] != -100).sum()) for batch in batches)
    assert found["tokens_per_s"] > 0


def test_a_resumed_pass_counts_what_was_left(paths: dict[str, str]) -> None:
    options: dict[str, Any] = {"pack": Pack(LENGTH), "batch_size": 2, "num_workers": 0}
    loader = stream(paths["short"], **options)
    passing = iter(loader)
    taken = sum(next(passing)["input_ids"].numel() for _ in range(9))
    again = stream(paths["short"], **options)
    again.load_state_dict(loader.state_dict())
    rest = sum(batch["input_ids"].numel() for batch in again)
    assert again.metrics(total=True)["tokens"] == rest
    assert taken + rest == loader.metrics(total=True)["tokens"]  # its one block


@pytest.mark.parametrize("method", ["wrap", "best_fit"])
def test_a_mix_counts_by_dataset_and_warns_of_sequences_that_stay_empty(
    paths: dict[str, str], method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Two documents of 30 do not fit 48 tokens, so that each has a sequence of its own: 62 % are filled."""
    with caplog.at_level(logging.WARNING):
        loader = combine(
            paths, pack=Pack(LENGTH, columns=["input_ids"], method=method), weights={"long": 1, "short": 1},
            tokens_per_epoch=LENGTH * 2800, batch_size=4, num_workers=0,
        )  # fmt: skip
        batches = list(loader)
    found = loader.metrics(total=True)
    assert found["tokens"] >= sum(batch["input_ids"].numel() for batch in batches)
    assert found["tokens/long"] + found["tokens/short"] == found["tokens"]
    fill = found["real_tokens/long"] / found["tokens/long"]
    assert fill == (1.0 if method == "wrap" else 30 / LENGTH)
    warned = [record.getMessage() for record in caplog.records if "are filled to" in record.getMessage()]
    assert len(warned) == (method == "best_fit")
    assert all(
        "'long' are filled to 62 %, and those of the others to 100 %: beside them it has 0.6" in text for text in warned
    )
