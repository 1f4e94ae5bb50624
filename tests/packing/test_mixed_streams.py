"""Packed datasets mixed by weight without counts: streams without end, equal steps, a cursor of each in states."""

from collections import Counter
from itertools import pairwise, zip_longest
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing.helpers import documents, write_documents
from torch_dataloader_utils import Pack, Weights, combine, merge_state_dicts
from torch_dataloader_utils.errors import CheckpointMismatchError, EmptyDatasetError, OptionError, ShardingError

LENGTH = 16
BEST_FIT = Pack(LENGTH, columns=["input_ids"])
# `a` is shared among ranks; `b` and `c` have fewer documents than a part, and are dealt by whole laps.
LENGTHS = {"a": [17, 3, 40, 9, 22, 1, 30, 8] * 100, "b": [5, 12, 7] * 30, "c": [4, 6]}
WRAP = BEST_FIT.replace(method="wrap")
WEIGHTS = {"a": 2, "b": 1, "c": 1}
Sequence = tuple[int, tuple[int, ...]]  # the dataset, and the tokens


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        name: write_documents(tmp_path_factory.mktemp(name), lengths, row_group_size=20)
        for name, lengths in LENGTHS.items()
    }


def mixed(paths: Any, **options: Any) -> Any:
    given = {"pack": BEST_FIT, "batch_size": 2, "num_workers": 0, "num_ranks": 1, "rank": 0, "split_rows": 40}
    return combine(paths, **{**given, "weights": WEIGHTS, "source_key": "dataset", **options})


def sequences(batches: Any) -> list[list[Sequence]]:
    """Of each batch, the dataset and the tokens of each sequence, without padding."""
    return [
        [
            (number, tuple(tokens[real].tolist()))
            for number, tokens, real in zip(
                batch["dataset"].tolist(), batch["input_ids"], batch["document_ids"] >= 0, strict=True
            )
        ]
        for batch in batches
    ]


def seen(found: Any) -> Counter[tuple[int, int]]:
    return Counter((number, token) for batch in found for number, tokens in batch for token in tokens)


def check_laps(times: Counter[tuple[int, int]]) -> None:
    """No token of `a` came twice before all came once."""
    own = [times[0, token] for document in documents(LENGTHS["a"]) for token in document]
    assert max(own) - min(own) <= 1, Counter(own)


@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    ranks=st.integers(1, 3),
    batch=st.integers(1, 3),
    shuffle=st.sampled_from([False, "splits", True]),
    epoch=st.integers(0, 2),
)
def test_a_budget_has_each_dataset_in_its_share_on_all_ranks(
    paths: dict[str, str], weights: list[int], ranks: int, batch: int, shuffle: Any, epoch: int
) -> None:
    """The sources of each step are those of the run, each batch has its part, and all ranks have as many steps."""
    steps, shares = 10, dict(zip(LENGTHS, weights, strict=True))
    budget = {"tokens_per_epoch": steps * ranks * batch * LENGTH + 5, "weights": shares, "batch_size": batch}
    found = []
    for rank in range(ranks):
        loader = mixed(paths, num_ranks=ranks, rank=rank, shuffle=shuffle, **budget)
        loader.set_epoch(epoch)
        found.append(sequences(loader))
        assert len(found[-1]) == len(loader) == steps
        assert all(len(own) == batch for own in found[-1])
    taken = Counter[int]()
    for hands in zip(*found, strict=True):
        step = Counter(number for own in hands for number, _ in own)
        taken.update(step)
        for number, weight in enumerate(weights):
            assert {sum(of == number for of, _ in own) for own in hands} <= {
                step[number] // ranks, -(-step[number] // ranks)
            }  # fmt: skip
            assert epoch or abs(taken[number] - taken.total() * weight / sum(weights)) <= 2
    check_laps(seen(batch for own in found for batch in own))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["best_fit", "single", "wrap"])
def test_every_state_resumes(paths: dict[str, str], shuffle: bool, kind: str) -> None:
    options = {"shuffle": shuffle, "steps_per_epoch": 60, "num_ranks": 2, "rank": 1}
    options |= {"single": {"batches": "single"}, "wrap": {"pack": WRAP}}.get(kind, {})
    whole = mixed(paths, **options)
    batches, states = [], []
    for batch in whole:
        batches.append(batch)
        states.append(whole.state_dict())
    assert len(batches) == 60
    for taken in (1, 2, 7, 30, 59):
        again = mixed(paths, **options)
        again.load_state_dict(states[taken - 1])
        assert sequences(again) == sequences(batches[taken:])
        assert len(sequences(again)) == 60


def test_a_pass_that_resumes_skips_and_lasts_for_several_epochs(paths: dict[str, str]) -> None:
    options = {"shuffle": True, "tokens_per_epoch": LENGTH * 2 * 12}
    loader = mixed(paths, **options)
    whole = sequences(loader)
    following = sequences(loader)
    assert [of for batch in following for of, _ in batch] != [0] * 24
    assert following != whole
    skipping = mixed(paths, **options)
    skipping.skip_steps(2, 5)
    assert sequences(skipping) == [*whole[:2], *whole[5:]]
    assert sequences([mixed(paths, **options).head(2)]) == whole[:1]


@pytest.mark.parametrize("pack", [BEST_FIT, WRAP], ids=["best_fit", "wrap"])
def test_threads_and_processes_deliver_the_same(paths: dict[str, str], pack: Pack) -> None:
    found = []
    for workers in ({}, {"num_workers": None}, {"num_workers": 2, "worker_mode": "processes"}):
        loader = mixed(paths, pack=pack, steps_per_epoch=400, shuffle=True, **workers)
        found.append(sequences(loader))
        loader.close()
    assert found[0] == found[1] == found[2]


def steps_of(paths: Any, ranks: int, batch: int, steps: int | None, state: Any, **options: Any) -> tuple[Any, Any]:
    """The batches of all ranks, by rank, and the state of all after so many steps."""
    hands, states = [], []
    for rank in range(ranks):
        loader = mixed(paths, num_ranks=ranks, rank=rank, batch_size=batch, **options)
        if state is not None:
            loader.load_state_dict(state)
        hands.append(sequences([own for _, own in zip(range(steps or 10_000), loader, strict=False)]))
        states.append(loader.state_dict())
    return hands, merge_state_dicts(states)


MOST = pc.list_value_length(ds.field("input_ids")) < 90


@settings(max_examples=12, deadline=None)
@given(
    phases=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 25)), min_size=2, max_size=4),
    shuffle=st.sampled_from([False, "splits", True]),
    wraps=st.booleans(),
)
def test_other_ranks_go_on_with_the_sources_of_the_run_and_no_token_of_a_lap_twice(
    paths: dict[str, str], phases: list[tuple[int, int, int]], shuffle: Any, wraps: bool
) -> None:
    """The laps of `a` are shared: after any change of ranks, no token of it came twice before all came once."""
    few = {name: {"source": path, "filters": MOST} for name, path in paths.items()}  # tokens are not known
    paths, pack = (few, WRAP) if wraps else (paths, BEST_FIT)
    options = {"tokens_per_epoch": LENGTH * 288, "shuffle": shuffle, "pack": pack}
    (one,) = [[number for batch in sequences(mixed(paths, batch_size=1, **options)) for number, _ in batch]]
    order: list[Counter[int]] = []
    state, every = None, []
    for ranks, batch, steps in phases:
        hands, state = steps_of(paths, ranks, batch, steps, state, **options)
        order += [Counter(number for some in own for number, _ in some or ()) for own in zip_longest(*hands)]
        every += [batch for own in hands for batch in own]
    at = 0
    for step in order:
        assert step == Counter(one[at : at + step.total()])
        at += step.total()
    check_laps(seen(every))


@pytest.mark.parametrize("pack", [BEST_FIT, WRAP], ids=["best_fit", "wrap"])
def test_two_three_and_one_ranks_leave_no_document_of_a_lap_out(paths: dict[str, str], pack: Pack) -> None:
    """All tokens of `a` come once within its first lap and the few sequences after it."""
    options = {"tokens_per_epoch": LENGTH * 4000, "shuffle": True, "weights": {"a": 1, "b": 0.001, "c": 0.001}}
    options["pack"] = pack
    paths = {name: {"source": path, "filters": MOST} for name, path in paths.items()}
    every, state = [], None
    for ranks, batch, steps in ((2, 2, 50), (3, 1, 60), (1, 4, 200)):
        hands, state = steps_of(paths, ranks, batch, steps, state, **options)
        every += [batch for own in hands for batch in own]
    times = seen(every)
    own = [times[0, token] for document in documents(LENGTHS["a"]) for token in document]
    assert min(own) == 1
    assert max(own) == 2
    assert len(sequences(mixed(paths, **options))) == 2000


def test_small_datasets_are_dealt_by_whole_laps_and_fill_their_sequences(paths: dict[str, str]) -> None:
    """Each rank has all documents of `c`, as often as any other; sequences go on over its laps."""
    for rank in range(3):
        loader = mixed(paths, steps_per_epoch=60, num_ranks=3, rank=rank)
        of_c = [tokens for batch in sequences(loader) for number, tokens in batch if number == 2]
        times = Counter(token for tokens in of_c for token in tokens)
        assert len(times) == 10
        fill = sum(map(len, of_c)) / (len(of_c) * LENGTH)
        assert fill == 1.0


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_cut_document_goes_on_in_the_next_sequence_of_its_dataset(paths: dict[str, str], shuffle: bool) -> None:
    """Also over tasks and laps: without a count, sequences are as full as with one."""
    loader = mixed(paths, pack=WRAP, steps_per_epoch=1000, shuffle=shuffle)
    batches = list(loader)
    streams: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for batch in batches:
        new = (batch["position_ids"] == 0).tolist()
        for number, tokens, begins in zip(batch["dataset"].tolist(), batch["input_ids"].tolist(), new, strict=True):
            assert begins == [not i or token % 1000 == 0 for i, token in enumerate(tokens)]
            streams[number] += tokens
    for number, name in enumerate(LENGTHS):
        stream, whole = streams[number], {own[0]: list(own) for own in documents(LENGTHS[name])}
        starts = [i for i, token in enumerate(stream) if token % 1000 == 0]
        assert starts[0] == 0
        assert all(stream[a:b] == whole[stream[a]] for a, b in pairwise(starts))
        times = Counter(stream[a] for a in starts)
        assert len(times) == len(whole)
        assert max(times.values()) - min(times.values()) <= 1


def test_filters_and_transforms_need_no_counts(paths: dict[str, str]) -> None:
    few = pc.list_value_length(ds.field("input_ids")) < 20
    short = {name: {"source": path, "filters": few} for name, path in paths.items()}
    loader = mixed(short, steps_per_epoch=40)
    batches = sequences(loader)
    assert Counter(number for batch in batches for number, _ in batch) == {0: 40, 1: 20, 2: 20}


def test_a_rank_without_a_document_in_a_whole_lap_is_an_error(paths: dict[str, str]) -> None:
    """It names the dataset; nothing is read for ever."""
    none = {**paths, "c": {"source": paths["c"], "filters": pc.list_value_length(ds.field("input_ids")) > 20}}
    for workers in ({}, {"num_workers": None}):
        with pytest.raises(EmptyDatasetError, match=r"dataset 'c' has no sequences for this rank in a whole lap"):
            sequences(mixed(none, steps_per_epoch=40, **workers))


def test_weights_change_at_a_token_of_the_run(paths: dict[str, str]) -> None:
    only = [(0, {"a": 1, "b": 0, "c": 0}), (LENGTH * 5 + 1, {"a": 0, "b": 1, "c": 0})]
    options = {"tokens_per_epoch": LENGTH * 4, "batch_size": 1}
    loader = mixed(paths, weights=Weights(only, at="token"), **options)
    order = [number for _ in range(3) for batch in sequences(loader) for number, _ in batch]
    assert order == [0] * 6 + [1] * 6
    loader = mixed(paths, weights=[(0, only[0][1]), (3, only[1][1])], **options)
    assert [number for batch in sequences(loader) for number, _ in batch] == [0] * 3 + [1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tokens_per_epoch": 15}, OptionError, "at least the 16 tokens of a sequence"),
        ({"tokens_per_epoch": 31}, ShardingError, "less than one step"),
        ({}, OptionError, "Use tokens_per_epoch=tokens"),
        ({"weights": None, "tokens_per_epoch": 90}, OptionError, "Use weights=weights"),
        ({"weights": Weights(WEIGHTS, max_repeats=2), "tokens_per_epoch": 90}, OptionError, "known only after reading"),
        ({"rows_per_epoch": 90}, OptionError, "Use tokens_per_epoch=tokens"),
        ({"even": "sync", "tokens_per_epoch": 90}, OptionError, "equal steps"),
        ({"stop": "all", "steps_per_epoch": 9}, OptionError, "how long an epoch is"),
        ({"source_key": "document_ids", "steps_per_epoch": 9}, OptionError, "a key that pack adds"),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_an_error(
    paths: dict[str, str], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mixed(paths, **options).plan()


def test_a_state_without_the_cursors_of_all_ranks_is_refused_by_others(paths: dict[str, str]) -> None:
    loader = mixed(paths, steps_per_epoch=9, num_ranks=2, rank=0)
    next(iter(loader))
    with pytest.raises(CheckpointMismatchError, match="does not hold the position of rank"):
        mixed(paths, steps_per_epoch=9).load_state_dict(loader.state_dict())
