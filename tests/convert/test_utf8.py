"""Which strings are found not to be UTF-8, in columns of every nesting."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.convert.utf8 import check_utf8
from torch_dataloader_utils.errors import FileReadError


def strings(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """The values as strings, whatever their bytes are."""
    stored = pa.array(values, pa.binary() if kind == pa.string() else pa.large_binary())
    return pa.Array.from_buffers(kind, len(stored), stored.buffers(), stored.null_count)


def is_utf8(value: bytes | None) -> bool:
    try:
        return bool((value or b"").decode()) or True
    except UnicodeDecodeError:
        return False


def nested(array: pa.Array, how: str) -> pa.Array:
    if how == "list":
        return pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array)
    if how == "struct":
        return pa.StructArray.from_arrays([pa.nulls(len(array), pa.int8()), array], ["x", "s"])
    return array


@given(
    values=st.lists(st.none() | st.sampled_from([b"", b"abc", b"\x7f", "é№".encode(), b"\xff", b"a\xc3"])),
    kind=st.sampled_from([pa.string(), pa.large_string()]),
    how=st.sampled_from(["plain", "list", "struct"]),
    start=st.integers(0, 3),
    stop=st.integers(0, 12),
)
def test_the_first_string_that_is_not_utf8_is_named(
    values: list[bytes | None], kind: pa.DataType, how: str, start: int, stop: int
) -> None:
    rows = nested(strings(values, kind), how)[start:stop]
    bad = next((row for row, value in enumerate(values[start:stop]) if not is_utf8(value)), None)
    column = pa.chunked_array([rows], rows.type)
    if bad is None and (how == "plain" or all(map(is_utf8, values))):
        check_utf8("s", column, "f")
    elif bad is not None:
        with pytest.raises(FileReadError, match=f"column 's' has a string .* in f, at row {bad} "):
            check_utf8("s", column, "f")
