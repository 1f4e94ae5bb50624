"""Real ranks with `on_error="skip"`: they share the check, leave out the same files, and fail together.

This file is also what the ranks run: `forkrun.py RANKS test_skipping.py SCENARIO FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DataLoaderUtilsError

FILES, ROWS = 8, 40
SKIPPED = ["1.parquet", "2.parquet", "5.parquet"]
SIZE = 100_000  # bytes of a file at least: more than planning reads


# ----------------------------------------------------------------------------------------------------- on each rank


class Counted(LocalFileSystem):
    """The local disk under a protocol of its own, which counts reads of the first bytes, and may refuse them."""

    protocol = "counted"
    decoded: ClassVar[list[str]] = []
    refused: ClassVar[str] = "nothing"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("counted://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if start is not None and start < 1000:
            self.decoded.append(Path(path).name)
            if self.refused in path:
                raise PermissionError(f"{path} is refused")
        return bytes(super().cat_file(path, start, end, **options))


def made(path: str, **options: Any) -> dict[str, Any]:
    """The files that a loader left out and its rows, or its error; the files whose data this rank read to make it."""
    Counted.decoded.clear()
    began = time.monotonic()
    given = {"on_error": "skip", "batch_size": 10, "num_workers": 0, "even": "drop", "timeout": 60}
    try:
        loader, dataset = StructuredDataset.create_dataloader(path, **{**given, **options})
        decoded = sorted(set(Counted.decoded))
        rows = [i for batch in loader for i in batch["id"][:, 0].tolist()]
    except DataLoaderUtilsError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began}
    skipped = [Path(file.path).name for file in dataset._source.skipped]
    return {"decoded": decoded, "rows": rows, "steps": len(loader), "skipped": skipped}


def shared(folder: str, rank: int) -> dict[str, Any]:
    return {
        "files": made(f"counted://{folder}/data"),
        "counted": made(f"counted://{folder}/data", count_rows=True),
        "written": made(f"counted://{folder}/data", manifest=f"{folder}/m.parquet"),
        "kept": made(f"counted://{folder}/data", manifest=f"{folder}/m.parquet"),
    }


def copies(folder: str, rank: int) -> dict[str, Any]:
    """Each rank reads a copy of its own, and the footers of all files; other files are damaged in each copy."""
    return {"files": made(f"{folder}/copy{rank}")}


def failing(folder: str, rank: int) -> dict[str, Any]:
    Counted.refused = "6.parquet" if rank == 0 else "nothing"
    files = made(f"counted://{folder}/data")
    Counted.refused = "nothing"
    return {"files": files, "well": made(f"counted://{folder}/data")}


def one_only(folder: str, rank: int) -> dict[str, Any]:
    return {"files": made(f"{folder}/data", on_error=["skip", "raise"][rank])}


def main() -> None:
    import torch.distributed as dist

    scenario, folder = sys.argv[1:]
    fsspec.register_implementation("counted", Counted)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    found = globals()[scenario](folder, rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


# --------------------------------------------------------------------------------------------------------- the tests


def write(folder: Path, damaged: list[str], start: int = 4) -> None:
    """Files of lists, longer than what is read of them to plan; in damaged ones, 30 bytes from `start` are wrong."""
    folder.mkdir()
    width = SIZE // 8 // ROWS + 1
    for number in range(FILES):
        ids = pa.FixedSizeListArray.from_arrays(
            pa.array([i for i in range(number * ROWS, (number + 1) * ROWS) for _ in range(width)]), width
        )
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"id": ids}), path, row_group_size=10, use_dictionary=False, compression=None)
        if path.name in damaged:
            data = bytearray(path.read_bytes())
            data[start : start + 30] = b"\xff" * 30
            path.write_bytes(data)
            os.utime(path, (1e9, 1e9))


def launch(scenario: str, folder: Path) -> list[Any]:
    """What each of two ranks found."""
    write(folder / "data", SKIPPED)
    write(folder / "copy0", SKIPPED[:2], -40)
    write(folder / "copy1", SKIPPED[1:], -40)
    from tests.distributed.launching import run_ranks  # the ranks, which run this file, cannot import it

    return run_ranks(Path(__file__), [scenario, str(folder)], folder, 2)


def check_rows(ranks: list[Any], name: str) -> None:
    """Both ranks left out the same, took equally many steps, and delivered every row once."""
    left = [
        i
        for number in range(FILES)
        if f"{number}.parquet" not in SKIPPED
        for i in range(number * ROWS, (number + 1) * ROWS)
    ]
    assert [found[name]["skipped"] for found in ranks] == [SKIPPED] * 2
    assert [found[name]["steps"] for found in ranks] == [len(left) // 20] * 2
    assert sorted(i for found in ranks for i in found[name]["rows"]) == left


@pytest.mark.slow
def test_ranks_share_the_check_and_its_result(tmp_path: Path) -> None:
    ranks = launch("shared", tmp_path)
    for name in ("files", "counted", "written", "kept"):
        check_rows(ranks, name)
    assert [found["files"]["decoded"] for found in ranks] == [
        [f"{number}.parquet" for number in range(rank, FILES, 2)] for rank in range(2)
    ]
    assert [found["kept"]["decoded"] for found in ranks] == [[], []]


@pytest.mark.slow
def test_a_file_that_whose_footer_is_damaged_for_one_rank_is_left_out_by_all(tmp_path: Path) -> None:
    check_rows(launch("copies", tmp_path), "files")


@pytest.mark.slow
def test_an_error_of_the_store_on_one_rank_is_raised_by_all(tmp_path: Path) -> None:
    ranks = launch("failing", tmp_path)
    assert "FileReadError: " in ranks[0]["files"]["error"]
    assert "WorkerError: another rank failed while creating its loader: rank 0" in ranks[1]["files"]["error"]
    for found in ranks:
        assert "6.parquet is refused" in found["files"]["error"]
        assert found["files"]["seconds"] < 30
    check_rows(ranks, "well")


@pytest.mark.slow
def test_the_option_on_one_rank_only_is_an_error_on_all(tmp_path: Path) -> None:
    for found in launch("one_only", tmp_path):
        assert "PlanMismatchError: " in found["files"]["error"]
        assert "on_error" in found["files"]["error"]
        assert found["files"]["seconds"] < 30


if __name__ == "__main__":
    main()
