"""What a pass counts, in words: sequences, tokens and batches are not called rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.terminal import stderr_terminal
from torch_dataloader_utils import Buckets, Pack, StructuredDataset

UNITS = {
    "rows": {},
    "sequences": {"pack": Pack(8, columns=["ids"])},
    "tokens": {"pack": Pack(8, columns=["ids"], method="wrap")},
    "batches": {"batch_tokens": Buckets(8, by="ids")},
}


@pytest.mark.parametrize("units", UNITS)
def test_the_verdict_and_progress_name_what_they_count(tmp_path: Path, units: str) -> None:
    pq.write_table(pa.table({"ids": [[1] * (1 + i % 5) for i in range(40)]}), tmp_path / "a.parquet")
    loader, dataset = StructuredDataset.create_dataloader(
        str(tmp_path), batch_size=4, num_ranks=1, rank=0, show_progress=True, **UNITS[units]
    )
    with stderr_terminal() as terminal:
        assert list(loader)
    assert f" {units} in " in str(dataset.verdict())
    assert f" {units}/s, " in str(dataset.verdict())
    shown = "".join(terminal.screen)
    assert f"{units}/s" in shown
