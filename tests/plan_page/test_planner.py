"""The page's planner gives every row to the same rank and worker as Python's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plan_page.plans import page_data, planned, planner_page, random_case


@pytest.fixture(scope="module")
def plans(browser: Any) -> Iterator[Any]:
    """A function from [(data, options)] to the plans of the page's planner."""
    page = planner_page(browser)
    yield lambda cases: json.loads(page.evaluate("(text) => plans(text)", json.dumps(cases)))
    page.close()


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_plans_are_those_of_python(plans, first):
    cases = [random_case(number) for number in range(first, first + 100)]
    inputs = [
        (page_data(files, limits, options["shuffle_seed"], exact=exact), options)
        for files, limits, options, exact in cases
    ]
    found = plans(inputs)
    expected = [planned(files, limits, options, exact=exact) for files, limits, options, exact in cases]
    for number, (one, other) in enumerate(zip(found, expected, strict=True), first):
        assert one == other, f"case {number}: {cases[number - first][2]}"
    assert sum("error" in plan for plan in expected) < 50
