"""The folder of a table is not read as plain files, because these also hold rows that were deleted."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from torch_dataloader_utils import OptionError, StructuredDataset


@pytest.mark.parametrize("entry", ["t", "", "**"])
def test_the_folder_of_a_delta_table_is_not_read_as_files(tmp_path: Path, entry: str) -> None:
    table = tmp_path / "t"
    write_deltalake(table, pa.table({"id": range(10)}))
    DeltaTable(table).delete("id = 3")
    with pytest.raises(OptionError, match=rf"{table} is a Delta table.*DeltaDataset.create_dataloader\('{table}'"):
        StructuredDataset.create_dataloader(f"{table.parent}/{entry}")
    DeltaTable(table).create_checkpoint()
    loader, _ = StructuredDataset.create_dataloader(f"{table}/**/*.parquet")
    assert sum(len(batch["id"]) for batch in loader) > 10
    log, _ = StructuredDataset.create_dataloader(f"{table}/_delta_log/*.json", columns=["add.path"])
    assert any("a" in str(batch) for batch in log)


def test_the_folder_of_a_hudi_table_is_not_read_as_files(tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / ".hoodie" / "hoodie.properties").write_text("")
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(OptionError, match="is a Hudi table"):
        StructuredDataset.create_dataloader(tmp_path)
    assert [batch["id"].tolist() for batch in StructuredDataset.create_dataloader(f"{tmp_path}/*.csv")[0]] == [[1]]
