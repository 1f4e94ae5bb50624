"""How often rows are drawn: exact counts, equal to the model's, and any part of the line alone."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import model as model_of
from torch_dataloader_utils.row_weights import marks as module
from torch_dataloader_utils.row_weights.marks import EpochMarks, FileDraws
from torch_dataloader_utils.row_weights.whole_weights import WholeWeights
from torch_dataloader_utils.seeding import derive_key, window_order

VALUES = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), min_size=1, max_size=60).filter(lambda w: max(w) > 0)
CUTS = st.lists(st.integers(0, 60), max_size=4)
EPOCH = st.integers(0, 9)
NUMBER = st.integers(1, 200)


def drawn_of(numbers: np.ndarray, cuts: list[int], number: int, epoch: int, seed: int = 7) -> FileDraws:
    """The draws of a file of all these rows, in segments that end at the cuts."""
    firsts = [0, *sorted(min(cut, len(numbers)) for cut in cuts), len(numbers)]
    starts = [int(numbers[:first].sum(dtype=np.int64)) for first in firsts]
    return FileDraws(numbers, tuple(firsts), tuple(starts), 0, EpochMarks(number, starts[-1], seed, epoch))


def counts_of(draws: FileDraws) -> list[int]:
    return np.concatenate(
        [np.bincount(draws.rows(place), minlength=draws.count(place)) for place in range(len(draws.firsts) - 1)]
    ).tolist()


@settings(deadline=None)
@given(VALUES, CUTS, NUMBER, EPOCH)
def test_a_row_is_drawn_as_often_as_its_share_rounded_down_or_up(
    values: list[float], cuts: list[int], number: int, epoch: int
) -> None:
    numbers = WholeWeights.of(np.array(values)).numbers
    draws = drawn_of(numbers, cuts, number, epoch)
    counts, total = counts_of(draws), int(numbers.sum(dtype=np.int64))
    assert sum(counts) == number
    for count, weight in zip(counts, numbers.tolist(), strict=True):
        share = Fraction(number * weight, total)
        assert share - 1 < count < share + 1 or count == share
    before = draws.marks.up_to(list(draws.starts)).tolist()
    for place, (first, last) in enumerate(pairwise(before)):
        rows = draws.rows(place)
        assert len(rows) == last - first  # from two sums, without the rows
        assert (np.diff(rows) >= 0).all()
    shares = np.concatenate([draws.shares(place) for place in range(len(before) - 1)])
    assert shares == pytest.approx(numbers * (number / total), rel=1e-6)


@settings(deadline=None)
@given(VALUES, CUTS, NUMBER, EPOCH)
def test_the_same_as_the_model_on_the_same_line(values: list[float], cuts: list[int], number: int, epoch: int) -> None:
    """On a line of rows in their keyed orders, each row is a segment of the model."""
    model = model_of("weights_model")
    numbers = WholeWeights.of(np.array(values)).numbers
    draws = drawn_of(numbers, cuts, number, epoch)
    line = [
        first + int(row)
        for place, (first, last) in enumerate(pairwise(draws.firsts))
        for row in window_order(last - first, derive_key("row weights in order", 7, epoch, place))
    ]
    assert sorted(line) == list(range(len(values)))
    modelled = model.Draw(numbers[line], list(range(len(line) + 1)), 7, epoch, number)
    modelled.offset = draws.marks.offset
    found = counts_of(draws)
    assert [found[row] for row in line] == [modelled.rows_of_segment(at) for at in range(len(line))]
    assert (modelled.expected() == pytest.approx([number * numbers[row] / modelled.total for row in line])) is True


@settings(deadline=None)
@given(VALUES, st.integers(0, 60), st.integers(0, 60), EPOCH)
def test_a_part_of_the_line_depends_on_no_other_cut(values: list[float], half: int, cut: int, epoch: int) -> None:
    numbers, half = WholeWeights.of(np.array(values)).numbers, min(half, len(values))
    one, other = (drawn_of(numbers, cuts, 50, epoch) for cuts in ([half], [half, max(half, cut)]))
    assert one.rows(0).tolist() == other.rows(0).tolist()


@given(VALUES, NUMBER)
def test_products_beyond_64_bits_are_computed_in_parts(values: list[float], number: int) -> None:
    draws = drawn_of(WholeWeights.of(np.array(values)).numbers, [], number, 3)
    whole = draws.rows(0).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_INT64", 3 * number)
        assert draws.rows(0).tolist() == whole


def test_marks_of_very_many_rows() -> None:
    marks = EpochMarks(2**40, 2**62 + 12_345, 1, 2)
    start = 2**61 + 7
    places = marks.between(start, start + 2**23 * 5)
    first, last = marks.up_to([start, start + 2**23 * 5]).tolist()
    expected = [-((marks.offset - mark * marks.length) // marks.number) - start for mark in range(first + 1, last + 1)]
    assert places.tolist() == expected
    assert len(expected) == 10


def test_draws_are_unbiased_and_no_pattern_of_the_file_shows() -> None:
    rng = np.random.default_rng(0)
    numbers = WholeWeights.of(rng.exponential(size=400)).numbers
    mean = np.mean([counts_of(drawn_of(numbers, [150], 200, epoch))[:150] for epoch in range(2000)], axis=0)
    shares = 200 * numbers[:150] / numbers.sum(dtype=np.int64)
    assert np.abs(mean - shares).max() < 5 * np.sqrt(0.25 / 2000)
    label, equal = np.arange(1000) % 2, np.ones(1000, np.uint32)
    of_label = [np.dot(counts_of(drawn_of(equal, [], 500, epoch)), label) / 500 for epoch in range(50)]
    assert 0.4 < min(of_label) <= max(of_label) < 0.6  # in file order, each epoch would have one label


def test_epochs_and_seeds_differ() -> None:
    equal = np.ones(100, np.uint32)
    drawn = {tuple(counts_of(drawn_of(equal, [], 30, epoch, seed))) for epoch in range(20) for seed in range(3)}
    assert len(drawn) == 60


def test_golden_draws() -> None:
    """States are resumed by other versions: a change of draws must be meant."""
    numbers = WholeWeights.of(np.arange(12.0)).numbers
    assert counts_of(drawn_of(numbers, [5], 20, 1, 42)) == GOLDEN


GOLDEN = [0, 0, 1, 1, 1, 2, 1, 2, 3, 3, 3, 3]
