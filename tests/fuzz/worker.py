"""Reads mutated inputs, as a process that may die of them.

    python -m tests.fuzz.worker FOLDER SEED FAMILY FIRST STOP [FAMILY FIRST STOP ...]

Mutation i of a family depends on the seed, the family and i alone. Prints one line of JSON for each.
"""

import json
import logging
import resource
import sys
import time
import warnings
from pathlib import Path
from random import Random

import pyarrow as pa

from tests.fuzz.families import EQUAL, FAMILIES, Family
from tests.fuzz.tables import TABLE_FAMILIES
from tests.memory import peak_memory

_ADDRESS_SPACE = 8 << 30  # a request for more fails, as it would on a small machine


def main(folder: str, seed: str, *work: str) -> None:
    """Read all mutations of the work given, in order."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    pa.set_cpu_count(1)
    for name, first, stop in zip(work[::3], work[1::3], work[2::3], strict=True):
        place = Path(folder) / name
        place.mkdir(exist_ok=True)
        family = (FAMILIES | TABLE_FAMILIES)[name](place)
        for whole in family.seeds:
            outcome = family.outcome(Random(0), whole, whole.content)
            assert outcome == EQUAL, f"{whole.name}, unchanged: {outcome}"
        for number in range(int(first), int(stop)):
            print(json.dumps([name, number, *result(family, f"{seed} {name} {number}")]), flush=True)  # noqa: T201


def result(family: Family, seed: str) -> tuple[str, str, float, float]:
    """The seed that was mutated, what came of it, the seconds it took, and the process's peak of memory in MB."""
    draw, start = Random(seed), time.perf_counter()
    chosen = draw.choice(family.seeds)
    found = family.outcome(draw, chosen, family.change(draw, chosen))
    peak = peak_memory() / 2**20
    return chosen.name, found, time.perf_counter() - start, peak


if __name__ == "__main__":
    main(*sys.argv[1:])
