"""A few rounds of each kind of kill and fork. By hand, a hundred of each: `python -m tests.faults --rounds 100`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], dict[str, Any]]:
    """The summaries of all kinds, by kind and signal; all run in forks of one process, which imports torch once."""
    command = [sys.executable, "-m", "tests.faults", "--rounds", "3", "--seed", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=280)
    return {(result["kind"], result["which"]): result for result in json.loads(done.stdout)}


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV", "SIGSTOP"])
def test_a_signal_to_a_worker_costs_one_error_and_no_row(results: dict[Any, Any], number: str) -> None:
    assert complete(results["workers", number], 3)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT"])
def test_a_signal_to_the_main_process_leaves_nothing_behind(results: dict[Any, Any], number: str) -> None:
    assert complete(results["main", number], 3)


@pytest.mark.slow
def test_children_of_a_process_that_used_everything_read_every_row_or_say_why_not(results: dict[Any, Any]) -> None:
    assert complete(results["forks", "every method"], 9)


def complete(result: dict[str, Any], rounds: int) -> bool:
    """Whether all rounds kept every promise; the error of the one that did not is shown."""
    assert "error" not in result, result["error"]
    return result["rounds"] == rounds
