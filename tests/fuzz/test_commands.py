"""Commands with strange arguments and damaged inputs end with a message and a status, never a traceback."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.fuzz.mutations import mutated
from torch_dataloader_utils import DataLoaderUtilsError, StructuredDataset
from torch_dataloader_utils.cli.app import app

COMMANDS = ("schema", "describe", "plan", "head", "index", "verify")
TEXTS = (
    "",
    "-",
    "--",
    "\0",
    "0",
    "-1",
    "1e999",
    "nan",
    "[",
    "{",
    "[[[",
    "a: b: c",
    "!!python/object:os.x",
    "é" * 300,
    "%s",
)
OPTIONS = (
    "--set",
    "--columns",
    "--filters",
    "--batch-size",
    "--num-ranks",
    "--sharding",
    "--epoch",
    "--config",
    "--table",
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": range(20), "s": ["a"] * 20}), tmp_path / "data" / "a.parquet", row_group_size=4)
    return tmp_path / "data"


def trials(data: Path) -> Iterator[list[str]]:
    for command in COMMANDS:
        yield [command]
        yield from ([command, text] for text in TEXTS)
        yield from ([command, "data", option, text] for option in OPTIONS for text in TEXTS)
    draw, whole = Random(7), (data / "a.parquet").read_bytes()
    for number in range(25):
        path = data.parent / f"{number}.{draw.choice(['parquet', 'orc', 'csv', 'json', 'jsonl', 'arrow', 'csv.gz'])}"
        path.write_bytes(mutated(draw, whole, [whole]))
        yield [draw.choice(COMMANDS), path.name]


def test_commands_end_with_a_message_and_a_status(data: Path) -> None:
    every, wrong, statuses = list(trials(data)), [], set()
    for arguments in [one for number, one in enumerate(every) if number % 29 == 0 or one[1:2] != ["data"]]:
        shown = CliRunner().invoke(app, arguments)
        statuses.add(shown.exit_code)
        good = shown.exception is None or isinstance(shown.exception, SystemExit)
        if not good or "Traceback" in shown.output or (shown.exit_code and not shown.output.strip()):
            wrong.append((arguments, shown.exit_code, repr(shown.exception), shown.output[-300:]))
    assert wrong == []
    assert {0, 2} <= statuses <= {0, 1, 2}


def test_a_manifest_that_cannot_be_written_is_named(data: Path) -> None:
    """A folder in its place, and names that no file can have."""
    (data.parent / "taken").mkdir()
    for place in ("taken", "x" * 300, "a\0b"):
        with pytest.raises(DataLoaderUtilsError):
            StructuredDataset.create_dataloader(data, num_workers=0, manifest=place)
