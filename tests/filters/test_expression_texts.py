"""A filter with a long list is told apart from others, although pyarrow shortens its text."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import CheckpointMismatchError, OptionError, StructuredDataset
from torch_dataloader_utils.filters.arrow import identity_of, may_name_nan

LONG = list(range(60))
OTHER = [*LONG[:30], 500, *LONG[31:]]
CUT = [start + "é" * 200 for start in ("", "a", "bc")]  # pyarrow cuts one of them in the middle of a character


def opened(folder: Path, filters: Any, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(folder, filters=filters, batch_size=4, num_workers=0, **options)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = pa.array([CUT[number % 3] for number in range(600)])
    pq.write_table(pa.table({"id": range(600), "name": names}), tmp_path / "a.parquet", row_group_size=50)
    return tmp_path


@pytest.mark.parametrize("form", [lambda values: [("id", "in", values)], lambda values: pc.field("id").isin(values)])
def test_a_state_of_another_long_list_is_refused(folder: Path, form: Any) -> None:
    assert str(pc.field("id").isin(LONG)) == str(pc.field("id").isin(OTHER))
    loader = opened(folder, form(LONG), columns=["id"])
    next(iter(loader))
    state = loader.state_dict()
    opened(folder, form(LONG), columns=["id"]).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="filters"):
        opened(folder, form(OTHER), columns=["id"]).load_state_dict(state)


def test_long_text_beyond_ascii_can_be_filtered_on(folder: Path) -> None:
    for kept in (CUT, CUT[:1]):
        loader = opened(folder, [("name", "in", kept)])
        state = loader.state_dict()
        rows = [number for batch in loader for number in batch["id"].tolist()]
        assert rows == [number for number in range(600) if CUT[number % 3] in kept]
        opened(folder, [("name", "in", kept)]).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError):
        opened(folder, [("name", "in", CUT)]).load_state_dict(state)
    with pytest.raises(OptionError, match="of type int32"):
        opened(folder, pc.index_in(pc.field("name"), value_set=pa.array(CUT)))


def test_the_identity_is_that_of_the_values() -> None:
    short = (pc.field("a") > 1, None)
    assert identity_of(short) == str(short)
    one, other = (((pc.field("a").isin(values), None), pc.field("b") == 1) for values in (LONG, OTHER))
    again = ((pc.field("a").isin(LONG), None), pc.field("b") == 1)
    assert identity_of(one) == identity_of(again) != identity_of(other)


def test_the_identity_is_the_same_in_another_process() -> None:
    made = "pc.field('a').isin(list(range(60))) & (pc.field('b') == True) | pc.field('c').isin(['é' * 200, None])"
    program = (
        "import pyarrow.compute as pc; from torch_dataloader_utils.filters.arrow import identity_of; "
        f"print(repr(identity_of({made})))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment)
    assert run.stdout.decode().strip() == repr(identity_of(eval(made, {"pc": pc})))


def test_a_nan_is_found_where_the_text_cannot_be_written() -> None:
    cut = pc.field("name").isin(CUT)
    assert may_name_nan(cut)
    assert may_name_nan(cut & (pc.field("x") > math.nan))
    assert not may_name_nan(pc.field("x") > 1)


def test_a_date_that_python_cannot_show_is_compared(tmp_path: Path) -> None:
    days = pa.array([0, -719_163], pa.int32()).cast(pa.date32())  # the year 0
    pq.write_table(pa.table({"day": days, "id": [1, 2]}), tmp_path / "a.parquet")
    for filters in ([("day", "=", days[1])], pc.field("day") == days[1]):
        assert [batch["id"].tolist() for batch in opened(tmp_path, filters, columns=["id"])] == [[2]]
