"""torchtitan: its loaders' protocol and its own CheckpointManager with ours. (Its Trainer needs a GPU: triton.)"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import forkrun
from torch_dataloader_utils import EmptyDatasetError, OptionError, Pack, ShardingError

if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)

from torchtitan.components.dataloader import BaseDataLoader

from torch_dataloader_utils.integrations.torchtitan import PackedDataLoader, next_labels

JOB = Path(__file__).with_name("torchtitan_job.py")
LENGTH, BATCH = 24, 2
LENGTHS = np.random.default_rng(0).integers(1, 40, 120).tolist()
DOCUMENTS = [[1 + number * 100 + place for place in range(length)] for number, length in enumerate(LENGTHS)]
TOKENS = Counter(token for document in DOCUMENTS for token in document)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    masks = [[-100 if place < 2 else token for place, token in enumerate(document)] for document in DOCUMENTS]
    pq.write_table(pa.table({"input_ids": DOCUMENTS, "labels": masks}), path / "x.parquet", row_group_size=10)
    return str(path)


def built(data: Any, *, ranks: int = 1, rank: int = 0, **config: Any) -> Any:
    made = PackedDataLoader.Config(**({"dataset_path": data} if isinstance(data, str) else {"source": data}), **config)
    return made.build(dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=LENGTH, local_batch_size=BATCH)


def follow(inputs: list[int], labels: list[int]) -> None:
    """Each label is the token after its own, of the same document, or none."""
    for (token, successor), label in zip(pairwise([*inputs, 0]), labels, strict=True):
        same = successor == token + 1 and token > 0
        assert label == (successor if same else -100)


# ------------------------------------------------------------------------------------------------------ its protocol


@pytest.mark.parametrize("method", ["best_fit", "wrap"])
def test_batches_are_as_torchtitan_takes_them(data: str, method: str) -> None:
    options = {"pack": {"method": method}, "shuffle": True, "columns": ["input_ids"]}
    loader = built(data, options=options, infinite=False)
    assert isinstance(loader, BaseDataLoader)
    seen: Counter[int] = Counter()
    for given_, labels in loader:
        assert set(given_) == {"input", "positions"}
        inputs, positions = given_["input"], given_["positions"]
        assert inputs.shape == positions.shape == labels.shape
        assert inputs.shape[1] == LENGTH
        assert {tensor.dtype for tensor in (inputs, positions, labels)} == {torch.int64}
        for row in range(len(inputs)):
            follow(inputs[row].tolist(), labels[row].tolist())
        seen.update(inputs[inputs > 0].tolist())
    assert not seen - TOKENS
    assert (TOKENS - seen).total() < (LENGTH if method == "wrap" else 1)


def test_labels_of_the_data_are_shifted(data: str) -> None:
    for given_, labels in built(data, infinite=False):
        for inputs, row in zip(given_["input"].tolist(), labels.tolist(), strict=True):
            trained = [label for label in row if label != -100]
            assert all(label % 100 >= 3 or label not in inputs for label in trained)  # the first two are masked
            assert all(inputs[place + 1] == label for place, label in enumerate(row) if label != -100)


def test_repeats_are_not_trained_on(data: str) -> None:
    options = {"pack": {"method": "wrap"}, "even": "pad", "columns": ["input_ids"]}
    trained: Counter[int] = Counter()
    for rank in range(3):
        for _, labels in built(data, ranks=3, rank=rank, options=options, infinite=False):
            trained.update(labels[labels != -100].tolist())
    assert max(trained.values()) == 1
    assert not trained - TOKENS


@given(st.data())
def test_next_labels_by_hand(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 12))
    starts = data.draw(st.sets(st.integers(0, length - 1))) | {0}
    labels = data.draw(st.lists(st.integers(-100, 50), min_size=length, max_size=length))
    positions = [place - max(start for start in starts if start <= place) for place in range(length)]
    expected = [
        labels[place + 1] if place + 1 < length and place + 1 not in starts else -100 for place in range(length)
    ]
    found = next_labels(torch.tensor([labels] * 2), torch.tensor([positions] * 2))
    assert found.tolist() == [expected] * 2


def test_it_is_endless_and_its_epochs_differ(data: str) -> None:
    options = {"shuffle": True, "columns": ["input_ids"]}
    once = [given_["input"].tolist() for given_, _ in built(data, options=options, infinite=False)]
    twice = [given_["input"].tolist() for given_, _ in islice(built(data, options=options), 2 * len(once))]
    assert twice[: len(once)] == once
    assert len(twice) == 2 * len(once)
    assert twice[len(once) :] != once


def test_a_state_of_every_step_resumes_over_epochs(data: str) -> None:
    options = {"shuffle": True, "columns": ["input_ids"]}
    steps = len(list(built(data, options=options, infinite=False)))
    loader = built(data, options=options)
    batches, states, found = iter(loader), [], []
    for _ in range(steps + 4):
        states.append(json.loads(json.dumps(loader.state_dict())))
        found.append(next(batches)[0]["input"].tolist())
    for step, state in enumerate(states):
        resumed = built(data, options=options)
        resumed.load_state_dict(state)
        assert [given_["input"].tolist() for given_, _ in islice(resumed, len(found) - step)] == found[step:]


def test_an_empty_state_changes_nothing(data: str) -> None:
    loader = built(data)
    loader.load_state_dict({})
    assert next(iter(loader))[1].shape == (BATCH, LENGTH)


def test_a_mix_and_a_validation_as_torchtitan_makes_it(data: str) -> None:
    config = PackedDataLoader.Config(
        source={"a": data, "b": data}, options={"batches": "splits", "columns": ["input_ids"]}
    )
    loader = replace(config, infinite=False).build(
        dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=LENGTH, local_batch_size=BATCH
    )
    seen = Counter(token for given_, _ in loader for token in given_["input"].flatten().tolist() if token)
    assert seen == TOKENS + TOKENS


def test_flags_of_the_command_line(data: str) -> None:
    import tyro

    config = PackedDataLoader.Config(dataset_path=data, options={"shuffle": True, "pack": Pack(LENGTH)})
    assert tyro.cli(PackedDataLoader.Config, default=config, args=[]) == config
    changed = ["--options", '{"pack": {"method": "wrap"}}', "--source", "other/", "--no-infinite"]
    found = tyro.cli(PackedDataLoader.Config, default=config, args=changed)
    assert (found.source, found.options, found.infinite) == ("other/", {"pack": {"method": "wrap"}}, False)


@pytest.mark.parametrize(
    ("options", "ranks", "error", "said"),
    [
        ({"batch_size": 3}, 1, OptionError, "'batch_size', which torchtitan sets by training.local_batch_size"),
        ({"pack": Pack(7)}, 1, OptionError, "pack makes sequences of 7 tokens, but training.seq_len is 24"),
        ({"pack": 7}, 1, OptionError, "pack makes sequences of 7 tokens"),
        ({}, 2, ShardingError, "torchtitan's 2 ranks must have the same number of steps.*steps_per_epoch=n"),
        ({"pack": {"method": "wrap"}}, 2, ShardingError, "even='drop'.*steps_per_epoch=n"),
    ],
)
def test_options_that_do_not_fit(data: str, options: Any, ranks: int, error: Any, said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        built(data, ranks=ranks, options=options)
    for remedy in getattr(caught.value, "remedies", ()):
        assert next(iter(built(data, ranks=ranks, options=remedy.applied(options))))


def test_nothing_to_read(data: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs source= or dataset_path="):
        built(None)
    with pytest.raises(OptionError, match="a batch has no 'tokens', only"):
        next(iter(built(data, tokens="tokens", options={"pack": Pack(LENGTH)})))
    with pytest.raises(OptionError, match="a batch has no 'labels', only"):
        next(iter(built(data, options={"pack": Pack(LENGTH, keys="hf"), "columns": ["input_ids"]})))
    pq.write_table(pa.table({"input_ids": pa.array([[], []], pa.list_(pa.int64()))}), tmp_path / "x.parquet")
    with pytest.raises(EmptyDatasetError, match="has no sequence for this rank"):
        next(iter(built(str(tmp_path))))


# ------------------------------------------------------------------------------ its CheckpointManager, on 1 and 2 ranks


def run(what: str, data: str, out: Path, ranks: int) -> list[Any]:
    done = subprocess.run(
        [*forkrun.command(ranks), str(JOB), what, data, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"{what}-{rank}.json").read_text()) for rank in range(ranks)]


def tokens(*batches: Any) -> Counter[int]:
    return Counter(token for each in batches for inputs, _, _ in each for row in inputs for token in row if token)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_another_number_of_ranks_goes_on_where_a_checkpoint_was_saved(
    data: str, tmp_path: Path, before: int, after: int
) -> None:
    saved, loaded = run("saved", data, tmp_path, before), run("loaded", data, tmp_path, after)
    for kind in saved[0]:
        if before == after:
            assert [rank[kind]["rest"] for rank in loaded] == [rank[kind]["rest"] for rank in saved]
        seen = tokens(*(rank[kind]["first"] for rank in saved), *(rank[kind]["rest"] for rank in loaded))
        if kind == "wrap, all":
            assert not TOKENS - seen
        else:
            assert not seen - TOKENS
            steps = {len(rank[kind]["rest"]) for rank in loaded}
            assert len(steps) == 1  # even="sync" leaves out what only one rank has left
            assert min(steps) > 10
            if kind == "wrap":
                assert (TOKENS - seen).total() < 2 * max(before, after) * BATCH * LENGTH


@pytest.mark.slow
def test_processes_that_share_a_rank_read_the_same_and_resume(data: str, tmp_path: Path) -> None:
    one, other = run("shared", data, tmp_path, 2)
    assert one == other
    for kind in one:
        assert one[kind]["resumed"] == one[kind]["rest"]
        assert len(one[kind]["rest"]) > 1
