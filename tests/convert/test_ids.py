"""Ids of values against a Python dict and `pc.index_in`, by the compiled table and by numpy."""

import pickle
import threading
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.convert import ids
from torch_dataloader_utils.convert.ids import MISSING, UNKNOWN, IdTable
from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.kernels import table

EACH = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.fixture(autouse=True, params=["compiled", "numpy", "arrow"])
def found(request, monkeypatch):
    """Tables of the compiled library; without it, those of many values, then those of few."""
    if request.param == "compiled" and table.library() is None:
        pytest.skip("there was no C compiler when the package was installed")
    if request.param != "compiled":
        monkeypatch.setattr(table, "library", lambda: None)
        monkeypatch.setattr(table, "_FEW", {"numpy": 0, "arrow": 1_000}[request.param])


def ints(bits, signed=True):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.integers(max(low, -4), 4) | st.sampled_from([low, high, high - 1])


def instants(unit):
    """Whole numbers that stand for times near each other, and far ones."""
    near = st.integers(-3, 3).map(lambda number: number * 43_200 * PER_SECOND[unit])
    return near | st.integers(-3, 3) | ints(64)


WORDS = st.text(max_size=12) | st.sampled_from(["", "a", "b", "aa", "é"])
BLOBS = st.binary(max_size=12) | st.sampled_from([b"", b"a", b"b", "é".encode()])


def of_times(unit):
    """The types of times in a unit: the numbers that are stored, and how many seconds they are."""

    def seconds(number):
        return Fraction(number, PER_SECOND[unit])

    in_day = st.integers(0, 3) | st.integers(0, 3).map(lambda number: number * PER_SECOND[unit])
    time_of_day = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    far = dict.fromkeys((pa.timestamp(unit), pa.timestamp(unit, "UTC"), pa.duration(unit)), (instants(unit), seconds))
    return {**far, time_of_day: (in_day, seconds)}


# By type: its values, or the numbers that are stored, and what makes one comparable with those of other types.
STORED = {
    **{getattr(pa, f"int{bits}")(): (ints(bits), int) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): (ints(bits, False), int) for bits in (8, 16, 32, 64)},
    pa.bool_(): (st.booleans(), int),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), (WORDS, str.encode)),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), (BLOBS, bytes)),
    pa.binary(2): (st.binary(min_size=2, max_size=2) | st.sampled_from([b"aa", "é".encode()]), bytes),
    pa.date32(): (ints(32), lambda day: Fraction(day * 86_400)),
    pa.date64(): (st.integers(-2, 2).map(lambda day: day * 86_400_000), lambda number: Fraction(number, 1000)),
    **{kind: each for unit in PER_SECOND for kind, each in of_times(unit).items()},
}
FLOATS = {
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.integers(-4, 4).map(float) | st.sampled_from([2.0**53, -(2.0**63), 2.0**63]),
}


def family(kind):
    if kind in FLOATS or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "numbers"
    if "date" in str(kind):
        return "naive"
    if pa.types.is_timestamp(kind):
        return "naive" if kind.tz is None else "zoned"
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return str(kind)[:4]
    return "bytes"


def array_of(stored, kind):
    """An array of values, or of the numbers that are stored (nulls: None)."""
    if not pa.types.is_temporal(kind):
        if kind == pa.float16():
            return pa.array([None if value is None else np.float16(value) for value in stored], kind)
        return pa.array(stored, kind)
    return pa.array(stored, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def by_dict(kind, values, query_kind, queries):
    """The ids, by a dict of comparable values."""
    places = {STORED[kind][1](value): place for place, value in enumerate(values)}

    def of(query):
        if query is None or query != query:
            return MISSING
        if query_kind in FLOATS:
            whole = -(2**63) <= query < 2**63 and query == int(query)
            return places.get(int(query), UNKNOWN) if whole else UNKNOWN
        return places.get(STORED[query_kind][1](query), UNKNOWN)

    return [of(query) for query in queries]


def shaped(array, form, data):
    """The same values as a slice of an array, in chunks, as a dictionary or run-end encoded."""
    if form == "slice":
        around = array.slice(0, data.draw(st.integers(0, len(array))))
        return pa.concat_arrays([around, array, around]).slice(len(around), len(array))
    if form == "chunks":
        cut = data.draw(st.integers(0, len(array)))
        return pa.chunked_array([array.slice(0, cut), array.slice(cut), array.slice(0, 0)], array.type)
    if form == "run_end":
        return pc.run_end_encode(array)
    return array


def encoded(queries, kind, data):
    """A dictionary array of the values: nulls lie in the dictionary or in the indices, and some values are not used."""
    used = list(dict.fromkeys(queries))
    unused = data.draw(st.lists(STORED[kind][0], max_size=3))
    where = {query: place for place, query in enumerate(used)}
    indices = [None if query is None and data.draw(st.booleans()) else where[query] for query in queries]
    index = data.draw(st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.int64()]))
    assume(len(used) + len(unused) < 128)
    return pa.DictionaryArray.from_arrays(pa.array(indices, index), array_of([*used, *unused], kind))


@EACH
@given(kind=st.sampled_from(list(STORED)), data=st.data())
def test_ids_are_those_of_a_dict(kind, data):
    of_kind, comparable = STORED[kind]
    values = data.draw(st.lists(of_kind, max_size=30, unique_by=comparable))
    like = [other for other in [*STORED, *FLOATS] if family(other) == family(kind)]
    query_kind = data.draw(st.sampled_from(like) | st.just(kind))
    asked = FLOATS[query_kind] if query_kind in FLOATS else STORED[query_kind][0]
    queries = data.draw(st.lists(st.none() | asked, max_size=30))
    if query_kind == kind and values:
        queries = queries + data.draw(st.lists(st.sampled_from(values), max_size=30))
    form = data.draw(st.sampled_from(["plain", "slice", "chunks", "run_end", "dictionary"]))
    view = pa.types.is_string_view(query_kind) or pa.types.is_binary_view(query_kind)
    if form == "dictionary" and query_kind not in FLOATS:
        array = encoded(queries, query_kind, data)
        first = data.draw(st.integers(0, len(array)))
        array, queries = array.slice(first), queries[first:]
        assume(not view or len(array.dictionary) <= len(array))  # pyarrow does not decode those
    else:
        array = array_of(queries, query_kind)
        array = array if form == "run_end" and (view or query_kind == pa.float16()) else shaped(array, form, data)
    made = IdTable(shaped(array_of(values, kind), data.draw(st.sampled_from(["plain", "slice"])), data))
    found = made.lookup(array)
    assert found.dtype == np.int64
    assert found.tolist() == by_dict(kind, values, query_kind, queries)
    assert pickle.loads(pickle.dumps(made)).lookup(array).tolist() == found.tolist()


@EACH
@given(kind=st.sampled_from([kind for kind in STORED if "view" not in str(kind)]), data=st.data())
def test_ids_are_those_of_index_in(kind, data):
    of_kind, comparable = STORED[kind]
    values = data.draw(st.lists(of_kind, min_size=1, max_size=30, unique_by=comparable))
    queries = data.draw(st.lists(st.none() | of_kind | st.sampled_from(values), max_size=60))
    array, keys = array_of(queries, kind), array_of(values, kind)
    places = pc.fill_null(pc.index_in(array, value_set=keys), UNKNOWN)
    expected = pc.if_else(pc.is_valid(array), places, MISSING)
    assert IdTable(keys).lookup(array).tolist() == expected.to_pylist()
    dictionary = pc.dictionary_encode(array)
    assert IdTable(keys).lookup(dictionary).tolist() == expected.to_pylist()


def test_many_ints_and_texts_are_those_of_index_in():
    random = np.random.default_rng(0)
    numbers = pa.array(random.permutation(1_000_000) * 3)
    texts = pa.array([f"user-{number}" for number in random.permutation(200_000).tolist()])
    asked = pa.array([f"user-{number}" for number in random.integers(0, 250_000, 20_000).tolist()])
    for values, queries in ((numbers, pa.array(random.integers(0, 3_000_000, 100_000))), (texts, asked)):
        expected = pc.fill_null(pc.index_in(queries, value_set=values), UNKNOWN)
        assert (IdTable(values).lookup(queries) == np.asarray(expected)).all()


def test_one_number_is_one_value_in_all_types():
    made = IdTable(pa.array([5, 2**63, 2**64 - 1, 0], pa.uint64()))
    assert made.lookup(pa.array([5, -1, -(2**63), 0], pa.int64())).tolist() == [0, UNKNOWN, UNKNOWN, 3]
    assert made.lookup(pa.array([2**64 - 1, 2**63], pa.uint64())).tolist() == [2, 1]
    assert made.lookup(pa.array([5.0, -0.0, -1.0, 5.5])).tolist() == [0, 3, UNKNOWN, UNKNOWN]
    assert made.lookup(pa.array([np.nan, None, np.inf, -np.inf, 2.0**63])).tolist() == [MISSING] * 2 + [UNKNOWN] * 3
    signed = IdTable(pa.array([-1, -(2**63)]))
    assert signed.lookup(pa.array([2**64 - 1, 2**63], pa.uint64())).tolist() == [UNKNOWN, UNKNOWN]
    assert signed.lookup(pa.array([-1.0, -(2.0**63)])).tolist() == [0, 1]
    assert IdTable(pa.array([True, False])).lookup(pa.array([0, 1, 2])).tolist() == [1, 0, UNKNOWN]


def test_times_are_compared_by_instant():
    made = IdTable(pa.array([datetime(2024, 1, 1), datetime(2024, 1, 1, 12)], pa.timestamp("us")))
    fine = pa.array([datetime(2024, 1, 1, 12)], pa.timestamp("ns"))
    assert made.lookup(fine).tolist() == [1]
    assert made.lookup(pc.add(fine.cast(pa.int64()), 1).cast(pa.timestamp("ns"))).tolist() == [UNKNOWN]
    assert made.lookup(pa.array([date(2024, 1, 1), date(2024, 1, 2), None])).tolist() == [0, UNKNOWN, MISSING]
    far = pa.array([2**62, -(2**62)]).view(pa.timestamp("s"))  # beyond 64 bits in microseconds
    assert made.lookup(far).tolist() == [UNKNOWN, UNKNOWN]
    berlin = pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("s", "Europe/Berlin"))
    assert IdTable(berlin).lookup(pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("ms", "UTC"))) == [0]
    assert not made.accepts(berlin.type)


@pytest.mark.parametrize(
    ("values", "queries"),
    [
        ([1], ["1"]),
        (["1"], [1]),
        ([b"1"], [1.0]),
        ([1], [datetime(2024, 1, 1)]),
        ([datetime(2024, 1, 1)], [datetime(2024, 1, 1, tzinfo=UTC)]),
        ([timedelta(1)], [1]),
        ([time(1)], [timedelta(hours=1)]),
        ([1], [[1]]),
        ([1], pa.array(["a"]).dictionary_encode()),
    ],
)
def test_what_can_never_be_equal_is_an_error(values, queries):
    made, asked = IdTable(pa.array(values)), queries if isinstance(queries, pa.Array) else pa.array(queries)
    for array in (asked, asked.slice(0, 0), pa.chunked_array([], asked.type)):
        with pytest.raises(UnsupportedTypeError) as caught:
            made.lookup(array)
        assert f"type {asked.type} cannot be among values of type {made.values.type}" in str(caught.value)
    assert not made.accepts(asked.type)
    assert made.accepts(made.values.type)


@pytest.mark.parametrize("array", [pa.nulls(3), pa.nulls(3).dictionary_encode(), pa.nulls(3, pa.int8())])
def test_nulls_of_any_type_are_missing(array):
    made = IdTable(pa.array([1, 2]))
    assert made.lookup(array).tolist() == [MISSING] * 3
    assert made.lookup(array.slice(1, 1)).tolist() == [MISSING]
    assert made.lookup(array.slice(3)).tolist() == []


@pytest.mark.parametrize("values", [[0.5], [[1]], [{"a": 1}], [None]])
def test_values_without_ids(values):
    with pytest.raises(UnsupportedTypeError, match="have no ids: expected text"):
        IdTable(pa.array(values))


@pytest.mark.parametrize("values", [pa.array(["a", None]), pa.array(["a", None]).dictionary_encode()])
def test_null_has_no_id(values):
    with pytest.raises(ValueError, match="a null has no id"):
        IdTable(values)


@pytest.mark.parametrize("values", [["a", "b", "a"], [1, 2, 1], [b"", b""]])
def test_a_value_that_is_there_twice(values):
    made = IdTable(pa.array(values))
    with pytest.raises(ValueError, match=f"the value {values[0]!r} is there twice"):
        made.lookup(pa.array(values))


def test_values_may_be_encoded():
    dictionary = IdTable(pa.array(["b", "a"]).dictionary_encode())
    assert dictionary.lookup(pa.array(["a", "b", "c"])).tolist() == [1, 0, UNKNOWN]
    assert IdTable(pa.array([], pa.string())).lookup(pa.array(["a", None])).tolist() == [UNKNOWN, MISSING]


def test_a_large_dictionary_with_few_rows_is_not_looked_up(monkeypatch):
    asked = []
    real = IdTable.lookup
    monkeypatch.setattr(IdTable, "lookup", lambda self, array: (asked.append(len(array)), real(self, array))[1])
    made = IdTable(pa.array(range(100)))
    large = pa.DictionaryArray.from_arrays(pa.array([7, None, 99]), pa.array(range(1, 101)))
    assert made.lookup(large).tolist() == [8, MISSING, UNKNOWN]
    assert made.lookup(large.dictionary_encode().take(pa.array([0] * 200))).tolist() == [8] * 200
    assert asked == [3, 200, 100]


def test_threads_build_one_table(monkeypatch):
    values = pa.array(np.random.default_rng(0).permutation(200_000))
    made, built = IdTable(values), []
    real = ids.table_of
    monkeypatch.setattr(ids, "table_of", lambda keys: (built.append(len(keys)), real(keys))[1])
    start, found = threading.Barrier(4), [None] * 4

    def look(number):
        start.wait()
        found[number] = made.lookup(values.slice(number * 1000, 1000)).tolist()

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(number * 1000, number * 1000 + 1000)) for number in range(4)]
    assert built == [200_000]


def test_a_pickle_holds_the_values_alone():
    made = IdTable(pa.array(range(10_000)))
    before, size = made.nbytes, len(pickle.dumps(made))
    assert before == 80_000
    made.lookup(pa.array([1]))
    assert made.nbytes >= before + 16 * 10_000
    assert len(pickle.dumps(made)) == size < 81_000
    assert len(pickle.loads(pickle.dumps(made))) == 10_000
