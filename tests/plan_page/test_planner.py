"""The page's planner gives each row to the same rank and worker as Python's, in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plan_page import vectors
from tests.plan_page.plans import cut, page_data, planned, planner_page, random_case
from tests.planning.helpers import data_files, split_of
from torch_dataloader_utils.planning.splits import Splits

FILES = data_files([[5, 5], [5, 5]])
LISTS = cut(FILES, 50, 50)
DATA = page_data(FILES, LISTS, 42)


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    page = planner_page(browser)
    yield page
    page.close()


@pytest.fixture(scope="module")
def plans(page: Any) -> Any:
    """A function from [(data, options)] to the plans of the page's planner."""
    return lambda cases: json.loads(page.evaluate("(text) => plans(text)", json.dumps(cases)))


def test_vectors_are_what_python_plans_now():
    assert vectors.PATH.read_text() == vectors.written(), "write them again: python -m tests.plan_page.vectors"


def test_vectors_are_what_the_page_plans(plans):
    for of_dataset in json.loads(vectors.PATH.read_text()):
        cases = of_dataset["cases"]
        found = plans([(of_dataset["data"], case["options"]) for case in cases])
        for case, plan in zip(cases, found, strict=True):
            assert plan == case["plan"], case["options"]


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_plans_are_those_of_python(plans, first):
    cases = [random_case(number) for number in range(first, first + 100)]
    inputs = [
        (page_data(files, lists, given["shuffle_seed"], exact=exact), given) for files, lists, given, exact in cases
    ]
    expected = [planned(files, lists, given, exact=exact) for files, lists, given, exact in cases]
    for number, (plan, other) in enumerate(zip(plans(inputs), expected, strict=True)):
        assert plan == other, f"case {first + number}: {cases[number][2]}"
    assert sum("ranks" in plan for plan in expected) > 60  # most are plans, not errors


def test_row_numbers_are_exact_up_to_those_of_javascript(plans):
    files = data_files([[2**51 + 1, 2**51 - 9]])
    cases = [{"num_ranks": ranks, "epoch": 0, "sharding": "contiguous", "batch_size": 2**40} for ranks in range(2, 14)]
    lists = cut(files, 50, 50)
    found = plans([(page_data(files, lists, 42), options) for options in cases])
    assert found == [planned(files, lists, options) for options in cases]


def test_splits_that_a_strategy_cuts_anywhere_have_windows_as_in_python(plans):
    """Such splits hold parts of segments, which windows count as whole."""
    files = data_files([[4, 5, 6], [7, 8]])
    rows = [(0, 0, 6), (0, 6, 7), (0, 7, 15), (1, 0, 10), (1, 10, 15)]
    splits = Splits.of([split_of(files[file], start, stop) for file, start, stop in rows], files)
    given = [{"window_bytes": size} for size in (50, 100, 200)] + [{"window_rows": 4}, {"shuffle": "all"}]
    cases = [{"num_ranks": 1, "epoch": 0, "shuffle": True, "batch_size": 2, **each} for each in given]
    found = plans([(page_data(files, (splits, splits), 42), options) for options in cases])
    assert found == [planned(files, (splits, splits), options) for options in cases]


WRONG = (
    {"sharding": "rotate", "total_shards": 3},
    {"sharding": "strided", "unit": "split_batch", "batch_size": 3},
    {"steps_per_epoch": 3, "even": "drop"},
    {"steps_per_epoch": 3, "last_batch": "pad"},
    {"last_batch": "pad", "even": "drop"},
    {"num_ranks": 0},
    {"batch_size": 0},
    {"even": "drop", "batch_size": 50},
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_options_that_python_refuses_are_errors_with_its_words(plans, wrong):
    options = {"num_ranks": 2, "batch_size": 4, "epoch": 0, **wrong}
    expected = planned(FILES, LISTS, options)
    assert "ranks" not in expected
    assert plans([(DATA, options)]) == [expected]


def test_files_without_a_row_are_an_error_with_pythons_words(plans):
    empty, options = data_files([[0], [0]]), {"num_ranks": 2, "epoch": 0}
    lists = cut(empty, 50, 50)
    assert plans([(page_data(empty, lists, 42), options)]) == [planned(empty, lists, options)]


@pytest.mark.parametrize(
    ("data", "options", "reason"),
    [
        ({}, {}, None),
        ({}, {"sharding": "my_policy"}, "sharding='my_policy' is a rule that only Python has"),
        ({}, {"sharding": None}, "sharding=None is a rule that only Python has"),
        ({}, {"canonical_ranks": 4}, "canonical_ranks shards for virtual ranks"),
        ({"seed": 2**53}, {}, "the seed is too large for JavaScript's numbers"),
        ({"fixed": {"reason": "a strategy makes the shards"}}, {}, "a strategy makes the shards"),
    ],
)
def test_what_only_python_plans_is_refused(page, plans, data, options, reason):
    given = {**DATA, **data}
    assert page.evaluate("([data, options]) => Planner.supported(options, data)", [given, options]) == reason
    plan = plans([(given, options)])[0]
    assert plan.get("error") == reason


def test_options_of_the_data_are_those_of_the_plan_unless_others_are_given(plans):
    data = {**DATA, "options": {"num_ranks": 4, "batch_size": 5}}
    found = plans([(data, {}), (data, {"num_ranks": 2})])
    assert [len(plan["ranks"]) for plan in found] == [4, 2]
    assert [plan["ranks"][0]["steps"] for plan in found] == [1, 2]


def test_windows_say_whether_segments_were_known(plans):
    columns = {name: value for name, value in DATA["splits"]["shuffled"].items() if name != "segments"}
    data = {**DATA, "splits": {"unshuffled": columns, "shuffled": columns}}
    found = plans([(each, {"shuffle": True}) for each in (DATA, data)])
    assert [plan["windows"]["exact"] for plan in found] == [True, False]
