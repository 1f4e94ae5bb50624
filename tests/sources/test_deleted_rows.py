from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils.formats.parquet import pages
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, live_file
from torch_dataloader_utils.storage import Storage

FORM = format_named("parquet")


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
def test_deleted_rows_are_left_out_of_columns_read_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": np.arange(10), "s": list("abcdefghij")}), tmp_path / "f", row_group_size=5)
    info = DataFileInfo(str(tmp_path / "f"), 0, 10)
    layout, schema = FORM.layout(info, Storage(), {})
    file = live_file(DataFile(info, layout), [2, 7])
    reader = LiveOpener(FORM).open(file.info, file.layout, Storage(), {}, schema)
    assert reader.together(["s", "a"], 8) == ["a", "s"]
    columns = [array.to_pylist() for array in reader.read([0, 1], ["a", "s"])]
    assert columns == [[0, 1, 3, 4, 5, 6, 8, 9], list("abdefgij")]
    reader.close()


@pytest.mark.skipif(pages.pages_library() is None, reason="the decoder is not compiled here")
def test_some_rows_are_among_those_that_are_left(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": np.arange(10), "s": list("abcdefghij")}), tmp_path / "f", row_group_size=5)
    info = DataFileInfo(str(tmp_path / "f"), 0, 10)
    layout, schema = FORM.layout(info, Storage(), {})
    for deleted in ([2, 7], []):
        file = live_file(DataFile(info, layout), deleted)
        reader = LiveOpener(FORM).open(file.info, file.layout, Storage(), {}, schema)
        for segments in ([0, 1], [1], [1, 0]):
            columns = reader.read(segments, ["a", "s"])
            for rows in ([0], [2, 3], list(range(len(columns[0])))):
                found = reader.read_rows(segments, ["a", "s"], np.array(rows))
                expected = [column.take(pa.array(rows)).to_pylist() for column in columns]
                assert [found[name].to_pylist() for name in ("a", "s")] == expected
        reader.close()
