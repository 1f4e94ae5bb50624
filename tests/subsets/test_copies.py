"""The law of copies: the whole part of a weight, one more with its fraction, by seed, epoch and place alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.class_weights.draws import ClassDraw

WEIGHTS = st.lists(st.floats(0, 1000), max_size=200).map(lambda weights: np.array(weights, np.float64))
NUMBERS = st.integers(0, 2**62)


@given(WEIGHTS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 10_000))
def test_a_row_has_the_whole_part_or_one_more(
    weights: np.ndarray, seed: int, epoch: int, file: int, segment: int
) -> None:
    copies = ClassDraw(seed, epoch).copies(weights, file, segment)
    assert copies.shape == weights.shape
    assert (copies >= np.floor(weights)).all()
    assert (copies <= np.ceil(weights)).all()
    assert (copies == ClassDraw(seed, epoch).copies(weights.copy(), file, segment)).all()


@given(WEIGHTS, st.data())
def test_a_row_is_drawn_alone(weights: np.ndarray, data: st.DataObject) -> None:
    some = data.draw(st.integers(0, len(weights)))
    other = np.concatenate([weights[:some], np.zeros(len(weights) - some)])
    both = [ClassDraw(0, 1).copies(each, 2, 3)[:some].tolist() for each in (weights, other)]
    assert both[0] == both[1]


@given(st.floats(0, 20), st.integers(0, 50))
def test_a_larger_weight_never_has_fewer_copies(weight: float, epoch: int) -> None:
    less, more = (ClassDraw(0, epoch).copies(np.full(100, w), 1, 0) for w in (weight, weight + 0.25))
    assert (np.floor(weight) == np.floor(weight + 0.25)) <= bool((less <= more).all())


def test_the_mean_is_the_weight() -> None:
    rows = 100_000
    for weight in (0.001, 0.3, 0.5, 1.75, 7.9):
        total = ClassDraw(0, 0).copies(np.full(rows, weight), 17, 0).sum()
        fraction = weight % 1
        assert abs(total - rows * weight) < 5 * np.sqrt(rows * fraction * (1 - fraction))


def test_seeds_epochs_files_and_segments_are_drawn_independently() -> None:
    rows, half = 20_000, np.full(20_000, 0.5)
    first = ClassDraw(0, 0).copies(half, 1, 0)
    for draw, file, segment in ((ClassDraw(1, 0), 1, 0), (ClassDraw(0, 1), 1, 0), (ClassDraw(0, 0), 2, 0),
                                (ClassDraw(0, 0), 1, 1)):  # fmt: skip
        same = (draw.copies(half, file, segment) == first).sum()
        assert abs(same - rows / 2) < 5 * np.sqrt(rows / 4)


def test_the_draws_are_frozen() -> None:
    weights = np.full(32, 0.5)
    assert "".join(map(str, ClassDraw(7, 3).copies(weights, 123, 4).tolist())) == "11101100111010001010001101101111"
