"""Row-shuffle windows as they are read: against a slow reference, for each kind of column, source and driver."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.convert.rows import rows_of
from tests.end_to_end.sharded import Kinds, Plain, structured
from tests.end_to_end.sharded import write as write_utterances
from torch_dataloader_utils import Transform
from torch_dataloader_utils.convert.columns import Dense, Objects, Ragged, Text, take_rows
from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.errors import NullValueError
from torch_dataloader_utils.executors.drivers import InlineDriver
from torch_dataloader_utils.executors.processes import WorkerPool, start_context
from torch_dataloader_utils.executors.threads import ThreadDriver, describe
from torch_dataloader_utils.formats.parquet import ParquetReader
from torch_dataloader_utils.formats.text import csv
from torch_dataloader_utils.model import Piece, Rows, Task, Window
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.tasks import SegmentTable, make_tasks
from torch_dataloader_utils.planning.windows import windowed
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.seeding import window_order
from torch_dataloader_utils.sources.combine import combined_source
from torch_dataloader_utils.sources.source import Source, open_files

FILES, GROUPS, ROWS = 3, (7, 12, 1, 10), 30  # files, rows of their row groups, rows of a file
HALVES = pc.field("odd") == False  # noqa: E712 - which no statistics can prune


def table_of(ids: np.ndarray[Any, Any]) -> pa.Table:
    """Every kind of column, each value a function of the row's id."""
    return pa.table(
        {
            "id": ids,
            "odd": ids % 2 == 1,
            "half": ids.astype(np.float16),
            "u16": ids.astype(np.uint16),
            "u64": ids.astype(np.uint64),
            "maybe": pa.array([None if i % 5 == 1 else i / 2 for i in ids], pa.float32()),
            "vector": pa.FixedSizeListArray.from_arrays(np.repeat(ids, 3).astype(np.float32), 3),
            "word": pa.array([None if i % 7 == 3 else f"word {i}" for i in ids], pa.string()),
            "blob": pa.array([b"x" * (i % 4) for i in ids], pa.binary()),
            "tokens": pa.array([list(range(i, i + i % 4)) for i in ids], pa.list_(pa.int32())),
            "city": pa.array([f"city {i % 5}" for i in ids], pa.string()),
            "pairs": pa.array([[("a", int(i))] * (i % 3) for i in ids], pa.map_(pa.string(), pa.int64())),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for number in range(FILES):
        table = table_of(np.arange(number * ROWS, (number + 1) * ROWS))
        with pq.ParquetWriter(path / f"part-{number}.parquet", table.schema) as writer:
            at = 0
            for rows in GROUPS:
                writer.write_table(table.slice(at, rows))
                at += rows
    return path


def source_of(folder: Path, **options: Any) -> Source:
    codes = {} if "columns" in options else {"strings": {"city": "codes"}}
    options = {"split_rows": 20, **codes, **options}
    return open_files(str(folder), parse_options({"num_ranks": 1, "rank": 0, **options}))


def pieces_of(source: Source) -> list[Piece]:
    return [Piece(split, split.row_range, order) for order, split in enumerate(source.splits)]


def shuffled(source: Source, pieces: Sequence[Piece], n: int = 15, k: int = 3) -> tuple[Task, ...]:
    """The tasks of one shard of these pieces."""
    layouts = {file.info.key: file.layout for file in source.files}
    options = PlanOptions(buffer_rows=n, open_splits=k)
    (made,) = windowed((tuple(pieces),), SegmentTable(layouts), options, ("window",), exact=source.exact)
    return make_tasks(made, SegmentTable(layouts))


def ids_of(piece: Piece, live: Callable[[Piece], list[int]]) -> list[int]:
    """The reference: the ids of a piece's rows, in order."""
    if not isinstance(piece.source, Window):
        return live(piece)
    rows = [row for part in piece.source.pieces for row in ids_of(part, live)]
    if piece.source.key is not None:
        rows = [rows[place] for place in window_order(len(rows), piece.source.key)]
    return rows if piece.rows is None else [rows[place] for place in piece.rows.numbers()]


def by_file(piece: Piece) -> list[int]:
    """The ids of a piece of `folder` whose rows all are live."""
    number = int(Path(piece.source.file.path).stem[-1])
    return [number * ROWS + int(row) for row in piece.rows.numbers()]


def even_ones(piece: Piece) -> list[int]:
    """The same where only even ids are live, and rows count all."""
    return [row for row in by_file(piece) if row % 2 == 0]


def even_by_number(piece: Piece) -> list[int]:
    """The same where rows count the live ones."""
    number = int(Path(piece.source.file.path).stem[-1])
    return [number * ROWS + int(row) * 2 for row in piece.rows.numbers()]


def inline(source: Source, tasks: Sequence[Task]) -> list[Block]:
    driver = InlineDriver(source.scan.open(source.by_key), [tasks])
    blocks = list(iter(lambda: driver.next_block(0), None))
    driver.close()
    return blocks


def plain(block: Block) -> dict[str, list[Any]]:
    if block.columns is None:
        return block.table.to_pydict()
    assert all(len(column) == block.rows for column in block.columns.values())
    return {key: rows_of(column) for key, column in block.columns.items()}


def check(blocks: Sequence[Block], wanted: Sequence[list[int]]) -> None:
    """Each block has these ids, in this order, and in every column what belongs to them."""
    assert [plain(block)["id"] for block in blocks] == list(wanted)
    for block, ids in zip(blocks, wanted, strict=True):
        expected = table_of(np.array(ids, np.int64)).to_pydict()
        for key, found in plain(block).items():
            if key == "valid":
                assert set(found) == {True}
            elif key == "city" and isinstance(found[0], int):
                assert found == [row % 5 for row in ids]
            elif key == "maybe" and block.columns is not None:
                np.testing.assert_equal(found, [np.nan if v is None else v for v in expected[key]])
            else:
                assert found == (expected[key] if key != "blob" or isinstance(found[0], bytes) else found)


def wanted_of(tasks: Sequence[Task], live: Callable[[Piece], list[int]]) -> list[list[int]]:
    return [[row for piece in task.pieces for row in ids_of(piece, live)] for task in tasks]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize(
    "options", [{}, {"transform": lambda batch: batch}, {"last_batch": "pad"}], ids=["plain", "transform", "pad"]
)
@pytest.mark.parametrize(("n", "k"), [(15, 3), (8, 2), (1000, 4), (1, 1)])
def test_windows_hold_their_rows_in_the_order_of_their_keys(
    folder: Path, output_format: str, options: dict[str, Any], n: int, k: int
) -> None:
    source = source_of(folder, output_format=output_format, **options)
    tasks = shuffled(source, pieces_of(source), n, k)
    wanted = wanted_of(tasks, by_file)
    assert sorted(sum(wanted, [])) == list(range(FILES * ROWS))
    check(inline(source, tasks), wanted)


def test_each_segment_is_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(folder, columns=["id", "word"])
    read: list[tuple[str, int, str]] = []
    original = ParquetReader.read

    def noting(self: ParquetReader, numbers: Any, columns: Any) -> Any:
        read.extend((self.path, number, column) for number in numbers for column in columns)
        return original(self, numbers, columns)

    def moving(self: ParquetReader, numbers: Any, columns: Any) -> Any:
        found = chunks(self, numbers, columns)
        read.extend((self.path, number, column) for number in numbers for column in found)
        return found

    chunks = ParquetReader.chunks
    monkeypatch.setattr(ParquetReader, "read", noting)
    monkeypatch.setattr(ParquetReader, "chunks", moving)
    inline(source, shuffled(source, pieces_of(source), 8, 2))
    assert len(read) == len(set(read)) == FILES * len(GROUPS) * 2


@pytest.mark.parametrize("output_format", ["torch", "arrow"])
@pytest.mark.parametrize("counted", [False, True])
def test_filters(folder: Path, output_format: str, counted: bool) -> None:
    source = source_of(folder, output_format=output_format, filters=HALVES, count_rows=counted)
    assert source.exact is counted
    tasks = shuffled(source, pieces_of(source))
    wanted = wanted_of(tasks, even_by_number if counted else even_ones)
    assert sorted(sum(wanted, [])) == list(range(0, FILES * ROWS, 2))
    assert all((task.rows is not None) is counted for task in tasks)
    check(inline(source, tasks), wanted)


def twice_the_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every odd row twice, every fourth one not at all."""
    ids = batch.column("id").to_numpy()
    return batch.take(pa.array(np.repeat(np.arange(len(ids)), np.where(ids % 4 == 0, 0, 1 + ids % 2))))


def test_a_transform_that_changes_the_number_of_rows(folder: Path) -> None:
    source = source_of(folder, transform=Transform(twice_the_odd, rows="any"))
    tasks = shuffled(source, pieces_of(source))

    def live(piece: Piece) -> list[int]:
        return [row for row in by_file(piece) if row % 4 for _ in range(1 + row % 2)]

    check(inline(source, tasks), wanted_of(tasks, live))


@pytest.mark.parametrize(
    "options",
    [{}, {"filters": HALVES}, {"nulls": "drop", "columns": ["id", "maybe"]}, {"stack": {"x": ["id"]}}],
    ids=str,
)
def test_threads_and_processes_give_what_the_callers_thread_gives(folder: Path, options: dict[str, Any]) -> None:
    source = source_of(folder, **options)
    tasks = shuffled(source, pieces_of(source))
    wanted = [str(plain(block)) for block in inline(source, tasks)]
    assert wanted == [str(plain(block)) for block in threads(source, tasks)]
    pool = WorkerPool(source.scan.open, 1, 1 << 28, start_context(multiprocessing.get_context("fork")))
    driver = pool.begin([tasks], source.by_key, 60)
    found = [str(plain(block)) for block in iter(lambda: driver.next_block(0), None)]
    driver.close()
    pool.close()
    assert wanted == found


def threads(source: Source, tasks: Sequence[Task]) -> Iterator[Block]:
    driver = ThreadDriver(lambda: source.scan.open(source.by_key), [tasks], 1 << 28, 2, 60)
    yield from iter(lambda: driver.next_block(0), None)
    driver.close()


@pytest.mark.parametrize("options", [{}, {"filters": HALVES}], ids=str)
def test_begun_windows_and_windows_of_windows(folder: Path, options: dict[str, Any]) -> None:
    """What is left of a window, of a block of windows, and of what was left of that."""
    source = source_of(folder, **options)
    live = even_ones if options else by_file
    first = shuffled(source, pieces_of(source))[0]
    rows = len(wanted_of([first], live)[0])
    rest = Piece(Window(first.pieces, None, rows, index=100), Rows(4, rows), -1)
    again = Piece(Window((rest,), 17, rows - 4, index=101), Rows(1, rows - 4, 3, 2), -1)
    layouts = {file.info.key: file.layout for file in source.files}
    tasks = make_tasks([rest, again, replace(again, pad=True)], SegmentTable(layouts))
    assert [task.rows for task in tasks] == [len(rest), len(again), len(again)]
    check(inline(source, tasks), wanted_of(tasks, live))
    assert wanted_of([first], live)[0][4:] == plain(inline(source, tasks)[0])["id"]


@pytest.mark.parametrize("rows", [Rows(3, 29, 4, 1, 3), Rows(2, 30, 7, 3, 2), Rows(6, 8), Rows(0, 30)], ids=str)
@pytest.mark.parametrize("output_format", ["torch", "arrow"])
def test_pieces_of_some_rows(folder: Path, rows: Rows, output_format: str) -> None:
    source = source_of(folder, split_rows=30, output_format=output_format)
    pieces = [replace(piece, rows=rows) for piece in pieces_of(source)]
    tasks = shuffled(source, pieces, 9, 2)
    wanted = wanted_of(tasks, by_file)
    assert sorted(sum(wanted, [])) == sorted(row for piece in pieces for row in by_file(piece))
    check(inline(source, tasks), wanted)


def test_padding_is_marked(folder: Path) -> None:
    source = source_of(folder, even="pad")
    pieces = pieces_of(source)
    tasks = shuffled(source, [*pieces, replace(pieces[0].cut(0, 3), pad=True)])
    blocks = inline(source, tasks)
    assert [set(plain(block)["valid"]) for block in blocks] == [{True}] * (len(blocks) - 1) + [{False}]
    assert plain(blocks[-1])["id"] == [0, 1, 2]


def test_text_whose_rows_only_reading_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "FORMAT", replace(csv.FORMAT, range_bytes=64))
    for number in range(2):
        lines = "".join(f"{number * 50 + row},{row / 2}\n" for row in range(50))
        (tmp_path / f"part-{number}.csv").write_text("id,half\n" + lines)
    source = open_files(str(tmp_path), parse_options({"num_ranks": 1, "rank": 0}))
    tasks = shuffled(source, pieces_of(source), 1000, 2)
    segments = sum(len(file.layout.segments) for file in source.files)
    assert len(tasks) == segments / 2 > 1
    blocks = inline(source, tasks)
    orders = [plain(block)["id"] for block in blocks]
    assert sorted(sum(orders, [])) == list(range(100))
    for task, found, block in zip(tasks, orders, blocks, strict=True):
        (piece,) = task.pieces
        wanted = np.array(sorted(found))[window_order(block.rows, piece.source.key)]
        assert found == wanted.tolist()
        assert plain(block)["half"] == [row % 50 / 2 for row in found]


@pytest.mark.parametrize("output_format", ["torch", "arrow"])
def test_windows_over_several_datasets(tmp_path: Path, output_format: str) -> None:
    files = structured(write_utterances(tmp_path / "a", 0, 60), output_format=output_format, split_rows=10)
    given = {"num_ranks": 1, "rank": 0, "split_rows": 10, "output_format": output_format, "batches": "splits"}
    source = combined_source([files._source, Plain(24, first=100)], [0, 1], parse_options(given, "combine"))
    tasks = shuffled(source, pieces_of(source), 30, 9)
    blocks = inline(source, tasks)
    assert sorted(row for block in blocks for row in plain(block)["id"]) == [*range(60), *range(100, 124)]
    assert any({row < 100 for row in plain(block)["id"]} == {True, False} for block in blocks)

    def live(piece: Piece) -> list[int]:
        info, rows = piece.source.file, piece.rows.numbers()
        first = 100 if info.part else 30 * int(Path(info.path).stem[-1])
        return [first + int(row) for row in rows]

    for block, ids in zip(blocks, wanted_of(tasks, live), strict=True):
        assert plain(block)["id"] == ids
        assert plain(block)["text"] == [f"row {row}" for row in ids]
        assert plain(block)["speech"] == [list(range(row % 5 + 1)) for row in ids]


def test_windows_over_samples_of_every_kind() -> None:
    source = combined_source([Kinds()], [0], parse_options({"num_ranks": 1, "rank": 0}))
    tasks = shuffled(source, pieces_of(source), 10, 1)
    ((block,), (order,)) = inline(source, tasks), wanted_of(tasks, lambda piece: piece.rows.numbers().tolist())
    found = plain(block)
    for place, row in enumerate(order):
        for key, value in Kinds()[row].items():
            expected = value.tolist() if hasattr(value, "tolist") else value
            assert found[key][place] == expected


def test_memory_is_used_again_after_the_last_view_died(folder: Path) -> None:
    source = source_of(folder, columns=["id", "u64"])
    tasks = shuffled(source, pieces_of(source))
    reader = source.scan.open(source.by_key)
    kept = [reader.block(tasks[0])]
    view = kept[0].columns["id"].array[2:5]
    before = view.tolist()
    for _ in range(20):
        reader.block(tasks[1])
    assert view.tolist() == before  # a view keeps its memory
    made = source.scan.pool.made
    for _ in range(20):
        reader.block(tasks[0])
    assert source.scan.pool.made == made
    reader.close()


def test_columns_can_be_written_to_and_share_nothing(folder: Path) -> None:
    source = source_of(folder, columns=["id", "half", "vector", "tokens", "odd"])
    for block in inline(source, shuffled(source, pieces_of(source))):
        arrays = {key: c.array if isinstance(c, Dense) else c.values for key, c in block.columns.items()}
        assert all(array.flags.writeable and array.flags.c_contiguous for array in arrays.values())
        before = {key: array.copy() for key, array in arrays.items()}
        for key, array in arrays.items():
            array[:] = 0
            before[key][:] = 0
            assert all((arrays[other] == before[other]).all() for other in arrays)


def test_a_null_names_its_file(folder: Path) -> None:
    nulls = pa.table({"id": pa.array([1, None, 3])})
    path = folder.parent / "nulls"
    path.mkdir()
    pq.write_table(nulls, path / "a.parquet", write_statistics=False)
    source = source_of(path, strings="list")
    with pytest.raises(NullValueError, match=r"'id'.*a\.parquet, row group 0"):
        inline(source, shuffled(source, pieces_of(source)))


def test_what_a_time_out_says(folder: Path) -> None:
    source = source_of(folder)
    (task,) = shuffled(source, pieces_of(source), 1000, 10)
    assert describe(task) == ", ".join(file.info.path for file in source.files)
    plain_task = Task(tuple(pieces_of(source)[:1]), 20, 0)
    assert describe(plain_task) == f"{source.files[0].info.path}, rows 0 to 20"


TYPES = [
    pa.array([1, None, 3], pa.int64()),
    pa.array(["a", None, "ccc"], pa.string_view()),
    pa.array([{"a": 1}, None, {"a": 3}]),
    pa.array([[[1], []], None, [[2]]]),
    pc.run_end_encode(pa.array([1, 1, 2])),
    pa.array(["a", None, "b"]).dictionary_encode(),
    pa.nulls(3),
]


@pytest.mark.parametrize("array", TYPES, ids=lambda array: str(array.type))
@pytest.mark.parametrize("places", [[2, 0, 1, 3, 5], [], [1]], ids=str)
def test_rows_of_any_arrow_type(array: pa.Array, places: list[int]) -> None:
    chunks = pa.chunked_array([array, array])
    rows = chunks.to_pylist()
    found = take_rows(chunks, np.array(places, np.int64))
    assert found.type == array.type
    assert found.to_pylist() == [rows[place] for place in places]
    column = Objects(chunks).take(np.array(places, np.int64))
    assert column.to_list() == [rows[place] for place in places]


@pytest.mark.parametrize("places", [[2, 0, 1], [], [1, 1]], ids=str)
def test_rows_of_columns_that_are_slices(places: list[int]) -> None:
    order = np.array(places, np.int64)
    ragged = Ragged(np.arange(12).reshape(6, 2), np.array([0, 1, 1, 3, 6]), Padding(-1)).slice(1, 4)
    found = ragged.take(order)
    assert rows_of(found) == [rows_of(ragged)[place] for place in places]
    assert found.layout == Padding(-1)
    assert found.offsets[0] == 0
    text = Text(np.frombuffer(b"abbccc", np.uint8), np.array([0, 1, 3, 3, 6]), np.array([1, 1, 0, 1], bool), False)
    assert text.slice(1, 4).take(order).to_list() == [["bb", None, "ccc"][place] for place in places]
    empty = Ragged(np.empty((0, 3), np.float32), np.zeros(4, np.int64)).take(order)
    assert empty.values.shape == (0, 3)
    assert empty.offsets.tolist() == [0] * (len(places) + 1)
