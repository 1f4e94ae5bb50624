"""Combinations within a combination, for all trees: a dataset's share is the product of the shares on its path."""

from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.mixing.curriculum import Curriculum
from torch_dataloader_utils.mixing.rows import MixRule, epoch_rows
from torch_dataloader_utils.options.weights import WeightTree, default_weights, exact_weight

WEIGHT = st.floats(0.1, 10).map(lambda weight: round(weight, 2))


@st.composite
def trees(draw: st.DrawFn, depth: int = 3, given_weights: bool | None = None) -> WeightTree:
    inner = st.none() if depth == 1 else st.none() | trees(depth - 1, given_weights)
    members = tuple(draw(st.lists(inner, min_size=1, max_size=3)))
    has_weights = draw(st.booleans()) if given_weights is None else given_weights
    if has_weights:
        return WeightTree(members, tuple(draw(WEIGHT) for _ in members))
    return WeightTree(members, temperature=draw(st.sampled_from([1.0, 2.0])) if given_weights is None else 1.0)


@st.composite
def sized(draw: st.DrawFn, **kinds: Any) -> tuple[WeightTree, list[int]]:
    tree = draw(trees(**kinds))
    return tree, draw(st.lists(st.integers(1, 90), min_size=tree.leaves, max_size=tree.leaves))


def paths_of(tree: WeightTree, sizes: list[int]) -> list[list[Fraction]]:
    """For each dataset, its path's shares, from the root's member down."""
    blocks, at = [], 0
    for member in tree.members:
        end = at + (1 if member is None else member.leaves)
        blocks.append(sizes[at:end])
        at = end
    weights = tree.weights or default_weights([sum(block) for block in blocks], tree.temperature)
    total = sum(map(exact_weight, weights))
    found = []
    for member, weight, block in zip(tree.members, weights, blocks, strict=True):
        share = exact_weight(weight) / total
        found += [[share]] if member is None else [[share, *below] for below in paths_of(member, block)]
    return found


@given(sized())
def test_a_dataset_has_the_product_of_the_shares_on_its_path(case: tuple[WeightTree, list[int]]) -> None:
    tree, sizes = case
    weights = tree.of_datasets(sizes)
    assert [weight / sum(weights) for weight in weights] == [prod(path) for path in paths_of(tree, sizes)]


@given(sized(given_weights=False))
def test_without_weights_a_dataset_weighs_its_rows_however_deep_it_is(case: tuple[WeightTree, list[int]]) -> None:
    tree, sizes = case
    assert not tree.chosen
    assert list(tree.of_datasets(sizes)) == sizes


@given(sized(), st.integers(20, 400))
@settings(max_examples=60, deadline=None)
def test_every_beginning_holds_each_dataset_in_its_share(case: tuple[WeightTree, list[int]], total: int) -> None:
    """Within two rows, however deep the tree."""
    tree, sizes = case
    weights = tree.of_datasets(sizes)
    names = [str(number) for number in range(len(sizes))]
    taken = epoch_rows(sizes, names, MixRule(weights, rows_per_epoch=total))
    turns = Curriculum.constant(taken.weights, total=total).of_epoch(0)
    for rows, counts in enumerate(turns.counts(np.arange(total + 1)).tolist()):
        assert all(abs(n - rows * w / sum(weights)) <= 2 for n, w in zip(counts, weights, strict=True))


@given(sized(), st.integers(0, 5))
def test_a_combination_without_rows_keeps_its_weight(case: tuple[WeightTree, list[int]], more: int) -> None:
    """As a dataset without rows does: the message that it has none is about the dataset, not about its weight."""
    inner, sizes = case
    weights = WeightTree((inner, None), (3.0, 1.0)).of_datasets([0] * len(sizes) + [more])
    assert min(weights) > 0
    assert sum(weights[:-1]) == 3


def test_rows_are_those_of_the_others_where_a_combination_has_none() -> None:
    weights = WeightTree((WeightTree((None, None)), None), (1.0, 1.0)).of_datasets([0, 0, 5])
    assert epoch_rows([0, 0, 5], ["a", "b", "c"], MixRule(weights)).rows == (0, 0, 5)
