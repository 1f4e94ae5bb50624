"""Transforms of one's own: learned in the same scan, saved, the same for tables, rows and loaders; and their check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import OptionError, SchemaMismatchError, stream
from torch_dataloader_utils.preprocess import Impute, Keep, OwnTransform, Preprocess, Standardize
from torch_dataloader_utils.testing import check_transform
from torch_dataloader_utils.values import setting

VALUES = pa.array([3.0, None, 1.5, float("nan"), 9.0, -2.0, 0.0] * 20)
TEXTS = pa.array(["b", None, "a", "", "ccc"] * 20)


class BelowMost(OwnTransform):
    """The distance to the greatest value, and a factor."""

    factor: float = setting(default=1.0, doc="a factor", kw_only=False)

    def partial(self, values: pa.Array) -> Any:
        return pc.max(values).as_py()

    def merge(self, one: Any, other: Any) -> Any:
        return max((each for each in (one, other) if each is not None), default=None)

    def finish(self, state: Any) -> Any:
        return {"most": state, "words": ["a", 1, None]}

    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        return pc.multiply(pc.subtract(learned["most"], pc.fill_null(values, 0.0)), self.factor)

    def output(self, type: pa.DataType) -> pa.DataType:
        return pa.float64()


class Length(OwnTransform):
    """Learns nothing."""

    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        assert learned is None
        return pc.fill_null(pc.utf8_length(values), 0)

    def output(self, type: pa.DataType) -> pa.DataType:
        return pa.int32()


SPEC = {"x": {"x": BelowMost(2.0), "y": [Impute("mean"), Standardize(), BelowMost()]}, "t": Length(), "tags": Length()}


def table() -> pa.Table:
    rows = len(VALUES)
    tags = pa.array([["a", "bb"], None, [], [None]] * (rows // 4))
    return pa.table({"x": VALUES, "t": pa.concat_arrays([TEXTS] * 2)[:rows], "tags": tags})


def test_it_is_learned_in_the_scan_and_applied_to_all_forms_of_rows(tmp_path: Path) -> None:
    prep = Preprocess(SPEC).fit(table())
    assert prep.parameters("x") == {"own": {"most": 9.0, "words": ["a", 1, None]}}
    made = prep(table())
    assert made["x"][:4].to_pylist() == [12.0, 18.0, 15.0, 18.0]
    assert made["t"][:4].to_pylist() == [1, 0, 1, 0]
    assert made["tags"][:4].to_pylist() == [[1, 2], [], [], [0]]
    assert made["y"][4].as_py() == 0.0  # the greatest
    for row in range(12):
        given = {name: table()[name][row].as_py() for name in ("x", "t", "tags")}
        assert prep(given) == {name: made[name][row].as_py() for name in made.column_names}
    pq.write_table(table(), tmp_path / "rows.parquet", row_group_size=30)
    assert Preprocess(SPEC).fit(str(tmp_path)).digest == prep.digest
    loader = stream(str(tmp_path), transform=prep, batch_size=50, num_ranks=1, rank=0)
    assert [x for batch in loader for x in batch["x"].tolist()] == made["x"].to_pylist()
    loader.close()


def test_it_is_saved_and_told_from_others(tmp_path: Path) -> None:
    prep = Preprocess(SPEC).fit(table())
    prep.save(tmp_path / "prep.json")
    loaded = Preprocess.load(tmp_path / "prep.json")
    assert loaded.digest == prep.digest
    assert loaded(table()).equals(prep(table()))
    others = {Preprocess({"x": BelowMost(factor)}).fit(table()).digest for factor in (1.0, 2.0)}
    assert len(others) == 2
    assert Preprocess({"x": BelowMost()}).fit(table().slice(5)).digest in others
    assert Preprocess({"x": BelowMost()}).fit(table().slice(5, 2)).digest not in others


@pytest.mark.parametrize(("transform", "values"), [(BelowMost(3.0), VALUES), (Length(), TEXTS)])
def test_a_sound_transform_passes_the_check(transform: OwnTransform, values: pa.Array) -> None:
    check_transform(transform, values)


class First(BelowMost):
    """Learns of the first row."""

    def merge(self, one: Any, other: Any) -> Any:
        return one


class Ranked(Length):
    """Makes a value of its neighbours."""

    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        return pa.array(range(len(values)), pa.int32())


@pytest.mark.parametrize(
    ("transform", "values", "said"),
    [(First(), VALUES, "must not depend on the order"), (Ranked(), TEXTS, "on its own")],
)
def test_an_unsound_one_does_not(transform: OwnTransform, values: pa.Array, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_transform(transform, values)


class Wrong(BelowMost):
    """Learns what JSON cannot hold, or makes another type."""

    def finish(self, state: Any) -> Any:
        return {1: float("nan")} if self.factor == 1.0 else {"most": 1.0}

    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        return pa.array(["text"] * len(values))


def test_what_is_learned_is_plain_and_what_is_made_is_of_the_type_that_was_said() -> None:
    with pytest.raises(OptionError, match=r"output 'x'.*finish\(\) returned"):
        Preprocess({"x": Wrong()}).fit(table())
    with pytest.raises(SchemaMismatchError, match=r"apply\(\) returned string.*expected an Arrow array of type double"):
        Preprocess({"x": Wrong(2.0)}).fit(table())(table())


def test_nothing_follows_it() -> None:
    with pytest.raises(OptionError, match="ends a chain"):
        Preprocess({"x": [BelowMost(), Standardize()], "t": Keep()})
