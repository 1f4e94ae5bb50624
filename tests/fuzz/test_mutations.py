"""A few mutations of each family, the same on every run; benchmarks/fuzz.py makes as many as are asked for."""

from pathlib import Path

import pytest

from tests.fuzz.crew import results
from tests.fuzz.families import FAMILIES, REFUSED
from tests.fuzz.tables import TABLE_FAMILIES

TABLES = list(TABLE_FAMILIES)
EACH = 42  # mutations of a family: 500 in all
SLOWEST = 60.0  # seconds for a mutation, on a machine with other work
LONGEST = 200.0  # seconds for two families: less than pytest's `faulthandler_timeout`, which ends the whole worker


def pairs(families: list[str]) -> list[list[str]]:
    return [families[first : first + 2] for first in range(0, len(families), 2)]


# Two families share a process: starting one takes as long as many mutations.
PAIRS = [*pairs(list(FAMILIES)), *pairs(TABLES)]


@pytest.mark.parametrize("families", PAIRS, ids=" and ".join)
def test_a_mutated_input_gives_the_rows_that_other_readers_find_or_a_clear_error(
    families: list[str], tmp_path: Path
) -> None:
    found = list(results(dict.fromkeys(families, EACH), 1, tmp_path, SLOWEST, total=LONGEST))
    assert len(found) == EACH * len(families)
    assert [result for result in found if not result.good] == []
    assert {result.family for result in found if result.outcome == REFUSED} == set(families)
    assert {result.family for result in found if result.outcome != REFUSED} == set(families)


def test_families_that_take_too_long_end_with_a_clear_failure(tmp_path: Path) -> None:
    *_, last = results({"puffin": 3}, 1, tmp_path, total=0.0)
    assert last.outcome.startswith("hang: ")
