"""Options by column: which key of a dict says what a column gets, and what a dict may hold."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from torch_dataloader_utils import Fill, OptionError
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.options.by_column import leaves, with_leaf

COLUMNS = ("age", "f1", "f12", "x.y")


@pytest.mark.parametrize(
    ("given", "column", "types", "key"),
    [
        ({"*": 0, "f*": 1, "f1": 2, "int64": 3}, "f1", ("int64",), "f1"),
        ({"*": 0, "f*": 1, "f1": 2, "int64": 3}, "f12", ("int64",), "f*"),
        ({"*": 0, "f*": 1, "f1": 2, "int64": 3}, "age", ("int64",), "*"),
        ({"f*": 1, "int64": 3}, "age", ("int64",), "int64"),
        ({"f*": 1, "int64": 3}, "age", ("float32",), None),
        ({"decimal": 1, "float64": 2}, "age", ("decimal", "float64"), "decimal"),
        ({"?1": 1, "f?": 2}, "f1", (), "?1"),  # of equally long patterns the first in the alphabet
        ({"x.*": 1, "[ax]*": 2}, "x.y", (), "[ax]*"),
    ],
)
def test_a_name_counts_before_patterns_and_these_before_types_whatever_their_order(
    given: dict[str, int], column: str, types: tuple[str, ...], key: str | None
) -> None:
    for items in itertools.permutations(given.items()):
        found = leaves("nulls", dict(items), COLUMNS).of(column, types)
        assert found == (None if key is None else (key, given[key]))


def test_one_leaf_is_for_all_columns() -> None:
    assert leaves("nulls", "mask", COLUMNS).of("age") == ("*", "mask")


def test_a_column_called_like_a_pattern_or_a_type_is_the_column() -> None:
    columns = ("f*", "f1", "int64")
    found = leaves("nulls", {"f*": "drop", "int64": "mask"}, columns)
    assert [found.of(name, ("int64",)) for name in columns] == [("f*", "drop"), None, ("int64", "mask")]


@pytest.mark.parametrize(("key", "meant"), [("agee", "'age'"), ("g*", "expected"), ("int46", "'int64'")])
def test_a_key_that_names_nothing_is_an_error(key: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"^nulls names '{key[:1]}.*{meant}"):
        leaves("nulls", {key: "mask"}, COLUMNS)


def test_a_change_of_one_column_keeps_what_is_said_of_others() -> None:
    assert with_leaf("error", "error", "age", "mask") == {"age": "mask"}
    assert with_leaf("drop", "error", "age", "mask") == {"*": "drop", "age": "mask"}
    assert with_leaf({"f*": "drop", "age": "drop"}, "error", "age", "mask") == {"f*": "drop", "age": "mask"}


def test_dicts_with_a_kind_become_values() -> None:
    given = parse_options({"nulls": {"*": "drop", "value": {"kind": "FILL", "value": 0}}}).convert.nulls
    assert given == {"*": "drop", "value": Fill(0)}
    assert parse_options({"nulls": {"*": {"kind": "fill", "value": 0}}}).convert.nulls == Fill(0)


@pytest.mark.parametrize(
    ("nulls", "message"),
    [
        (
            "ignore",
            r"^nulls='ignore': expected 'error', 'mask', 'drop' or Fill\(\.\.\.\), or a dict of these by column",
        ),
        ({"age": 0}, r"^nulls\['age'\]=0: expected 'error'"),
        ({"kind": "fill", "value": 0}, r"^nulls\['kind'\]='fill': expected .* \('\*' is all columns\)"),
        ({3: "mask"}, "whose keys are columns"),
        ({"age": {"kind": "sync"}}, "kind='sync': expected 'fill'"),
        ({"age": {"value": 0}}, r"^nulls\['age'\]={'value': 0}: expected"),
    ],
)
def test_a_dict_is_always_by_column(nulls: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({"nulls": nulls})


@pytest.mark.parametrize("value", [None, {}, {3: 0}])
def test_what_fills_nothing_is_an_error(value: Any) -> None:
    with pytest.raises(OptionError, match=r"expected a value, or a dict of column -> value"):
        Fill(value)
