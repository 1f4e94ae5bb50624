"""The real command in processes of its own: start-up, pipes, exit codes, a missing extra."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TDU = [sys.executable, "-m", "torch_dataloader_utils"]


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TDU, *arguments], capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]


def test_help_needs_neither_torch_nor_pyarrow():
    program = """
import sys
from torch_dataloader_utils.cli import main
sys.argv = ["tdu", "plan", "--help"]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None)
assert not {"torch", "pyarrow"} & set(sys.modules), "imported"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--num-ranks" in done.stdout


def test_the_package_does_not_import_its_command_line():
    program = "import sys, torch_dataloader_utils; sys.exit('typer' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_version():
    from torch_dataloader_utils import __version__

    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"tdu (torch-dataloader-utils) {__version__}\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(tmp_path: Path, closed: str) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    for command, code in (("verify a.csv", 0), ("describe none.csv", 2)):
        line = f'"$0" -m torch_dataloader_utils {command} {closed}'
        done = subprocess.run(["bash", "-c", line, sys.executable], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Error: " not in done.stderr


def test_the_script_of_the_package_is_the_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    from torch_dataloader_utils.cli import main

    assert EntryPoint("tdu", scripts["tdu"], "console_scripts").load() is main


@pytest.mark.parametrize("missing", ["typer", "rich", "yaml"])
def test_a_missing_extra_is_one_line_that_names_it(missing, tmp_path):
    block = f"import sys; sys.modules[{missing!r}] = None; from torch_dataloader_utils.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"tdu needs {missing}: pip install 'torch-dataloader-utils[cli]'\n"


def test_a_pipe_gets_whole_paths_without_colours_or_trailing_blanks(tdu, tmp_path):
    folder = tmp_path / ("long" * 40)
    os.rename("data", folder)
    done = run("plan", str(folder), "--nulls", "mask", "--num-ranks", "3")
    assert done.returncode == 0
    assert str(folder) in done.stdout
    assert "\x1b" not in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())
    assert "Traceback" not in done.stderr


def test_json_is_all_of_stdout_and_warnings_are_on_stderr(tdu):
    done = run("plan", "data", "--nulls", "mask", "--num-ranks", "3", "--json")
    assert len(json.loads(done.stdout)["ranks"]) == 3
    assert done.stderr.startswith("! 1 of the 3 ranks has no rows")


def test_a_closed_pipe_is_quiet(tdu):
    for options in ("--json", ""):  # `true` has ended long before the command prints
        command = f"{' '.join(TDU)} head data {options} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("141\n", "")  # never 1: nothing failed a check


def test_a_plain_terminal_gets_plain_signs(tdu):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("plan", "data", "--nulls", "mask", "--num-ranks", "2", env=environment)
    assert done.returncode == 0
    assert "####" in done.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_colours_and_lines_that_fit(tdu, width):
    shown = in_terminal(width, "plan", "data", "--nulls", "mask", "--num-ranks", "3")
    assert "\x1b[" in shown
    assert max(map(len, plain_lines(shown))) <= width
    assert "+1" in shown


def plain_lines(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "").splitlines()


def in_terminal(width: int, *arguments: str) -> str:
    """What the command prints in a terminal of this width."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color"}
    process = subprocess.Popen([*TDU, *arguments], stdout=child, stderr=child, env=environment)
    os.close(child)
    parts = []
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(parent)
    assert process.wait() == 0
    return b"".join(parts).decode()
