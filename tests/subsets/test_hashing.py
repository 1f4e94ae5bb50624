"""The hashes behind subsets are frozen: another value moves rows between train and test."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import Sample, Subsets
from torch_dataloader_utils.hashing import name_hash, number_hash, number_hashes
from torch_dataloader_utils.options import SubsetOptions
from torch_dataloader_utils.schemas.value_hashes import key_hashes
from torch_dataloader_utils.subsets.choice import bounds, choice_of


def hashes(values: list[Any], kind: pa.DataType | None = None) -> list[int]:
    return list(map(int, key_hashes([pa.chunked_array([pa.array(values, kind)])])))


def test_hashes_are_frozen() -> None:
    assert name_hash("day=1/part-0.parquet") == GOLDEN["name"]
    assert [number_hash(7, row) for row in (0, 1, 2**40)] == GOLDEN["rows"]
    assert hashes([0, 1, -1, None], pa.int64()) == GOLDEN["numbers"]
    assert hashes([0, 1_700_000_000_001, -1, None], pa.timestamp("ms")) == GOLDEN["times"]
    assert hashes(["", "a", "eight by", "nine byte", "x" * 256, "x" * 257]) == GOLDEN["strings"]
    two = key_hashes([pa.chunked_array([["a", "b"]]), pa.chunked_array([[1, 2]])])
    assert two.tolist() == GOLDEN["two columns"]
    choice = choice_of(SubsetOptions(subset=Subsets({"train": 0.8, "test": 0.2})["test"], fraction=Sample(0.5)))
    assert choice is not None
    chosen = np.concatenate(list(choice.rows(name_hash("f"), 0, 40)))
    assert np.flatnonzero(chosen).tolist() == GOLDEN["chosen"]


def test_rows_hash_alike_wherever_a_read_begins() -> None:
    whole = np.concatenate(list(number_hashes(5, 0, 40_000)))
    assert np.concatenate(list(number_hashes(5, 17_001, 20_000))).tolist() == whole[17_001:37_001].tolist()
    assert len(set(whole.tolist())) == 40_000


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_a_number_has_one_hash_in_all_widths(kind: pa.DataType) -> None:
    assert hashes([0, 5, 127], kind) == hashes([0, 5, 127], pa.int64())


class Identifier(pa.ExtensionType):  # type: ignore[misc]
    """As `pa.uuid()`, which the oldest supported version does not have."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "test.identifier")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_a_time_has_one_hash_in_all_units() -> None:
    seconds = [0, -1, 1_700_000_000, None]
    expected = hashes(seconds, pa.timestamp("s"))
    for unit, factor in (("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        assert hashes([s if s is None else s * factor for s in seconds], pa.timestamp(unit, "UTC")) == expected
    days = [0, 19_000, -7, None]
    assert hashes(days, pa.date32()) == hashes([d if d is None else d * 86_400 for d in days], pa.timestamp("s"))
    assert hashes(days, pa.date32()) == hashes([d if d is None else d * 86_400_000 for d in days], pa.date64())
    assert len(set(hashes([0, 1, 999, 1000, -1], pa.timestamp("ms")))) == 5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.none() | st.integers(-5, 5), max_size=20), st.integers(0, 3))
def test_dictionaries_and_extension_types_hash_as_their_values(values: list[int | None], cut: int) -> None:
    expected = hashes(values, pa.int64())
    encoded = pa.array(values, pa.int64()).dictionary_encode().slice(cut)
    assert key_hashes([pa.chunked_array([encoded])]).tolist() == expected[cut:]
    nulls_inside = pa.DictionaryArray.from_arrays([1, 0, None], pa.array([None, 7]))
    assert key_hashes([pa.chunked_array([nulls_inside])]).tolist() == hashes([7, None, None])
    identifiers = [None if value is None else bytes(15) + bytes([value + 5]) for value in values]
    stored = pa.array(identifiers, pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(Identifier(), stored)
    assert key_hashes([pa.chunked_array([uuids])]).tolist() == hashes(identifiers, pa.binary())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.text(max_size=20) | st.text(min_size=250, max_size=270), max_size=20), st.integers(0, 5))
def test_a_string_has_one_hash_in_all_forms(values: list[str | None], cut: int) -> None:
    expected = hashes(values, pa.string())
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()):
        assert hashes(values, kind) == expected
    assert hashes([v if v is None else v.encode() for v in values], pa.binary()) == expected
    sliced = pa.chunked_array([pa.array(values, pa.string()).slice(cut)])
    assert key_hashes([sliced]).tolist() == expected[cut:]
    assert [hashes([value], pa.string())[0] for value in values] == expected
    assert len(set(expected)) == len(set(values))


def test_values_that_differ_at_their_end_have_different_hashes() -> None:
    long = "x" * 100_000
    assert len(set(hashes([f"{long}a", f"{long}b", f"{long[:200]}a", f"{long[:200]}b", "\0", "\0\0", ""]))) == 7


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 10**6) | st.floats(1e-6, 1e6), min_size=1, max_size=6), st.integers(0, 2**64 - 1))
def test_each_hash_lies_in_one_subset_whatever_the_weights(weights: list[float], value: int) -> None:
    subsets = {f"s{i}": weight for i, weight in enumerate(weights)}
    ends = list(bounds(subsets).values())
    assert (ends[0][0], ends[-1][1]) == (0, 2**64)
    assert [low for low, _ in ends[1:]] == [high for _, high in ends[:-1]]
    chosen = [choice_of(SubsetOptions(subset=Subsets(subsets)[name])) for name in subsets]
    assert sum(choice is not None and choice.holds_one(value) for choice in chosen) == 1


def test_weights_are_taken_as_written() -> None:
    tenths = bounds({"train": 0.8, "val": 0.1, "test": 0.1})
    assert tenths == bounds({"train": 8, "val": 1, "test": 1})
    numbers: dict[str, Any] = {"train": np.float64(0.8), "val": np.int64(1)}
    assert repr(Subsets(numbers).shares) == "{'train': 0.8, 'val': 1}"


def test_samples_are_nested_and_as_large_as_their_fraction() -> None:
    chosen = []
    for fraction in (0.1, 0.2, 0.5, 1.0):
        choice = choice_of(SubsetOptions(fraction=Sample(fraction)))
        assert choice is not None
        chosen.append(np.concatenate(list(choice.rows(1, 0, 20_000))))
        assert abs(chosen[-1].mean() - fraction) < 0.02
    assert all((larger | ~smaller).all() for smaller, larger in pairwise(chosen))


GOLDEN: dict[str, Any] = {
    "name": 11526218294879169117,
    "rows": [7191089600892374487, 309689372594955804, 11363145223830680844],
    "numbers": [16126566999035412047, 3116403756688401934, 3543484251391184349, 4053271446782833558],
    "strings": [
        13020678536306280522,
        7548728186901126933,
        13979234445460492922,
        10969551079018979163,
        10072773989576032077,
        2328720698812936113,
    ],
    "times": [18094831896353260394, 1378598039906362977, 4642540720770457971, 4053271446782833558],
    "two columns": [6751538639526580475, 1152636924993336208],
    "chosen": [0, 6, 9, 12, 23, 26, 27],
}
