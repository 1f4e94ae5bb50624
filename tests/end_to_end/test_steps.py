"""docs/steps.md says in which order a row is treated, and at which step each option acts: as the code has it."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import Fill, Pack, Transform, stream
from torch_dataloader_utils.events import Recorder, Stage
from torch_dataloader_utils.options import options_of

PAGE = (Path(__file__).parents[2] / "docs" / "steps.md").read_text()
# What a reader records: the step of the page.
RECORDED = {"decode": "read", "delete": "delete", "filter": "filter", "transform": "transform"}
RECORDED |= {"convert": "convert", "shuffle": "shuffle"}
ROWS, DELETED = 400, range(0, 400, 10)


def steps(title: str) -> list[str]:
    """The steps of a section of the page."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (\w[\w ]*) \|", section, re.MULTILINE)[1:]


@pytest.fixture
def table(tmp_path: Path) -> LogTable:
    """A table of one file, with deleted rows."""
    commit(tmp_path, 1, data_file(tmp_path, "a.parquet", range(ROWS), list(DELETED), rows=100))
    return LogTable(tmp_path)


class Seen:
    """A transform that keeps what it is given."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        ids = rows["id"].to_pylist()
        self.ids += ids
        odd = pa.array([None if number % 2 else number for number in ids], pa.int64())
        documents = pa.array([[number] * 3 for number in ids], pa.list_(pa.int64()))
        return pa.record_batch({"id": rows["id"], "odd": odd, "tokens": documents})


def test_readers_take_the_steps_in_the_order_of_the_page(table: LogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    enter = Recorder.enter

    def noted(self: Recorder, stage: Stage) -> Stage:
        recorded.append(RECORDED.get(stage, ""))
        return enter(self, stage)

    loader = stream(table, filters=[("x", ">", 20.0)], transform=Seen(), nulls={"odd": Fill(-1)}, shuffle=True)
    monkeypatch.setattr(Recorder, "enter", noted)
    next(iter(loader))
    found = [name for name in dict.fromkeys(recorded) if name]
    assert found == [name for name in steps("Where rows are read") if name in RECORDED.values()]


def test_a_transform_gets_the_rows_that_deletes_filters_and_copies_leave_in_file_order(table: LogTable) -> None:
    seen = Seen()
    loader = stream(
        table,
        filters=[("x", ">", 20.0)],
        class_weights={"id": {399: 2}},
        transform=seen,
        nulls={"odd": Fill(-1)},
        shuffle=True,
        num_workers=1,
    )
    seen.ids.clear()  # of the call that finds the types
    delivered = [int(number) for batch in loader for number in batch["id"]]
    expected = [number for number in range(41, ROWS) if number not in DELETED]
    assert sorted(set(seen.ids)) == expected  # deleted and filtered rows are not seen
    assert seen.ids.count(399) == 2
    assert delivered != sorted(delivered)  # the shuffle is later
    assert sorted(delivered) == sorted(seen.ids)


def test_nulls_of_a_transform_are_filled_and_documents_are_packed_in_shuffled_order(table: LogTable) -> None:
    collated: list[Any] = []

    def collate(batch: dict[str, Any]) -> dict[str, Any]:
        collated.append(batch)
        return batch

    filled = next(iter(stream(table, transform=Seen(), nulls={"odd": Fill(-1)})))
    assert int(filled["odd"][0]) == -1  # row 1: row 0 is deleted
    made = pa.schema({"tokens": pa.list_(pa.int64())})
    documents = Transform(lambda rows: Seen()(rows).select(["tokens"]), schema=made)
    loader = stream(table, transform=documents, pack=Pack(30), shuffle=True, batch_size=2, collate_fn=collate)
    batch = next(iter(loader))
    first = batch["tokens"][0][::3].tolist()
    assert batch["tokens"].shape == (2, 30)
    assert first != sorted(first)
    assert collated == [batch]


def test_the_page_names_each_option() -> None:
    named = {word for span in re.findall(r"`([^`]+)`", PAGE) for word in re.findall(r"^(\w+)", span)}
    assert {*options_of("stream"), *options_of("combine")} - named == set()
