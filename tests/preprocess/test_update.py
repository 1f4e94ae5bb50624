"""Updates by further rows: no id moves, numbers are those of one fit, however rows come, and through files."""

from __future__ import annotations

import copy
import gc
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_dataloader_utils as tdu
from tests.preprocess.tables import SPEC, columns_of_doubles, doubles, mixed_table
from tests.preprocess.test_scans import LINKS, ONE, small_grid
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ColumnNotFoundError,
    EmptyDatasetError,
    OptionError,
    UnsupportedTypeError,
)
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    Hash,
    Impute,
    Keep,
    MinMax,
    OwnTransform,
    Preprocess,
    Robust,
    Standardize,
    TargetEncode,
)
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.scan import FitScan
from torch_dataloader_utils.values import kind_named

__all__ = ["small_grid"]
EACH = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class Longest(OwnTransform):
    """Whether a text is the longest that was seen; what it counts is plain."""

    def partial(self, values: pa.Array) -> Any:
        return {"longest": pc.max(pc.utf8_length(values)).as_py() or 0}

    def merge(self, one: Any, other: Any) -> Any:
        one["longest"] = max(one["longest"], other["longest"])  # as it may: neither is used again
        return one

    def finish(self, state: Any) -> Any:
        return state

    def apply(self, values: pa.Array, learned: Any) -> pa.Array:
        return pc.fill_null(pc.greater_equal(pc.utf8_length(values), learned["longest"]), False)

    def output(self, type: pa.DataType) -> pa.DataType:
        return pa.bool_()


class Letters(Longest):
    """The same of the different letters; what it counts is no JSON."""

    def partial(self, values: pa.Array) -> Any:
        return set("".join(values.drop_null().to_pylist()))

    def merge(self, one: Any, other: Any) -> Any:
        return one | other

    def finish(self, state: Any) -> Any:
        return {"longest": len(state)}


def through_files(prep: Preprocess, folder: Path) -> Preprocess:
    """The same, saved and loaded twice: once by what was loaded itself."""
    prep.save(folder / "one.json")
    Preprocess.load(folder / "one.json").save(folder / "two.json")
    return Preprocess.load(folder / "two.json")


WAYS: dict[str, Callable[[Preprocess, Path], Preprocess]] = {
    "here": lambda prep, folder: prep,
    "files": through_files,
    "pickle": lambda prep, folder: pickle.loads(pickle.dumps(prep)),
    "copy": lambda prep, folder: copy.deepcopy(prep),
}


def numbers(prep: Preprocess) -> str:
    """All that is learned but values and their counts; -0.0 and 0.0 are told apart."""
    return repr({each: prep.parameters(each) for each in fitted_names(prep)})


def fitted_names(prep: Preprocess) -> list[str]:
    return [each.output.name for each in prep._fitted.outputs]


def same(one: Preprocess, other: Preprocess) -> None:
    """Check that two are the same in all that shows, but for their history."""
    assert one.digest == other.digest
    assert numbers(one) == numbers(other)
    assert (one.sizes(), one.generation, one.parents) == (other.sizes(), other.generation, other.parents)
    for each in one._fitted.outputs:
        if "counts" in each.fitted[-1]:
            (counts,) = (found._of(each.output.name).fitted[-1]["counts"].tolist() for found in (other,))
            assert each.fitted[-1]["counts"].tolist() == counts
    assert repr(one).partition(", digest")[0] == repr(other).partition(", digest")[0]


# Numbers.


@pytest.mark.usefixtures("small_grid")
@EACH
@given(
    st.lists(LINKS, min_size=1, max_size=4),
    st.sampled_from([None, Bucketize(quantiles=3), Categorize()]),
    st.lists(columns_of_doubles, min_size=2, max_size=4),
    st.sampled_from(list(WAYS)),
)
def test_numbers_are_those_of_one_fit_or_the_rows_are_asked_for(
    tmp_path: Path, chain: list[Any], last: Any, several: list[list[float | None]], way: str
) -> None:
    """Bit for bit; or an error, which leaves what was fitted as it was.

    That only where a fit may take another scan, or a vocabulary is learned of filled values: the fill may change.
    """
    spec = {"x": [*chain, *([] if last is None else [last])]}
    tables = [pa.table({"x": pa.array(column, pa.float64())}) for column in several]
    try:
        whole = Preprocess(spec).fit(pa.concat_tables(tables))
        prep = Preprocess(spec).fit(tables[0])
    except UnsupportedTypeError:  # categories that are not whole
        return
    for number, table in enumerate(tables[1:], 1):
        prep, before = WAYS[way](prep, tmp_path), prep.digest
        try:
            prep.fit(table, update=True)
        except UnsupportedTypeError:
            return
        except OptionError:
            filled = last == Categorize() and any(isinstance(link, Impute) for link in chain)
            assert filled or Preprocess(spec).scans(table.schema).most > 1
            assert (prep.digest, prep.generation) == (before, number - 1)
            return
        assert prep.generation == number
    assert numbers(prep) == numbers(whole)
    if last != Categorize():
        assert prep.digest == whole.digest
        assert prep(tables[0]).equals(whole(tables[0])) or np.isnan(prep(tables[0])["x"].to_numpy()).any()


@pytest.mark.parametrize("values", [50, 5000])
@pytest.mark.parametrize(
    "chain", [[Robust()], [Impute("median"), Standardize()], [Clip(-1, 1), Bucketize(quantiles=9)]]
)
def test_quantiles_beyond_the_grid_are_those_of_one_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: int, chain: list[Any]
) -> None:
    monkeypatch.setattr(Grid, "limit", 1000)
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.choice(rng.normal(size=values), 9000)})
    for spec in ({"x": chain}, {"x": [Impute("mean"), *chain[-1:]]}):
        prep = Preprocess(spec).fit(table.slice(0, 3000), **ONE)
        done = prep.scans(table.schema, **ONE).most == 1 or values < 1000
        for first in (3000, 6000):
            prep = through_files(prep, tmp_path)
            if not done:
                with pytest.raises(OptionError, match="Fit all rows anew"):
                    prep.fit(table.slice(first, 3000), update=True, **ONE)
                break
            prep.fit(table.slice(first, 3000), update=True, **ONE)
        if done:
            assert prep.digest == Preprocess(spec).fit(table, **ONE).digest


# Ids.


def law(known: list[Any], seen: Counter[Any], missing: int, link: Categorize, fill: Any) -> tuple[list[Any], list[int]]:
    """The values of ids after an update, None for null, and how often each was seen: what the documents say.

    Args:
        known: the values of ids before it.
        seen: all values so far, missing ones left out.
        missing: how many were missing so far.
        link: of ids.
        fill: what is counted in place of the missing ones; None for nothing.
    """
    counts: Counter[Any] = Counter(seen)
    if fill is not None and missing:
        counts[fill] += missing
    elif link.nulls == "category" and missing:
        counts[None] = missing
    order = sorted(counts, key=lambda value: (-counts[value], value is not None, value))
    new = [value for value in order if counts[value] >= link.min_count and value not in known]
    new = new[: None if link.max_size is None else max(0, link.max_size - len(known))]
    if link.order == "value":
        new.sort(key=lambda value: (value is not None, value))
    return known + new, [counts[value] for value in known + new]


TEXTS = st.none() | st.sampled_from(["", "a", "b", "c", "d", "é", "zz"])
LINK = st.builds(
    Categorize,
    min_count=st.integers(1, 4),
    max_size=st.none() | st.integers(1, 6),
    order=st.sampled_from(["count", "value"]),
    nulls=st.sampled_from(["missing", "category"]),
    unknown_ids=st.integers(1, 2),
)


@EACH
@given(
    st.lists(st.lists(TEXTS, min_size=1, max_size=15), min_size=2, max_size=5),
    LINK,
    st.booleans(),
    st.sampled_from(list(WAYS)),
    st.sampled_from(["2GiB", 1]),
    st.sampled_from([True, "ids"]),
)
def test_ids_grow_by_the_law(
    tmp_path: Path,
    several: list[list[str | None]],
    link: Categorize,
    fills: bool,
    way: str,
    memory: Any,
    update: Any,
) -> None:
    spec = {"c": [Impute("most_frequent"), link] if fills else link}
    seen: Counter[str] = Counter()
    known: list[Any] = []
    missing, fill = 0, None
    prep = Preprocess(spec)
    for number, values in enumerate(several):
        seen.update(value for value in values if value is not None)
        missing += values.count(None)
        if fills and not (number and update == "ids"):
            fill = min(seen, key=lambda value: (-seen[value], value.encode())) if seen else ""
        known, counts = law(known, seen, missing, link, fill)
        prep = WAYS[way](prep, tmp_path) if number else prep
        prep.fit(pa.table({"c": pa.array(values, pa.string())}), update=update if number else False, memory=memory)
        assert prep.vocabulary("c") == known
        assert prep.counts("c") == [n for value, n in zip(known, counts, strict=True) if value is not None]
        assert prep.sizes()["c"] == 1 + link.unknown_ids + len(known)
        assert prep(pa.table({"c": pa.array(known, pa.string())}))["c"].to_pylist() == [
            1 + link.unknown_ids + (known.index(fill) if fills and value is None else place)
            for place, value in enumerate(known)
        ]
        assert prep.generation == number
    if link.max_size is None and not fills:  # nothing is left out because it came late
        rows = pa.table({"c": pa.array([value for values in several for value in values], pa.string())})
        assert set(known) == set(Preprocess(spec).fit(rows).vocabulary("c"))


@EACH
@given(st.lists(st.lists(st.none() | st.integers(-3, 9), min_size=1, max_size=12), min_size=2, max_size=4), st.data())
def test_fills_of_numbers_are_counted_where_they_are_now(
    tmp_path: Path, several: list[list[int | None]], data: st.DataObject
) -> None:
    """Those of the median, where whole: how often a value stands for missing ones changes with each update."""
    spec = {"n": [Impute("median"), Categorize(min_count=2)]}
    tables = [pa.table({"n": pa.array(values, pa.int64())}) for values in several]
    known: list[Any] = []
    prep = Preprocess(spec)
    for number in range(len(tables)):
        rows = [value for values in several[: number + 1] for value in values]
        there = [value for value in rows if value is not None]
        fill = float(np.median(there)) if there else 0.0
        way = data.draw(st.sampled_from(list(WAYS)))
        prep = WAYS[way](prep, tmp_path) if number else prep
        try:
            prep.fit(tables[number], update=number > 0)
        except UnsupportedTypeError:
            assert not fill.is_integer()
            assert len(there) < len(rows)
            return
        known, counts = law(known, Counter(there), len(rows) - len(there), Categorize(min_count=2), int(fill))
        assert (prep.vocabulary("n"), prep.counts("n")) == (known, counts)


def test_values_of_every_kind_grow(tmp_path: Path) -> None:
    """Through files, in any width, unit and encoding; crossed ones, lists, classes; given values stay."""
    seconds = pa.timestamp("s", "Europe/Oslo")
    table = pa.table({
        "text": ["b", "a", "b", None], "bytes": [b"\xff", b"", b"", None], "int": [3, 3, -1, None],
        "whole": [1.0, 2.0, 2.0, None], "flag": [True, True, None, None],
        "day": pa.array([5, 5, 9, None], pa.date32()), "time": pa.array([5, 5, 9, None], seconds),
        "list": [["x"], None, ["y", "x"], []], "given": ["p", "p", "q", None],
    })  # fmt: skip
    more = pa.table({
        "text": pa.array(["c", "c", "c", "b"]).dictionary_encode(), "bytes": pa.array([b"a"] * 4, pa.binary(1)),
        "int": pa.array([7, 7, 7, 7], pa.uint8()), "whole": pa.array([9] * 4), "flag": [False] * 4,
        "day": pa.array([86400000] * 4, pa.date64()), "time": pa.array([123] * 4, pa.timestamp("ns", "UTC")),
        "list": pa.array([["z"] * 2] * 4, pa.list_(pa.string(), 2)), "given": ["r"] * 4,
    })  # fmt: skip
    spec: dict[Any, Any] = {name: Categorize() for name in table.column_names}
    spec |= {"given": Categorize(["q"]), ("int", "text"): Cross(Categorize())}
    spec["flag"] = {"flag": Categorize(), "class": Keep(classes=True)}
    prep = Preprocess(spec).fit(table)
    before = {name: prep.vocabulary(name) for name in spec if isinstance(name, str)}
    sizes, digest = prep.sizes(), prep.digest
    prep = through_files(prep, tmp_path).fit(more, update=True)
    prep = through_files(prep, tmp_path)
    new: dict[str, list[Any]] = {
        "text": ["c"],
        "bytes": [b"a"],
        "int": [7],
        "whole": [9],
        "flag": [False],
        "list": ["z"],
        "given": [],
    }
    for name, values in new.items():
        assert prep.vocabulary(name) == before[name] + values
    assert prep.vocabulary("day")[:2] == before["day"]
    assert prep.vocabulary("time")[:2] == before["time"]
    grown = {name: prep.sizes()[name] - size for name, size in sizes.items()}
    assert grown == {**dict.fromkeys(sizes, 1), "given": 0, "int_x_text": 2}
    assert prep.class_counts("class") == {False: 4, True: 2}
    assert (prep.parents, prep.generation) == ([digest], 1)
    assert prep(table.slice(0, 1))["list"].to_pylist() == [[2]]


@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.date32(), pa.timestamp("s", "Europe/Oslo"), pa.decimal128(19)],
)
def test_values_of_every_kind_stand_for_missing_ones(tmp_path: Path, type_: pa.DataType) -> None:
    def of(seen: list[int | None]) -> pa.Table:
        texts = pa.types.is_string(type_) or pa.types.is_binary(type_)
        column = pa.array(seen, pa.int32() if type_ == pa.date32() else pa.int64())
        return pa.table({"c": column.cast(pa.string()).cast(type_) if texts else column.cast(type_)})

    spec: Any = {"c": [Impute("most_frequent"), Categorize(min_count=2)]}
    several = [[0, 1, 1, None], [0, 0, None, None], [1, None], [0, 0]]
    prep = Preprocess(spec).fit(of(several[0]))
    for number, seen in enumerate(several[1:], 2):
        prep = through_files(prep, tmp_path).fit(of(seen), update=True)
        whole = Preprocess(spec).fit(of([value for values in several[:number] for value in values]))
        assert numbers(prep) == numbers(whole)
        assert dict(zip(prep.vocabulary("c"), prep.counts("c"), strict=True)) == dict(
            zip(whole.vocabulary("c"), whole.counts("c"), strict=True)
        )


def test_an_update_by_ids_leaves_numbers(tmp_path: Path) -> None:
    """They are not lost: a later update of all is one fit of all rows, those of the update by ids among them."""
    spec: Any = {
        "x": {"scaled": [Impute("median"), Standardize()], "clipped": [Clip(quantiles=(0.1, 0.9)), Standardize()]},
        "c": {"c": Categorize(), "length": Longest(), "mean": TargetEncode("x", by="n")},
        "n": [Clip(quantiles=(0, 0.9)), Impute("median"), Categorize(min_count=2)],
    }
    rng = np.random.default_rng(0)
    tables = [
        pa.table(
            {"x": rng.normal(size=90), "c": [f"{letter}{i % 9}" for i in range(90)], "n": rng.integers(0, top, 90)}
        )
        for letter, top in (("a", 5), ("bb", 8), ("cc", 3))
    ]
    prep = Preprocess(spec).fit(tables[0])
    before, made = numbers(prep), prep.for_training().mark
    prep = through_files(prep, tmp_path).fit(tables[1], update="ids")
    assert numbers(prep) == before
    assert prep.for_training().mark != made  # it covers all outputs
    assert prep.sizes() == {"c": 2 + 18, "n": 2 + 5}  # clipped as before
    with pytest.raises(OptionError, match=r"'mean' of column 'c': TargetEncode\(.* is not updated: its means"):
        prep.fit(tables[2], update=True)
    del spec["c"]["mean"], spec["n"]
    prep = Preprocess(spec).fit(tables[0]).fit(tables[1], update="ids")
    prep = through_files(prep, tmp_path).fit(tables[2], update=True)
    assert numbers(prep) == numbers(Preprocess(spec).fit(pa.concat_tables(tables)))
    assert prep.vocabulary("c") == [
        *sorted(f"a{i}" for i in range(9)),
        *(f"{each}{i}" for each in ("bb", "cc") for i in range(9)),
    ]


# Whole specs.


@pytest.mark.parametrize("memory", ["2GiB", "1KiB"])
def test_all_ways_of_an_update_are_one(tmp_path: Path, memory: Any) -> None:
    """Of everything at once: in memory, through files, as pickles, from files of rows, by parts that travel."""
    spec: Any = {**SPEC, "city": {"city": SPEC["city"], "longest": Longest()}}
    tables = [mixed_table(rows, seed) for seed, rows in enumerate((300, 200, 100))]
    found = []
    for way in WAYS.values():
        prep = Preprocess(spec).fit(tables[0], memory=memory)
        for table in tables[1:]:
            before = prep
            prep = way(prep, tmp_path).fit(
                table.take(pa.array(np.random.permutation(len(table)))), update=True, memory=memory
            )
            assert before is prep or before.generation == prep.generation - 1
        found.append(prep)
    for number, table in enumerate(tables):
        (tmp_path / str(number)).mkdir()
        for part in range(3):
            pq.write_table(table.slice(part * 70, 70 if part < 2 else None), tmp_path / f"{number}" / f"{part}.parquet")
    prep = Preprocess(spec).fit(str(tmp_path / "0"))
    for number in (1, 2):
        prep.fit(tdu.stream(str(tmp_path / str(number)), batch_size=7, output_format="arrow"), update=True)
    found.append(prep)
    by_parts = Preprocess(spec).fit(tables[0])
    for table in tables[1:]:
        by_parts = updated_by_parts(by_parts, table)
    found.append(by_parts)
    for other in found[1:]:
        same(found[0], other)
    whole = Preprocess(spec).fit(pa.concat_tables(tables))
    assert numbers(found[0]) == numbers(whole)
    assert set(found[0].vocabulary("user_id")) == set(whole.vocabulary("user_id"))
    row = tables[0].to_pylist()[0]
    assert repr(found[0](row)) == repr(
        {name: column[0] for name, column in found[0](tables[0].slice(0, 1)).to_pydict().items()}
    )


def updated_by_parts(prep: Preprocess, table: pa.Table) -> Preprocess:
    """The update of a program that counts parts of the rows elsewhere."""
    scan = pickle.loads(pickle.dumps(prep.scan(table.schema, update=True)))
    for first, last in pairwise([0, 10, len(table)]):
        part = pickle.loads(pickle.dumps(scan.part()))
        assert len(pickle.dumps(part)) < 60_000
        part.add(table.slice(first, last - first))
        scan.merge(pickle.loads(pickle.dumps(part)))
    assert scan.finish() is None
    return prep.learned(scan)


@EACH
@given(st.lists(st.lists(doubles, min_size=1, max_size=9), min_size=2, max_size=4), st.sampled_from([None, *"ab"]))
def test_the_digest_is_that_of_one_fit_where_ids_have_its_order(several: list[list[float]], extra: str | None) -> None:
    spec = {"x": [Impute("mean"), MinMax()], "c": Categorize()}
    tables = [pa.table({"x": values, "c": ["b"] * len(values)}) for values in several]
    if extra is not None:  # one that comes last; it is the last in the order of a fit, too, unless it comes before "b"
        tables[-1] = tables[-1].set_column(1, "c", pa.array([extra] * len(tables[-1])))
    prep = Preprocess(spec).fit(tables[0])
    for table in tables[1:]:
        prep.fit(table, update=True)
    whole = Preprocess(spec).fit(pa.concat_tables(tables))
    assert numbers(prep) == numbers(whole)
    assert (prep.digest == whole.digest) == (prep.vocabulary("c") == whole.vocabulary("c"))


# What a history shows.


def test_generations_and_parents(tmp_path: Path) -> None:
    table, other = pa.table({"c": ["a"]}), pa.table({"c": ["b"]})
    prep = Preprocess({"c": Categorize()})
    with pytest.raises(OptionError, match=r"not fitted: call its fit\(\.\.\.\) first"):
        prep.fit(table, update=True)
    prep.fit(table)
    assert (prep.generation, prep.parents) == (0, [])
    digests = [prep.digest]
    prep.fit(table, update=True)  # of no new value
    assert (prep.generation, prep.parents, prep.digest) == (1, [], digests[0])
    prep.fit(other, update=True)
    prep = through_files(prep, tmp_path)
    digests.append(prep.digest)
    prep.fit(pa.table({"c": ["c"]}), update="ids")
    assert (prep.generation, prep.parents) == (3, digests)
    assert "fitted on 4 rows, generation 3, digest" in repr(prep)
    again = Preprocess({"c": Categorize()}).fit(table).fit(other, update=True)
    assert "generation" not in repr(again.fit(table))
    assert (again.generation, again.parents) == (0, [])


def test_a_state_says_which_grew_from_which(tmp_path: Path) -> None:
    rows = pa.table({"x": [1.0, 2.0, 4.0, 9.0], "c": ["a", "b", "a", "b"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    spec: Any = {"x": Standardize(), "c": Categorize()}
    old = Preprocess(spec).fit(rows)
    new = Preprocess(spec).fit(rows).fit(rows.slice(0, 1), update=True).fit(rows.slice(0, 2), update=True)
    stranger = Preprocess(spec).fit(rows.slice(0, 3))

    def loader(prep: Any) -> Any:
        return tdu.stream(str(tmp_path), transform=prep, batch_size=2, num_ranks=1, rank=0)

    def state(prep: Any) -> Any:
        made = loader(prep)
        next(iter(made))
        return made.state_dict()

    for one, other, said in (
        (new, old, "; the one here grew from that of the state\n"),
        (old, new, "; that of the state grew from the one here\n"),
        (stranger, new, ""),
        (new, stranger, ""),
    ):
        with pytest.raises(CheckpointMismatchError) as caught:
            loader(one).load_state_dict(state(other))
        message = str(caught.value)
        assert one.digest in message
        assert other.digest in message
        assert ("grew from" in message) == bool(said)
        assert said in message
        resumed = loader(one)
        resumed.load_state_dict(state(other), strict=False)
        assert len(list(resumed)) == 1
    again = pickle.loads(pickle.dumps(new))
    loader(again).load_state_dict(state(new))
    joined = tdu.combine([loader(new), loader(new)], batch_size=2, num_ranks=1, rank=0)
    before = tdu.combine([loader(old), loader(old)], batch_size=2, num_ranks=1, rank=0)
    next(iter(before))
    with pytest.raises(CheckpointMismatchError, match="the one here grew from that of the state"):
        joined.load_state_dict(before.state_dict())


# What is said.


def test_errors_come_before_rows_are_read_and_their_remedies_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_grid: None
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=99)
    rows = pa.table({"x": pa.array(x, mask=x > 1.5), "c": ["a", "b", "c"] * 33, "key": range(99)})
    spec: Any = {
        "clipped": {"x": {"clipped": [Clip(quantiles=(0.1, 0.9)), Standardize()]}},
        "buckets": {"x": {"buckets": [Clip(quantiles=(0.1, 0.9)), Impute("median"), Bucketize(quantiles=3)]}},
        "mean": {"c": {"mean": TargetEncode("x", by="key")}},
        "letters": {"c": {"letters": Letters()}},
    }
    expected = {
        "clipped": r"output 'clipped' of column 'x': Standardize\(\) is fitted on what Clip\(quantiles=.* makes",
        "buckets": r"output 'buckets' of column 'x': Bucketize\(quantiles=3\) is fitted on what Impute\('median'\)",
        "mean": r"output 'mean' of column 'c': TargetEncode\('x', by=\['key'\]\) is not updated",
        "letters": r"output 'letters' of column 'c': what Letters\(\) has counted was not saved, because its partial",
    }

    def never(*_: Any) -> None:
        raise AssertionError("rows are read")

    for name, each in spec.items():
        prep = through_files(Preprocess(each).fit(rows), tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(FitScan, "add", never)
            with pytest.raises(OptionError, match=expected[name]) as caught:
                prep.fit(rows, update=True)
        assert "update='ids'" in str(caught.value)
        before = prep.digest
        prep.fit(rows, update="ids")
        assert (prep.digest, prep.generation) == (before, 1)
    prep = Preprocess(spec["letters"]).fit(rows)
    assert numbers(prep.fit(rows.slice(0, 1), update=True)) == numbers(Preprocess(spec["letters"]).fit(rows))
    for way in ("pickle", "copy"):
        assert WAYS[way](prep, tmp_path).fit(rows, update=True).generation == 2


@pytest.mark.usefixtures("small_grid")
def test_rows_may_ask_for_those_before() -> None:
    """What cannot be known before they are read: the second column has missing values, the first one more numbers."""
    rng = np.random.default_rng(0)
    spec: Any = {
        "x": [Clip(quantiles=(0.1, 0.9)), Standardize()],
        "y": [Clip(quantiles=(0.1, 0.9)), Impute("median"), Bucketize(quantiles=3)],
    }
    rows = pa.table({"x": rng.integers(0, 9, 99) * 1.0, "y": rng.normal(size=99)})
    many = rows.set_column(0, "x", pa.array(rng.normal(size=99)))
    missing = rows.set_column(1, "y", pa.array([None, *[1.0] * 98]))
    prep = Preprocess(spec).fit(rows, **ONE)
    before = prep.digest
    for more, name in ((many, "'x': Standardize"), (missing, "'y': Bucketize")):
        with pytest.raises(
            OptionError, match=rf"of column {name}.* which changes: it would have to see the rows before"
        ):
            prep.fit(more, update=True, **ONE)
    assert (prep.digest, prep.generation) == (before, 0)
    prep.fit(many, update="ids").fit(missing, update="ids")
    assert (prep.digest, prep.generation) == (before, 2)
    with pytest.raises(OptionError, match=r"'x': Standardize.* it would have to see the rows before"):
        prep.fit(rows, update=True, **ONE)
    whole, prep = Preprocess(spec).fit([rows, rows], **ONE), Preprocess(spec).fit(rows, **ONE)
    assert prep.fit(rows, update=True, **ONE).digest == whole.digest


def test_an_update_that_fails_changes_nothing(tmp_path: Path) -> None:
    rows = pa.table({"x": [1.0, 2.0], "c": ["a", "b"]})
    prep = Preprocess({"x": Standardize(), "c": Categorize()}).fit(rows)
    digest = prep.digest
    for more, error, match in (
        (pa.table({"c": ["z"]}), ColumnNotFoundError, r"no columns \['x'\], which this Preprocess was fitted on"),
        (pa.table({"y": [1]}), ColumnNotFoundError, r"no columns \['c', 'x'\]"),
        (rows.slice(0, 0), EmptyDatasetError, "no rows"),
        (pa.table({"x": ["1"], "c": ["z"]}), UnsupportedTypeError, "'x' holds text .* was fitted on number"),
        (pa.table({"x": [1.0], "c": [1]}), UnsupportedTypeError, "'c' holds number .* was fitted on text"),
        (pa.table({"x": [1.0], "c": [["z"]]}), UnsupportedTypeError, "'c' holds list of text"),
    ):
        with pytest.raises(error, match=match):
            prep.fit(more, update=True)
    for wrong in ("id", 2, None):
        with pytest.raises(OptionError, match="update"):
            prep.fit(rows, update=wrong)  # type: ignore[arg-type]
    assert (prep.digest, prep.generation) == (digest, 0)
    nulls = pa.table({"x": pa.nulls(2), "c": pa.nulls(2)})
    assert prep.fit(nulls, update=True).digest == digest
    assert prep.fit(rows, update=True).vocabulary("c") == ["a", "b"]


def test_a_scan_updates_what_it_was_made_of() -> None:
    rows = pa.table({"c": ["a"]})
    prep = Preprocess({"c": Categorize()}).fit(rows)
    scan, other = prep.scan(rows.schema, update=True), prep.scan(rows.schema)
    with pytest.raises(OptionError, match="count different things"):
        scan.merge(other)
    scan.add(rows)
    assert scan.finish() is None
    prep.fit(rows, update=True)
    with pytest.raises(OptionError, match=r"before another fit: make it again, by scan\(schema, update=\.\.\.\)"):
        prep.learned(scan)


def test_what_needs_no_fit_needs_no_rows(tmp_path: Path) -> None:
    prep = through_files(
        Preprocess({"c": Hash(9), "d": Keep(), "e": Categorize(["x"])}).fit(pa.table({"c": [1], "d": [2], "e": ["x"]})),
        tmp_path,
    )
    before = prep.digest
    assert prep.fit(pa.table({"other": [1]}), update=True).digest == before


# Memory.


def test_rare_values_are_in_a_temporary_folder_as_long_as_they_may_be_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("torch_dataloader_utils.preprocess.scan.HELD", 1 << 10)
    rows = pa.table({"id": np.random.default_rng(0).permutation(50_000), "x": range(50_000)})
    prep = Preprocess({"id": Categorize(min_count=2), "x": Standardize()}).fit(rows)
    assert len(list(tmp_path.iterdir())) == 1
    copied = copy.copy(prep)
    prep.fit(rows.slice(0, 10), update=True)
    assert len(list(tmp_path.iterdir())) == 2
    assert len(copied.fit(rows, update=True).vocabulary("id")) == 50_000
    assert prep.vocabulary("id") == sorted(rows["id"].to_pylist()[:10])
    with pytest.raises(EmptyDatasetError):
        prep.fit(rows.slice(0, 0), update=True)
    with pytest.raises(UnsupportedTypeError):
        prep.fit(pa.table({"id": [1.5], "x": [1]}), update=True)
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1
    prep.fit(pa.table({"id": [1], "x": [1]}))
    del copied
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = pa.table({"id": np.random.default_rng(0).permutation(50_000), "c": ["a"] * 50_000})
    spec: Any = {"id": Categorize(min_count=2), "c": Failing()}
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            Preprocess(spec).fit(rows, memory="64KiB")
    finally:
        gc.enable()
    assert caught.tb is not None
    assert list(tmp_path.iterdir()) == []


class Failing(Longest):
    """One that fails once all others have learned."""

    def finish(self, state: Any) -> Any:
        raise ZeroDivisionError


def test_loaders_and_their_workers_carry_nothing_of_it() -> None:
    rows = pa.table({"id": np.random.default_rng(0).permutation(50_000)})
    prep = Preprocess({"id": Categorize(min_count=2)}).fit(rows)
    assert len(pickle.dumps(prep.frozen())) < 5_000 < 100_000 < len(pickle.dumps(prep))


def test_kinds_of_these_tests_are_known() -> None:
    assert [kind_named(name) for name in ("longest", "letters", "failing")] == [Longest, Letters, Failing]
