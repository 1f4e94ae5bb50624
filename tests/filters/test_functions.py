"""Conditions that are functions of a column, on types for which Arrow has none."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset

WORDS = ["ab", None, "b", "a", "ba"]
NUMBERS = [1.0, math.nan, None, math.nan, 2.0]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("word like 'a%'", [0, 3]),
        ("word not like 'a%'", [2, 4]),
        ("not word like 'a%'", [2, 4]),
        ("word is null", [1]),
        ("number is nan", [1, 3]),
        ("number is not nan", [0, 4]),
        ("number is null", [2]),
    ],
)
@pytest.mark.parametrize("float_type", [pa.float16(), pa.float64()], ids=str)
@pytest.mark.parametrize("word_type", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_functions_of_dictionaries_and_half_floats(
    tmp_path: Path, condition: str, rows: list[int], float_type: pa.DataType, word_type: pa.DataType
) -> None:
    words, numbers = pa.array(WORDS).cast(word_type), pa.array(NUMBERS).cast(float_type)
    table = pa.table({"id": range(5), "word": words, "number": numbers})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    loader, _ = StructuredDataset.create_dataloader(tmp_path, filters=condition, columns=["id"], num_workers=0)
    assert [number for batch in loader for number in batch["id"].tolist()] == rows
