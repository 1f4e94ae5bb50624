"""Data, doctored strategies and a runner of the command for its tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from torch_dataloader_utils.cli.app import app

DOCTORED = '''
from torch_dataloader_utils import Order, RoundRobinSplitStrategy, Shard, Split


def repeats(order, shape):
    """Rank 1 gets the first split, too."""
    own = order.every(shape.rank, shape.num_ranks)
    if shape.rank != 1:
        return own
    return Order(order.rows.select([0, *range(1, order.num_units, shape.num_ranks)]))


def loses(order, shape):
    """No rank gets the last split."""
    return order.units(0, order.num_units - 1).every(shape.rank, shape.num_ranks)


class Skipping:
    """Makes the shards itself, and forgets the file b.parquet on rank 1."""

    def generate(self, files, num_workers, epoch, num_ranks, rank):
        mine = [file for file in files[rank::num_ranks] if not file.path.endswith("b.parquet")]
        return [Shard(0, tuple(Split(file) for file in mine))]


def slow(rows):
    import time

    time.sleep(0.02)
    return rows


def spelled(rows):
    import pyarrow as pa

    words = [list(text.encode()) for text in rows["text"].to_pylist()]
    return pa.RecordBatch.from_pydict({"text": pa.array(words, pa.list_(pa.int64()))})


def fails(rows):
    raise RuntimeError("of the user")
'''


class Command:
    """Runs `tdu` in this process."""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """The standard output, after a check of the exit code."""
        self.done = CliRunner().invoke(app, list(arguments), prog_name="tdu")
        assert self.done.exit_code == code, self.done.output
        return self.done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The standard output, parsed."""
        return json.loads(self(*arguments, "--json", code=code))

    def error(self, *arguments: str) -> str:
        """Standard error of a command with bad input."""
        assert self(*arguments, code=2) == ""
        return self.done.stderr


@pytest.fixture
def tdu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, in a folder with `data` (two files of 4 row groups of 100 rows) and the module `doctored`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "doctored", raising=False)
    Path("doctored.py").write_text(DOCTORED)
    write(Path("data"))
    return Command()


def write(folder: Path, rows: int = 400) -> None:
    """Two files with ids, floats, strings, lists and, in `age`, nulls."""
    folder.mkdir()
    for number, name in enumerate("ab"):
        ids = range(number * rows, (number + 1) * rows)
        table = pa.table(
            {
                "id": ids,
                "x": [each / 2 for each in ids],
                "city": [("Oslo", "Lima")[each % 2] for each in ids],
                "tags": pa.array([[each % 3] for each in ids], pa.list_(pa.int32())),
                "age": [None if each % 10 == 3 else each for each in ids],
            }
        )
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=100)
