"""`Preprocess.to_module`: eager, exported and in onnxruntime, the bits of the Preprocess itself."""

from __future__ import annotations

import copy
import datetime as dt
import io
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.hashing import NULL
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
    TargetEncode,
    module_inputs,
)

EACH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Arrays = dict[str, Any]
Run = Callable[[Arrays], Arrays]

SPEC = {
    "x": {
        "filled": [Impute("median", indicator=True), Clip(quantiles=(0.1, 0.9)), Standardize()],
        "scaled": MinMax(-1, 2, clip=True),
        "wide": MinMax(),
        "robust": [Robust(), Clip(-0.5, None)],
        "log": [Log1p(), Standardize(center=False)],
        "signed": [Log1p(signed=True), Impute(0.1)],
        "bucket": Bucketize(quantiles=5),
        "share": Bucketize([-0.5, 0, 0.1, 1e300]),
        "kept": Impute(0.1, indicator=True),
        "of_clipped": [Clip(-2, 2), Categorize([0, 1, 2], unknown_ids=7)],
    },
    "i": {
        "number": [Impute("mean"), Standardize()],
        "id": Categorize(unknown_ids=3, nulls="category"),
        "hash": Hash(1000, seed=3),
        "most": [Impute("most_frequent", indicator=True), Categorize()],
        "whole": Impute(7),
        "shares": [Impute("most_frequent", indicator=True), TargetEncode("s", by="day")],
    },
    "w": {"of_float": Categorize(unknown_ids=5), "means": TargetEncode("x", by="i")},
    "h": {
        "float_hash": Hash(2**31),
        "clipped": [Clip(0, 3), Hash(50)],
        "rates": [Clip(0, 3), TargetEncode("flag", by="i")],
    },
    "s": {
        "text": Categorize(max_size=3),
        "text_hash": Hash(77),
        "text_filled": [Impute("a"), Categorize(nulls="category")],
        "of_text": TargetEncode("label", by="i"),
    },
    "b": {"bytes": Categorize(order="value"), "bytes_hash": Hash(3)},
    "flag": {"flag_id": Categorize(), "flag_number": Standardize(), "flag_filled": Impute(value=True)},
    "day": {"date": DateParts("weekday", "year", "dayofyear"), "cycle": DateParts("month", "day", cyclic=True)},
    "time": DateParts("hour", "minute", "second", "weekday", "month", "day", "dayofyear", "year"),
    "instant": {"instant_id": Categorize(), "instant_hash": Hash(1 << 20)},
    ("i", "s"): Cross(Hash(999)),
    ("h", "s", "flag"): Cross(Categorize(unknown_ids=2)),
    "label": Keep(),
}

TYPES = {
    "x": pa.float64(),
    "i": pa.int64(),
    "w": pa.float64(),
    "h": pa.float64(),
    "s": pa.string(),
    "b": pa.binary(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "time": pa.timestamp("us"),
    "instant": pa.timestamp("us", "Europe/Oslo"),
    "label": pa.string(),
}
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
INTS = st.integers(-3, 6) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "x": st.floats() | st.floats(-3, 3) | st.sampled_from([-0.0, 0.1, 1e300, -1.0, 5e-324]),
    "i": INTS,
    "w": st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, 2.5, 9.0, 2.0**63, 1e300, float("inf"), float("nan")]),
    "h": st.sampled_from([0.0, -0.0, 5.0, float("nan"), -(2.0**63), 2.0**63, 2.0**64 - 2048])
    | INTS.map(float).filter(lambda x: x < 2**63),
    "s": st.sampled_from(["", "a", "b", "c", "d", "ø"]) | st.text(max_size=20),
    "b": st.sampled_from([b"", b"a", b"\x00"]) | st.binary(max_size=300),
    "flag": st.booleans(),
    "day": MOMENTS.map(dt.datetime.date),
    "time": MOMENTS,
    "instant": st.sampled_from([dt.datetime(2020, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]) | MOMENTS,
    "label": st.just("yes"),
}
TABLES = st.lists(
    st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()}), min_size=1, max_size=30
)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(TYPES.items())))


def fitted_on() -> pa.Table:
    """Values of which some are among those that tests draw."""
    rng, n = np.random.default_rng(5), 400

    def choice(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.1 else values[int(at)] for at in rng.integers(0, len(values), n)]

    moments = [dt.datetime(2020, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29)]
    columns = {
        "x": choice([*rng.normal(0, 1, 200).tolist(), -0.0, float("nan"), 0.1]),
        "i": choice([0, 1, 2, -3, 2**63 - 1, -(2**63), 2**53 + 1]),
        "w": choice([0.0, 1.0, 2.0, 9.0]),
        "h": choice([0.0, 5.0, -(2.0**63)]),
        "s": choice(["", "a", "b", "c", "d", "ø"]),
        "b": choice([b"", b"a", b"\x00", b"x" * 300]),
        "flag": choice([True, False]),
        "day": choice([moment.date() for moment in moments]),
        "time": choice(moments),
        "instant": choice(moments),
        "label": choice(["yes", "no"]),
    }
    return pa.table({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


@cache
def fitted(dtype: Any) -> Preprocess:
    return Preprocess(SPEC, dtype=dtype).fit(fitted_on())


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def with_tensors(function: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Run:
    return lambda arrays: {name: made.numpy() for name, made in function(tensors(arrays)).items()}


QUICK = [
    "log",
    "bucket",
    "id",
    "hash",
    "text",
    "i_x_s",
    "time_month",
    "cycle_day_sin",
    "shares_ø",
    "means",
]  # an export takes 0.3 s for each


def eager(prep: Preprocess, names: list[str] | None, tmp: Path) -> Run:
    return with_tensors(prep.to_module(names))


def exported(prep: Preprocess, names: list[str] | None, tmp: Path) -> Run:
    module = prep.to_module(names)
    made, file = torch.export.export(module, (module.example(),), dynamic_shapes=module.dynamic_shapes), io.BytesIO()
    torch.export.save(made, file)
    file.seek(0)
    return with_tensors(torch.export.load(file).module())


def in_onnx(prep: Preprocess, names: list[str] | None, tmp: Path) -> Run:
    prep.to_module(names).to_onnx(tmp / "prep.onnx")
    session = onnxruntime.InferenceSession(tmp / "prep.onnx")
    found = [output.name.removeprefix("out.") for output in session.get_outputs()]
    return lambda arrays: dict(zip(found, session.run(None, arrays), strict=True))


class Case:
    """A Preprocess, and its module, or some of its outputs, in one form."""

    def __init__(self, form: Callable[..., Run], dtype: str, names: list[str] | None, tmp: Path) -> None:
        self.prep, self.names = fitted(dtype), names
        self.run = form(self.prep, names, tmp)

    def check(self, rows: pa.Table) -> None:
        found, expected = self.run(self.prep.arrays(rows, self.names)), self.prep(rows)
        assert list(found) == (self.names or [name for name in expected.column_names if name != "label"])
        for name, array in found.items():
            wanted = expected.column(name).to_numpy()
            assert array.dtype == wanted.dtype, name
            if wanted.dtype.kind == "f":  # a NaN is any of them
                assert np.isnan(array).tolist() == np.isnan(wanted).tolist(), name
                array, wanted = array[~np.isnan(array)], wanted[~np.isnan(wanted)]
            assert array.tobytes() == wanted.tobytes(), (name, array, wanted)


CASES = {
    "eager-float32": (eager, "float32", None),
    "eager-float64": (eager, "float64", None),
    "exported": (exported, "float64", QUICK),
    "onnx": (in_onnx, "float64", QUICK),
    "exported-all": (exported, "float32", None),
    "onnx-all": (in_onnx, "float32", None),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name.endswith("all") else [])
        for name, case in CASES.items()
    ],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(*request.param, tmp_path_factory.mktemp("module"))


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec.*:FutureWarning"),
]


@EACH
@given(rows=TABLES)
def test_outputs_have_the_bits_of_the_preprocess(case: Case, rows: list[dict[str, Any]]) -> None:
    case.check(table_of(rows))


def test_one_row_and_many(case: Case) -> None:
    case.check(fitted_on())
    case.check(fitted_on().slice(7, 1))


def test_every_form_of_rows_makes_the_same_arrays() -> None:
    prep, table = fitted("float32"), fitted_on()
    expected = prep.arrays(table)
    forms = [
        table.combine_chunks().to_batches()[0],
        pl.from_arrow(table),
        table.to_pydict(),
    ]
    for rows in forms:
        for name, array in prep.arrays(rows).items():
            np.testing.assert_array_equal(array, expected[name])
    row = {name: values[0] for name, values in table.slice(3, 1).to_pydict().items()}
    for name, array in prep.arrays(row).items():
        np.testing.assert_array_equal(array, expected[name][3:4])


def test_ints_that_pandas_holds_as_floats_are_ints() -> None:
    prep = Preprocess({"i": Categorize(), "s": Hash(9)}).fit(pa.table({"i": [5, 7, None], "s": ["a", None, ""]}))
    rows = pd.DataFrame({"i": [7.0, None, 9.0], "s": [None, "", "a"]})
    found = prep.arrays(rows)
    assert {name: array.dtype for name, array in found.items()} == {"i": np.int64, "i_missing": np.bool_, "s": np.int64}
    assert found["i_missing"].tolist() == [False, True, False]
    assert found["s"][0].view(np.uint64) == NULL
    np.testing.assert_array_equal(prep.to_module()(tensors(found))["i"].numpy(), prep(rows)["i"].to_numpy())
    with pytest.raises(UnsupportedTypeError, match=r"'i'.*whole numbers"):
        prep.arrays(pd.DataFrame({"i": [7.5], "s": ["a"]}))


def test_ints_given_for_floats_are_exact_or_refused() -> None:
    prep = Preprocess({"f": Hash(50)}).fit(pa.table({"f": [1.0]}))
    rows = {"f": [1 - 2**53, None]}
    assert prep.to_module()(tensors(prep.arrays(rows)))["f"].tolist() == prep(rows)["f"]
    with pytest.raises(UnsupportedTypeError, match=r"'f'.*fit it on integers"):
        prep.arrays({"f": [2**53 + 1]})


def test_bools_of_what_is_missing_may_be_left_out() -> None:
    prep = Preprocess({"i": Hash(100)}).fit(pa.table({"i": [5, 7]}))
    found = prep.to_module()({"i": torch.tensor([5, 7, 2**62])})
    assert found["i"].tolist() == prep({"i": [5, 7, 2**62]})["i"]


def test_what_the_preprocess_refuses_has_an_id_that_no_embedding_has() -> None:
    table = pa.table({"c": ["a", None], "f": [1.0, None]})
    prep = Preprocess({"c": Categorize(unknown="error"), "f": Hash(10), ("c", "f"): Cross(Hash(10))}).fit(table)
    rows = pa.table({"c": ["a", None, "z"], "f": [0.5, None, 1.0]})
    found = prep.to_module()(tensors(prep.arrays(rows)))
    assert found["c"].tolist() == [2, 0, -(2**63)]
    assert found["f"].tolist()[:2] == [-(2**63), 0]
    assert found["c_x_f"].tolist()[:2] == [-(2**63), 0]
    with pytest.raises(IndexError):
        torch.nn.Embedding(4, 1)(found["c"])


def test_a_text_of_which_the_hash_is_another_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prep = Preprocess({"c": Categorize(), "d": Hash(5)}).fit(pa.table({"c": ["a", "b"], "d": ["a", "b"]}))
    monkeypatch.setattr(module_inputs, "array_hashes", lambda values, floats: np.zeros(len(values), np.uint64))
    with pytest.raises(UnsupportedTypeError, match=r"output 'c'.*hashes.*outputs=\['d'\]"):
        prep.to_module()
    assert prep.to_module(["d"]).outputs == ["d"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"tags": Categorize()}, "takes no lists"),
        ({"c": Impute("a")}, "holds no text"),
        ({"zoned": DateParts("hour")}, "no zone such as Europe/Oslo"),
    ],
)
def test_what_no_module_makes_is_named_with_a_remedy_that_works(spec: dict[str, Any], reason: str) -> None:
    instant = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    columns = {"tags": [["a"]], "c": ["a"], "zoned": pa.array([instant], pa.timestamp("us", "Europe/Oslo")), "n": [1.0]}
    prep = Preprocess({**spec, "n": Standardize()}).fit(pa.table(columns))
    with pytest.raises(UnsupportedTypeError, match=rf"output '{next(iter(spec))}'.*{reason}.*outputs=\['n'\]"):
        prep.to_module()
    assert list(prep.to_module(["n"])({"n": torch.ones(2, dtype=torch.float64)})) == ["n"]


def test_kept_columns_are_left_out_and_refused_by_name() -> None:
    prep = Preprocess({"n": Standardize(), "label": Keep()}).fit(pa.table({"n": [1.0, 2.0], "label": [0, 1]}))
    assert prep.to_module().outputs == ["n"]
    with pytest.raises(UnsupportedTypeError, match=r"'label'.*kept"):
        prep.to_module(["label"])
    with pytest.raises(OptionError, match="'m'"):
        prep.to_module(["m"])
    with pytest.raises(OptionError, match="list"):
        prep.to_module("n")


def test_outputs_are_picked_in_the_order_given() -> None:
    prep, table = fitted("float32"), fitted_on()
    names = ["time_hour", "filled_missing", "text"]
    module, arrays = prep.to_module(names), prep.arrays(table, names)
    assert sorted(module.inputs) == sorted(arrays) == ["s", "time", "time_missing", "x"]
    found = module(tensors(arrays))
    assert list(found) == names
    for name in names:
        assert found[name].tolist() == prep(table).column(name).to_pylist()


def test_inputs_that_do_not_fit_are_refused() -> None:
    prep = Preprocess({"s": Hash(5), "i": Hash(5), "n": Standardize()}).fit(
        pa.table({"s": ["a"], "i": [1], "n": [1.0]})
    )
    module = prep.to_module()
    with pytest.raises(ColumnNotFoundError, match=r"\['i', 'n'\]"):
        module({"s": torch.zeros(1, dtype=torch.int64)})
    with pytest.raises(UnsupportedTypeError, match=r"'s' is torch.float32: expected torch.int64"):
        module({"s": torch.zeros(1), "i": torch.zeros(1, dtype=torch.int64), "n": torch.zeros(1)})


def test_one_column_as_times_and_hashes_takes_two_modules() -> None:
    times = pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("us"))
    prep = Preprocess({"t": {"part": DateParts("hour"), "id": Hash(5)}}).fit(pa.table({"t": times}))
    with pytest.raises(UnsupportedTypeError, match=r"two modules"):
        prep.to_module()
    found = {}
    for names in (["part_hour"], ["id"]):
        found |= prep.to_module(names)(tensors(prep.arrays({"t": times}, names)))
    assert [value.tolist() for value in found.values()] == [[1], prep({"t": times.to_pylist()})["id"]]


def test_a_column_called_as_the_bools_of_another_takes_two_modules() -> None:
    table = pa.table({"i": [1], "i_missing": [2.0]})
    prep = Preprocess({"i": Hash(5), "i_missing": {"n": Standardize()}}).fit(table)
    with pytest.raises(OptionError, match=r"\['i_missing'\]"):
        prep.to_module()
    assert prep.to_module(["n"]).inputs == {"i_missing": torch.float64}


def test_it_is_copied_pickled_and_loaded_by_its_state() -> None:
    prep, table = fitted("float32"), fitted_on()
    module, given = prep.to_module(), tensors(prep.arrays(table))
    expected = module(given)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert all(torch.equal(made.nan_to_num(7), expected[name].nan_to_num(7)) for name, made in other(given).items())
    other = fitted("float32").to_module()
    with torch.no_grad():
        for buffer in other.buffers():
            buffer.zero_()
    other.load_state_dict(module.state_dict())
    assert all(torch.equal(made.nan_to_num(7), expected[name].nan_to_num(7)) for name, made in other(given).items())


def test_it_moves_to_another_device_and_keeps_its_dtypes() -> None:
    prep = fitted("float32")
    model = torch.nn.Sequential(prep.to_module())
    before = [buffer.dtype for buffer in model.buffers()]
    assert not list(model.parameters())
    assert [buffer.dtype for buffer in model.half().buffers()] == before
    made = model.to("meta")[0]
    found = made(made.example(3))
    assert {(tensor.device.type, tuple(tensor.shape)) for tensor in found.values()} == {("meta", (3,))}
    assert torch.float64 in before


def test_a_value_beyond_int64_is_refused() -> None:
    values = pa.array([2**63, 1], pa.uint64())
    prep = Preprocess({"u": {"c": Categorize([1, 2**63]), "h": Hash(9)}}).fit(pa.table({"u": values}))
    with pytest.raises(UnsupportedTypeError, match=r"'c'.*int64.*outputs=\['h'\]"):
        prep.to_module()
    with pytest.raises(UnsupportedTypeError, match="'u'"):
        prep.arrays({"u": values}, ["h"])


def test_the_hash_of_a_vocabulary_is_searched_to_its_ends() -> None:
    """The least and the greatest hash, and vocabularies of all small sizes."""
    for size in range(1, 10):
        table = pa.table({"v": list(range(size))})
        prep = Preprocess({"v": Categorize()}).fit(table)
        rows = {"v": list(range(-3, size + 3))}
        assert prep.to_module()({"v": torch.tensor(rows["v"])})["v"].tolist() == prep(rows)["v"]
    for count in range(1, 10):
        prep = Preprocess({"v": Bucketize(list(range(count)))}).fit(pa.table({"v": [1.0]}))
        numbers = [-1.0, *np.arange(-1, count + 1, 0.5).tolist(), float("inf"), float("-inf"), float("nan")]
        found = prep.to_module()({"v": torch.tensor(numbers, dtype=torch.float64)})["v"].tolist()
        assert found == prep({"v": numbers})["v"]


def test_a_column_without_values_has_an_empty_vocabulary() -> None:
    table = pa.table({"v": pa.array([None, None], pa.string())})
    prep = Preprocess({"v": {"c": Categorize(), "n": Categorize(nulls="category")}}).fit(table)
    rows = {"v": ["a", None]}
    found = prep.to_module()(tensors(prep.arrays(rows)))
    assert {name: made.tolist() for name, made in found.items()} == prep(rows)
