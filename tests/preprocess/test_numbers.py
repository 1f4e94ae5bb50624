"""Numeric chains: the compiled library, numpy and one row make the same bits; which numbers overflow."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from ctypes import c_float
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import numbers as kernel
from torch_dataloader_utils.preprocess import Bucketize, Clip, Impute, Log1p, MinMax, Preprocess, Robust, Standardize
from torch_dataloader_utils.preprocess.columns import elements
from torch_dataloader_utils.preprocess.fitted import warn_of_infinities
from torch_dataloader_utils.preprocess.numbers import NumberView, numbers_of
from torch_dataloader_utils.preprocess.steps import NumberStep
from torch_dataloader_utils.preprocess.transforms import Links, steps_of

# A signalling NaN, subnormal numbers, those beside the ends of float32, and those where log1p changes its way.
ODD = [
    *(0.0, -0.0, math.inf, -math.inf, math.nan, -1.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.1e-308, 1.4e-45),
    *(3.4028234663852886e38, 3.4028235677973366e38, 3.5e38, -3.5e38, 1.7976931348623157e308, -1.7976931348623157e308),
    *(-0.9999999999999999, -0.2928932188134524, 0.41421356237309515, 2.0**53, 2.0**53 + 2, 1e-300, -1e-300, 1e300),
    float(np.array(0x7FF0000000000001, np.uint64).view(np.float64)),
]
doubles = st.one_of(st.floats(), st.floats(-100, 100), st.sampled_from(ODD))
chain_of: list[tuple[Any, dict[str, Any]]] = [
    (Standardize(), {"mean": 0.1, "std": 3.3}),
    (Standardize(), {"mean": -1.7e308, "std": 2e292}),
    (Standardize(), {"mean": 1e-310, "std": 1e-310}),
    (MinMax(), {"least": -3.0, "greatest": 7.7}),
    (MinMax(-3.3, 1.1, clip=True), {"least": -1.7e308, "greatest": 1.7e308}),
    (MinMax(0.0, 0.1), {"least": 2.5, "greatest": 2.5}),
    (Robust(), {"median": 1e308, "range": 1.7e308}),
    (Log1p(), {}),
    (Log1p(signed=True), {}),
    (Clip(-1, 1), {}),
    (Clip(None, 0.0), {}),
    (Clip(-0.0, math.inf), {}),
    (Impute(value=-0.0), {}),
    (Impute("median", indicator=True), {"value": 0.7}),
    (Impute("mean"), {"value": -1.0}),
]
links = st.lists(st.sampled_from(chain_of), max_size=4)
TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]

Written = tuple[bytes, bytes, int]


def made(view: NumberView, steps: Sequence[NumberStep], dtype: str) -> Written:
    """What `through` writes and returns; all NaN are one."""
    out, missing = np.full(len(view), 7, dtype), np.full(len(view), 7, np.uint8)
    infinite = view.through(steps, out, missing)
    assert infinite == np.isinf(out).sum()
    out[np.isnan(out)] = np.nan
    return out.tobytes(), missing.tobytes(), infinite


def by_numpy(view: NumberView, steps: Sequence[NumberStep], dtype: str) -> Written:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "library", lambda: None)
        return made(view, steps, dtype)


@pytest.fixture
def compiled() -> None:
    if kernel.library() is None:
        pytest.skip("there was no C compiler when the package was installed")


def one_by_one(chain: Links, value: float | None, dtype: str) -> float:
    x = math.nan if value is None else value + 0.0
    for link, fitted in chain:
        x = (link.number_of(fitted) if x != x else x) if isinstance(link, Impute) else link.one(fitted)(x)
    return x + 0.0 if dtype == "float64" else c_float(x + 0.0).value


@pytest.mark.usefixtures("compiled")
@settings(deadline=None, max_examples=300)
@given(st.lists(doubles | st.none(), max_size=40), links, st.sampled_from(["float32", "float64"]), st.integers(0, 9))
@example(ODD, [chain_of[7]], "float64", 3)
@example(ODD, [chain_of[8]], "float32", 0)
def test_the_library_numpy_and_one_row_have_the_same_bits(
    values: list[float | None], chain: Links, dtype: str, offset: int
) -> None:
    view = numbers_of(pa.array([None] * offset + values, pa.float64()).slice(offset))
    steps = steps_of(chain)
    found = made(view, steps, dtype)
    assert found == by_numpy(view, steps, dtype)
    one = np.array([one_by_one(chain, value, dtype) for value in values], dtype)
    one[np.isnan(one)] = np.nan
    assert found[0] == one.tobytes()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 8191, 8193, 20_000])
def test_all_types_and_sizes(type: str, rows: int) -> None:
    random = np.random.default_rng(rows)
    if type.startswith("float"):
        values = np.concatenate([ODD, random.normal(0, 1, rows + 9) * 10.0 ** random.integers(-300, 300, rows + 9)])
        with np.errstate(all="ignore"):
            values = values[: rows + 9].astype(type)
    else:
        ends = np.iinfo(type)
        values = random.integers(ends.min, ends.max, rows + 9, type, endpoint=True)
    for mask in (None, random.random(rows + 9) < 0.2):
        view = numbers_of(pa.array(values, mask=mask).slice(9))
        for chain in ([], [chain_of[0]], [chain_of[13], chain_of[3], chain_of[8]], [chain_of[4], chain_of[9]]):
            for dtype in ("float32", "float64"):
                steps = steps_of(chain)
                assert made(view, steps, dtype) == by_numpy(view, steps, dtype)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            wanted = view.values.astype(np.float64) + 0.0
        if mask is not None:
            wanted[mask[9:]] = np.nan
        np.testing.assert_array_equal(view.all(), wanted)


BITS = [1, None, 0, 1, 1, None, 1, 0, 0]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "array",
    [
        pa.array(BITS, pa.int8()).cast(pa.bool_()),
        pa.array(BITS, pa.decimal128(20, 3)),
        pa.array(BITS, pa.float32()).dictionary_encode(),
        pa.nulls(9),
    ],
    ids=["bool", "decimal", "dictionary", "null"],
)
def test_other_columns_of_numbers(array: pa.Array) -> None:
    lists, _ = elements(pa.FixedSizeListArray.from_arrays(array.slice(1, 8), 4).slice(1))
    for view in (numbers_of(array), numbers_of(array.slice(3, 5)), numbers_of(lists)):
        found = made(view, steps_of([chain_of[0]]), "float32")
        assert found == by_numpy(view, steps_of([chain_of[0]]), "float32")
    wanted = [math.nan if value is None else float(value) for value in array.to_pylist()]
    np.testing.assert_array_equal(numbers_of(array).all(), wanted)


def test_numbers_that_are_not_aligned() -> None:
    memory = pa.py_buffer(b"\0" + np.arange(100, dtype=np.float64).tobytes())
    array = pa.Array.from_buffers(pa.float64(), 100, [None, memory.slice(1)])
    assert numbers_of(array).all().tolist() == list(range(100))


@pytest.fixture(params=["compiled", "numpy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "library", lambda: None)
    warn_of_infinities.cache_clear()


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    ("chain", "fitted", "given", "dtype", "warned"),
    [
        (Standardize(), [0.0, 2.0], [1e39], "float32", True),
        (Standardize(), [0.0, 2.0], [1e39], "float64", False),
        (Standardize(), [0.0, 2e-300], [1e39], "float64", True),
        (Standardize(), [0.0, 2.0], [math.inf, -math.inf, None], "float32", False),
        (Standardize(), [0.0, 2.0], [math.inf] * 20_000 + [-1e39], "float32", True),
        (Log1p(), [0.0], [-1.0, math.inf], "float32", False),
        ([Log1p(), Standardize()], [0.0, 1.0], [-1.0], "float32", False),
        ([Standardize(), Log1p()], [0.0, 2e-300], [1e39], "float64", True),
        ([Standardize(), Clip(-1, 1)], [0.0, 2e-300], [1e39], "float64", False),
        (Impute(1e39), [1.0], [None], "float32", False),  # keeps its type
        ([Impute(1e39), Standardize(scale=False)], [0.0, 2.0], [None], "float32", True),
        (Bucketize([0.0]), [0.0], [1e39], "float32", False),
    ],
)
def test_numbers_beyond_a_dtype_are_a_warning(
    chain: Any, fitted: list[float], given: list[float], dtype: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    prep = Preprocess({"x": chain}, dtype=dtype).fit(pa.table({"x": pa.array(fitted, pa.float64())}))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        prep(pa.table({"x": pa.array(given, pa.float64())}))
    assert [f"beyond the range of {dtype}" in message for message in caplog.messages] == [True] * warned


@pytest.mark.usefixtures("either")
def test_where_an_indicator_found_numbers_missing() -> None:
    rows = pa.table({"x": pa.array([1.0, None, math.nan, 3.0] * 5_000)})
    prep = Preprocess({"x": [Clip(0, 2), Impute("mean", indicator=True), Standardize()]}).fit(rows)
    found = prep(rows)
    assert found["x_missing"].to_pylist() == [0, 1, 1, 0] * 5_000
    assert found["x_missing"].type == pa.float32()
    assert found["x"].to_pylist()[1::2] == [0.0, found["x"][3].as_py()] * 5_000
