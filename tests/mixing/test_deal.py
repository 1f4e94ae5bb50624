"""Who gets the units of a mix: whole steps for each rank, sources in proportion in each batch, and closed forms."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.mixing.curriculum import Curriculum
from torch_dataloader_utils.mixing.deal import Deal, Schedule
from torch_dataloader_utils.mixing.laps import cut_laps, shared_laps, whole_laps

WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


def deal_of(weights: list[int], total: int, ranks: int, batch: int, key: int = 7) -> Deal:
    turns = Curriculum.constant(weights, total=total).of_epoch(0)
    return Deal(turns, tuple(turns.of_each), ranks, batch, False, key)


@st.composite
def deals(draw: st.DrawFn, single: bool | None = None, most: int = 300) -> Deal:
    ranks, batch, key = draw(st.integers(1, 8)), draw(st.integers(1, 6)), draw(st.integers(0, 2**64 - 1))
    weights = draw(WEIGHTS)
    if not (draw(st.booleans()) if single is None else single):
        return deal_of(weights, draw(st.integers(1, most)), ranks, batch, key)
    rows = draw(st.lists(st.integers(0, 60), min_size=len(weights), max_size=len(weights)).filter(any))
    steps = [-(-count // (ranks * batch)) for count in rows]
    return Deal(Curriculum.constant(weights, rows=steps).of_epoch(0), tuple(rows), ranks, batch, True, key)


@given(deals())
@settings(deadline=None)
def test_a_step_is_dealt_whole_and_each_batch_has_the_sources_in_proportion(deal: Deal) -> None:
    steps = np.diff(deal.taken(np.arange(deal.steps + 1)), axis=0)
    hands = np.array([deal.of_rank(rank, 0, deal.steps) for rank in range(deal.num_ranks)])
    assert (hands.sum(axis=0) == steps).all()
    assert (hands >= steps // deal.num_ranks).all()
    assert (hands <= -(-steps // deal.num_ranks)).all()
    full = np.ones(deal.steps, np.bool_)
    full[deal.short_steps] = False
    assert (hands.sum(axis=2)[:, full] == deal.batch_rows).all()
    assert (hands.sum(axis=2) <= deal.batch_rows).all()
    assert (steps[~full].sum(axis=1) < deal.step_rows).all()
    assert deal.draws.tolist() == hands.sum(axis=1).T.tolist()
    assert deal.draws.sum(axis=1).tolist() == list(deal.rows)


@given(WEIGHTS, st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_a_global_batch_has_the_same_sources_on_any_number_of_ranks(
    weights: list[int], shape: tuple[int, int], key: int
) -> None:
    one, other = (deal_of(weights, 240, *ranks, key).taken(np.arange(21)).tolist() for ranks in ((1, 12), shape))
    assert one == other


def test_no_rank_is_preferred() -> None:
    """Draws differ by about the root of the steps."""
    draws = deal_of([9, 1], 8 * 4000, 8, 1).draws
    assert draws.sum(axis=0).tolist() == [4000] * 8
    assert np.abs(draws[1] - 400).max() <= 2 * 4000**0.5
    assert len(set(draws[1].tolist())) > 1


@given(deals(most=3000), st.data())
@settings(deadline=None, max_examples=50)
def test_a_rank_counts_from_any_step(deal: Deal, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, deal.num_ranks - 1))
    whole = np.cumsum(np.pad(deal.of_rank(rank, 0, deal.steps), ((1, 0), (0, 0))), axis=0)
    schedule = Schedule(deal, rank, tuple(deal.draws[:, rank].tolist()))
    first = data.draw(st.integers(0, deal.steps))
    assert schedule.table(first, deal.steps).tolist() == whole[first:].tolist()
    assert schedule.after(first) == whole[first].tolist()


@given(deals(), st.booleans(), st.data())
@settings(deadline=None)
def test_batches_without_rows_or_left_out_are_no_batches(deal: Deal, drops: bool, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, deal.num_ranks - 1))
    rows = deal.of_rank(rank, 0, deal.steps)
    sizes = rows.sum(axis=1)
    absent = [step for step in range(deal.steps) if not sizes[step] or (drops and sizes[step] < deal.batch_rows)]
    assert set(absent) <= set(deal.short_steps)
    kept = np.delete(rows, absent, axis=0)
    schedule = Schedule(deal, rank, tuple(kept.sum(axis=0).tolist()), tuple(absent))
    assert schedule.steps == len(kept)
    assert np.diff(schedule.table(0, schedule.steps), axis=0).tolist() == kept.tolist()


@given(deals(single=False), st.integers(0, 9))
@settings(deadline=None)
def test_padding_comes_after_all_rows(deal: Deal, more: int) -> None:
    rows = tuple(deal.draws[:, 0].tolist())
    padding = -sum(rows) % deal.batch_rows + more * deal.batch_rows * (deal.steps == 0)
    schedule = Schedule(deal, 0, rows, padding=padding)
    table = schedule.table(0, schedule.steps)
    assert table[-1, : len(rows)].tolist() == list(rows)
    if padding:
        assert (np.diff(table.sum(axis=1)) == deal.batch_rows).all()
        assert table[-1, -1] == padding
        assert not table[:-1, -1].any()


@given(deals(single=False), st.data())
@settings(deadline=None)
def test_the_first_rows_are_those_of_the_first_batches(deal: Deal, data: st.DataObject) -> None:
    rows = tuple(deal.draws[:, 0].tolist())
    absent = [step for step in deal.short_steps if not deal.of_rank(0, step, step + 1).any()]
    schedule = Schedule(deal, 0, rows, tuple(absent))
    order = [
        source
        for low, high in pairwise(schedule.table(0, schedule.steps).tolist())
        for source, (a, b) in enumerate(zip(low, high, strict=True))
        for _ in range(a, b)
    ]
    count = data.draw(st.integers(0, len(order)))
    first = Counter(order[:count])
    assert schedule.first_rows(count) == [first[source] for source in range(len(rows))]


@given(deals(single=False, most=5000))
@settings(deadline=None, max_examples=50)
def test_rows_are_needed_about_when_they_are_delivered(deal: Deal) -> None:
    """To within the steps of a mark."""
    schedule = Schedule(deal, 0, tuple(deal.draws[:, 0].tolist()), padding=3)
    table = schedule.table(0, schedule.steps)
    for source, rows in enumerate(schedule.of_each):
        needed = schedule.needed(source, range(rows))
        steps = np.searchsorted(table[:, source], np.arange(rows), side="right") - 1
        assert needed == sorted(needed)
        assert (np.abs(np.array(needed) - steps) <= 64).all()
    assert min(schedule.needed(len(schedule.of_each), range(3))) >= deal.steps - 1


@pytest.mark.parametrize("ranks", [1, 8])
def test_places_in_huge_sources_are_found_without_walking_to_them(ranks: int) -> None:
    rows = (10**11, 3 * 10**10, 7)
    turns = Curriculum.constant(rows, rows=rows).of_epoch(0)
    deal = Deal(turns, rows, ranks, 1_000, False, 1)
    half = deal.taken(np.array([deal.steps // 2]))[0].tolist()
    assert all(abs(count - row / 2) <= ranks * 1_000 for count, row in zip(half, rows, strict=True))


# ---------------------------------------------------------------------------------------------------- laps of ranks


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 7), st.data())
def test_ranks_get_their_draws_and_go_on_to_the_next_lap_together(
    sizes: list[int], ranks: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, sum(sizes)), min_size=ranks - 1, max_size=ranks - 1)))
    draws = np.diff([0, *cuts, sum(sizes)])
    counts = shared_laps(sizes, draws)
    assert counts.sum(axis=1).tolist() == sizes
    assert counts.sum(axis=0).tolist() == draws.tolist()
    assert (counts >= 0).all()
    ends = np.cumsum(counts, axis=0)
    shares = np.outer(np.cumsum(sizes) / max(sum(sizes), 1), draws)
    assert (np.abs(ends - shares) <= len(sizes) + 1).all()
    whole = whole_laps(sizes, draws)
    assert whole.sum(axis=1).tolist() == sizes
    assert whole.sum(axis=0).tolist() == draws.tolist()
    for rank in range(ranks):
        own = np.flatnonzero(whole[:, rank])
        assert (whole[own[1:-1], rank] == np.array(sizes)[own[1:-1]]).all()  # at most its first and last are cut


def test_laps_of_more_rows_than_integers_multiply() -> None:
    counts = shared_laps([2**50, 2**50], np.array([2**50 + 1, 2**50 - 1]))
    assert counts.sum(axis=1).tolist() == [2**50] * 2
    assert abs(int(counts[0, 0]) - 2**49) <= 1


@given(st.lists(st.integers(0, 9), max_size=6), st.data())
def test_laps_are_cut_after_any_row(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, sum(sizes)))
    whole = [(lap, row) for lap, size in enumerate(sizes) for row in range(size)]
    first, rest = ([(lap, row) for lap, a, b in part for row in range(a, b)] for part in cut_laps(sizes, count))
    assert (first, rest) == (whole[:count], whole[count:])
