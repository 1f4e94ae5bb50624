"""jollyjack: decodes into torch tensors [rows, columns] by row group, one matrix for each dtype.

It refuses pages with dictionaries and columns with nulls, so it reads copies of the files without them.
"""

from pathlib import Path

import jollyjack as jj
import pyarrow as pa
import pyarrow.parquet as pq
import torch

_DTYPES = {"float": torch.float32, "int64": torch.int64, "int32": torch.int32}


def prepare(folder: Path, target: Path) -> None:
    for file in sorted(folder.glob("*.parquet")):
        opened = pq.ParquetFile(file)
        fields = [pa.field(f.name, pa.int32() if f.type == pa.int8() else f.type, False) for f in opened.schema_arrow]
        with pq.ParquetWriter(target / file.name, pa.schema(fields), use_dictionary=False) as writer:
            for group in range(opened.num_row_groups):
                table = opened.read_row_group(group).cast(pa.schema(fields))
                writer.write_table(table, row_group_size=len(table))


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    for file in sorted(folder.glob("*.parquet")):
        footer, schema = pq.read_metadata(file), pq.read_schema(file)
        names = {}
        for number, field in enumerate(schema):
            names.setdefault(_DTYPES[str(field.type)], []).append(number)
        for group in range(footer.num_row_groups):
            count = footer.row_group(group).num_rows
            parts = {}
            for dtype, numbers in names.items():
                tensor = torch.empty(len(numbers), count, dtype=dtype).transpose(0, 1)
                jj.read_into_torch(str(file), footer, tensor, row_group_indices=[group], column_indices=numbers)
                parts[dtype] = tensor
            if shuffle:
                order = torch.randperm(count)
                parts = {dtype: tensor[order] for dtype, tensor in parts.items()}
            for begin in range(0, count, rows):
                yield {str(dtype): tensor[begin : begin + rows] for dtype, tensor in parts.items()}
