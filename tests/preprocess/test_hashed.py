"""The hash of a value: compiled, by numpy, and of one Python value, with equal bits; and what is made of hashes."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import hashing
from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.kernels import hashes as kernel
from torch_dataloader_utils.preprocess.hashed import buckets, colliding, crossed, one_bucket, one_crossed, one_hash
from torch_dataloader_utils.schemas.value_hashes import array_hashes, is_hashed, key_hashes

EACH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"], autouse=True)
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes by the compiled library, then by numpy."""
    if request.param and kernel.library() is None:
        pytest.skip("there was no C compiler when the package was installed")
    if not request.param:
        monkeypatch.setattr(kernel, "library", lambda: None)


def hashes(values: list[Any], kind: pa.DataType | None = None) -> list[int]:
    found: list[int] = array_hashes(pa.array(values, kind), floats=True).tolist()
    return found


def ones(values: list[Any]) -> list[int]:
    return [one_hash(value) for value in values]


def test_hashes_are_frozen() -> None:
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 1)
    values = ["", "Zürich", b"\0" * 8, "x" * 256, "x" * 257, 0, -1, 2.0**53, True, dt.date(1969, 12, 31), moment, None]
    assert ones(values) == GOLDEN
    assert [hashes([value], pa.int64() if value is None else None)[0] for value in values] == GOLDEN
    # Hash(1000) of "Zürich", Hash(2**31, seed=7), and a Cross.
    assert [one_bucket(GOLDEN[1], 1000, 0), one_bucket(GOLDEN[1], 2**31, 7)] == [91, 38_069_421]
    assert one_crossed(GOLDEN[1:3]) == 14_721_609_858_451_957_703


LENGTHS = st.sampled_from([*range(18), 23, 24, 25, 31, 32, 33, 247, 248, 249, 255, 256, 257, 258, 300, 1000])
BYTES = LENGTHS.flatmap(lambda length: st.binary(min_size=length, max_size=length)) | st.just(b"\0" * 9)
TEXTS = st.text(max_size=12) | LENGTHS.map(lambda length: "ä\0"[:length] + "y" * max(0, length - 3))


@EACH
@given(st.lists(st.none() | BYTES, max_size=12), st.integers(0, 4), st.integers(0, 4))
def test_bytes(values: list[bytes | None], first: int, cut: int) -> None:
    end = max(first, len(values) - cut)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert array_hashes(pa.array(values, kind)[first:end]).tolist() == ones(values)[first:end]


@EACH
@given(st.lists(st.none() | TEXTS, max_size=12), st.integers(0, 4), st.lists(st.integers(0, 12), max_size=3))
def test_text(values: list[str | None], first: int, ends: list[int]) -> None:
    expected = ones(values)[first:]
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())]
    for kind in kinds:
        array = pa.array(values, kind)[first:]
        assert array_hashes(array).tolist() == expected
        parts = [array[begin:end] for begin, end in pairwise([0, *sorted(ends), len(array)])]
        assert key_hashes([pa.chunked_array(parts, kind)]).tolist() == [one_crossed([each]) for each in expected]
    assert ones([value and value.encode() for value in values])[first:] == expected


@EACH
@given(st.integers(0, 20), st.lists(st.binary(min_size=20, max_size=20) | st.none(), min_size=1, max_size=8))
def test_bytes_of_one_length(length: int, values: list[bytes | None]) -> None:
    cut = [value if value is None else value[:length] for value in values]
    assert array_hashes(pa.array(cut, pa.binary(length))[1:]).tolist() == ones(cut)[1:]


def test_a_value_is_hashed_without_the_bytes_beside_it() -> None:
    """Words are read whole, also the last one of a value, which others follow or nothing."""
    for length in range(1, 20):
        for rest in (0, 1, 7, 8, 9):
            value = bytes(range(1, length + 1))
            data = np.frombuffer(b"\xff" * 3 + value + b"\xff" * rest, np.uint8)
            for kind in (np.int32, np.int64):
                offsets: Any = np.array([3, 3 + length], kind)
                assert kernel.value_hashes(data, offsets).tolist() == [one_hash(value)]
                assert hashing.value_hashes(data, offsets).tolist() == [one_hash(value)]


def test_more_values_than_numpy_hashes_at_a_time() -> None:
    """Offsets of a slice begin anywhere; long values lie between short ones, on both sides of a cut."""
    values = [f"{number:x}" * (1 + number % 5) for number in range(40_000)]
    for place in (0, 5, 16_383, 16_384, 16_389, 39_999):
        values[place] = "long" * (70 + place % 7)
    array = pa.array(values)
    assert array_hashes(array[5:]).tolist() == ones(values)[5:]
    assert array_hashes(array.cast(pa.large_string())[5:]).tolist() == ones(values)[5:]


NUMBERS = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**53, 2**53 + 1]) | st.integers(
    -(2**63), 2**63 - 1
)


@EACH
@given(st.lists(st.none() | NUMBERS, max_size=12), st.integers(0, 3))
def test_whole_numbers(values: list[int | None], cut: int) -> None:
    assert array_hashes(pa.array(values, pa.int64())[cut:]).tolist() == ones(values)[cut:]
    small = [value if value is None else value % 128 for value in values]
    for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.uint64(), pa.float32()):
        assert array_hashes(pa.array(small, kind)[cut:], floats=True).tolist() == ones(small)[cut:]
    bools = [value if value is None else value % 2 == 1 for value in values]
    assert array_hashes(pa.array(bools, pa.bool_())[cut:]).tolist() == ones(bools)[cut:]
    assert ones(bools) == ones([value if value is None else int(value) for value in bools])


def test_a_number_above_int64_is_that_negative_one_that_has_its_bits() -> None:
    values = [2**63, 2**64 - 1, 2**63 + 2**40]
    negative = [value - 2**64 for value in values]
    assert hashes(values, pa.uint64()) == hashes(negative, pa.int64()) == ones(values) == ones(negative)
    assert hashes([float(2**63), float(2**64 - 2**11)]) == ones([2**63, 2**64 - 2**11])


WHOLE = st.floats(-(2**63), 2**64, exclude_max=True).map(lambda value: float(int(value)))


@EACH
@given(st.lists(st.none() | WHOLE | st.sampled_from([-0.0, float("nan"), 2.0**63, -(2.0**63)]), max_size=12))
def test_floats_that_are_whole_are_the_numbers_that_they_equal(values: list[float | None]) -> None:
    array = pa.array(values, pa.float64(), from_pandas=False)
    expected = [hashing.NULL if value is None or value != value else one_hash(int(value)) for value in values]
    assert array_hashes(array, floats=True).tolist() == ones(values) == expected
    assert array_hashes(array.dictionary_encode(), floats=True).tolist() == expected


@pytest.mark.parametrize("value", [0.5, -1e-300, 2.0**64, -1e19, 1e300, float("inf"), float("-inf")])
def test_a_float_that_is_not_whole_is_named(value: float) -> None:
    for call in (lambda: hashes([None, 3.0, float("nan"), value]), lambda: one_hash(value)):
        with pytest.raises(UnsupportedTypeError, match="has no hash") as caught:
            call()
        assert str(caught.value).startswith(f"{value!r} has no hash")


def test_what_is_stored_at_a_null_is_not_looked_at() -> None:
    valid, stored = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 0.5, 3]))
    array = pa.Array.from_buffers(pa.float64(), 3, [valid, stored])
    assert array_hashes(array, floats=True).tolist() == ones([1, None, 3])
    indices = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.py_buffer(np.array([1, 99, 0], np.int32))])
    encoded = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    assert array_hashes(encoded).tolist() == ones(["b", None, "a"])


def test_floats_are_hashed_only_where_asked_for() -> None:
    for kind in (pa.float64(), pa.float32(), pa.float16(), pa.dictionary(pa.int8(), pa.float64())):
        assert not is_hashed(kind)
        assert is_hashed(kind, floats=True)
    for kind in (pa.list_(pa.int64()), pa.decimal128(5), pa.month_day_nano_interval(), pa.null()):
        assert not is_hashed(kind, floats=True)
    assert key_hashes([pa.chunked_array([[5.0]])], floats=True) == key_hashes([pa.chunked_array([[5]])])


def test_dictionaries_with_nulls_or_without_values() -> None:
    full = pa.DictionaryArray.from_arrays(pa.array([127, None, 0, 5] * 40, pa.int8()), pa.array(range(128)))
    assert array_hashes(full).tolist() == ones([127, None, 0, 5] * 40)
    assert array_hashes(full[1:3]).tolist() == ones([None, 0])  # the dictionary is larger
    inside = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array([None, "b"]))
    assert array_hashes(inside).tolist() == ones(["b", None, None])
    assert array_hashes(pa.array([None, None], pa.dictionary(pa.int32(), pa.string()))).tolist() == ones([None, None])


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(0), pa.int64(), pa.dictionary(pa.int8(), pa.string())])
def test_no_rows(kind: pa.DataType) -> None:
    assert key_hashes([pa.chunked_array([], kind)]).tolist() == []
    assert key_hashes([pa.chunked_array([pa.array([], kind)] * 2)]).tolist() == []


UNITS = ["s", "ms", "us", "ns"]
ZONES = [dt.UTC, dt.timezone(dt.timedelta(hours=-9, minutes=-30))]


@EACH
@given(st.lists(st.none() | st.datetimes(), max_size=8), st.sampled_from(ZONES))
def test_times(values: list[dt.datetime | None], zone: dt.tzinfo) -> None:
    assert hashes(values, pa.timestamp("us")) == ones(values)
    aware = [value and max(value, dt.datetime(2, 1, 1)).replace(tzinfo=zone) for value in values]
    aware = [value and min(value, dt.datetime(9999, 1, 1, tzinfo=zone)) for value in aware]
    assert hashes(aware, pa.timestamp("us", "America/New_York")) == ones(aware)
    assert ones(aware) == ones([value and value.astimezone(dt.UTC).replace(tzinfo=None) for value in aware])
    dates = [value and value.date() for value in values]
    assert hashes(dates, pa.date32()) == hashes(dates, pa.date64()) == ones(dates)
    assert ones(dates) == ones([value and dt.datetime(value.year, value.month, value.day) for value in dates])
    of_day = [value and value.time() for value in values]
    assert hashes(of_day, pa.time64("us")) == hashes(of_day, pa.time64("ns")) == ones(of_day)
    lasting = [value and value - dt.datetime(2000, 1, 1) for value in values]
    assert hashes(lasting, pa.duration("us")) == ones(lasting)


@EACH
@given(st.lists(NUMBERS.filter(lambda number: number != -(2**63)), min_size=1, max_size=8), st.sampled_from(UNITS))
def test_times_of_numpy_and_pandas_in_all_units(numbers: list[int], unit: str) -> None:
    stored = np.array(numbers) // (1 if unit == "ns" else 10**9)
    expected = array_hashes(pa.array(stored).view(pa.timestamp(unit))).tolist()
    for spelled in (stored.astype(f"datetime64[{unit}]"), stored.astype(f"timedelta64[{unit}]")):
        assert ones(list(spelled)) == expected
    years = (stored % 4000 - 1900).astype("datetime64[Y]")  # 70 to 4069
    assert ones(list(years)) == ones(years.astype("datetime64[D]").tolist())
    nanoseconds = np.array(numbers)
    expected = array_hashes(pa.array(nanoseconds).view(pa.timestamp("ns"))).tolist()
    assert ones(list(pd.DatetimeIndex(nanoseconds.astype("datetime64[ns]")))) == expected
    assert ones(list(pd.TimedeltaIndex(nanoseconds.astype("timedelta64[ns]")))) == expected


def test_missing_values_and_scalars_of_numpy_and_pandas() -> None:
    missing = [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), np.timedelta64("NaT"), pd.NaT, pd.NA]
    assert set(ones(missing)) == {hashing.NULL}
    scalars = [np.int8(5), np.uint64(5), np.float32(5), 5.0, np.float64(5)]
    assert set(ones(scalars)) == {one_hash(5)}
    assert ones([np.bool_(True), np.str_("a"), np.bytes_(b"a")]) == ones([True, "a", "a"])


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [1], np.array([1, 2]), object, 1j, (), {}])
def test_other_values_have_no_hash(value: object) -> None:
    with pytest.raises(UnsupportedTypeError, match="has no hash: expected text"):
        one_hash(value)


HASHES = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**64 - 1, hashing.NULL]), max_size=10)


@EACH
@given(HASHES, st.integers(2, 2**31) | st.sampled_from([2, 3, 2**31]), st.integers(-(2**70), 2**70))
def test_buckets(values: list[int], n: int, seed: int) -> None:
    given_hashes = np.array(values, np.uint64)
    found = buckets(given_hashes, n, seed)
    assert found.dtype == np.int64
    assert found.tolist() == [one_bucket(value, n, seed) for value in values]
    assert all(1 <= bucket < n for bucket in found.tolist())
    assert given_hashes.tolist() == values


@EACH
@given(st.lists(HASHES, min_size=1, max_size=4))
def test_crossed(columns: list[list[int]]) -> None:
    rows = min(map(len, columns))
    arrays = [np.array(column[:rows], np.uint64) for column in columns]
    assert crossed(arrays).tolist() == [
        one_crossed(row) for row in zip(*(each.tolist() for each in arrays), strict=True)
    ]
    assert [each.tolist() for each in arrays] == [column[:rows] for column in columns]


def test_large_arrays_are_crossed_and_put_into_buckets_as_small_ones() -> None:
    numbers = array_hashes(pa.array(range(40_000)))
    texts = array_hashes(pa.array([f"{number}" for number in range(40_000)]))
    found = crossed([numbers, texts])
    for at in (0, 16_383, 16_384, 39_999):
        expected = one_crossed([one_hash(at), one_hash(str(at))])
        assert (found[at], buckets(found, 99, 3)[at]) == (expected, one_bucket(expected, 99, 3))


def test_a_key_depends_on_the_order_and_the_borders_of_its_values() -> None:
    keys = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("abc", ""), ("abc", None), (None, "abc"), (None, None), ("", "")]
    assert len({one_crossed(ones(list(key))) for key in keys}) == len(keys)
    columns = [pa.chunked_array([list(column)]) for column in zip(*keys, strict=True)]
    assert key_hashes(columns).tolist() == [one_crossed(ones(list(key))) for key in keys]


MAKES: dict[str, Callable[[int], Any]] = {
    "numbers": lambda n: pa.array(range(n)),
    "multiples": lambda n: pa.array(np.arange(n) << 32),
    "days": lambda n: pa.array(np.arange(n, dtype=np.int32)).view(pa.date32()),
    "names": lambda n: pa.array([f"user_{number}" for number in range(n)]),
}


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("n", [2, 3, 17, 1001])
def test_buckets_are_equally_full(kind: str, n: int) -> None:
    values = array_hashes(MAKES[kind](50_000))
    full = np.bincount(buckets(values, n, 0), minlength=n)
    assert full[0] == 0
    expected = 50_000 / (n - 1)
    chi_square, freedom = float(((full[1:] - expected) ** 2 / expected).sum()), n - 2
    # Mean and variance of chi-square are the degrees of freedom and twice them; hashes are frozen, so is this.
    assert abs(chi_square - freedom) <= 4 * (2 * freedom) ** 0.5
    if n > 2:
        assert (buckets(values, n, 0) == buckets(values, n, 1)).mean() == pytest.approx(1 / (n - 1), abs=0.01)


def test_the_share_of_values_that_share_a_bucket() -> None:
    assert colliding(1_000_000, 2**20) == pytest.approx(0.6147, abs=1e-4)
    assert [colliding(values, 2) for values in (0, 1, 2)] == [0, 0, 1]
    assert [colliding(values, 11) for values in (0, 1)] == [0, 0]
    assert colliding(2, 11) == pytest.approx(0.1)
    assert colliding(3, 11) == pytest.approx(0.19)
    assert colliding(2, 2**31) == pytest.approx(1 / (2**31 - 1), rel=1e-12)
    found = buckets(array_hashes(pa.array(range(20_000))), 30_000, 0)
    assert (np.bincount(found)[found] > 1).mean() == pytest.approx(colliding(20_000, 30_000), abs=0.01)


def test_one_value_needs_no_pyarrow() -> None:
    code = (
        "import sys; from torch_dataloader_utils.preprocess.hashed import one_hash; one_hash('a'); one_hash(5.0); "
        "sys.exit('pyarrow' in sys.modules or 'torch' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


GOLDEN = [
    16_294_208_416_658_607_535,
    18_376_174_628_000_727_856,
    15_655_543_297_350_242_377,
    15_950_545_426_620_496_552,
    8_557_773_044_231_383_636,
    9_898_636_154_939_505_578,
    7_475_669_966_702_233_656,
    12_590_358_716_764_168_560,
    9_056_077_673_143_591_915,
    87_648_516_344_495_460,
    14_723_780_233_010_249_996,
    7_985_457_161_556_883_059,
]
