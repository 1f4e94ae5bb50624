"""JSON and types that are nested so deeply that code which follows them overflows its stack: never in our process."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.text.json_rows import MOST_LEVELS, too_deep

READ = """
import sys, threading
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError

def read():
    for path in sys.argv[1:]:
        try:
            loader, _ = StructuredDataset.create_dataloader(path, batch_size=4, num_ranks=1, rank=0)
            print(path, "rows", sum(len(batch["id"]) for batch in loader))
        except FileReadError as error:
            print(error)

read()
thread = threading.Thread(target=read)
thread.start()
thread.join()
"""


def nested(opening: str, levels: int, closed: bool = True) -> str:
    return opening * levels + (("1" if ":" in opening else "") + ("}" if ":" in opening else "]") * levels) * closed


def test_no_nesting_ends_the_process_and_each_is_read_or_named(tmp_path: Path) -> None:
    lines = f'{{"id":1,"a":"{"x" * 2**14}"}}\n' * 70  # more than the head
    paths = []
    for levels in (MOST_LEVELS - 1, 100_000):
        for number, opening in enumerate(("[", '{"a":', '{"id":1,"a":[')):
            value = nested(opening, levels, closed=number < 2)
            for name, text in (
                ("head.jsonl", f'{{"id":1,"a":{value}}}\n'),
                ("late.jsonl", f'{lines}{{"id":1,"a":{value}}}\n'),
                ("array.json", f'[{{"id":1,"a":{value}}}]'),
                ("documents.json", f'{{"id":1,\n"a":{value}}}\n{{"id":2}}'),
            ):
                path = tmp_path / f"{levels}_{number}_{name}"
                path.write_text(text)
                paths.append(str(path))
    made = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    printed = made.stdout.splitlines()
    assert [line.split()[0].strip(",:") for line in printed] == paths * 2
    deep = [line for line in printed if Path(line.split(",")[0]).name.startswith("100000")]
    assert len(deep) == 24
    assert all("nests more than 1,000 levels" in line and ", line " in line for line in deep)
    assert all("line 71:" in line for line in deep if "late" in line)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (nested("[", MOST_LEVELS), False),
        (nested("[", MOST_LEVELS + 1), True),
        (nested('{"a":', MOST_LEVELS + 1), True),
        ("[" * (MOST_LEVELS + 1), True),
        ("[" + "[]," * 5_000 + "[]]", False),
        ('{"a":"' + "[" * 5_000 + '"}', False),
        ('{"a":"\\"' + "[" * 5_000 + '\\\\"}', False),
        ('["' + "]" * 5_000 + '",' + "[" * MOST_LEVELS, True),
    ],
)
def test_levels_are_counted_outside_strings(row: str, expected: bool) -> None:
    assert too_deep(row.encode()) == expected


def test_values_too_deep_for_a_column_are_read_as_text(tmp_path: Path) -> None:
    path, value = tmp_path / "f.jsonl", nested('{"a": ', 200)
    path.write_text(f'{{"id": 1, "a": {value}}}\n')
    loader, _ = StructuredDataset.create_dataloader(str(path), num_ranks=1, rank=0)
    assert next(iter(loader))["a"] == [value]


def test_lines_nested_too_deeply_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(f'{{"id": 1, "a": "x"}}\n{{"id": 2, "a": {nested("[", 2_000)}}}\n{{"id": 3, "a": "y"}}\n')
    loader, _ = StructuredDataset.create_dataloader(
        str(path), format_options={"on_bad_lines": "skip"}, num_ranks=1, rank=0
    )
    assert [number for batch in loader for number in batch["id"].tolist()] == [1, 3]


def test_a_column_whose_type_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    # pyarrow itself limits the levels of Parquet and IPC.
    kind = pa.int64()
    for _ in range(150):
        kind = pa.list_(kind)
    path = tmp_path / "f.orc"
    orc.write_table(pa.table({"id": [1], "deep": pa.nulls(1, kind)}), path)
    with pytest.raises(FileReadError, match=r"f.orc.*column 'deep' nests more than 100 levels"):
        StructuredDataset.create_dataloader(str(path), num_ranks=1, rank=0)
