"""Codes against Python: random values, nulls, dictionaries, slices and chunks, and what cannot be a vocabulary."""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import Codes, Fill
from torch_dataloader_utils.convert import ids
from torch_dataloader_utils.convert.buffers import Origin
from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.errors import ColumnNotFoundError, NullValueError, OptionError, UnknownValueError
from torch_dataloader_utils.options import ConvertOptions

WORDS = st.text(max_size=3)
TYPES = {
    "string": (pa.string(), WORDS),
    "large_string": (pa.large_string(), WORDS),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "fixed_size_binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("abcd")),
    "run_end": (pa.run_end_encoded(pa.int32(), pa.string()), WORDS),
}


def array_of(values, type_):
    if pa.types.is_run_end_encoded(type_):
        return pa.compute.run_end_encode(pa.array(values, pa.string()))
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    return pa.array(values, type_)


def table_of(*chunks, type_=None):
    type_ = type_ or pa.string()
    return pa.table({"c": pa.chunked_array([array_of(chunk, type_) for chunk in chunks], type_)})


def converter(table, learn=None, **options):
    made = build_converter(table.schema, ConvertOptions(**{"strings": "codes", **options}), "torch")
    return made if learn is None else made.learned({"c": made.codes["c"].distinct(learn.column("c").chunks)})


def codes(made, table):
    return made.convert(table, False, "the file")["c"].array


@settings(max_examples=150)
@given(kind=st.sampled_from(sorted(TYPES)), encode=st.booleans(), data=st.data())
def test_codes_are_places_in_the_sorted_distinct_values(kind, encode, data):
    type_, values = TYPES[kind]
    chunks = data.draw(st.lists(st.lists(st.none() | values, max_size=8), min_size=1, max_size=3))
    table = table_of(*chunks, type_=type_)
    first = data.draw(st.integers(0, table.num_rows))
    table = table.slice(first)
    flat = table["c"].to_pylist() if kind != "run_end" else [v for chunk in chunks for v in chunk][first:]
    made = converter(table, learn=table, nulls="mask")
    if encode and kind in ("string", "large_string", "binary"):  # as a reader that is asked for dictionaries
        table = table.set_column(0, "c", table["c"].dictionary_encode())
        made = made.encoded({"c": table.schema.field(0).type})
    found = pickle.loads(pickle.dumps(made)).convert(table, False, "the file")
    vocabulary = sorted({value for value in flat if value is not None})
    assert made.vocabulary("c") == vocabulary
    assert found["c"].array.dtype == np.int64
    assert found["c_valid"].array.tolist() == [value is not None for value in flat]
    assert found["c"].array.tolist() == [0 if value is None else vocabulary.index(value) for value in flat]


def test_a_null_within_a_dictionary_is_a_null():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array(["b", None, "a"]))
    table = pa.table({"c": column})
    made = converter(table, learn=table, nulls="mask")
    found = made.convert(table, False, "the file")
    assert made.vocabulary("c") == ["a", "b"]
    assert found["c_valid"].array.tolist() == [True, False, False, True]
    assert found["c"].array[[0, 3]].tolist() == [1, 0]


def test_values_that_only_the_dictionary_has_are_no_error():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["a", "never used"]))
    table = pa.table({"c": column})
    assert codes(converter(table, strings=Codes({"c": ["a"]})), table).tolist() == [0, 0]


def test_a_given_vocabulary_keeps_its_order():
    table = table_of(["low", "high"], ["mid"])
    made = converter(table, strings=Codes({"c": ["low", "mid", "high"]}))
    assert not made.unlearned
    assert codes(made, table).tolist() == [0, 2, 1]
    assert made.vocabulary("c") == ["low", "mid", "high"]


@pytest.mark.parametrize("encode", [False, True])
def test_unknown_value(encode):
    table = table_of(["a", None], ["b", "zebra"])
    made = converter(table, nulls="mask", strings=Codes({"c": ["a", "b"]}))
    if encode:
        table = table.set_column(0, "c", table["c"].dictionary_encode())
        made = made.encoded({"c": table.schema.field(0).type})
    with pytest.raises(UnknownValueError, match=r"column 'c' has the value 'zebra' in the file, at row 3"):
        codes(made, table)


def test_nulls_follow_the_policy_of_ints():
    table = table_of(["b", None, "a"])
    with pytest.raises(NullValueError, match=r"column 'c' has a null in the file, at row 1"):
        codes(converter(table, learn=table), table)
    assert converter(table).null_error_columns == {"c"}
    keep = converter(table, nulls="drop").null_mask(table)
    assert keep.to_pylist() == [True, False, True]
    # A fill value is a code ...
    filled = converter(table, learn=table, nulls=Fill({"c": -1}))
    assert codes(filled, table).tolist() == [1, -1, 0]
    # ... or a value, which then is in the vocabulary.
    filled = converter(table, learn=table, nulls=Fill({"c": "aa"}))
    assert filled.vocabulary("c") == ["a", "aa", "b"]
    assert codes(filled, table).tolist() == [2, 1, 0]
    given = converter(table, nulls=Fill({"c": "b"}), strings=Codes({"c": ["b", "a"]}))
    assert codes(given, table).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strings": Codes({"c": ["a", "a"]})}, "'a' more than once"),
        ({"strings": Codes({"c": ["a", None]})}, "holds a null"),
        ({"strings": Codes({"c": ["a", 3]})}, "expected values of type string"),
        ({"strings": {"c": {"kind": "codes", "values": "abc"}}}, "expected a list of values"),
        ({"strings": {"c": {"kind": "codes", "values": {"a", "b"}}}}, "expected a list of values"),
        ({"strings": {"c": {"kind": "codes", "values": {}}}}, "expected a dict of column"),
        ({"strings": {"c": {"kind": "codes", "unknown": 0.5}}}, "expected a whole number"),
        ({"strings": Codes({"nope": ["a"]})}, "Codes names 'nope'"),
        ({"strings": Codes({"n": ["a"]})}, r"Codes\(\[...\]\) for column 'n': expected values of type int64"),
        ({"strings": {"*": Codes({"c": ["a"]}), "c": "list"}}, "Codes names 'c' of type string, which has no codes"),
        ({"nulls": Fill({"c": 1.5})}, r"expected a value \(str\), or a code"),
        ({"nulls": Fill({"c": True})}, r"expected a value \(str\), or a code"),
        ({"nulls": Fill({"c": "z"}), "strings": Codes({"c": ["a"]})}, "has no such value"),
        ({"dtypes": {"c": "float32"}}, "expected a column of numbers"),
        ({"strings": {"n": "bytes"}}, "strings names 'n' of type int64: expected a column of strings or bytes"),
    ],
)
def test_what_cannot_be(options, words):
    schema = pa.schema({"c": pa.string(), "n": pa.int64()})
    with pytest.raises(OptionError, match=words):
        build_converter(schema, ConvertOptions(**{"strings": "codes", **options}), "torch")


def test_codes_of_some_columns_and_fields():
    table = pa.table({"a": ["x"], "b": ["y"], "s": [{"t": "z"}]})
    made = build_converter(table.schema, ConvertOptions(strings={"a": "codes", "s.t": "codes"}), "torch")
    assert [plan.key for plan in made.unlearned] == ["a", "s.t"]
    made = made.learned({"a": pa.array(["x"]), "s.t": pa.array(["w", "z"])})
    found = made.convert(table, False, "the file")
    assert found["a"].array.tolist() == [0]
    assert found["b"].to_list() == ["y"]
    assert found["s.t"].array.tolist() == [1]
    with pytest.raises(ColumnNotFoundError, match=r"'b' has no codes: expected one of \['a', 's.t'\]"):
        made.vocabulary("b")
    assert made.report()["s.t"] == {
        "arrow": "string", "kind": "dense", "dtype": "int64", "shape": "[B]", "codes": 2, "nulls": "error",
    }  # fmt: skip


def test_codes_stack():
    table = pa.table({"a": ["x", "y"], "b": ["q", "p"]})
    made = build_converter(table.schema, ConvertOptions(strings="codes", stack={"cat": ["a", "b"]}), "torch")
    made = made.learned({"a": table["a"].combine_chunks(), "b": table["b"].combine_chunks()})
    assert made.convert(table, False, "the file")["cat"].array.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("form", ["arrow", "dict"])
def test_arrow_output_has_no_codes(form):
    schema = pa.schema({"c": pa.string()})
    made = build_converter(schema, ConvertOptions(strings=Codes({"c": ["a"]})), form)
    assert not made.codes
    assert not made.unlearned


def test_codes_are_memory_of_their_own():
    table = table_of(["a", "b"])
    made = converter(table, learn=table)
    one, other = codes(made, table), codes(made, table)
    one[:] = 7
    assert other.tolist() == [0, 1]
    assert one.flags.writeable
    assert replace(made) == made


NUMBERED = pa.table({"c": ["a", "b", None], "n": pa.array([30, 10, None], pa.int16()), "f": [0.5, None, 1.5]})


def test_whole_numbers_have_codes_if_they_are_named():
    def coded(strings):
        return set(build_converter(NUMBERED.schema, ConvertOptions(strings=strings), "torch").codes)

    assert coded("codes") == coded({"*": "codes"}) == coded({"string": "codes"}) == {"c"}
    assert coded({"n": "codes"}) == coded({"int16": Codes()}) == coded({"n*": "codes"}) == {"n"}
    assert coded(Codes({"n": [10, 30]})) == {"c", "n"}
    assert coded({"f*": "codes", "n": Codes([1])}) == {"n"}


def test_codes_of_whole_numbers():
    def made(nulls, strings="codes"):
        options = ConvertOptions(strings={"n": strings}, nulls={"n": nulls})
        found = build_converter(NUMBERED.schema, options, "torch")
        learned = {key: leaf.distinct(NUMBERED[key].chunks) for key, leaf in found.codes.items() if found.unlearned}
        return found.learned(learned)

    learned = made("mask")
    assert learned.vocabularies == {"n": [10, 30]}
    found = learned.convert(NUMBERED, False, "the file")
    assert found["n"].array.tolist() == [1, 0, 0]
    assert found["n_valid"].array.tolist() == [True, True, False]
    filled = made(Fill(20))  # a value, not a code
    assert filled.vocabulary("n") == [10, 20, 30]
    assert filled.convert(NUMBERED, False, "the file")["n"].array.tolist() == [2, 0, 1]
    given = made("mask", Codes([30, 20], unknown=-1)).convert(NUMBERED, False, "the file")
    assert given["n"].array.tolist() == [0, -1, 0]
    with pytest.raises(OptionError, match=r"Fill\(0.5\) for column 'n': expected a value \(int\)\."):
        made(Fill(0.5))


@pytest.mark.parametrize("encode", [False, True])
def test_a_code_for_unknown_values(encode):
    table = table_of(["a", None], ["b", "zebra"])
    made = converter(table, nulls=Fill(9), strings=Codes({"c": ["b", "a"]}, unknown=-1))
    if encode:
        table = table.set_column(0, "c", table["c"].dictionary_encode())
        made = made.encoded({"c": table.schema.field(0).type})
    assert codes(made, table).tolist() == [1, 9, 0, -1]


def test_one_list_is_the_vocabulary_of_all_columns_and_a_dict_of_those_it_names():
    schema = pa.schema({"a": pa.string(), "b": pa.binary(), "d": pa.string()})

    def known(strings):
        made = build_converter(schema, ConvertOptions(strings=strings), "torch")
        return {
            key: leaf.vocabulary if leaf.vocabulary is None else len(leaf.vocabulary)
            for key, leaf in made.codes.items()
        }

    assert known(Codes(["x", "y"])) == {"a": 2, "b": 2, "d": 2}
    assert known(Codes({"a": ["x"], "?": ["x", "y"]})) == {"a": 1, "b": 2, "d": 2}
    assert known(Codes({"a": ["x"]})) == {"a": 1, "b": None, "d": None}
    assert known({"*": "codes", "a": Codes(["x"]), "binary": "list"}) == {"a": 1, "b": None, "d": None}
    assert known({"string": "codes"}) == {"a": None, "d": None}


def test_a_vocabulary_has_one_table_for_all_blocks_and_copies(monkeypatch):
    built = []
    real = ids.table_of
    monkeypatch.setattr(ids, "table_of", lambda keys: (built.append(keys), real(keys))[1])
    table = table_of(["b", "a"], ["c", None])
    made = converter(table, learn=table, nulls=Fill({"c": "b"}))
    for _ in range(3):
        assert codes(made, table).tolist() == [1, 0, 2, 1]
    encoded = table.set_column(0, "c", table["c"].dictionary_encode())
    assert codes(made.encoded({"c": encoded.schema.field(0).type}), encoded).tolist() == [1, 0, 2, 1]
    assert len(built) == 1
    other = made.learned({"c": pa.array(["a", "b", "bb", "c"])})
    assert codes(other, table).tolist() == [1, 0, 3, 1]


def test_a_pickled_leaf_holds_its_vocabulary_once():
    words = pa.table({"c": [f"word {number}" for number in range(10_000)]})
    leaf = converter(words, learn=words).codes["c"]
    size = len(pickle.dumps(leaf))
    leaf.convert(words["c"].chunks, Origin(False, frozenset(), "the file"))
    assert len(pickle.dumps(leaf)) == size < 1.1 * len(pickle.dumps(leaf.vocabulary))
    again = pickle.loads(pickle.dumps(leaf))
    assert again == leaf
    assert again.ids.values is again.vocabulary
