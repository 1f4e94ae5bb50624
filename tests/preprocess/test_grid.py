"""Grids: functions of the multiset of values, by the compiled library and by numpy, as sorted lists would have them."""

import copy
import pickle
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import grid as kernel
from torch_dataloader_utils.preprocess.grid import Grid

EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ODD = st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e308, -1e308, 1.7976931348623157e308, 1.0, 1.0000000000000002]
)
TIES = st.integers(-6, 6).map(lambda i: i / 4)  # lower bits are all zero
NEAR = st.integers(0, 300).map(lambda i: 1 + i * 2**-52)  # upper bits all equal
VALUES = st.lists(FINITE | ODD | TIES | NEAR, max_size=80)
SHARES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=8)
LIMITS = st.sampled_from([2, 3, 4, 7, 16, 65_536])


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"], autouse=True)
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells counted by the compiled library, then by numpy."""
    if request.param and kernel.library() is None:
        pytest.skip("there was no C compiler when the package was installed")
    if not request.param:
        monkeypatch.setattr(kernel, "library", lambda: None)


def limited(limit: int) -> type[Grid]:
    """Grids of fewer cells."""
    return type("Limited", (Grid,), {"limit": limit})


def of(values: Any, kind: type[Grid] = Grid) -> Grid:
    grid = kind()
    grid.add(np.array(values, np.float64))
    return grid


def cell_of(value: float, shift: int) -> int:
    bits = int(np.float64(value + 0.0).view(np.uint64))
    return (bits ^ (2**64 - 1 if bits >> 63 else 1 << 63)) >> shift


def reference(values: list[float], limit: int) -> dict[str, Any]:
    """The state, by dictionaries, at the first shift that has few enough cells."""
    shift = next(s for s in range(64) if len({cell_of(value, s) for value in values}) <= limit)
    cells: dict[int, list[float]] = {}
    for value in sorted(values):
        cells.setdefault(cell_of(value, shift), []).append(value + 0.0)
    found = [(each[0], each[-1], len(each)) for _, each in sorted(cells.items())]
    least, greatest, counts = ([each[i] for each in found] for i in range(3))
    return {"shift": shift, "least": least, "greatest": greatest, "counts": counts}


def plain(grid: Grid) -> str:
    """The state as text, which tells all floats apart."""
    return repr({name: array.tolist() for name, array in grid.to_arrays().items()})


@EACH
@given(VALUES, LIMITS, st.data())
def test_the_state_is_a_function_of_the_values_not_of_how_they_came(
    values: list[float], limit: int, data: st.DataObject
) -> None:
    kind = limited(limit)
    grids = [kind() for _ in range(data.draw(st.integers(1, 4)))]
    rest = data.draw(st.permutations(values))
    while rest:
        grid, size = data.draw(st.sampled_from(grids)), data.draw(st.integers(1, len(rest)))
        if size == 1 and data.draw(st.booleans()):
            times = 1 + sum(value == rest[0] for value in rest[1:])
            grid.add_repeated(rest[0], times)
            rest = [value for value in rest[1:] if value != rest[0]]
        else:
            grid.add(np.array(rest[:size]))
            rest = rest[size:]
        if len(grids) > 1 and data.draw(st.booleans()):
            grids[-2].merge(grids.pop())
    for other in grids[1:]:
        grids[0].merge(other)
    assert plain(grids[0]) == repr(reference(values, limit))
    assert grids[0].count == len(values)
    assert grids[0] == of(values, kind)


@EACH
@given(VALUES, LIMITS, SHARES)
def test_exact_grids_know_all_values(values: list[float], limit: int, shares: list[float]) -> None:
    grid = of(values, limited(limit))
    counts = Counter(value + 0.0 for value in values)
    if not grid.exact:
        assert len(counts) > limit
        with pytest.raises(ValueError, match="not exact"):
            grid.pairs()
        assert grid.most_frequent() is None
        return
    assert [tuple(pair) for pair in np.array(grid.pairs()).T.tolist()] == sorted(counts.items())
    assert grid.most_frequent() == (min(counts, key=lambda v: (-counts[v], v)) if counts else None)
    if values:
        with np.errstate(all="ignore"):
            expected = np.quantile(np.array(values) + 0.0, shares).tolist()
        for found, wanted in zip(grid.quantiles(shares), expected, strict=True):
            if np.isfinite(wanted):
                assert repr(found) == repr(wanted)
            else:  # numpy's difference of two values overflowed
                assert min(values) <= found <= max(values)
        assert grid.errors(shares) == [0.0] * len(shares)


def rank_error(values: npt.NDArray[np.float64], share: float, found: float) -> Fraction:
    """How far the place of a quantile lies from those of its value, as a share of all; `values` are sorted."""
    below, upto = (int(np.searchsorted(values, found, side)) for side in ("left", "right"))
    at = Fraction(share) * (len(values) - 1)
    return max(Fraction(below - 1) - at, at - upto, Fraction(0)) / len(values)


@EACH
@given(VALUES.filter(bool), LIMITS, SHARES)
def test_ranks_are_off_by_no_more_than_is_said(values: list[float], limit: int, shares: list[float]) -> None:
    grid, ordered = of(values, limited(limit)), np.sort(values)
    for share, found, error in zip(shares, grid.quantiles(shares), grid.errors(shares), strict=True):
        assert rank_error(ordered, share, found) <= error
        assert ordered[0] <= found <= ordered[-1]
        if error == 0:
            with np.errstate(all="ignore"):
                wanted = np.quantile(ordered + 0.0, share)
            assert found == wanted or not np.isfinite(wanted)


@EACH
@given(VALUES.filter(bool), LIMITS, st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted))
def test_quantiles_ascend(values: list[float], limit: int, shares: list[float]) -> None:
    low, high = of(values, limited(limit)).quantiles(shares)
    slack = 1e-15 * max(map(abs, values)) + 5e-324  # those between two values are rounded from either, as numpy's are
    assert low <= high + slack


def test_values_one_by_one() -> None:
    """Each time a table is full, a call begins with the value that does not fit."""
    grid, other = Grid(), Grid()
    for value in range(1_100):
        grid.add(np.array([value], np.float64))
        other.add_repeated(value, 1)
    assert grid == other == of(range(1_100))


def test_a_cell_of_several_values_is_a_line() -> None:
    grid = of([1.0, 1.25, 1.5, 1.75, 1.875, -1.0], limited(2))
    assert not grid.exact
    assert grid.quantiles([0, 0.2, 0.4, 0.6, 0.8, 1]) == [-1.0, 1.0, 1.21875, 1.4375, 1.65625, 1.875]
    assert grid.errors([0, 0.2, 0.4, 0.6, 0.8, 1]) == [0.0, 0.0, 5 / 6, 5 / 6, 5 / 6, 0.0]


def test_a_quantile_between_the_ends_of_all_floats_is_finite() -> None:
    most = 2.0**1023
    assert of([-most, most]).quantiles([0, 0.25, 0.5, 1]) == [-most, -most / 2, 0.0, most]


N = 1_000_000
DRAWS: dict[str, Callable[[np.random.Generator], npt.NDArray[np.float64]]] = {
    "uniform": lambda rng: rng.random(N),
    "normal": lambda rng: rng.normal(size=N),
    "lognormal": lambda rng: rng.lognormal(0, 2, N),
    "pareto": lambda rng: rng.pareto(1.5, N),
    "epochs": lambda rng: 1.6e9 + rng.integers(0, 10**8, N),
    "prices": lambda rng: rng.lognormal(3, 1, N).round(2),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_million_values_have_close_quantiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = DRAWS[name](np.random.default_rng(0))
    grid = Grid()
    for block in np.split(values, [1, 100, 65_536, 70_000, 500_000]):
        grid.add(block)
        assert len(grid.to_arrays()["counts"]) <= 65_536
    assert grid.exact == (name == "prices")
    ordered, shares = np.sort(values), np.linspace(0, 1, 101).tolist()
    errors = [rank_error(ordered, *pair) for pair in zip(shares, grid.quantiles(shares), strict=True)]
    assert max(errors) < 1e-4
    assert all(error <= said < 1e-3 for error, said in zip(errors, grid.errors(shares), strict=True))
    found = grid.to_arrays()
    assert found["shift"] == 0 or len(np.unique(kernel.ordered(values) >> np.uint64(found["shift"] - 1))) > 65_536
    monkeypatch.setattr(kernel, "library", lambda: None)  # numpy agrees with the library, and with itself
    other = Grid()
    for block in np.split(values[::-1], 20):
        part = of(block)
        part.merge(other)
        other = part
    assert other == grid


def test_halves_are_rounded_as_numpy_rounds_them() -> None:
    values = np.random.default_rng(0).normal(size=400)
    for n in range(2, len(values)):
        assert of(values[:n]).quantiles([0.25, 0.5, 0.9]) == np.quantile(values[:n], [0.25, 0.5, 0.9]).tolist()


def time_of(values: npt.NDArray[np.float64]) -> float:
    """Seconds to count these values ten times, in which those of other threads do not count."""
    begin = time.thread_time()
    assert of(np.tile(values, 10)).pairs()[1].tolist() == [10] * len(values)
    return time.thread_time() - begin


def test_round_numbers_are_spread_over_the_table() -> None:
    """Their lower bits are all zero. If they shared slots, each would take some thousand times as long."""
    round_numbers = np.ldexp(np.arange(1, 32_001), 30)
    assert time_of(round_numbers) < 20 * time_of(np.random.default_rng(0).random(len(round_numbers)))


@pytest.mark.parametrize("wrong", [[1.0, np.nan], [np.inf], [-np.inf, 0.0]])
def test_values_are_finite(wrong: list[float]) -> None:
    grid = of([1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        grid.add(np.array(wrong))
    with pytest.raises(ValueError, match="finite"):
        grid.add_repeated(wrong[-1] if wrong[-1] else wrong[0], 2)
    with pytest.raises(ValueError, match="-1 times"):
        grid.add_repeated(1.0, -1)
    grid.add_repeated(5.0, 0)
    assert grid == of([1.0, 2.0])


def test_arrays_of_any_layout_are_counted() -> None:
    values = np.arange(24.0).reshape(4, 6)
    shifted = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view(np.float64)
    assert of([]) == Grid()
    for each in (values[:, ::2], values[:, ::2].T, values[:, ::2].astype(">f8"), values[:, ::2].astype(np.float32)):
        grid = Grid()
        grid.add(each)  # type: ignore[arg-type]
        assert grid == of(values[:, ::2].ravel())
    grid = Grid()
    grid.add(shifted)
    assert grid == of(values.ravel())


@pytest.mark.parametrize("shares", [[-0.1], [0.5, 1.1], [float("nan")]])
def test_shares_are_from_0_to_1(shares: list[float]) -> None:
    grid = of([1.0, 2.0])
    for call in (grid.quantiles, grid.errors):
        with pytest.raises(ValueError, match="from 0 to 1"):
            call(shares)


def test_no_values_have_no_quantiles() -> None:
    grid = Grid()
    assert (grid.count, grid.exact, grid.most_frequent()) == (0, True, None)
    assert [len(each) for each in grid.pairs()] == [0, 0]
    with pytest.raises(ValueError, match="no values"):
        grid.quantiles([0.5])


def test_threads_add_to_one_grid() -> None:
    blocks = np.split(np.random.default_rng(0).normal(size=200_000), 100)
    grid = Grid()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(grid.add, blocks))
    assert grid == of(np.concatenate(blocks))


@pytest.mark.parametrize("n", [0, 3, 200_000])
def test_grids_are_saved_pickled_and_copied(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=2 * n)
    grid = of(values[:n])
    same = [Grid.from_arrays(grid.to_arrays()), pickle.loads(pickle.dumps(grid)), copy.deepcopy(grid)]
    monkeypatch.setattr(kernel, "library", lambda: None)  # where it is loaded, there may be none
    for each in [*same, pickle.loads(pickle.dumps(grid))]:
        assert each == grid
        each.add(values[n:])
        assert each == of(values)
        assert (each == grid) == (n == 0)
    assert grid != "another type"


def test_a_grid_merges_with_itself() -> None:
    grid = of([1.0, 2.0])
    grid.merge(grid)
    assert grid == of([1.0, 2.0, 1.0, 2.0])


def test_what_a_grid_returns_is_a_copy() -> None:
    grid = of([1.0, 2.0])
    for array in (*grid.to_arrays().values(), *grid.pairs()):
        array[...] = 7
    assert grid == of([1.0, 2.0])


RIGHT = of([1.0, 1.5, 1.75, 2.0, -3.0, -3.0], limited(3)).to_arrays()  # cells [-3 -3], [1 1.5 1.75], [2]


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("shift", np.array([51], np.uint8), "'shift' is uint8 of 0 dimensions, not uint8 of 1"),
        ("shift", np.array(51), "'shift' is uint8"),
        ("shift", np.array(64, np.uint8), "at most 63"),
        ("shift", np.array(53, np.uint8), "not the least"),
        ("counts", np.array([2.0, 3.0, 1.0]), "'counts' is int64"),
        ("counts", np.array([2, 3]), "lengths"),
        ("counts", np.array([2, 3, 0]), "below 1"),
        ("counts", np.array([2, 3, -1]), "below 1"),
        ("counts", np.array([2**62, 2**62, 1]), "sum"),
        ("counts", np.array([2, 1, 1]), "two ends"),
        ("least", np.array([-3.0, np.nan, 2.0]), "finite"),
        ("greatest", np.array([-3.0, 1.75, np.inf]), "finite"),
        ("least", np.array([-3.0, 1.9, 2.0]), "above the greatest"),
        ("greatest", np.array([-3.0, 2.5, 2.0]), "outside of the cell"),
        ("least", np.array([-3.0, 0.9, 2.0]), "outside of the cell"),
        ("other", np.array(0), r"\['counts', 'greatest', 'least', 'shift'\]"),
    ],
)
def test_arrays_that_no_grid_has_are_refused(name: str, array: npt.NDArray[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"not the arrays of a grid: .*{problem}"):
        limited(3).from_arrays(RIGHT | {name: array})


def test_unsorted_repeated_and_too_many_cells_are_refused() -> None:
    for order in ([1, 0, 2], [0, 1, 1], [0, 2, 1]):
        arrays = {name: array[order] if array.ndim else array for name, array in RIGHT.items()}
        with pytest.raises(ValueError, match="ascending"):
            limited(3).from_arrays(arrays)
    with pytest.raises(ValueError, match="3 cells, more than 2"):
        limited(2).from_arrays(RIGHT)
    with pytest.raises(ValueError, match="arrays of a grid"):
        limited(3).from_arrays({})
    assert limited(3).from_arrays(RIGHT).to_arrays()["counts"].tolist() == [2, 3, 1]
