"""Fragments of documents against plain lists of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.packing.fragments import Fragments

LENGTHS = st.lists(st.integers(0, 6), max_size=12)


def fragments_of(lengths: list[int], first: int = 0) -> Fragments:
    return Fragments.of_documents(first + np.cumsum([0, *lengths]))


def tokens_of(fragments: Fragments) -> list[list[int]]:
    """The places of the tokens of each fragment."""
    pairs = zip(fragments.starts.tolist(), fragments.lengths.tolist(), strict=True)
    return [list(range(start, start + length)) for start, length in pairs]


@given(LENGTHS, st.integers(0, 5))
def test_documents_without_tokens_are_left_out(lengths: list[int], first: int) -> None:
    found = tokens_of(fragments_of(lengths, first))
    assert [len(each) for each in found] == [length for length in lengths if length]
    assert sum(found, []) == list(range(first, first + sum(lengths)))


@given(LENGTHS, st.randoms(), st.integers(0, 60), st.integers(0, 60))
def test_a_cut_keeps_the_tokens_between_two_places_of_the_stream(
    lengths: list[int], random: object, first: int, last: int
) -> None:
    order = np.random.default_rng(len(lengths) + first)
    stream = fragments_of(lengths).permuted(lambda number: order.permutation(number))
    assert sorted(map(tuple, tokens_of(stream))) == sorted(map(tuple, tokens_of(fragments_of(lengths))))
    total = sum(lengths)
    first, last = min(first, total), min(last, total)
    cut = stream.cut(first, last)
    assert sum(tokens_of(cut), []) == sum(tokens_of(stream), [])[first:last]
    assert (cut.lengths > 0).all()
    kept = {each[0] for each in tokens_of(stream)}
    assert all(each[0] in kept for each in tokens_of(cut)[1:])  # only the first fragment may begin in a document
    assert tokens_of(stream) == tokens_of(Fragments.joined([stream.cut(0, first), stream.cut(first, total)])) or first


@given(LENGTHS)
def test_fragments_that_follow_one_another_are_a_run(lengths: list[int]) -> None:
    whole = fragments_of(lengths, 3)
    assert whole.run() == ((3, 3 + sum(lengths)) if sum(lengths) else (0, 0))
    turned = whole.permuted(lambda number: np.arange(number)[::-1])
    assert (turned.run() is None) == (len(whole) > 1)


@given(LENGTHS, st.integers(0, 3))
def test_sources_cut_the_tokens_at_the_borders_of_fragments(lengths: list[int], step: int) -> None:
    chosen = fragments_of(lengths).permuted(lambda number: np.roll(np.arange(number), step)[:: 1 + step])
    if not len(chosen):
        return
    offsets, places = chosen.sources()
    assert (np.diff(offsets) >= 0).all()
    assert offsets[places].tolist() == chosen.starts.tolist()
    assert offsets[places + 1].tolist() == (chosen.starts + chosen.lengths).tolist()
