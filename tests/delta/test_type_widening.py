"""Each change of type that the protocol's type widening allows is read exactly; others are an error."""

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.delta.by_hand import require, rewrite
from tests.delta.reading import rows
from torch_dataloader_utils import SchemaMismatchError

INTS = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
ENDS = {name: [-(2 ** (kind.bit_width - 1)), None, 2 ** (kind.bit_width - 1) - 1] for name, kind in INTS.items()}
WIDER: list[tuple[pa.DataType, list[Any], str, list[Any]]] = [
    *((INTS[one], ENDS[one], other, ENDS[one]) for one, other in [("byte", "short"), ("byte", "integer")]),
    *((INTS[one], ENDS[one], "long", ENDS[one]) for one in ("byte", "short", "integer")),
    (INTS["short"], ENDS["short"], "integer", ENDS["short"]),
    *((INTS[one], ENDS[one], "double", ENDS[one]) for one in ("byte", "short", "integer")),
    *((INTS[one], ENDS[one], "decimal(10,0)", ENDS[one]) for one in ("byte", "short", "integer")),
    *((INTS[one], ENDS[one], "decimal(38,18)", ENDS[one]) for one in INTS),
    (INTS["long"], ENDS["long"], "decimal(20,0)", ENDS["long"]),
    (pa.float32(), [0.1, None], "double", [pa.scalar(0.1, pa.float32()).as_py(), None]),
    (pa.decimal128(5, 2), [Decimal("-999.99"), None], "decimal(7,2)", [Decimal("-999.99"), None]),
    (pa.decimal128(5, 2), [Decimal("-999.99"), None], "decimal(8,5)", [Decimal("-999.99"), None]),
    (pa.date32(), [date(1, 1, 1), None], "timestamp_ntz", [datetime(1, 1, 1), None]),
]


def changed(folder: Path, given: pa.DataType, values: list[Any], to: str) -> None:
    """A table whose column has been of the first type, and is now of the second."""
    write_deltalake(folder, pa.table({"x": pa.array(values, given)}))
    require(folder, "typeWidening", "timestampNtz")

    def change(line: dict[str, Any]) -> None:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"][0]["type"] = to
            line["metaData"]["schemaString"] = json.dumps(schema)
        if "add" in line:
            line["add"]["stats"] = None

    rewrite(folder, change)


@pytest.mark.parametrize(("given", "values", "to", "expected"), WIDER, ids=lambda value: str(value)[:20])
def test_widened_types_are_read_exactly(
    tmp_path: Path, given: pa.DataType, values: list[Any], to: str, expected: list[Any]
) -> None:
    changed(tmp_path, given, values, to)
    assert [row["x"] for row in rows(tmp_path, nulls="mask")] == expected


@pytest.mark.parametrize(
    ("given", "to"),
    [(pa.int64(), "integer"), (pa.int64(), "double"), (pa.int32(), "decimal(9,0)"), (pa.int64(), "decimal(20,2)"),
     (pa.decimal128(5, 2), "decimal(5,3)"), (pa.decimal128(5, 2), "decimal(5,1)"), (pa.int32(), "float")],
    ids=str,
)  # fmt: skip
def test_changes_of_type_that_lose_values_are_an_error(tmp_path: Path, given: pa.DataType, to: str) -> None:
    changed(tmp_path, given, [None], to)
    with pytest.raises(SchemaMismatchError, match="cannot be read as"):
        rows(tmp_path)
