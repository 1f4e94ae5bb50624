"""`Pack(together=True)`: both sides of a pair have the same place in sequences, whatever their lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing.helpers import LENGTH, make
from tests.packing.pairs import TOGETHER, held_pairs, pairs, write_pairs
from torch_dataloader_utils import OptionError, Pack, SchemaMismatchError
from torch_dataloader_utils.packing.sequences import sequences_of, side_by_side

SIZES = st.tuples(st.integers(1, 24), st.integers(1, 24))


@settings(max_examples=25)
@given(
    lengths=st.lists(SIZES, min_size=1, max_size=40),
    length=st.integers(1, 24),
    long=st.sampled_from(["truncate", "drop"]),
    num_ranks=st.integers(1, 3),
    shuffle=st.booleans(),
)
def test_each_pair_is_delivered_once_at_one_place(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[tuple[int, int]],
    length: int,
    long: Any,
    num_ranks: int,
    shuffle: bool,
) -> None:
    path = write_pairs(tmp_path_factory.mktemp("pairs"), [*lengths, (1, 1)])
    pack = TOGETHER.replace(length=length, long=long)
    loaders = [make(path, num_ranks=num_ranks, rank=rank, pack=pack, shuffle=shuffle) for rank in range(num_ranks)]
    found = [pair for loader in loaders for batch in loader for pair in held_pairs(batch)]
    kept = [pair for pair in pairs([*lengths, (1, 1)]) if long == "truncate" or max(map(len, pair)) <= length]
    assert sorted(found) == sorted((a[:length], b[:length]) for a, b in kept)


@given(st.lists(SIZES, max_size=60), st.integers(1, 24), st.sampled_from(["truncate", "drop"]), st.randoms())
def test_a_pair_counts_as_its_longer_side(
    lengths: list[tuple[int, int]], capacity: int, long: str, random: Any
) -> None:
    sides = [np.array([pair[side] for pair in lengths], np.int64) for side in range(2)]
    order = np.array(random.sample(range(len(lengths)), len(lengths)), np.int64)
    both = side_by_side(sides, capacity, long, (10, 1), order)
    alone = sequences_of(np.maximum(*sides) if lengths else sides[0], capacity, long, (10, 1), order)
    for found in both:
        assert len(found) == len(alone)
        per_sequence = [
            (side.documents[first:last] >= 0).sum()
            for side in (found, alone)
            for first, last in zip(side.offsets[:-1], side.offsets[1:], strict=True)
        ]
        assert per_sequence[: len(alone)] == per_sequence[len(alone) :]


def test_models_get_both_sides_under_their_keys(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, [(3, 5), (6, 2), (4, 4)])
    (batch,) = make(path, pack=TOGETHER.replace(keys="hf"), last_batch="pad")
    sides = ["input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]
    assert list(batch) == [f"{side}_{key}" for side in ("chosen", "rejected") for key in sides]
    tokens = make(path, columns=["chosen_input_ids", "rejected_input_ids"], pack=TOGETHER.replace(labels="input_ids"))
    assert sorted(pair for batch in tokens for pair in _without_signs(batch)) == sorted(pairs([(3, 5), (6, 2), (4, 4)]))


def _without_signs(batch: Any) -> Any:
    """The pairs of a batch whose labels are the tokens themselves."""
    for side in ("chosen", "rejected"):
        labels = batch[f"{side}_labels"]
        batch[f"{side}_labels"] = labels.where(labels == -100, -labels)
    return held_pairs(batch)


@pytest.mark.parametrize("long", ["split", "error"])
def test_a_long_pair_is_an_error_unless_it_is_cut_or_left_out(tmp_path: Path, long: Any) -> None:
    path = write_pairs(tmp_path, [(3, 5), (2, LENGTH + 4)])
    with pytest.raises(OptionError, match=rf"has {LENGTH + 4} tokens, more than length={LENGTH}") as caught:
        list(make(path, pack=TOGETHER.replace(long=long)))
    assert [remedy.given["pack"].long for remedy in caught.value.remedies] == ["truncate", "drop"]
    for remedy in caught.value.remedies:
        assert list(make(path, **remedy.applied({})))


def test_a_pair_with_one_side_is_an_error_and_one_without_tokens_is_left_out(tmp_path: Path) -> None:
    for sizes, named in (([(3, 5), (0, 0), (2, 2)], ""), ([(3, 5), (2, 2), (0, 4)], r"row 2 of the 3 rows read")):
        path = write_pairs(tmp_path, sizes)
        loader = make(path, pack=TOGETHER)
        if named:
            with pytest.raises(SchemaMismatchError, match=r"chosen_\* has 0 tokens and rejected_\* has 4 tokens"):
                list(loader)
        else:
            assert len([pair for batch in loader for pair in held_pairs(batch)]) == 2


@pytest.mark.parametrize("columns", [["chosen_input_ids"], ["chosen_input_ids", "ids"], ["ids", "rejected_ids"]])
def test_other_columns_than_those_of_two_sides_are_an_error(tmp_path: Path, columns: list[str]) -> None:
    pq.write_table(pa.table({name: [[1, 2]] for name in columns}), tmp_path / "0.parquet")
    with pytest.raises(OptionError, match=r"expected columns chosen_\* and rejected_\*"):
        make(str(tmp_path), pack=TOGETHER)


def test_pairs_are_not_cut_from_one_stream() -> None:
    with pytest.raises(OptionError, match="it would cut the sides of a pair at different places") as caught:
        Pack(8, method="wrap", together=True)
    for remedy in caught.value.remedies:
        assert isinstance(remedy.given["pack"], Pack)
