"""Packed datasets mixed by weight: shares of tokens, sequences of one dataset each, and streams that go on."""

from collections import Counter
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing.helpers import documents, write_documents
from torch_dataloader_utils import Pack, Weights, combine
from torch_dataloader_utils.errors import CheckpointMismatchError, OptionError, ShardingError

LENGTH = 16
WRAP = Pack(LENGTH, columns=["input_ids"], method="wrap")
LENGTHS = {"a": [17, 3, 40, 9, 22, 1, 30, 8] * 6, "b": [5, 12, 7] * 40, "c": [4, 6]}
WEIGHTS = {"a": 1, "b": 2, "c": 1}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for name, lengths in LENGTHS.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = write_documents(folder, lengths, row_group_size=4)
    return found


def mixed(paths: Any, **options: Any) -> Any:
    given = {"pack": WRAP, "batch_size": 2, "split_rows": 60, "num_workers": 0, "num_ranks": 1, "rank": 0}
    return combine(paths, **{**given, "source_key": "dataset", **options})


def sequences(loader: Any) -> list[list[tuple[int, list[int]]]]:
    """Of each batch, the dataset and the tokens of each sequence."""
    return [list(zip(batch["dataset"].tolist(), batch["input_ids"].tolist(), strict=True)) for batch in loader]


def tokens_of(name: str) -> list[int]:
    return [token for document in documents(LENGTHS[name]) for token in document]


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    ranks=st.integers(1, 4),
    batch=st.integers(1, 4),
    shuffle=st.sampled_from([False, "splits", True]),
    steps=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_a_budget_of_tokens_has_each_dataset_in_its_share_on_all_ranks(
    paths: dict[str, str], weights: list[int], ranks: int, batch: int, shuffle: Any, steps: int, epoch: int
) -> None:
    """Within two sequences after any step of the run, each batch with its part, and no token of a lap twice."""
    shares = dict(zip(LENGTHS, weights, strict=True))
    budget = {"tokens_per_epoch": steps * ranks * batch * LENGTH + 5, "weights": shares, "batch_size": batch}
    found = []
    for rank in range(ranks):
        loader = mixed(paths, num_ranks=ranks, rank=rank, shuffle=shuffle, **budget)
        loader.set_epoch(epoch)
        found.append(sequences(loader))
        assert len(found[-1]) == len(loader) == steps
        assert all(len(own) == batch for own in found[-1])
    taken, seen = Counter[int](), Counter[tuple[int, int]]()
    for hands in zip(*found, strict=True):
        step = Counter(number for own in hands for number, _ in own)
        taken.update(step)
        seen.update((number, token) for own in hands for number, tokens in own for token in tokens)
        for number, weight in enumerate(weights):
            assert {sum(of == number for of, _ in own) for own in hands} <= {
                step[number] // ranks, -(-step[number] // ranks)
            }  # fmt: skip
            if not epoch:
                assert abs(taken[number] - taken.total() * weight / sum(weights)) <= 2
    for number, name in enumerate(LENGTHS):
        times = [seen[number, token] for token in tokens_of(name)]
        assert sum(times) == taken[number] * LENGTH
        assert max(times) - min(times) <= (1 if not epoch else 2)


def test_a_cut_document_goes_on_in_the_next_sequence_of_its_dataset(paths: dict[str, str]) -> None:
    loader = mixed(paths, weights=WEIGHTS, stop="all")
    streams: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for batch in sequences(loader):
        for number, tokens in batch:
            streams[number] += tokens
    for number, name in enumerate(LENGTHS):
        own = tokens_of(name)
        laps = -(-len(streams[number]) // len(own))
        assert streams[number] == (own * laps)[: len(streams[number])]


def test_small_datasets_fill_their_sequences_over_laps(paths: dict[str, str]) -> None:
    """`c` has fewer tokens than a sequence."""
    batches = sequences(mixed(paths, weights=WEIGHTS, tokens_per_epoch=LENGTH * 40))
    of_c = [tokens for batch in batches for number, tokens in batch if number == 2]
    assert len(of_c) == 10
    assert max(Counter(token for tokens in of_c for token in tokens).values()) == 16


@pytest.mark.parametrize("shuffle", [False, "splits", True])
def test_a_rank_has_whole_laps_of_a_small_dataset(paths: dict[str, str], shuffle: Any) -> None:
    """And not the same few documents of it for ever, of which most are cut."""
    options = {"weights": WEIGHTS, "tokens_per_epoch": LENGTH * 2 * 3 * 20, "num_ranks": 3, "shuffle": shuffle}
    for rank in range(3):
        batches = sequences(mixed(paths, rank=rank, **options))
        of_c = [token for batch in batches for number, tokens in batch if number == 2 for token in tokens]
        times = Counter(of_c)
        assert set(times) == set(tokens_of("c"))
        assert max(times.values()) - min(times.values()) <= 2


def test_weights_change_at_a_token_of_the_run(paths: dict[str, str]) -> None:
    """A sequence is of the phase of its first token."""
    only = [(0, {"a": 1, "b": 0, "c": 0}), (LENGTH * 5 + 1, {"a": 0, "b": 1, "c": 0})]
    options = {"tokens_per_epoch": LENGTH * 4, "batch_size": 1}
    loader = mixed(paths, weights=Weights(only, at="token"), **options)
    order = [number for _ in range(3) for batch in sequences(loader) for number, _ in batch]
    assert order == [0] * 6 + [1] * 6
    assert "each sequence of 16 tokens is of one" in loader.describe().mix
    assert "from step 6 (sequence 6) on 0.0% 'a', 100.0% 'b'" in loader.describe().mix
    loader = mixed(paths, weights=[(0, only[0][1]), (3, only[1][1])], **options)
    assert [number for batch in sequences(loader) for number, _ in batch] == [0] * 3 + [1]


@pytest.mark.parametrize("shuffle", [False, True])
def test_threads_and_processes_deliver_the_same(paths: dict[str, str], shuffle: bool) -> None:
    options = {"weights": WEIGHTS, "stop": "all", "shuffle": shuffle}
    found = []
    for workers in ({}, {"num_workers": None}, {"num_workers": 1, "worker_mode": "processes"}):
        loader = mixed(paths, **options, **workers)
        found.append(sequences(loader))
        loader.close()
    assert found[0] == found[1] == found[2]


def test_single_batches_are_of_one_dataset_on_all_ranks(paths: dict[str, str]) -> None:
    options = {"weights": WEIGHTS, "tokens_per_epoch": LENGTH * 4 * 12, "batches": "single", "num_ranks": 2}
    found = [sequences(mixed(paths, rank=rank, **options)) for rank in range(2)]
    orders = [[{number for number, _ in batch} for batch in batches] for batches in found]
    assert orders[0] == orders[1]
    assert Counter(number for (number,) in orders[0]) == {0: 3, 1: 6, 2: 3}


def test_rows_of_a_step_and_skipped_steps(paths: dict[str, str]) -> None:
    loader = mixed(paths, weights=WEIGHTS)
    whole = sequences(loader)
    skipping = mixed(paths, weights=WEIGHTS)
    skipping.skip_steps(2, 5)
    assert sequences(skipping) == [*whole[:2], *whole[5:]]
    for step in (0, 3, len(whole) - 1):
        rows = loader.dataset.rows_of(0, step)
        assert sum(run.stop - run.start for run in rows) == LENGTH * len(whole[step])


def test_other_ranks_go_on_with_the_sources_of_the_run(paths: dict[str, str]) -> None:
    options = {"weights": WEIGHTS, "tokens_per_epoch": LENGTH * 48, "shuffle": True}
    (one,) = [[number for batch in sequences(mixed(paths, batch_size=1, **options)) for number, _ in batch]]
    order: list[Counter[int]] = []
    state = None
    for ranks, batch, steps in ((2, 2, 3), (3, 1, 4), (1, 4, None)):
        hands, after = [], None
        for rank in range(ranks):
            loader = mixed(paths, num_ranks=ranks, rank=rank, batch_size=batch, **options)
            if state is not None:
                loader.load_state_dict(state)
            hands.append(sequences([own for _, own in zip(range(steps or 100), loader, strict=False)]))
            after = loader.state_dict()
        state = after
        order += [Counter(number for some in own for number, _ in some or ()) for own in zip_longest(*hands)]
    at = 0
    for step in order:
        assert step == Counter(one[at : at + step.total()])
        at += step.total()
    assert at == 48


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": WEIGHTS, "tokens_per_epoch": 15}, OptionError, "at least the 16 tokens of a sequence"),
        (
            {"weights": WEIGHTS, "tokens_per_epoch": 31},
            ShardingError,
            "1 sequences of 16 tokens are less than one step",
        ),
        ({"weights": WEIGHTS, "pack": LENGTH}, OptionError, "Use tokens_per_epoch=tokens"),
        ({"weights": WEIGHTS, "rows_per_epoch": 9}, OptionError, "Use tokens_per_epoch=tokens"),
        ({"weights": WEIGHTS, "batches": "splits", "source_key": None}, OptionError, "documents of several datasets"),
        ({"weights": Weights(WEIGHTS, unit="row")}, OptionError, "batches are made of sequences or tokens"),
        ({"weights": WEIGHTS, "pack": None, "tokens_per_epoch": 90}, OptionError, "Use rows_per_epoch=n"),
        ({"weights": Weights(WEIGHTS, unit="token"), "pack": None}, OptionError, "batches are made of rows"),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_an_error(
    paths: dict[str, str], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mixed(paths, **options).plan()


def test_without_an_option_of_a_mix_documents_share_sequences(paths: dict[str, str]) -> None:
    for pack in (WRAP, WRAP.replace(method="best_fit")):
        merged = [combine(paths, pack=pack, num_ranks=1, rank=0, num_workers=0, **given) for given in ({}, SPLITS)]
        batches = [[batch["input_ids"].tolist() for batch in loader] for loader in merged]
        assert batches[0] == batches[1]


SPLITS = {"batches": "splits"}


def test_a_state_of_another_length_is_refused(paths: dict[str, str]) -> None:
    state = mixed(paths, weights=WEIGHTS).state_dict()
    with pytest.raises(CheckpointMismatchError, match="into 16 tokens by wrap"):
        mixed(paths, weights=WEIGHTS, pack=WRAP.replace(length=32)).load_state_dict(state)
