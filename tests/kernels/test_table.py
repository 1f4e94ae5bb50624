"""Places of keys by the compiled table, numpy and Arrow, as a Python dict has them; and keys that share hashes."""

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.kernels import table
from torch_dataloader_utils.kernels.table import ByteKeys, Keys, KeyTable, SlotTable, table_of

EACH = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
WORDS = (
    st.binary(max_size=20) | st.binary(max_size=2) | st.sampled_from([b"a" * 300, b"a" * 299 + b"b", b"\0", b"\0\0"])
)


@pytest.fixture(autouse=True, params=["compiled", "numpy", "arrow"])
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of the compiled library; without it, those of many keys, then those of few."""
    if request.param == "compiled" and table.library() is None:
        pytest.skip("there was no C compiler when the package was installed")
    if request.param != "compiled":
        monkeypatch.setattr(table, "library", lambda: None)
        monkeypatch.setattr(table, "_FEW", {"numpy": 0, "arrow": 10**6}[request.param])


def keys_of(values: Sequence[int] | Sequence[bytes], kind: str, before: bytes = b"") -> Keys:
    if kind == "ints":
        return np.array(values, np.int64)
    offsets = np.cumsum([len(before), *map(len, values)]).astype(kind)
    return ByteKeys(np.frombuffer(before + b"".join(values) + b"after", np.uint8), offsets)


def as_dict(values: Sequence[object], queries: Sequence[object]) -> list[int]:
    places = {value: place for place, value in enumerate(values)}
    return [places.get(query, -1) for query in queries]


@EACH
@given(st.lists(NUMBERS, max_size=200, unique=True), st.lists(NUMBERS, max_size=200), st.data())
def test_places_of_ints(values: list[int], queries: list[int], data: st.DataObject) -> None:
    if values:
        queries = queries + data.draw(st.lists(st.sampled_from(values), max_size=200))
    made = table_of(keys_of(values, "ints"))
    assert made.duplicate is None
    assert made.places_of(keys_of(queries, "ints")).tolist() == as_dict(values, queries)


@EACH
@given(
    st.lists(WORDS, max_size=150, unique=True),
    st.lists(WORDS, max_size=150),
    st.sampled_from(["int32", "int64"]),
    st.sampled_from(["int32", "int64"]),
    st.binary(max_size=9),
    st.data(),
)
def test_places_of_bytes(
    values: list[bytes], queries: list[bytes], kind: str, asked: str, before: bytes, data: st.DataObject
) -> None:
    if values:
        queries = queries + data.draw(st.lists(st.sampled_from(values), max_size=150))
    made = table_of(keys_of(values, kind, before))
    assert made.duplicate is None
    assert made.places_of(keys_of(queries, asked, before)).tolist() == as_dict(values, queries)


@EACH
@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from(["ints", "int32", "int64"]))
def test_the_first_key_that_was_there_before(values: list[int], kind: str) -> None:
    keys: list[int] | list[bytes] = values if kind == "ints" else [b"%d" % value for value in values]
    duplicates = [place for place, value in enumerate(values) if value in values[:place]]
    assert table_of(keys_of(keys, kind)).duplicate == (duplicates[0] if duplicates else None)


def test_many_keys_and_a_far_duplicate() -> None:
    values = np.random.default_rng(0).permutation(300_000).astype(np.int64) * 7
    queries = np.random.default_rng(1).integers(0, 300_000 * 7, 100_000)
    places = np.empty(300_000, np.int64)
    places[values // 7] = np.arange(300_000)
    expected = np.where(queries % 7 == 0, places[queries // 7], -1)
    assert (table_of(values).places_of(queries) == expected).all()
    assert table_of(np.append(values, values[5])).duplicate == 300_000


FACTOR = 0xD6E8FEB86659FD93


def unmixed(h: int) -> int:
    """The number that table.c's `mixed` makes `h` of."""
    for _ in range(2):
        h = ((h ^ (h >> 32)) * pow(FACTOR, -1, 2**64)) % 2**64
    return h ^ (h >> 32)


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def tags(made: KeyTable) -> list[int]:
    """The halves of hashes that the slots of a compiled table hold."""
    assert isinstance(made, SlotTable)
    slots = made._slots
    return (slots[slots > 0] >> np.uint64(32)).tolist()


def test_ints_of_one_tag_or_place() -> None:
    """Of the compiled table: keys in one place, so that probing goes beyond the end, and neighbours of one tag."""
    of_tag = [signed(unmixed((place << 32) + 5)) for place in range(2**32 - 40, 2**32)]
    of_place = [signed(unmixed((2**32 - 1 << 32) + tag)) for tag in range(40)]
    values = list(dict.fromkeys(of_tag + of_place))
    missing = [signed(unmixed((2**32 - 1 << 32) + tag)) for tag in range(40, 60)]
    missing += [signed(unmixed((place << 32) + 5)) for place in range(40)]
    made = table_of(np.array(values))
    assert made.places_of(np.array(values)).tolist() == list(range(len(values)))
    assert (made.places_of(np.array(missing)) == -1).all()
    if table.library() is not None:
        assert sorted(tags(made)) == sorted([5] * 39 + list(range(40)))


def test_texts_that_share_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numpy: all texts have one of three hashes."""
    values = [b"%d" % number for number in range(50)]
    real = table.value_hashes
    monkeypatch.setattr(table, "value_hashes", lambda data, offsets: real(data, offsets) % np.uint64(3))
    made = table_of(keys_of(values, "int32"))
    queries = [*values[::-1], b"x", b"50", b""]
    assert made.duplicate is None
    assert made.places_of(keys_of(queries, "int64")).tolist() == as_dict(values, queries)
    assert table_of(keys_of([*values, b"7", b"3"], "int32")).duplicate == 50


def test_texts_of_one_tag() -> None:
    """Of the compiled table: texts of 8 bytes whose hashes have one tag and lie side by side."""
    back = pow(FACTOR, -1, 2**64)

    def text(h: int) -> bytes:
        step = unmixed(h)
        step ^= step >> 32
        return ((step * back) % 2**64 ^ (8 * FACTOR) % 2**64).to_bytes(8, "little")

    values = [text((place << 32) + 9) for place in range(30)]
    made = table_of(keys_of(values, "int64"))
    queries = values + [text((place << 32) + 9) for place in range(30, 60)]
    assert made.places_of(keys_of(queries, "int64")).tolist() == as_dict(values, queries)
    if table.library() is not None:
        assert tags(made) == [9] * 30


def test_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_MOST", 2)
    with pytest.raises(ValueError, match="a table has room for 2 keys: got 3"):
        table_of(np.arange(3))


def test_memory_is_what_it_says() -> None:
    keys = np.arange(100_000)
    table_of(np.arange(3))
    tracemalloc.start()
    made = table_of(keys)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    held = 0 if isinstance(made, table.SortedInts) else keys.nbytes  # they were there before
    assert made.nbytes - held == pytest.approx(used, rel=0.05, abs=5_000)
