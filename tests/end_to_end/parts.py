"""Loaders of each kind over tiny data: what their epochs must deliver, and what a batch of theirs holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.transforms.test_images import SIZE, pixels_of, png
from tests.transforms.test_tokens import CLS, OSLO, WORDS, tokenizer
from torch_dataloader_utils import Sample, StructuredDataset, Subsets, Transform, Windows
from torch_dataloader_utils.class_weights.draws import ClassDraw
from torch_dataloader_utils.hashing import Choice, name_hash
from torch_dataloader_utils.options import SubsetOptions
from torch_dataloader_utils.reading.row_generator import RowGenerator
from torch_dataloader_utils.schemas.value_hashes import key_hashes
from torch_dataloader_utils.subsets.choice import choice_of
from torch_dataloader_utils.transforms import DecodeImages, Tokenize

Seen = Counter[Hashable]


@dataclass(frozen=True)
class Part:
    """A kind of loader.

    Attributes:
        write: writes data into a folder; what it returns is the first argument of `make`.
        make: a loader of that data for `num_ranks`, `rank` and `num_workers`.
        law: checks what consecutive epochs from the first one on delivered, each over all ranks.
        held: from a batch to what it delivers: no repeats, no padding, all other values checked.
        counted: whether a state of any rank has the place of all; otherwise those of all are merged.
        tokens: of a stream that ranks cut into sequences, each leaving out less than one; 0 if all must be delivered.
        refused: what the error of the first batch says if there are several ranks.
        epoch: the one in which states are taken.
        follows: whether each pass reads what was added since the one before it.
        same: whether any number of ranks delivers the same.
    """

    write: Callable[[Path], Any]
    make: Callable[..., Any]
    law: Callable[[list[Seen]], None]
    held: Callable[[Any], Iterable[Hashable]]
    counted: bool = True
    tokens: int = 0
    refused: str = ""
    epoch: int = 1
    follows: bool = False
    same: bool = True


def ids(batch: Any) -> list[int]:
    found: list[int] = batch["id"][batch.get("valid", slice(None))].tolist()
    return found


def each_once(rows: Iterable[Hashable]) -> Callable[[list[Seen]], None]:
    """Every epoch has each of these rows once."""
    expected = Counter(rows)

    def law(epochs: list[Seen]) -> None:
        for seen in epochs:
            assert seen == expected, f"missing: {expected - seen}, repeated: {seen - expected}"

    return law


# ------------------------------------------------------------------------------------------------------- one dataset

ROWS, FILES, GROUP = 20, 3, 5  # rows of a file and of a row group
EVERY = range(ROWS * FILES)
WEIGHTS: dict[int | None, float] = {0: 0.4, 1: 2.5, None: 0}  # of labels; that of label 2 is 1


def label(row: int) -> int | None:
    return None if row % 7 == 0 else row % 3


def clicks(row: int) -> list[int]:
    return [row] * (row * 7 % 10)


def views(row: int) -> list[int]:
    return [] if row % 5 == 0 else [row, row + 1]


def write_rows(folder: Path) -> str:
    """Files of an id, and of values that follow from it."""
    for file in range(FILES):
        rows = range(file * ROWS, file * ROWS + ROWS)
        table = pa.table(
            {
                "id": rows,
                "label": [label(row) for row in rows],
                "name": [f"name {row}" for row in rows],
                "clicks": [clicks(row) for row in rows],
                "views": [views(row) or None for row in rows],
                "text": [" ".join(WORDS[OSLO:][: row % 4]) for row in rows],
                "image": pa.array([png(row) for row in rows], pa.binary()),
            }
        )
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=GROUP)
    return str(folder)


def write_partitions(folder: Path) -> str:
    """The same files, each in a folder of its own."""
    write_rows(folder)
    for file in range(FILES):
        (folder / f"p={file}").mkdir()
        (folder / f"{file}.parquet").rename(folder / f"p={file}" / f"{file}.parquet")
    return str(folder)


def of_rows(**options: Any) -> Callable[..., Any]:
    """Makes loaders of small shuffled batches of the files of `write_rows`."""
    given: dict[str, Any] = {
        "columns": ["id"],
        "batch_size": 4,
        "split_rows": 5,
        "shuffle": True,
        "shuffle_buffer_size": 10,
    } | options
    return lambda path, **place: StructuredDataset.create_dataloader(path, **given, **place)[0]


def chosen(by_name: bool = False, **options: Any) -> list[int]:
    """The rows of a subset or fraction: those whose hash is in its interval, as the law of subsets has it."""
    choice = choice_of(SubsetOptions(**options))
    assert isinstance(choice, Choice)
    if by_name:
        holds = choice.holds(key_hashes([pa.chunked_array([[f"name {row}" for row in EVERY]])]))
    else:
        holds = np.concatenate([mask for i in range(FILES) for mask in choice.rows(name_hash(f"{i}.parquet"), 0, ROWS)])
    rows: list[int] = np.flatnonzero(holds).tolist()
    assert 0 < len(rows) < len(EVERY)
    return rows


def copies(epochs: list[Seen]) -> None:
    """As many copies of each row as its weight, its epoch and its place give."""
    for epoch, seen in enumerate(epochs):
        expected: Seen = Counter()
        for first in range(0, len(EVERY), GROUP):
            rows = range(first, first + GROUP)
            weights = np.array([WEIGHTS.get(label(row), 1) for row in rows], np.float64)
            drawn = ClassDraw(0, epoch).copies(weights, name_hash(f"{first // ROWS}.parquet"), first % ROWS // GROUP)
            expected.update(dict(zip(rows, drawn.tolist(), strict=True)))
        assert seen == +expected


def within_budget(batch: Any) -> list[int]:
    lengths = batch["clicks"]["offsets"].diff()
    assert lengths.tolist() == [len(clicks(row)) for row in ids(batch)]
    assert len(lengths) * int(lengths.max()) <= 20
    return ids(batch)


def keyed(batch: Any) -> list[int]:
    rows, sparse = ids(batch), batch["sparse"]
    lists = [clicks(row) for row in rows] + [views(row) for row in rows]
    assert sparse["keys"] == ["clicks", "views"]
    assert sparse["lengths"].tolist() == [len(each) for each in lists]
    assert sparse["values"].tolist() == sum(lists, [])
    return rows


def decoded(batch: Any) -> list[int]:
    expected = [pixels_of(row).transpose(2, 0, 1) for row in ids(batch)]
    assert np.array_equal(np.asarray(batch["image"]), np.stack(expected))
    return ids(batch)


def tokenized(batch: Any) -> list[int]:
    values, offsets = batch["input_ids"]["values"].tolist(), batch["input_ids"]["offsets"].tolist()
    expected = [[CLS, *range(OSLO, OSLO + row % 4)] for row in ids(batch)]
    assert [values[first:last] for first, last in pairwise(offsets)] == expected
    return ids(batch)


def named(batch: Any) -> list[int]:
    """The rows of a batch, whose names are those of their places."""
    real = batch.get("valid", slice(None))
    assert batch["_file"][real].tolist() == [row // ROWS for row in ids(batch)]
    assert batch["_pos"][real].tolist() == [row % ROWS for row in ids(batch)]
    return ids(batch)


FAILING = frozenset(range(0, ROWS * FILES, 11)) | {1, 2, 3, 4}  # rows for which a transform fails


def some_fail(rows: pa.RecordBatch) -> pa.RecordBatch:
    if not FAILING.isdisjoint(rows.column("id").to_pylist()):
        raise ValueError("a bad row")
    return rows


def draw(rows: pa.RecordBatch, rng: RowGenerator) -> pa.RecordBatch:
    """The rows with numbers of two calls."""
    drawn = [pa.array(rng.integers(1 << 60, shape=2)[:, 1]), pa.array(rng.normal())]
    return pa.record_batch([*rows.columns, *drawn], names=[*rows.schema.names, "number", "normal"])


def drawn_rows(batch: Any) -> list[tuple[int, int, float]]:
    """The rows of a batch with what was drawn for them."""
    real = batch.get("valid", slice(None))
    return list(zip(ids(batch), batch["number"][real].tolist(), batch["normal"][real].tolist(), strict=True))


def with_draws(law: Callable[[list[Seen]], None]) -> Callable[[list[Seen]], None]:
    """The law of the rows; and no numbers are drawn twice, by other rows, copies or laps, or in other epochs."""

    def drawn(epochs: list[Any]) -> None:
        law([Counter(row for row, *_ in seen.elements()) for seen in epochs])
        for place in (1, 2):
            numbers = Counter(each[place] for seen in epochs for each in seen.elements())
            assert max(numbers.values()) == 1

    return drawn


def windows_of(batch: Any) -> list[tuple[int, ...]]:
    """The real windows of the batch, the past before the future, with their padding."""
    real = batch.get("valid", slice(None))
    return [tuple(rows) for rows in np.concatenate([batch["id"], batch["id_future"]], axis=1)[real].tolist()]


def edged(row: int) -> tuple[int, ...]:
    """The window of an anchor, whose padding repeats the nearest row."""
    return tuple(min(max(row + step, 0), len(EVERY) - 1) for step in range(-5, 3))


def anchors_of(batch: Any) -> list[int]:
    """The anchors of the real windows of the batch, whose other rows are checked."""
    found = windows_of(batch)
    assert found == [edged(window[5]) for window in found]
    return [window[5] for window in found]


TRAIN = Subsets({"train": 0.7, "val": 0.3})["train"]
BY_NAME = TRAIN.replace(by="name")
FRACTION = Sample(0.7)
BUDGET: dict[str, Any] = {"columns": ["id", "clicks"], "batch_tokens": 20, "batch_size": 6}
SPARSE: dict[str, Any] = {"columns": ["id", "clicks", "views"], "jagged": {"sparse": ["clicks", "views"]}}
IMAGES: dict[str, Any] = {"columns": ["id", "image"], "transform": DecodeImages("image", SIZE)}
FAILS: dict[str, Any] = {"transform": Transform(some_fail, on_error="skip", max_errors=1.0)}
LARGE = pc.field("id") - pc.field("id") / 3 * 3 != 0  # which no statistics can prune
NAMES: dict[str, Any] = {"metadata_columns": ["_file", "_pos"], "filters": LARGE, "count_rows": True}
DRAWS: dict[str, Any] = {"transform": Transform(draw, random=True)}
ALL_WINDOWS = Windows(6, order="id", horizon=2, pad="edge")
WINDOWS: dict[str, Any] = {"sequences": ALL_WINDOWS.replace(stride=2)}
TOKENS: dict[str, Any] = {"columns": ["id", "text"], "transform": Tokenize("text", tokenizer())}


WEIGHT_OF = [row % 7 * (1 + row % 3) / 4 for row in EVERY]  # of each row, if they are drawn


def weighted(rows_per_epoch: int | None = None, **options: Any) -> Callable[..., Any]:
    """Makes loaders of the same rows, drawn by their weights; of those that filters leave."""

    def make(path: str, **place: Any) -> Any:
        loader = of_rows(**options)(path, **place)
        kept = [WEIGHT_OF[row] for row in EVERY if "filters" not in options or row % 3]
        loader.set_row_weights(kept, rows_per_epoch=rows_per_epoch)
        return loader

    return make


def drawn(rows: int, which: Iterable[int]) -> Callable[[list[Seen]], None]:
    """Each epoch has so many of these rows, each as often as its share is, rounded down or up, and not always so."""

    def law(epochs: list[Seen]) -> None:
        kept = set(which)
        total = sum(WEIGHT_OF[row] for row in kept)
        for seen in epochs:
            assert seen.total() == rows
            assert seen.keys() <= kept
            for row in kept:
                share = rows * WEIGHT_OF[row] / total
                assert share - 1 < seen[row] < share + 1 or seen[row] == share
        assert epochs[0] != epochs[1]

    return law


def one(law: Callable[[list[Seen]], None], held: Callable[[Any], list[Any]] = ids, **options: Any) -> Part:
    """A part that reads the files of `write_rows`; whether its rows are counted follows from the options."""
    uncounted = "batch_tokens" in options or "class_weights" in options or options.get("subset") == BY_NAME
    return Part(write_rows, of_rows(**options), law, held, counted=not uncounted or "count_rows" in options)


OF_ONE = {
    "subset": one(each_once(chosen(subset=TRAIN)), subset=TRAIN),
    "subset by key": one(each_once(chosen(by_name=True, subset=TRAIN)), subset=BY_NAME),
    "subset by key, counted": one(each_once(chosen(by_name=True, subset=TRAIN)), subset=BY_NAME, count_rows=True),
    "partitions": Part(
        write_partitions, of_rows(filters=[("p", "!=", 1)]), each_once([*EVERY[:ROWS], *EVERY[-ROWS:]]), ids
    ),
    "partition by partition": Part(write_partitions, of_rows(shuffle="partition"), each_once(EVERY), ids),
    "fraction": one(each_once(chosen(fraction=FRACTION)), fraction=FRACTION),
    "draws": one(with_draws(each_once(EVERY)), drawn_rows, **DRAWS),
    "draws, padded": one(with_draws(each_once(EVERY)), drawn_rows, even="pad", **DRAWS),
    "draws of copies": one(with_draws(copies), drawn_rows, class_weights={"label": WEIGHTS}, **DRAWS),
    "rows that fail": one(each_once(row for row in EVERY if row not in FAILING), **FAILS),
    "rows that fail, uncounted": Part(
        write_rows,
        of_rows(filters=LARGE, **FAILS),
        each_once(row for row in EVERY if row % 3 and row not in FAILING),
        ids,
        counted=False,
    ),
    "limit": one(each_once(range(43)), limit=43),
    "limit, padded": one(each_once(range(43)), limit=43, even="pad"),
    "class weights": one(copies, class_weights={"label": WEIGHTS}),
    "row weights": Part(
        write_rows,
        weighted(37, filters=LARGE, count_rows=True, even="pad"),
        drawn(37, [row for row in EVERY if row % 3]),
        ids,
    ),
    "draws of drawn rows": Part(
        write_rows, weighted(90, columns=["id"], **DRAWS), with_draws(drawn(90, EVERY)), drawn_rows
    ),
    "batch tokens": one(each_once(EVERY), within_budget, **BUDGET),
    "windows": one(each_once(map(edged, EVERY[::2])), windows_of, **WINDOWS),
    "windows, padded": one(each_once(map(edged, EVERY[::2])), windows_of, even="pad", **WINDOWS),
    "drawn windows": Part(write_rows, weighted(90, sequences=ALL_WINDOWS, even="pad"), drawn(90, EVERY), anchors_of),
    "windows of a subset": one(
        each_once(map(edged, chosen(subset=TRAIN))), windows_of, subset=TRAIN, sequences=ALL_WINDOWS
    ),
    "jagged": one(each_once(EVERY), keyed, **SPARSE),
    "images": one(each_once(EVERY), decoded, **IMAGES),
    "tokens": one(each_once(EVERY), tokenized, **TOKENS),
    "row names": one(each_once(row for row in EVERY if row % 3), named, **NAMES),
}
