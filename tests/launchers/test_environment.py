"""Launchers that start processes without torch.distributed, by the environment that they give them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launchers.conftest import EXAMPLES, Rows

NAMES = [
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
]


@pytest.mark.slow
@pytest.mark.parametrize("names", NAMES, ids=[names[0] for names in NAMES])
def test_ranks_of_the_environment(
    launch: Callable[..., Rows], check: Callable[[Rows, int], None], names: tuple[str, str]
) -> None:
    for rank in ("0", "1"):
        script = Path(__file__).with_name("loop.py")
        found = launch(sys.executable, script, PYTHONPATH=str(EXAMPLES), **dict(zip(names, (rank, "2"), strict=True)))
    check(found, 2)
