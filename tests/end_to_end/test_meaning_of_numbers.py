"""Numbers of one column, stack or jagged entry stand for the same: days are not joined with microseconds."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import Codes, Fill, StructuredDataset, combine
from torch_dataloader_utils.errors import NullValueError, OptionError, SchemaMismatchError

DAY = datetime.datetime(2024, 5, 1, 12, 30, 15)


def column(kind: pa.DataType) -> pa.Array:
    """Two values of the type: of DAY, or numbers."""
    if is_date(kind):
        return pa.array([DAY.date()] * 2, kind)
    if pa.types.is_timestamp(kind):
        return pa.array([DAY.replace(tzinfo=datetime.UTC) if kind.tz else DAY] * 2, kind)
    if pa.types.is_time(kind):
        return pa.array([DAY.time()] * 2, kind)
    if pa.types.is_duration(kind):
        return pa.array([datetime.timedelta(seconds=90)] * 2, kind)
    if pa.types.is_decimal(kind):
        return pa.array([Decimal("1.50")] * 2, kind)
    return pa.array([7] * 2, kind)


def is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind))


def dataset(folder: Path, name: str, values: Any, **options: Any) -> Any:
    """The dataset of an Arrow file, which has all types as they are, with one column x."""
    (folder / name).mkdir()
    pa.feather.write_feather(pa.table({"x": values}), folder / name / "part.arrow")
    return StructuredDataset.create_dataloader(str(folder / name), batch_size=2, **options)[1]


def rows(datasets: list[Any], **options: Any) -> list[Any]:
    loader = combine(datasets, batch_size=2, batches="splits", **options)
    return [row for batch in loader for row in batch["x"].tolist()]


MICROSECONDS = int(DAY.replace(tzinfo=datetime.UTC).timestamp()) * 10**6


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.timestamp("ms"), pa.timestamp("us"), MICROSECONDS),
        (pa.timestamp("us"), pa.timestamp("s"), MICROSECONDS),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Berlin"), MICROSECONDS),
        (pa.time32("s"), pa.time64("us"), (12 * 3600 + 30 * 60 + 15) * 10**6),
        (pa.duration("s"), pa.duration("ns"), 90 * 10**9),
        (pa.decimal128(5, 2), pa.decimal128(9, 4), 15_000),
    ],
    ids=str,
)
def test_a_combination_is_in_the_finest_unit_of_its_datasets(
    tmp_path: Path, first: pa.DataType, second: pa.DataType, expected: int
) -> None:
    options = {"decimals": "scaled"}
    datasets = [dataset(tmp_path, name, column(kind), **options) for name, kind in (("a", first), ("b", second))]
    assert rows(datasets) == [expected] * 4
    for batches in ("proportional", "single"):
        loader = combine(datasets, batch_size=2, batches=batches)
        assert [row for batch in loader for row in batch["x"].tolist()] == [expected] * 4


def test_a_csv_file_beside_a_parquet_file_is_in_its_microseconds(tmp_path: Path) -> None:
    parquet = dataset(tmp_path, "a", column(pa.timestamp("us")))
    (tmp_path / "b.csv").write_text("x\n2024-05-01 12:30:15\n2024-05-01 12:30:15\n")
    _, csv = StructuredDataset.create_dataloader(str(tmp_path / "b.csv"))
    assert rows([csv, parquet]) == [MICROSECONDS] * 4
    assert rows([parquet, csv], shuffle=True) == [MICROSECONDS] * 4


def test_nulls_lists_and_casts_are_in_the_finest_unit_too(tmp_path: Path) -> None:
    one = dataset(tmp_path, "a", pa.array([None, DAY], pa.timestamp("s")), nulls=Fill({"x": 5}))
    other = dataset(tmp_path, "b", column(pa.timestamp("us")))
    assert rows([one, other]) == [5_000_000, *[MICROSECONDS] * 3]
    nulls = {"nulls": Fill({"x": [5]})}
    one = dataset(tmp_path, "null list", pa.array([None, [DAY]], pa.list_(pa.timestamp("s"))), **nulls)
    other = dataset(tmp_path, "lists", pa.array([[DAY]] * 2, pa.list_(pa.timestamp("ms"))))
    loader = combine([one, other], batch_size=4, batches="splits")
    assert next(iter(loader))["x"]["values"].tolist() == [5000, *[MICROSECONDS // 1000] * 3]
    lists = [
        dataset(tmp_path, f"list of {unit}", pa.array([[DAY], [DAY, DAY]], pa.list_(pa.timestamp(unit))))
        for unit in ("s", "ms")
    ]
    loader = combine(lists, batch_size=4, batches="splits")
    (batch,) = list(loader)
    assert batch["x"]["values"].tolist() == [MICROSECONDS // 1000] * 6
    floats = [
        dataset(tmp_path, f"float of {unit}", column(pa.duration(unit)), dtypes={"x": "float32"})
        for unit in ("s", "us")
    ]
    assert rows(floats) == [90e6] * 4


def test_a_time_that_the_finest_unit_cannot_hold_is_an_error(tmp_path: Path) -> None:
    early = pa.array([datetime.datetime(1, 1, 1), DAY], pa.timestamp("s"))
    datasets = [dataset(tmp_path, "a", early), dataset(tmp_path, "b", column(pa.timestamp("ns")))]
    with pytest.raises(SchemaMismatchError, match=r"column 'x' .*part\.arrow.*timestamps in ns"):
        rows(datasets)


UNLIKE = [
    (pa.date32(), pa.int32()),
    (pa.duration("us"), pa.int64()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us"), pa.int64()),
    (pa.date64(), pa.timestamp("ms")),
    (pa.timestamp("us"), pa.duration("us")),
    (pa.decimal128(5, 2), pa.int64()),
    (pa.decimal128(18, 2), pa.decimal128(18, 9)),
]


@pytest.mark.parametrize(("first", "second"), UNLIKE, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
def test_numbers_that_stand_for_different_things_are_refused_and_the_remedies_work(
    tmp_path: Path, first: pa.DataType, second: pa.DataType, swapped: bool
) -> None:
    kinds = {"a": second, "b": first} if swapped else {"a": first, "b": second}
    made = {name: dataset(tmp_path, name, column(kind), decimals="scaled") for name, kind in kinds.items()}
    with pytest.raises(OptionError, match="'x'") as failed:
        rows(list(made.values()))
    remedies = failed.value.remedies
    assert remedies or {pa.types.is_duration(kind) for kind in kinds.values()} == {True, False}, failed.value
    for number, remedy in enumerate(remedies):
        changed = dict(made)
        for name in made:
            if "make both" in remedy.effect or f"/{name}/part.arrow" in remedy.effect:
                keywords = remedy.applied({"decimals": "scaled"})
                changed[name] = dataset(tmp_path, f"{name}{number}", column(kinds[name]), **keywords)
        assert changed != made
        assert len(rows(list(changed.values()))) == 4


def test_samples_beside_times_must_be_named_as_plain_numbers(tmp_path: Path) -> None:
    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return {"x": np.int64(index)}

    with pytest.raises(OptionError, match=r"numbers.*timestamps in us"):
        rows([Samples(), dataset(tmp_path, "a", column(pa.timestamp("us")))])
    named = dataset(tmp_path, "b", column(pa.timestamp("us")), dtypes={"x": "int64"})
    assert rows([Samples(), named]) == [0, 1, MICROSECONDS, MICROSECONDS]


def test_codes_in_stacks_have_one_vocabulary(tmp_path: Path) -> None:
    for name, words in (("a", ["p", "q"]), ("b", ["q", "r"])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"w": words, "n": [1, 2]}), tmp_path / name / "part.parquet")

    def made(**options: Any) -> list[Any]:
        stack = {"strings": "codes", "stack": {"x": ["w", "n"]}, **options}
        return [StructuredDataset.create_dataloader(str(tmp_path / name), **stack)[1] for name in ("a", "b")]

    with pytest.raises(OptionError, match="codes of the key 'x' have other meanings"):
        rows(made())
    assert rows(made(strings=Codes({"w": ["p", "q", "r"]}))) == [[0, 1], [1, 2], [1, 1], [2, 2]]


def of_one(folder: Path, table: dict[str, Any], **options: Any) -> Callable[..., Any]:
    pq.write_table(pa.table(table), folder / "part.parquet")
    return lambda **more: next(
        iter(StructuredDataset.create_dataloader(str(folder), batch_size=2, **options, **more)[0])
    )


@pytest.mark.parametrize(
    ("first", "second"), [(pa.timestamp("ms"), pa.timestamp("us")), (pa.timestamp("us"), pa.int64()), *UNLIKE[1:2]]
)
def test_a_stack_of_numbers_that_stand_for_different_things_is_refused(
    tmp_path: Path, first: pa.DataType, second: pa.DataType
) -> None:
    read = of_one(tmp_path, {"a": column(first), "b": column(second), "f": [0.5, 1.5]}, columns=["a", "b"])
    with pytest.raises(OptionError, match=r"stack=.*stand for different things") as failed:
        read(stack={"x": ["a", "b"]})
    (remedy,) = failed.value.remedies
    assert read(**remedy.applied({"stack": {"x": ["a", "b"]}}))["x"].dtype == torch.int64
    assert read(stack={"x": ["a", "b"]}, dtypes={"x": "float32"})["x"].dtype == torch.float32


def test_jagged_columns_that_stand_for_different_things_are_refused(tmp_path: Path) -> None:
    lists = {
        "a": pa.array([[DAY], []], pa.list_(pa.timestamp("us"))),
        "b": pa.array([[1, 2], [3]], pa.list_(pa.int64())),
    }
    read = of_one(tmp_path, lists)
    with pytest.raises(OptionError, match=r"jagged=.*stand for different things") as failed:
        read(jagged={"x": ["a", "b"]})
    (remedy,) = failed.value.remedies
    assert read(**remedy.applied({"jagged": {"x": ["a", "b"]}}))["x"]["values"].dtype == torch.int64


def test_times_of_one_datasets_files_are_in_the_finest_unit_and_not_joined_as_plain_numbers(tmp_path: Path) -> None:
    for name, unit in (("a", "ms"), ("b", "us")):
        pq.write_table(pa.table({"x": column(pa.timestamp(unit))}), tmp_path / f"{name}.parquet")

    def read(**options: Any) -> list[int]:
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path), batch_size=2, **options)
        return [row for batch in loader for row in batch["x"].tolist()]

    assert read() == [MICROSECONDS] * 4
    with pytest.raises(SchemaMismatchError, match=r"b\.parquet: column 'x' is timestamp\[us\], but timestamp\[ms\]"):
        read(schema=pa.schema({"x": pa.int64()}))
    assert read(schema=pa.schema({"x": pa.timestamp("us")})) == [MICROSECONDS] * 4


def test_a_null_in_a_finer_unit_is_still_an_error(tmp_path: Path) -> None:
    one = dataset(tmp_path, "a", pa.array([None, DAY], pa.timestamp("s")), filters=[("x", "is null")])
    other = dataset(tmp_path, "b", column(pa.timestamp("us")))
    with pytest.raises(NullValueError, match="'x'"):
        rows([one, other])
