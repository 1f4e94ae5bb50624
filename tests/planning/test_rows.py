"""`Rows`: one value for contiguous, strided and blocked row selections, against plain lists."""

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.model import Piece, Rows, Split


@st.composite
def rows_values(draw: st.DrawFn) -> Rows:
    start, length = draw(st.integers(0, 30)), draw(st.integers(0, 40))
    step = draw(st.integers(1, 9))
    block = draw(st.integers(1, step))
    if step == block:  # every row: said with step 1
        return Rows(start, start + length)
    return Rows(start, start + length, step, block, draw(st.integers(-20, 20)))


def plain(rows: Rows) -> list[int]:
    return [x for x in range(rows.start, rows.stop) if (x - rows.phase) % rows.step < rows.block]


@given(rows_values())
def test_length_rows_runs_and_numbers_agree_with_the_definition(rows: Rows) -> None:
    expected = plain(rows)
    assert len(rows) == len(expected)
    assert [rows.row(i) for i in range(len(rows))] == expected
    assert rows.numbers().tolist() == expected
    runs = list(rows.runs())
    assert [x for a, b in runs for x in range(a, b)] == expected
    assert all(a < b for a, b in runs)
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(runs))
    assert pickle.loads(pickle.dumps(rows)) == rows


@given(rows_values(), st.integers(-3, 45), st.integers(-3, 45))
def test_slice_selects_places(rows: Rows, first: int, last: int) -> None:
    expected = plain(rows)[max(first, 0) : max(last, 0)]
    assert plain(rows.slice(first, last)) == expected
    if expected:
        assert (rows.slice(first, last).start, rows.slice(first, last).stop) == (expected[0], expected[-1] + 1)


@given(rows_values(), st.integers(-3, 80), st.integers(-3, 80))
def test_clip_selects_row_numbers(rows: Rows, start: int, stop: int) -> None:
    clipped = rows.clip(start, stop)
    assert plain(clipped) == [x for x in plain(rows) if start <= x < stop]
    assert len(clipped) == len(plain(clipped))


@given(rows_values(), rows_values())
def test_rows_at_places(rows: Rows, places: Rows) -> None:
    places = places.clip(0, len(rows))
    found = rows.at(places)
    assert [x for part in found for x in plain(part)] == [plain(rows)[place] for place in plain(places)]
    assert all(len(part) for part in found)
    if rows.contiguous or places.contiguous or (places.block == 1 and rows.block == 1):
        assert len(found) <= 1


def test_a_piece_is_cut_by_places_and_an_uncounted_one_is_not_cut() -> None:
    split = Split(None, (10, 20))
    assert split.row_range == Rows(10, 20)
    assert Piece(split, split.row_range, order=3).cut(2, 5) == Piece(split, Rows(12, 15), order=3)
    with pytest.raises(ValueError, match="without a row count"):
        Piece(Split(None), None).cut(0, 1)
