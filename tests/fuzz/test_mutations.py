"""A few mutations of each family, the same on every run; benchmarks/fuzz.py makes as many as are asked for."""

from pathlib import Path

import pytest

from tests.fuzz.crew import results
from tests.fuzz.families import FAMILIES, REFUSED
from tests.fuzz.tables import TABLE_FAMILIES

# Of metadata files, each key has tests of its own.
TABLES = [name for name in TABLE_FAMILIES if name != "iceberg-metadata"]
EACH = 46  # mutations of a family: 500 in all
SLOWEST = 60.0  # seconds for a mutation, on a machine with other work


def pairs(families: list[str]) -> list[list[str]]:
    return [families[first : first + 2] for first in range(0, len(families), 2)]


# Two families share a process: starting one takes as long as many mutations.
PAIRS = [*pairs(list(FAMILIES)), *pairs(TABLES)]


@pytest.mark.parametrize("families", PAIRS, ids=" and ".join)
def test_a_mutated_input_gives_the_rows_that_other_readers_find_or_a_clear_error(
    families: list[str], tmp_path: Path
) -> None:
    found = list(results(dict.fromkeys(families, EACH), 1, tmp_path, SLOWEST))
    assert len(found) == EACH * len(families)
    assert [result for result in found if not result.good] == []
    assert {result.family for result in found if result.outcome == REFUSED} == set(families)
    assert {result.family for result in found if result.outcome != REFUSED} == set(families)
