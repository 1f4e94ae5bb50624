"""How long an epoch of packed datasets, or of batches with a budget of tokens, is, and whose tokens it has.

Each kind of mix, with each option that sets the length of an epoch, against the executable model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import model as model_of
from tests.packing.helpers import write_documents
from torch_dataloader_utils import Buckets, Pack, Weights, combine
from torch_dataloader_utils.errors import EmptyDatasetError, OptionError, ShardingError

L = 16  # tokens of a sequence, and the budget of a batch
LENGTHS = {"a": [17, 3, 40, 9, 22, 1, 30, 8] * 6, "b": [5, 12, 7] * 20, "c": [4, 6, 30]}
UNITS = [sum(lengths) // L for lengths in LENGTHS.values()]
WRAP = Pack(L, columns=["input_ids"], method="wrap")
KINDS: dict[str, dict[str, Any]] = {
    "counted": {"pack": WRAP},
    "uncounted": {"pack": WRAP, "filters": pc.list_value_length(ds.field("input_ids")) >= 0},
    "best fit": {"pack": WRAP.replace(method="best_fit")},
    "buckets": {"batch_tokens": Buckets(L, by="input_ids", long="single"), "columns": ["input_ids"]},
}
UNKNOWN = [kind for kind in KINDS if kind != "counted"]
WEIGHTS = st.lists(st.integers(1, 30), min_size=3, max_size=3)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        name: write_documents(tmp_path_factory.mktemp(name), lengths, row_group_size=9)
        for name, lengths in LENGTHS.items()
    }


def loader_of(paths: dict[str, Any], kind: str, rank: int = 0, num_ranks: int = 1, **options: Any) -> Any:
    given = {**KINDS[kind], "num_workers": 0, "split_rows": 40, "source_key": "dataset", **options}
    parts = dict(paths)
    if "filters" in given:
        filters = given.pop("filters")
        parts = {name: {"source": path, "filters": filters} for name, path in paths.items()}
    size = given.pop("batch_size", 1)
    if kind == "buckets":  # a batch is a unit, of as many rows as fit
        size = 1000
    return combine(parts, rank=rank, num_ranks=num_ranks, batch_size=size, **given)


def units(batch: Any) -> list[int]:
    """The dataset of each sequence, or that of a batch."""
    numbers: list[int] = batch["dataset"].tolist()
    if "document_ids" in batch:
        return numbers
    assert len(set(numbers)) == 1
    return numbers[:1]


def run(paths: dict[str, Any], kind: str, ranks: int, epochs: int, **options: Any) -> list[Counter[int]]:
    """The sources of each step of all ranks, over so many epochs; all ranks have as many."""
    of_ranks = []
    for rank in range(ranks):
        loader = loader_of(paths, kind, rank, ranks, **options)
        own = []
        for _ in range(epochs):
            found = [units(batch) for batch in loader]
            assert len(found) == len(loader)
            own += found
        of_ranks.append(own)
    return [Counter(number for hand in hands for number in hand) for hands in zip(*of_ranks, strict=True)]


def steps_of(sources: Sequence[int], size: int) -> list[Counter[int]]:
    return [Counter(sources[at : at + size]) for at in range(0, len(sources), size)]


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    weights=WEIGHTS,
    ranks=st.integers(1, 3),
    batch=st.integers(1, 3),
    steps=st.integers(1, 8),
    more=st.integers(0, L - 1),
    shuffle=st.sampled_from([False, "splits", True]),
    by=st.sampled_from(["tokens_per_epoch", "steps_per_epoch"]),
)
def test_a_budget_is_whole_steps_of_the_run(
    paths: dict[str, str],
    kind: str,
    weights: list[int],
    ranks: int,
    batch: int,
    steps: int,
    more: int,
    shuffle: Any,
    by: str,
) -> None:
    """Equal on all ranks, without `even`, and by the model's `source(g)` over epochs."""
    model = model_of("mix_model")
    batch = 1 if kind == "buckets" else batch
    step = ranks * batch
    tokens = (steps * step + more * step // L) * L + more
    assert model.budget(tokens, L, ranks, batch) == steps
    length = {by: tokens if by == "tokens_per_epoch" else steps}
    options = {"weights": dict(zip(LENGTHS, weights, strict=True)), "batch_size": batch, "shuffle": shuffle}
    found = run(paths, kind, ranks, 2, **options, **length)
    assert found == steps_of(model.sources(model.Mix.of(weights), 0, 2 * steps * step), step)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    first=WEIGHTS,
    then=st.lists(st.integers(0, 30), min_size=3, max_size=3).filter(any),
    at=st.integers(1, 12 * L),
    ranks=st.integers(1, 3),
)
def test_weights_change_at_a_token_of_the_run(
    paths: dict[str, str], kind: str, first: list[int], then: list[int], at: int, ranks: int
) -> None:
    """A sequence, or a batch, is of the phase of its first token."""
    model = model_of("mix_model")
    phases = [(0, first), (at, then)]
    given = Weights([(start, dict(zip(LENGTHS, own, strict=True))) for start, own in phases], at="token")
    found = run(paths, kind, ranks, 3, weights=given, tokens_per_epoch=4 * ranks * L)
    mix = model.Mix.curriculum(phases, L)
    assert found == steps_of(model.sources(mix, 0, 12 * ranks), ranks)


@settings(max_examples=30, deadline=None)
@given(
    weights=WEIGHTS,
    how=st.sampled_from(["once", "first", "all", "repeat"]),
    ranks=st.integers(1, 3),
    shuffle=st.sampled_from([False, True]),
)
def test_counted_tokens_say_how_long_an_epoch_is(
    paths: dict[str, str], weights: list[int], how: str, ranks: int, shuffle: Any
) -> None:
    """Each dataset once or as often as said, and its turns to the others then; or until the first or all have ended."""
    model = model_of("mix_model")
    own = UNITS
    options: dict[str, Any] = {"stop": how}
    if how == "repeat":
        options = {"repeat": {"c": 2.5}}
        own = [*UNITS[:2], int(2.5 * sum(LENGTHS["c"])) // L]
    mix, total = model.once(weights, own)
    if how in ("first", "all"):
        fractions = list(map(Fraction, weights))
        mix = model.Mix.of(weights)
        total = (model.most_within if how == "first" else model.least_over)(fractions, own)
    given = {"weights": dict(zip(LENGTHS, weights, strict=True)), "shuffle": shuffle, **options}
    whole = total // ranks * ranks
    if not whole:
        return
    found = run(paths, "counted", ranks, 1, even="drop", **given)
    assert found == steps_of(model.sources(mix, 0, whole), ranks)


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("length", [{}, {"stop": "first"}, {"stop": "all"}, {"repeat": {"c": 2}}], ids=str)
def test_without_counts_an_epoch_needs_a_number_of_tokens(
    paths: dict[str, str], kind: str, length: dict[str, Any]
) -> None:
    weights = dict.fromkeys(LENGTHS, 1)
    with pytest.raises((OptionError, ValueError), match="tokens") as caught:
        loader_of(paths, kind, weights=weights, **length)
    if kind != "uncounted":  # of tokens that no footer tells, `count_rows` does
        assert any("tokens_per_epoch" in (remedy.given or {}) for remedy in caught.value.remedies)


@pytest.mark.parametrize("kind", list(KINDS))
def test_less_than_a_step_is_an_error(paths: dict[str, str], kind: str) -> None:
    weights = dict.fromkeys(LENGTHS, 1)
    with pytest.raises(OptionError, match="at least the 16 tokens of a"):
        loader_of(paths, kind, weights=weights, tokens_per_epoch=L - 1)
    with pytest.raises(ShardingError, match="less than one step"):
        loader_of(paths, kind, num_ranks=3, weights=weights, tokens_per_epoch=3 * L - 1).plan()


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("by", ["tokens_per_epoch", "steps_per_epoch"])
def test_a_dataset_that_delivers_nothing_is_an_error_that_names_it(
    paths: dict[str, str], tmp_path: Any, kind: str, by: str
) -> None:
    """Nothing is read for ever; a dataset of weight 0 is not read."""
    empty: dict[str, Any] = {**paths, "b": write_documents(tmp_path, [0] * 30)}
    if kind == "buckets":  # of which a row without tokens is one
        empty["b"] = {"source": paths["b"], "filters": pc.list_value_length(ds.field("input_ids")) > 100}
    length = {by: 40 * L if by == "tokens_per_epoch" else 40}
    with pytest.raises(EmptyDatasetError, match="'b'"):
        run(empty, kind, 1, 1, weights=dict.fromkeys(LENGTHS, 1), **length)
    never = [(0, {"a": 1, "b": 0, "c": 1})]
    found = run(empty, kind, 1, 1, weights=never, **length)
    assert sum(found, Counter()) == {0: 20, 2: 20}
