import fnmatch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import ColumnNotFoundError
from torch_dataloader_utils.schemas.columns import named_columns

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "f1": pa.float32(),
        "f0": pa.float32(),
        "s": pa.struct({"x": pa.int32(), "deep": pa.struct({"fx": pa.int8(), "y": pa.int8()})}),
        "f*": pa.int8(),
        "[a]": pa.int8(),
        "label": pa.int64(),
    }
)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["*"], SCHEMA.names),
        (["f?", "label"], ["f1", "f0", "f*", "label"]),
        (["label", "f[01]"], ["label", "f1", "f0"]),
        (["f0", "f?"], ["f0", "f1", "f*"]),
        (["?d", "*"], ["id", "f1", "f0", "s", "f*", "[a]", "label"]),
        (["lab*", "*", "label"], ["label", "id", "f1", "f0", "s", "f*", "[a]"]),
        (["f*"], ["f*"]),  # it is a column
        (["[a]"], ["[a]"]),
        (["s"], ["s"]),
        (["s*"], ["s"]),
        (["s.*"], ["s.x", "s.deep"]),
        (["*.deep.*"], ["s.deep.fx", "s.deep.y"]),
        (["s.deep.y", "s*"], ["s.deep.y", "s.x", "s.deep.fx"]),
        (["s.x", "*"], ["s.x", "id", "f1", "f0", "s.deep", "f*", "[a]", "label"]),
        (["id", "gone"], ["id", "gone"]),  # whether names exist is for others to say
    ],
)
def test_patterns_become_names(columns: list[str], expected: list[str]) -> None:
    assert named_columns(SCHEMA, columns) == expected


@pytest.mark.parametrize("pattern", ["g*", "ID*", "s.z*", "labe?s"])
def test_a_pattern_that_matches_nothing_is_an_error_with_the_nearest_name(pattern: str) -> None:
    message = r"no column matches '.*': .*The columns are id, f1, f0, s, f\*"
    with pytest.raises(ColumnNotFoundError, match=message) as caught:
        named_columns(SCHEMA, ["id", pattern])
    assert ("did you mean 'label'?" in str(caught.value)) == (pattern == "labe?s")


WORDS = st.text("ab?*", min_size=1, max_size=3)


@given(names=st.lists(st.text("ab", min_size=1, max_size=3), unique=True), patterns=st.lists(WORDS, unique=True))
def test_columns_come_once_by_the_first_entry_that_names_them(names: list[str], patterns: list[str]) -> None:
    schema = pa.schema([(name, pa.int8()) for name in names])
    patterns = [pattern for pattern in patterns if fnmatch.filter(names, pattern)]
    expected = dict.fromkeys(name for pattern in patterns for name in names if fnmatch.fnmatchcase(name, pattern))
    assert named_columns(schema, patterns) == list(expected)
