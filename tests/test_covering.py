"""The option sets of tests that cannot try all: every pair, or triple, of values is in one of them."""

import itertools

import pytest

from tests.covering import covering

FACTORS = ("abcd", "efgh", "ijklmnopq", "rstuvwx", "ABCD")


def never_together(*row: str) -> bool:
    return not ("r" in row and {"C", "D"} & {*row})


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_that_is_allowed_is_in_a_row(strength: int) -> None:
    rows = covering(*FACTORS, strength=strength, allowed=never_together)
    assert all(never_together(*row) for row in rows)
    for places in itertools.combinations(range(len(FACTORS)), strength):
        wanted = set(itertools.product(*(FACTORS[place] for place in places)))
        if {3, 4} <= {*places}:
            wanted = {values for values in wanted if never_together(*values)}
        assert {tuple(row[place] for place in places) for row in rows} == wanted


def test_the_rows_are_few_and_always_the_same() -> None:
    pairs = covering(*FACTORS)
    assert len(pairs) <= 1.1 * len("ijklmnopq") * len("rstuvwx")  # the two longest factors need as many as that
    assert len(set(pairs)) == len(pairs)
    assert pairs == covering(*FACTORS)


def test_all_rows_are_taken_where_the_strength_is_the_number_of_factors() -> None:
    assert sorted(covering("ab", "cd", strength=2)) == [*itertools.product("ab", "cd")]
