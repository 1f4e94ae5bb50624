from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, live_file
from torch_dataloader_utils.storage import Storage

FORM = format_named("parquet")


def test_deleted_rows_are_left_out_of_columns_read_to_copy(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    pq.write_table(pa.table({"a": np.arange(10), "s": list("abcdefghij")}), tmp_path / "f", row_group_size=5)
    info = DataFileInfo(str(tmp_path / "f"), 0, 10)
    layout, schema = FORM.layout(info, Storage(), {})
    file = live_file(DataFile(info, layout), [2, 7])
    reader = LiveOpener(FORM).open(file.info, file.layout, Storage(), {"engine": "polars"}, schema)
    assert reader.copied_together(["s", "a"]) == ["a"]
    columns = [array.to_pylist() for array in reader.read_to_copy([0, 1], ["s", "a"])]
    assert columns == [list("abdefgij"), [0, 1, 3, 4, 5, 6, 8, 9]]
    assert columns == [array.to_pylist() for array in reader.read([0, 1], ["s", "a"])]
    reader.close()
