"""How well shuffle windows mix rows, by the measures of the benchmark on a smaller table; seeds are fixed."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from torch_dataloader_utils.planning.windows import ShuffleWindow
from torch_dataloader_utils.seeding import permutation

ROOT = Path(__file__).parents[2]
BATCH = 64
WINDOW = 8_000
SEEDS = range(3)

measures = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "shuffle_quality.py")))
shape = measures.Shape(files=20, splits=2, groups=8, group_rows=500)


def epochs(**options):
    return [measures.in_windows(shape, seed, **options) for seed in SEEDS]


@pytest.mark.parametrize("k", [1, 2, 4, 8, 40])
@pytest.mark.parametrize("size", [2_000, WINDOW])
def test_a_batch_is_a_random_sample_of_its_window(k, size):
    ratio = np.mean([measures.window_ratio(epoch, BATCH) for epoch in epochs(size=size, k=k)])
    assert 0.9 < ratio < 1.1


def test_more_open_splits_mix_sorted_labels_better_until_nothing_is_left_of_their_order():
    opened = (1, 2, 4, 8, 20, 40)
    ratios = [np.mean([measures.global_ratio(epoch.rows, BATCH) for epoch in epochs(size=WINDOW, k=k)]) for k in opened]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 0.8 * BATCH
    assert 0.9 < ratios[-1] < 1.1


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_batch_draws_from_all_open_splits(k):
    for epoch in epochs(size=WINDOW, k=k):
        assert measures.splits_drawn(epoch.rows, BATCH, shape.split_rows) == pytest.approx(k, rel=0.02)


def test_windows_without_shuffled_splits_keep_rows_near_their_place():
    far = [measures.quality(epoch, shape, [BATCH]).travel for epoch in epochs(size=WINDOW, k=2, shuffle=False)]
    assert max(far) < WINDOW / shape.rows


def test_the_measures_tell_the_order_of_the_files_from_a_random_one():
    in_order, random = np.arange(shape.rows), permutation(shape.rows, 1)
    assert measures.global_ratio(in_order, BATCH) == pytest.approx(BATCH, rel=0.01)
    assert measures.global_ratio(random, BATCH) == pytest.approx(1, rel=0.1)
    assert measures.window_ratio(measures.Epoch(in_order, [shape.rows]), BATCH) == pytest.approx(BATCH, rel=0.01)
    assert measures.window_ratio(measures.Epoch(random, [shape.rows]), BATCH) == pytest.approx(1, rel=0.1)


def test_a_buffer_delivers_every_row_once_and_only_near_its_place():
    epoch = measures.through_buffer(shape, 0, shuffle=False, size=1_000)
    assert sorted(epoch.rows) == list(range(shape.rows))
    assert (np.arange(shape.rows) - epoch.rows).min() > -1_000  # a row overtakes what else is in the buffer
    assert measures.global_ratio(epoch.rows, BATCH) > 0.9 * BATCH


def test_a_window_of_all_data_is_a_full_permutation():
    """No measure tells the default shuffle of data that fit from a uniform one."""
    found = [measures.by_bytes(shape, seed) for seed in SEEDS]
    assert all(len(epoch.window_ends) == 1 for epoch in found)
    qualities = [measures.quality(epoch, shape, [BATCH]) for epoch in found]
    assert np.mean([each.travel for each in qualities]) == pytest.approx(1 / 3, rel=0.01)
    assert np.mean([each.stays for each in qualities]) == pytest.approx(0.02, rel=0.05)
    assert np.mean([each.global_ratio[BATCH] for each in qualities]) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_sorted_labels_vary_in_batches_as_the_formula_says(k):
    splits = shape.all_splits
    size = shape.split_rows * measures.ROW_BYTES
    found = [measures.by_bytes(shape, seed, window=k * size, split=size) for seed in range(40)]
    ratio = np.mean([measures.global_ratio(epoch.rows, BATCH) for epoch in found])
    assert ratio == pytest.approx(ShuffleWindow(None, k, splits).variance_ratio(BATCH), rel=0.25)


def test_all_splits_open_leave_nothing_of_the_order_of_the_files():
    size = shape.split_rows * measures.ROW_BYTES
    found = [measures.by_bytes(shape, seed, k="all", window=10 * size, split=size) for seed in SEEDS]
    assert all(len(epoch.window_ends) > 1 for epoch in found)
    assert np.mean([measures.global_ratio(epoch.rows, BATCH) for epoch in found]) == pytest.approx(1, rel=0.1)
