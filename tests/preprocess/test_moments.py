import json
import math
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import moments
from torch_dataloader_utils.kernels.moments import PowerSums, power_sums
from torch_dataloader_utils.preprocess.moments import Moments

UNIT = Fraction(1, 2**1074)
LEAST, NORMAL, GREATEST = 5e-324, sys.float_info.min, sys.float_info.max
EDGES = [
    0.0,
    -0.0,
    LEAST,
    -LEAST,
    NORMAL,
    math.nextafter(NORMAL, 0),
    GREATEST,
    -GREATEST,
    2.0**511,
    2.0**-538,
    0.1,
    1.0,
]

finite = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(EDGES))
numbers = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf]))


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"], scope="module", autouse=True)
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sums by the compiled library, then by numpy."""
    if request.param and moments.library() is None:
        pytest.skip("there was no C compiler when the package was installed")
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(moments, "library", lambda: None)
        yield


def known(values: list[float]) -> PowerSums:
    """What is known of values, by rational numbers."""
    own = [Fraction(value) for value in values if math.isfinite(value)]
    missing = sum(map(math.isnan, values))
    return PowerSums(
        len(own),
        missing,
        len(values) - len(own) - missing,
        float(min(own)) if own else None,
        float(max(own)) if own else None,
        int(sum(own) / UNIT),
        int(sum(value**2 for value in own) / UNIT**2),
    )


def of(values: list[float]) -> Moments:
    made = Moments()
    made.add(np.array(values, np.float64))
    return made


def is_nearest(value: float, exact: Fraction) -> bool:
    """Whether no float64 is nearer to a rational number."""
    if math.isinf(value):
        return exact >= Fraction(GREATEST) + Fraction(math.ulp(GREATEST)) / 2
    beside = [math.nextafter(value, end) for end in (-math.inf, math.inf)]
    return all(abs(exact - Fraction(value)) <= abs(exact - Fraction(x)) for x in beside if math.isfinite(x))


@given(st.lists(numbers))
@settings(max_examples=150)
def test_sums_are_those_of_rational_numbers(values):
    assert power_sums(np.array(values, np.float64)) == known(values)


@given(st.integers(0, 2**32 - 1))
def test_sums_of_random_bits_are_those_of_rational_numbers(seed):
    values = np.random.default_rng(seed).bytes(8 * 300)
    assert power_sums(np.frombuffer(values)) == known(np.frombuffer(values).tolist())


def test_sums_are_in_units_of_the_least_float():
    def sums(values):
        found = power_sums(np.array(values))
        return found.total, found.squares

    assert sums([LEAST, LEAST, -LEAST]) == (1, 3)
    assert sums([[1.0], [2.0]]) == sums([1.0, math.inf, 2.0, math.nan]) == (3 << 1074, 5 << 2148)


@given(st.lists(st.tuples(numbers, st.integers(0, 4))).flatmap(st.permutations))
def test_blocks_and_orders_do_not_matter(placed):
    parts = [of([value for value, place in placed if place == number]) for number in range(4)]
    for value, times in Counter(value for value, place in placed if place == 4).items():
        parts[0].add_repeated(value, times)
    whole = of([value for value, _ in placed])
    assert whole.sums == known(sorted((value for value, _ in placed), key=repr))
    for order in permutations(parts):
        merged = Moments()
        for part in order:
            merged.merge(part)
        assert merged == whole
        assert json.dumps(merged.to_json()) == json.dumps(whole.to_json())


@pytest.mark.parametrize("value", [math.nextafter(2.0, 0.0), -math.nextafter(2.0, 0.0), GREATEST, NORMAL - LEAST])
def test_sums_of_millions_are_carried(value):
    """Of the greatest significands there are: their squares fill 128 bits after 2**22 values."""
    values = np.full((1 << 22) + 100, value)
    values[-3:] = 2 * value / 3, math.nan, -math.inf
    repeated = of([2 * value / 3, math.nan, -math.inf])
    repeated.add_repeated(value, len(values) - 3)
    found = Moments()
    found.add(values)
    assert found == repeated


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "f4", "f2"])
def test_any_array_of_floats_is_taken(dtype):
    rows = np.arange(24, dtype=dtype).reshape(4, 6)[:, ::2]
    assert power_sums(rows) == known(rows.ravel().tolist())
    unaligned = np.frombuffer(b"\0" + np.arange(5.0).tobytes(), np.float64, offset=1)
    assert power_sums(unaligned) == known([0, 1, 2, 3, 4])


def test_repetition_is_addition():
    for value in [1.5, -0.0, LEAST, -GREATEST, math.nan, -math.inf]:
        repeated = Moments()
        repeated.add_repeated(value, 0)
        assert repeated == Moments()
        repeated.add_repeated(value, 3)
        assert repeated == of([value] * 3)
        assert repr(repeated.sums) == repr(of([value] * 3).sums)  # 0.0 and -0.0 are equal
    with pytest.raises(ValueError, match="-1 times"):
        Moments().add_repeated(1.0, -1)


@given(st.lists(finite, min_size=1, max_size=20), st.integers(0, 1))
@settings(max_examples=150)
def test_mean_and_variance_are_rounded_once(values, ddof):
    found, exact = of(values), [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    assert is_nearest(found.mean, mean)
    assert math.copysign(1, found.mean) == 1 or found.mean < 0
    if len(values) == 1:
        assert found.variance(ddof) == found.std(ddof) == 0
    else:
        variance = sum((x - mean) ** 2 for x in exact) / (len(exact) - ddof)
        assert is_nearest(found.variance(ddof), variance)
        assert (found.std(ddof) == 0) == (len(set(exact)) == 1)
        if NORMAL <= found.variance(ddof) < math.inf:
            assert found.std(ddof) == math.sqrt(found.variance(ddof))
        elif 2 * UNIT < variance < Fraction(GREATEST) ** 2:  # its root is in the range of float64, if it is not
            root = math.isqrt(int(variance / UNIT**2)) * UNIT
            assert abs(Fraction(found.std(ddof)) - root) <= root / 2**51 + UNIT


@given(st.sets(st.integers(-3, 3), min_size=2), st.integers(-500, 500))
def test_a_square_root_is_that_of_the_variance(values, exponent):
    """Small whole numbers, scaled by powers of two, have the deviation of these numbers, scaled."""
    small = of([float(value) for value in values])
    scaled = of([math.ldexp(value, exponent) for value in values])
    assert scaled.std(1) == math.ldexp(small.std(1), exponent)


def test_means_of_huge_values_do_not_depend_on_their_order():
    for values in permutations([1e308, 1.0, -1e308, 1e308, -1e308]):
        assert of(list(values)).mean == 0.2


@given(finite, st.integers(1, 10_000))
def test_constants_have_no_variance(value, times):
    found = of([value] * times)
    assert found.mean == value
    assert found.variance() == found.variance(1) == found.std() == 0


def test_without_values_there_is_a_mean_of_zero():
    empty = of([math.nan, math.inf])
    assert (empty.count, empty.missing, empty.infinite, empty.least, empty.greatest) == (0, 1, 1, None, None)
    assert (empty.total, empty.squares, empty.mean, empty.variance(1), empty.std()) == (0, 0, 0, 0, 0)


def test_a_variance_beyond_the_range_is_infinite():
    assert of([GREATEST, -GREATEST]).variance() == math.inf
    assert of([GREATEST, -GREATEST]).mean == 0


def test_zero_has_no_sign():
    found = of([-0.0])
    assert math.copysign(1, found.least) == math.copysign(1, found.greatest) == math.copysign(1, found.mean) == 1
    assert math.copysign(1, of([-LEAST, 0.0, 0.0]).mean) == 1  # a third of the least float is rounded to zero


def test_other_degrees_of_freedom_are_refused():
    with pytest.raises(ValueError, match="ddof is 0 or 1, not 2"):
        of([1.0, 2.0]).variance(2)


def test_nice_columns_have_the_moments_that_numpy_finds():
    """As scikit-learn's StandardScaler, which takes numpy's."""
    draw = np.random.default_rng(0)
    for values in [draw.normal(5, 2, 100_000), draw.random(50_000), draw.integers(0, 100, 1_000).astype(np.float64)]:
        found = Moments()
        found.add(values)
        assert found.mean == pytest.approx(values.mean(), rel=1e-12, abs=0)
        assert found.std() == pytest.approx(values.std(), rel=1e-12, abs=0)
        assert found.variance(1) == pytest.approx(values.var(ddof=1), rel=1e-12, abs=0)


def test_threads_add_to_one():
    values = np.random.default_rng(1).normal(size=(2_000, 3))
    once, together = Moments(), Moments()
    once.add(values)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(together.add, values))
    finally:
        sys.setswitchinterval(interval)
    assert together == once


def test_a_copy_of_a_pickle_is_equal_and_goes_on_alone():
    found = of([1.0, 2.0])
    copied = pickle.loads(pickle.dumps(found))
    assert copied == found
    copied.add(np.array([3.0]))
    assert copied == of([1.0, 2.0, 3.0])
    assert copied != found == of([1.0, 2.0])
    found.merge(found)
    assert found == of([1.0, 2.0, 1.0, 2.0])


@given(st.lists(numbers))
def test_what_is_saved_is_loaded(values):
    found = of(values)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert Moments.from_json(json.loads(text)) == found


def test_the_saved_form_is_plain():
    assert of([1.0, LEAST, -2.0, math.nan]).to_json() == {
        "count": 3,
        "missing": 1,
        "infinite": 0,
        "least": -2.0,
        "greatest": 1.0,
        "total": f"{1 - 2**1074:x}p0",
        "squares": f"{1 + 5 * 2**2148:x}p0",
    }
    assert {name: of([3.0, 9.0]).to_json()[name] for name in ("total", "squares")} == {
        "total": "3p1076",
        "squares": "2dp2149",
    }


SAVED = of([1.0, 2.0, 4.0]).to_json()
BITS = 1 << 2148


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"count": -1}, "'count' of saved moments is a whole number, at least 0, not -1"),
        ({"missing": 1.0}, "'missing'"),
        ({"infinite": True}, "'infinite'"),
        ({"count": None}, "'count'"),
        ({"least": math.inf}, "'least' of saved moments is a finite float or null, not inf"),
        ({"greatest": math.nan}, "'greatest'"),
        ({"least": -0.0}, "'least'"),
        ({"least": 1}, "'least'"),
        ({"least": "1.0"}, "'least'"),
        ({"total": "nonsense"}, "'total' of saved moments is a whole number in hexadecimal digits, not 'nonsense'"),
        *(({"total": text}, "'total'") for text in ("7", "7p", "p7", "0x7p1074", "+7p1074", "7p1074 ", "7P1074")),
        *(({"total": text}, "'total'") for text in ("07p1074", "7p01074", "ep1073", "7p99999", "-p1", "7p\u0661")),
        ({"squares": f"{21 * BITS:x}p0"}, "'squares'"),
        ({"squares": 21 * BITS}, "'squares'"),
        ({"least": 8.0}, "the least value, 8.0, is greater than the greatest, 4.0"),
        ({"least": None}, "without the least"),
        ({"greatest": None}, "without the least"),
        ({"count": 0}, "sums without values"),
        ({"count": 0, "least": None, "greatest": None}, "sums without values"),
        ({"count": 1}, "a sum that"),
        ({"count": 2}, "a sum that"),
        ({"total": "5p1074"}, "a sum that"),
        ({"total": "5p1075"}, "a sum that"),
        ({"squares": "1p2152"}, "a sum of squares"),
        ({"squares": "-15p2148"}, "a sum of squares"),
        ({"squares": "31p2148"}, "a sum of squares"),
        ({"more": 1}, "an object of count, missing, infinite, least, greatest, total, squares"),
    ],
)
def test_what_was_never_saved_is_refused(change, problem):
    with pytest.raises(ValueError, match=problem):
        Moments.from_json({**SAVED, **change})


@pytest.mark.parametrize("saved", [None, [], "moments", {}, {"count": 0}])
def test_other_objects_are_refused(saved):
    with pytest.raises(ValueError, match="saved as an object"):
        Moments.from_json(saved)
