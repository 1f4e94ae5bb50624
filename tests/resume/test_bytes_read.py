"""Going on at a place reads what lies there, and not the epoch before it: counted in bytes of row groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.resume.helpers import make, through_json
from torch_dataloader_utils import Shuffle
from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.formats.parquet import ParquetReader

FILES, GROUPS, ROWS = 20, 4, 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for number in range(FILES):
        table = pa.table({"id": rng.integers(0, 1 << 40, GROUPS * ROWS)})
        pq.write_table(table, path / f"{number:02d}.parquet", row_group_size=ROWS, compression="none")
    return str(path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stored bytes of each row group that is decoded, once for each time."""
    found: list[int] = []

    def noted(method: Any) -> Any:
        def called(self: Any, groups: Any, columns: Any) -> Any:
            arrays = method(self, groups, columns)
            found.extend(self.metadata.metadata.row_group(group).total_byte_size for group in groups if len(arrays))
            return arrays

        return called

    for method in (ParquetReader.read, ParquetReader.chunks):
        monkeypatch.setattr(ParquetReader, method.__name__, noted(method))
    return found


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, 4),  # a task holds the four small row groups of a file
        ({"num_workers": 0, "sharding": "contiguous"}, 4),
        ({"shuffle": Shuffle(window_rows=10_000, open_splits=2)}, 2),
        ({"shuffle": Shuffle(window_bytes=80_000), "split_rows": 5_000}, 2),
        ({"filters": pc.field("id") + 0 >= 0}, 4),
    ],
    ids=["splits", "contiguous", "windows of rows", "windows of splits", "unknown counts"],
)
def test_the_first_batch_after_a_resume(folder: str, read: list[int], options: dict[str, Any], groups: int) -> None:
    given: dict[str, Any] = {"batch_size": 512, "shuffle": "splits", "split_rows": 20_000, **options}
    loader = make(folder, **given)
    for number, _ in enumerate(loader):
        if number == 700:  # of 782
            break
    state = through_json(loader.state_dict())
    resumed = make(folder, **given)
    resumed.load_state_dict(state)
    read.clear()
    next(iter(resumed))
    # The begun block; and the next one where that has less than a batch left.
    assert 0 < sum(read) <= 2 * groups * ROWS * 8 * 1.1, f"{len(read)} row groups"
    whole = FILES * GROUPS * ROWS * 8
    assert sum(read) < whole / 10


def test_what_is_left_is_read_once(folder: str, read: list[int]) -> None:
    loader = make(folder, batch_size=500, shuffle="splits", split_rows=5_000)
    state = loader.state_dict()
    state["links"][-1]["batches"] = 720  # of 800
    loader.load_state_dict(sealed(state))
    read.clear()  # of the footers' check
    assert len(list(loader)) == 80
    assert len(read) == FILES * GROUPS // 10
