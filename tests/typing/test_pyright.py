"""What pyright finds in two programs of a user: nothing in the good one, each mistake in the bad one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[int, str]]]:
    """The line and message of each of pyright's findings, by file."""
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(HERE), "--pythonpath", sys.executable]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300).stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    by_file: dict[str, list[tuple[int, str]]] = {"good.py": [], "bad.py": []}
    for item in report["generalDiagnostics"]:
        by_file[Path(item["file"]).name].append((line_of(item), item["message"]))
    return by_file


def line_of(item: dict[str, Any]) -> int:
    """The line of a finding, counted from 1."""
    return int(item["range"]["start"]["line"]) + 1


def test_program_without_a_mistake_has_no_finding(found: dict[str, list[tuple[int, str]]]) -> None:
    assert found["good.py"] == []


def test_each_mistake_is_found_where_it_is(found: dict[str, list[tuple[int, str]]]) -> None:
    lines = (HERE / "bad.py").read_text().splitlines()
    expected = {number: line.split("  # error: ")[1] for number, line in enumerate(lines, 1) if "  # error: " in line}
    assert sorted(number for number, _ in found["bad.py"]) == sorted(expected)
    for number, message in found["bad.py"]:
        assert expected[number] in message.replace("\xa0", " ")
