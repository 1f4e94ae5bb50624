"""Real ranks with a manifest: one of them lists and opens, all of them plan, and they fail together.

This file is also what the ranks run: `forkrun.py RANKS test_manifest_broadcast.py SCENARIO FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
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

FILES, ROWS = 5, 40


# ----------------------------------------------------------------------------------------------------- on each rank


class Counted(LocalFileSystem):
    """The local disk under a protocol of its own, which counts what is asked of it, and can refuse."""

    protocol = "counted"
    asked: ClassVar[Counter[str]] = Counter()
    refused: ClassVar[str] = "nothing"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("counted://")))

    def _note(self, path: str) -> None:
        self.asked["manifest" if path.endswith("_m.parquet") else "data"] += 1
        if self.refused in path:
            raise PermissionError(f"{path} is refused")

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self._note(path)
        return super().ls(path, detail, **options)

    def info(self, path: Any, **options: Any) -> Any:
        self._note(path if isinstance(path, str) else path.path)
        return super().info(path, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._note(path)
        return super()._open(path, mode, **options)


def made(folder: str, **options: Any) -> dict[str, Any]:
    """What making a loader asked of the disk, and which rows it has; or the error."""
    Counted.asked.clear()
    begin = time.monotonic()
    options = {"manifest": f"counted://{folder}/_m.parquet", "batch_size": 8, **options}
    try:
        loader, _ = StructuredDataset.create_dataloader(f"counted://{folder}/data", **options)
    except DataLoaderUtilsError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begin}
    asked = dict(Counted.asked)
    return {"asked": asked, "rows": [int(row) for batch in loader for row in batch["id"]]}


def shared(folder: str, rank: int) -> dict[str, Any]:
    return {
        "made": made(folder),
        "used": made(folder),
        "counted": made(folder, filters=[("id", "<", 100)], count_rows=True, even="drop"),
    }


def failing(folder: str, rank: int) -> dict[str, Any]:
    """Whatever rank 0 meets is raised by all; afterwards all are still in step."""
    found = {}
    found["missing"] = made(f"{folder}/nowhere", manifest=f"counted://{folder}/_m.parquet")
    found["counting"] = made(f"{folder}/nowhere", manifest=f"counted://{folder}/_m.parquet", count_rows=True)
    Counted.refused = "/data/3" if rank == 0 else "nothing"
    found["refused"] = made(folder)
    Counted.refused = "nothing"
    found["well"] = made(folder)
    if rank == 0:
        Path(folder, "_m.parquet").write_bytes(b"PAR1 of something else")
    found["damaged"] = made(folder)
    return found


def groups(folder: str, rank: int) -> dict[str, Any]:
    """Ranks 1 and 2 are a group, whose first rank works for it; rank 0 alone makes a loader of its own."""
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    if rank == 0:
        alone = made(folder, manifest=f"counted://{folder}/alone_m.parquet", num_ranks=1, rank=0)
        return {"alone": alone}
    return {"group": made(folder, ranks=group)}


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


def launch(scenario: str, folder: Path, num_ranks: int) -> list[Any]:
    """What each rank of a job found."""
    (folder / "data").mkdir()
    for number in range(FILES):
        table = pa.table({"id": range(number * ROWS, (number + 1) * ROWS)})
        pq.write_table(table, folder / "data" / f"{number}.parquet", row_group_size=10)
    from tests.distributed.launching import run_ranks  # the ranks, which run this file, cannot import it

    return run_ranks(Path(__file__), [scenario, str(folder)], folder, num_ranks)


def rows(ranks: list[Any], name: str) -> list[int]:
    return sorted(row for found in ranks for row in found[name]["rows"])


@pytest.mark.slow
def test_one_rank_lists_and_opens_for_all(tmp_path: Path) -> None:
    ranks = launch("shared", tmp_path, 3)
    first, *others = ranks
    assert first["made"]["asked"]["data"] >= FILES + 1
    assert first["used"]["asked"].keys() == {"manifest"}
    for found in others:
        assert found["made"]["asked"] == found["used"]["asked"] == {}
    assert rows(ranks, "made") == rows(ranks, "used") == list(range(FILES * ROWS))
    assert all(found["made"]["rows"] == found["used"]["rows"] for found in ranks)
    # The row count scan that follows is a collective of its own.
    assert len(rows(ranks, "counted")) == 100 // 24 * 24
    assert [path.name for path in tmp_path.glob("*_m.parquet")] == ["_m.parquet"]


@pytest.mark.slow
def test_what_rank_0_meets_is_raised_by_all(tmp_path: Path) -> None:
    ranks = launch("failing", tmp_path, 3)
    words = {
        "missing": ["DataNotFoundError: ", "there is no such file or folder"],
        "counting": ["DataNotFoundError: ", "there is no such file or folder"],
        "refused": ["FileReadError: ", "/data/3.parquet", "is refused"],
        "damaged": ["FileReadError: ", "_m.parquet: the file is damaged, or not a manifest"],
    }
    for rank, found in enumerate(ranks):
        for name, expected in words.items():
            assert all(word in found[name]["error"] for word in expected)
            assert found[name]["seconds"] < 30
            assert name == "damaged" or ("on rank 0: " in found[name]["error"]) is (rank > 0)
    assert rows(ranks, "well") == list(range(FILES * ROWS))


@pytest.mark.slow
def test_a_group_shares_and_who_is_alone_does_not_ask(tmp_path: Path) -> None:
    alone, first, second = launch("groups", tmp_path, 3)
    assert rows([alone], "alone") == rows([first, second], "group") == list(range(FILES * ROWS))
    assert alone["alone"]["asked"]["data"] >= FILES + 1
    assert first["group"]["asked"]["data"] >= FILES + 1
    assert second["group"]["asked"] == {}


if __name__ == "__main__":
    main()
