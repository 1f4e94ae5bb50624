"""Real ranks: they share the scan for runs, a copy, and errors, and deliver each window once.

This file is also what the ranks run: `forkrun.py RANKS test_ranks.py FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Windows, stream
from torch_dataloader_utils.errors import DataLoaderUtilsError

FILES, ROWS = 3, 10


def made(path: str, windows: Windows) -> dict[str, Any]:
    """What a loader delivers, or its error."""
    try:
        given: dict[str, Any] = {"columns": ["x"], "batch_size": 2, "num_workers": 0, "even": "drop", "timeout": 60}
        loader = stream(path, sequences=windows, shuffle=True, **given)
        found = [rows for batch in loader for rows in batch["x"].tolist()]
    except DataLoaderUtilsError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"windows": found, "steps": len(loader)}


def main() -> None:
    import torch.distributed as dist

    from tests.gloo import end_before_them

    folder, rank = sys.argv[1], int(os.environ["RANK"])
    dist.init_process_group("gloo")
    windows = Windows(2, order="time", by="key")
    found = {
        "in order": made(f"{folder}/in order", windows),
        "scattered": made(f"{folder}/scattered", windows),
        "sorted": made(f"{folder}/scattered", windows.replace(sort=f"{folder}/copies")),
        "null": made(f"{folder}/null", windows),
        "different": made(f"{folder}/in order", windows.replace(length=2 + rank)),
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    end_before_them()


def write(folder: Path, keys: Any) -> None:
    folder.mkdir()
    for file in range(FILES):
        rows = range(file * ROWS, file * ROWS + ROWS)
        table = {"key": [keys(row) for row in rows], "time": rows, "x": rows}
        pq.write_table(pa.table(table), folder / f"{file}.parquet", row_group_size=4)


@pytest.mark.slow
def test_ranks_share_the_scan_the_copy_and_errors(tmp_path: Path) -> None:
    from tests.distributed.launching import run_ranks

    write(tmp_path / "in order", lambda row: row // 8)
    write(tmp_path / "scattered", lambda row: row % 3)
    write(tmp_path / "null", lambda row: None if row == 15 else row // 8)  # in the file that the second rank scans
    found = run_ranks(Path(__file__), [str(tmp_path)], tmp_path, 2)
    for name, step, rows in (("in order", 1, 26), ("sorted", 3, 27)):
        windows = [tuple(each) for rank in found for each in rank[name]["windows"]]
        assert len(set(windows)) == len(windows) >= rows - 3
        assert all(later - earlier == step for earlier, later in windows)
        assert len({rank[name]["steps"] for rank in found}) == 1
    assert [rank["scattered"]["error"].split(":")[0] for rank in found] == ["OptionError"] * 2
    assert [rank["null"]["error"].split(":")[0] for rank in found] == ["WorkerError", "OptionError"]
    assert "1.parquet" in found[0]["null"]["error"]
    assert all("PlanMismatchError" in rank["different"]["error"] for rank in found)


if __name__ == "__main__":
    main()
