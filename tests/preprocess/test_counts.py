from __future__ import annotations

import copy
import gc
import os
import pickle
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.preprocess import counts as module
from torch_dataloader_utils.preprocess import partitions
from torch_dataloader_utils.preprocess.counts import ValueCounts, common_type, counted_type
from torch_dataloader_utils.preprocess.partitions import PARTITIONS
from torch_dataloader_utils.schemas.value_hashes import array_hashes

INT64 = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
SECONDS = TIMES.map(lambda time: time.replace(microsecond=0))
BERLIN = "Europe/Berlin"

# The type of a column, its values, and other types in which they may arrive.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], list[pa.DataType]]] = {
    "text": (pa.string(), TEXT, [pa.large_string(), pa.string_view()]),
    "bytes": (pa.binary(), st.binary(max_size=3), [pa.large_binary(), pa.binary_view()]),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2), [pa.binary()]),
    "int8": (pa.int8(), st.integers(-128, 127), [pa.int64(), pa.int16(), pa.float64()]),
    "int64": (pa.int64(), INT64, [pa.int64()]),
    "uint64": (pa.uint64(), st.integers(0, 2**63 - 1), [pa.int64()]),
    "float": (pa.float64(), st.integers(-(2**53), 2**53), [pa.int64()]),
    "half": (pa.float16(), st.integers(-2048, 2048), [pa.float32(), pa.int32()]),
    "bool": (pa.bool_(), st.booleans(), []),
    "date": (pa.date32(), st.dates(), [pa.date64()]),
    "date64": (pa.date64(), st.dates(), [pa.date32()]),
    "time": (pa.timestamp("us"), TIMES, []),
    "seconds": (pa.timestamp("ns"), SECONDS, [pa.timestamp("s"), pa.timestamp("us")]),
}


class Identifier(pa.ExtensionType):  # type: ignore[misc]
    """As `pa.uuid()`, which the oldest supported version does not have."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "test.counted_identifier")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """`pa.array` makes no float16 of ints, no views everywhere, and no timestamps of all years from datetimes."""
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(value) for value in values], kind)
    if pa.types.is_floating(kind):
        return pa.array([None if value is None else float(value) for value in values], kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.timestamp("us")).cast(kind)
    return pa.array(values, kind)


@st.composite
def encoded(draw: st.DrawFn, values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array of these values: plain, with other values around it, or with an untidy dictionary."""
    how = draw(st.sampled_from(["plain", "slice", "dictionary", "large dictionary"]))
    if how == "plain":
        return array_of(values, kind)
    if how == "slice":
        return array_of([*values[:2], None, *values, *values[-1:]], kind).slice(len(values[:2]) + 1, len(values))
    unused = draw(st.lists(st.sampled_from(values), max_size=50)) if values and how == "large dictionary" else []
    order = draw(st.permutations(range(len(values))))
    dictionary = [*unused, *(values[place] for place in order)]  # each row has an entry of its own, so duplicates occur
    places: list[int | None] = [len(unused) + order.index(row) for row in range(len(values))]
    if draw(st.booleans()):
        places = [None if value is None else place for value, place in zip(values, places, strict=True)]
    indices = pa.array(places, draw(st.sampled_from([pa.int8(), pa.uint32()])))
    return pa.DictionaryArray.from_arrays(indices, array_of(dictionary, kind))


@st.composite
def blocks(draw: st.DrawFn, values: list[Any], kinds: list[pa.DataType]) -> list[pa.Array | pa.ChunkedArray]:
    """The values in another order, cut into blocks."""
    values = draw(st.permutations(values))
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=4)))
    parts = [values[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    arrays = [draw(encoded(part, draw(st.sampled_from(kinds)))) for part in parts]
    return [pa.chunked_array([array, array.slice(0, 0)]) if draw(st.booleans()) else array for array in arrays]


def by_count(counter: Counter[Any]) -> list[tuple[Any, int]]:
    """The values of a vocabulary and their counts, as the specification says."""
    return sorted(counter.items(), key=lambda item: (-item[1], key_of(item[0])))


def key_of(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def items(kept: tuple[pa.Array, Any]) -> list[tuple[Any, int]]:
    values, counts = kept
    assert counts.dtype == np.int64
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
    return list(zip(values.to_pylist(), counts.tolist(), strict=True))


def check(counts: ValueCounts, values: list[Any]) -> None:
    expected = Counter(value for value in values if value is not None)
    assert items(counts.kept()) == by_count(expected)
    assert (counts.rows, counts.missing) == (len(values), values.count(None))
    assert counts.distinct == len(expected)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder of this test, which holds nothing when it ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    gc.collect()
    assert list(tmp_path.iterdir()) == []


SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", KINDS)
@SETTINGS
@given(data=st.data())
def test_counts_are_those_of_the_multiset(name: str, data: st.DataObject) -> None:
    kind, strategy, others = KINDS[name]
    few = data.draw(st.lists(strategy, min_size=1, max_size=5))
    values = data.draw(st.lists(st.none() | st.sampled_from(few) | strategy, max_size=30))
    memory = data.draw(st.sampled_from([1, 600, 2000, 1 << 30]))
    parts = data.draw(st.integers(1, 3))
    made = [ValueCounts(kind, memory) for _ in range(parts)]
    for number, block in enumerate(data.draw(blocks(values, [kind, *others]))):
        made[number % parts].add(block)
    first = made[0]
    assert first.type == counted_type(kind)
    for other in made[1:]:
        held = other.rows, items(other.kept())
        first.merge(other)
        assert (other.rows, items(other.kept())) == held
    check(first, values)
    check(first, values)  # reading changes nothing
    first.add(array_of(values[:1], kind))
    check(first, values + values[:1])
    table = first.to_table()
    assert table.schema == pa.schema([("value", first.type), ("count", pa.int64())])
    keys = [key_of(value) for value, _ in items((table["value"], table["count"].to_numpy()))]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("name", KINDS)
@settings(SETTINGS, max_examples=4)
@given(data=st.data())
def test_tables_and_copies_hold_the_same(name: str, data: st.DataObject) -> None:
    kind, strategy, _ = KINDS[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=30))
    counts = ValueCounts(kind, memory=1)
    counts.add(array_of([*values, *values[:4]], kind))
    for copied in (
        pickle.loads(pickle.dumps(counts)),
        ValueCounts.from_tables(kind, [counts.to_table()], counts.missing),
        ValueCounts.from_tables(kind, map(counts.partition, range(PARTITIONS)), counts.missing, memory=1),
    ):
        check(copied, [*values, *values[:4]])
        assert copied.to_table().equals(counts.to_table())
        assert (copied.type, copied.to_table()["value"].type) == (counts.type, counts.type)


@SETTINGS
@given(
    st.dictionaries(st.integers(-5, 5000), st.integers(1, 4), max_size=300),
    st.integers(1, 4),
    st.none() | st.integers(0, 40),
    st.booleans(),
    st.sampled_from([1, 1 << 30]),
)
def test_a_vocabulary_keeps_the_most_frequent(
    expected: dict[int, int], min_count: int, max_size: int | None, text: bool, memory: int
) -> None:
    numbers = [value for value, count in expected.items() for _ in range(count)]
    values: list[Any] = list(map(str, numbers)) if text else numbers
    counts = ValueCounts(pa.string() if text else pa.int64(), memory)
    counts.add(pa.array(values, counts.type))
    chosen = [item for item in by_count(Counter(values)) if item[1] >= min_count][:max_size]
    kept = counts.kept(min_count, max_size)
    assert items(kept) == chosen
    assert items(counts.kept(min_count, max_size, "value")) == sorted(chosen)
    assert counts.rest(kept[1]) == (len(set(values)) - len(chosen), len(values) - sum(count for _, count in chosen))
    assert counts.most_frequent() == next((value for value, _ in by_count(Counter(values))), None)


@SETTINGS
@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.integers(0, 80), max_size=60),
    st.integers(1, 3),
    st.none() | st.integers(0, 50),
    st.sampled_from([1, 1 << 30]),
)
def test_a_vocabulary_grows_without_moving_an_id(
    before: list[int], more: list[int], min_count: int, max_size: int | None, memory: int
) -> None:
    counts = ValueCounts(pa.int16(), memory)
    counts.add(pa.array(before, pa.int16()))
    ids, _ = counts.kept(min_count, max_size)
    counts.add(pa.array(more, pa.int16()))
    total = Counter(before + more)
    known = [(value, total[value]) for value in ids.to_pylist()]
    new = [item for item in by_count(total) if item[1] >= min_count and item[0] not in ids.to_pylist()]
    new = new[: None if max_size is None else max(0, max_size - len(ids))]
    assert items(counts.kept(min_count, max_size, known=ids)) == known + new
    assert items(counts.kept(min_count, max_size, "value", known=ids)) == known + sorted(new)
    assert counts.kept(min_count, max_size, known=ids.cast(pa.int32()))[0].type == pa.int64()
    absent = pa.array([-1, *ids.to_pylist()], pa.int64())
    assert items(counts.kept(known=absent))[: len(absent)] == [(-1, 0), *known]
    check(counts, before + more)


@SETTINGS
@given(
    st.lists(st.none() | st.integers(0, 40), max_size=60),
    st.integers(0, 45),
    st.booleans(),
    st.sampled_from([1, 1 << 30]),
)
def test_a_value_stands_for_missing_ones_and_others_are_dropped(
    values: list[int | None], fill: int, text: bool, memory: int
) -> None:
    def of(number: int) -> Any:
        return str(number) if text else number

    counts = ValueCounts(pa.string() if text else pa.int64(), memory)
    counts.add(pa.array([None if value is None else of(value) for value in values], counts.type))
    filled = Counter(of(fill if value is None else value) for value in values)
    assert items(counts.kept(fill=of(fill))) == by_count(filled)
    plain = [of(value) for value in values if value is not None]
    dropped = [of(value) for value in range(5, 50, 3)]
    assert items(counts.kept()) == by_count(Counter(plain))
    counts.drop(pa.array(dropped, counts.type))
    counts.limit(1)
    left = [value for value in plain if value not in dropped]
    check(counts, [*left, *[None] * values.count(None)])


def test_times_of_several_units_are_counted_in_the_finer_one() -> None:
    seconds, micros = pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Oslo")
    assert common_type(seconds, micros) == pa.timestamp("us", "UTC")
    assert common_type(micros, seconds) == micros
    assert common_type(pa.date32(), pa.date64()) == pa.date32()
    for one, other in ((pa.bool_(), pa.int64()), (pa.int64(), pa.large_string()), (seconds, pa.timestamp("s"))):
        with pytest.raises(UnsupportedTypeError, match="were given where"):
            common_type(one, other)


def test_text_is_ordered_by_its_utf8_bytes() -> None:
    values = ["\U0001f600", "￿", "é", "z", "", "Z", "zz"]
    counts = ValueCounts(pa.string())
    counts.add(pa.array(values))
    assert counts.kept()[0].to_pylist() == ["", "Z", "z", "zz", "é", "￿", "\U0001f600"]


def test_whole_floats_are_ints_and_nan_is_missing() -> None:
    counts = ValueCounts(pa.int64())
    counts.add(pa.array([5.0, -0.0, float("nan"), None, -(2.0**63)]))
    counts.add(pa.array([5, 0], pa.int8()))
    counts.add(pa.array([5.0, float("nan"), None], pa.float32()).dictionary_encode())
    counts.add(pa.DictionaryArray.from_arrays([0, 1, 1, 2], pa.array([5.0, float("nan"), 0.0, 7.0])))
    assert items(counts.kept()) == [(5, 4), (0, 3), (-(2**63), 1)]
    assert (counts.rows, counts.missing) == (14, 6)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (pa.array([1.0, 2.5]), "2.5"),
        (pa.array([1.0, float("inf")]), "inf"),
        (pa.array([1.0, 2.0**63]), "9.2233720368547"),
        (pa.array([2.5], pa.float32()).dictionary_encode(), "2.5"),
        (pa.array([1, 2**63], pa.uint64()), "9223372036854775808"),
        (pa.array([1, None, 2**64 - 1], pa.uint64()), "18446744073709551615"),
    ],
)
def test_numbers_that_are_no_categories_are_named(values: pa.Array, named: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=named):
        ValueCounts(values.type).add(values)


def test_unused_values_of_a_dictionary_are_not_looked_at() -> None:
    counts = ValueCounts(pa.float64())
    counts.add(pa.DictionaryArray.from_arrays([1, 1], pa.array([2.5, 3.0, None])))
    assert items(counts.kept()) == [(3, 2)]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([]), pa.decimal128(5), pa.time32("s"), pa.duration("s"), pa.null()]
)
def test_types_without_categories(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError, match="cannot be categories"):
        ValueCounts(kind)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (pa.int64(), pa.array(["5"])),
        (pa.string(), pa.array([5])),
        (pa.int64(), pa.array([True])),
        (pa.string(), pa.array([b"a"])),
        (pa.date32(), pa.array([datetime(2020, 1, 1)])),
        (pa.timestamp("us"), pa.array([datetime(2020, 1, 1)], pa.timestamp("us", BERLIN))),
        (pa.string(), pa.array([["a"]])),
    ],
)
def test_values_of_another_type(kind: pa.DataType, array: pa.Array) -> None:
    counts = ValueCounts(kind)
    for values in (array, array.slice(0, 0), array.filter(pa.array([False]))):
        with pytest.raises(UnsupportedTypeError, match="values of type"):
            counts.add(values)
    with pytest.raises(UnsupportedTypeError, match="cannot be added"):
        counts.merge(ValueCounts(pa.bool_()))


def test_a_time_that_the_unit_cannot_hold_is_an_error() -> None:
    counts = ValueCounts(pa.timestamp("s"))
    counts.add(pa.array([1000], pa.timestamp("ms")))
    with pytest.raises(UnsupportedTypeError, match="1500"):
        counts.add(pa.array([1500], pa.timestamp("ms")))


def test_timestamps_keep_their_zone_and_extension_types_are_their_storage() -> None:
    counts = ValueCounts(pa.timestamp("ms", BERLIN))
    counts.add(pa.array([0, None, 3], pa.timestamp("ms", "UTC")))
    assert counts.type == counts.kept()[0].type == pa.timestamp("ms", BERLIN)
    assert counts.kept()[0].cast(pa.int64()).to_pylist() == [0, 3]
    identifiers = ValueCounts(Identifier())
    stored = pa.array([b"x" * 16, None, b"x" * 16], pa.binary(16))
    identifiers.add(pa.ExtensionArray.from_storage(Identifier(), stored))
    assert items(identifiers.kept()) == [(b"x" * 16, 2)]


def test_partitions_are_frozen() -> None:
    values = pa.array([None, *map(str, range(500))])
    counts = ValueCounts(pa.string(), memory=1)
    counts.add(values)
    found = {value: n for n in range(PARTITIONS) for value in counts.partition(n)["value"].to_pylist()}
    known = values.drop_null()
    assert found == dict(zip(known.to_pylist(), (array_hashes(known) >> np.uint64(58)).tolist(), strict=True))
    assert {value: found[value] for value in "0123"} == {"0": 31, "1": 26, "2": 35, "3": 7}


@pytest.mark.parametrize("memory", [1, 50_000, 1 << 30])
def test_threads_add_to_one_object(memory: int) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 3000, 40_000)
    counts = ValueCounts(pa.int64(), memory)
    other = ValueCounts(pa.int64())
    other.add(pa.array([1, 2, None]))

    def work(number: int) -> None:
        for part in np.array_split(numbers[number::4], 10):
            counts.add(pa.array(part))
        counts.merge(other)  # all threads read it

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert items(counts.kept()) == by_count(Counter([*numbers.tolist(), *[1, 2] * 4]))
    assert (counts.rows, counts.missing) == (40_012, 4)


def test_an_object_may_be_merged_with_itself() -> None:
    for memory in (1, 1 << 30):
        counts = ValueCounts(pa.string(), memory)
        counts.add(pa.array(["a", "b", "a", None]))
        counts.merge(counts)
        check(counts, ["a", "b", "a", None] * 2)


def test_files_are_removed_by_close_collection_and_errors(folder: Path) -> None:
    def spilled() -> ValueCounts:
        counts = ValueCounts(pa.int64(), memory=1)
        counts.add(pa.array(range(1000)))
        assert len([file for made in folder.iterdir() for file in made.iterdir()]) == PARTITIONS
        return counts

    with spilled() as counts:
        counts.add(pa.array(range(1000)))
        assert counts.kept(max_size=1)[1].tolist() == [2]
        assert len([file for made in folder.iterdir() for file in made.iterdir()]) == PARTITIONS  # the first are gone
    assert list(folder.iterdir()) == []
    with pytest.raises(FileNotFoundError):  # never a part of the counts
        counts.kept()
    with pytest.raises(ZeroDivisionError), spilled():
        _ = 1 // 0
    assert list(folder.iterdir()) == []
    counts = spilled()
    copied = copy.deepcopy(counts)
    del counts
    gc.collect()
    check(copied, list(range(1000)))


def test_a_forked_process_leaves_the_folder(folder: Path) -> None:
    counts = ValueCounts(pa.int64(), memory=1)
    counts.add(pa.array(range(100)))
    removal = counts._partitions._removal
    assert removal is not None
    path, _ = removal.peek()[2]  # type: ignore[index]
    partitions._remove(path, os.getpid() + 1)
    check(counts, list(range(100)))


def test_a_full_disk_is_an_error_and_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tally: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", full)
    counts = ValueCounts(pa.int64(), memory=1)
    with pytest.raises(OSError, match="No space"):
        counts.add(pa.array([1]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"value": ["a"]}), "not value"),
        (pa.table({"value": pa.array([1]), "n": [1]}), "not value"),
        (pa.table({"value": pa.array([1], pa.int32()), "count": [1]}), "int32"),
        (pa.table({"value": pa.array([1]), "count": pa.array([1], pa.int32())}), "int32"),
        (pa.table({"value": pa.array([1, None]), "count": [1, 1]}), "null"),
        (pa.table({"value": pa.array([1, 2]), "count": [1, None]}), "null"),
        (pa.table({"value": pa.array([1, 2]), "count": [1, 0]}), "count 0"),
        (pa.table({"value": pa.array([1, 2, 1]), "count": [1, 1, 4]}), "1 values more than once"),
    ],
)
def test_tables_are_validated(table: pa.Table, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ValueCounts.from_tables(pa.int64(), [table])


def test_tables_of_many_chunks_and_none() -> None:
    table = pa.table({"value": pa.array([3, 1]), "count": [2, 5]})
    made = ValueCounts.from_tables(pa.int32(), [pa.concat_tables([table, table.slice(0, 0)]), table, table[:0]], 3)
    assert (made.rows, made.missing, items(made.kept())) == (17, 3, [(1, 10), (3, 4)])
    assert len(ValueCounts(pa.string()).to_table()) == 0
    assert ValueCounts(pa.string()).most_frequent() is None


@pytest.mark.parametrize("text", [False, True])
def test_millions_of_ids_in_little_memory(text: bool) -> None:
    """48 MB of ids and counts, or more of text, within 32 MiB; each id occurs once or twice."""
    size, block, memory = (3_000_000, 100_000, 32 << 20) if not text else (500_000, 50_000, 8 << 20)
    factor = 2_654_435_761  # odd: a permutation of the ids modulo 2**32
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    most = 0

    def note() -> None:
        nonlocal most
        most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])

    with ValueCounts(pa.string() if text else pa.int64(), memory) as counts:
        for first in [*range(0, size, block), 0]:
            numbers = pa.array(np.arange(first, first + block, dtype=np.int64) * factor % 2**32)
            counts.add(numbers.cast(pa.string()) if text else numbers)
            del numbers
            note()
        values, often = counts.kept(max_size=block + 1)
        note()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        twice = np.sort(np.arange(block) * factor % 2**32)
        assert often.tolist() == [2] * block + [1]
        assert sorted(map(int, values[:-1].to_pylist())) == twice.tolist()
        assert counts.distinct == size
        assert pc.min(pc.cast(values, pa.int64())).as_py() >= 0
    assert 0 < most < memory
    assert peak < memory
