"""Calls that fail, each by one mistake; their errors name changes of the call that mend it."""

from __future__ import annotations

import datetime
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from tests.formats.interval_writing import write_intervals
from torch_dataloader_utils import (
    Appended,
    Buckets,
    Codes,
    DeltaDataset,
    Fill,
    Follow,
    Hive,
    IcebergDataset,
    Pack,
    Padded,
    Sample,
    Shard,
    Shuffle,
    Split,
    Strided,
    StructuredDataset,
    Subsets,
    Transform,
    Weights,
    Windows,
    combine,
)
from torch_dataloader_utils.errors import (
    ColumnNotFoundError,
    CountsRequiredError,
    DataLoaderUtilsError,
    FileReadError,
    NullValueError,
    OptionError,
    SchemaMismatchError,
    ShardingError,
    SnapshotError,
    UnknownOptionError,
    UnknownValueError,
    UnsupportedTypeError,
)

ALONE = SimpleNamespace(num_processes=1, process_index=0)  # as an Accelerator of one process


@dataclass(frozen=True)
class Failing:
    """A call that fails.

    Attributes:
        keywords: of the call, beside the path.
        error: what it raises.
        call: makes a loader and reads of it; None for the default.
        path: below the folder of data.
    """

    keywords: Mapping[str, Any] = field(default_factory=dict)
    error: type[DataLoaderUtilsError] = OptionError
    call: Callable[..., Any] | None = None
    path: str = "rows"


SIDES = Subsets({"a": 0.5, "b": 0.5})
BYTES = os.fsdecode(b"\xff")  # in a name that is not valid UTF-8


def write_data(folder: Path) -> None:
    """Rows of several types, documents of tokens, and both without row counts."""
    rows = {
        "id": range(40),
        "x": [row / 2 for row in range(40)],
        "word": [f"w{row % 3}" for row in range(40)],
    }
    holes = {"id": range(40), "holes": [None if row % 5 else row for row in range(40)]}
    tokens = {"ids": [[row] * (row % 5 + 1) for row in range(40)]}
    mask = {"mask": [[1] * (row % 5 + 1) for row in range(40)]}
    labelled = {**tokens, "labels": tokens["ids"]}
    both = {**tokens, **mask}
    tables = {
        "rows": rows,
        "tokens": tokens,
        "both": both,
        "labelled": labelled,
        "mixed": {**tokens, **rows},
        "holes": holes,
        "runs": {"id": range(40), "word": [f"w{row // 9}" for row in range(40)]},
    }
    for name, table in tables.items():
        (folder / name).mkdir()
        pq.write_table(pa.table(table), folder / name / "part.parquet", row_group_size=5)
    more = {**holes, "other": holes["holes"]}
    objects = {"id": range(40), "point": [[{"x": row}] for row in range(40)]}
    decimals = {"price": pa.array([Decimal(row) for row in range(40)], pa.decimal128(30, 2))}
    latin = {"word": pa.array([b"\xfc"] * 40).view(pa.string())}
    few = {"id": range(5)}
    blanks = {"x": [None, 1.5] * 20, "day": [None, datetime.date(2024, 5, 1)] * 20, "blob": [None, b"a"] * 20}
    for name, values in (
        ("blanks", blanks),
        ("more_holes", more),
        ("objects", objects),
        ("decimals", decimals),
        ("latin", latin),
        ("beside", few),
        ("folders/a", few),
        ("folders/b", few),
        ("hive/day=1", few),
        ("hive/hour=1", few),
        ("bytes", few),
        (f"key={BYTES}", few),
    ):
        (folder / name).mkdir(parents=True)
        with open(folder / name / "part.parquet", "wb") as file:
            pq.write_table(pa.table(values), file, row_group_size=5)
    (folder / "bytes" / "part.parquet").rename(folder / "bytes" / f"part-{BYTES}.parquet")
    for name, text in (("doubled", "1,1\n2,3\n"), ("semicolons", "a;b\n1;2\n")):
        (folder / name).mkdir()
        (folder / name / "part.csv").write_text(text)
    time = [datetime.datetime(2024, 5, 1, 12, row) for row in range(40)]
    times = {"number": range(40), "at": time, "numbers": [[row] for row in range(40)], "moments": [[at] for at in time]}
    (folder / "times").mkdir()
    pq.write_table(pa.table(times), folder / "times" / "part.parquet", row_group_size=5)
    (folder / "null_lists").mkdir()
    pq.write_table(pa.table({"x": [None, [1], [2, None]] * 10}), folder / "null_lists" / "part.parquet")
    (folder / "intervals").mkdir()
    write_intervals(folder / "intervals" / "part.arrow")
    (folder / "late").mkdir()
    pq.write_table(pa.table({"at": pa.array([2**55] * 40, pa.timestamp("ms"))}), folder / "late" / "part.parquet")
    (folder / "units").mkdir()
    for unit in ("ms", "us"):
        pq.write_table(pa.table({"at": pa.array(time, pa.timestamp(unit))}), folder / "units" / f"{unit}.parquet")
    (folder / "text").write_text("no manifest")
    write_iceberg(folder)
    write_deltalake(folder / "delta", pa.table(few))
    (folder / "numbered").mkdir()
    pq.write_table(pa.table({"id": range(5), "_pos": range(5)}), folder / "numbered" / "part.parquet")
    (folder / "long_lines").mkdir()
    text = "".join(f'{{"id": {row}, "text": "{"x" * 60_000}"}}\n' for row in range(40))
    (folder / "long_lines" / "part.jsonl").write_text(text)
    (folder / "lines").mkdir()
    (folder / "lines" / "part.jsonl").write_text("".join(f'{{"id": {row}}}\n' for row in range(40)))


def write_iceberg(folder: Path) -> None:
    """A table of format version 2, whose last snapshot deleted rows; "iceberg" is its metadata's address."""
    with SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse") as catalog:
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", pa.schema({"id": pa.int64()}))
        for _ in range(2):
            table.append(pa.table({"id": range(40)}))
        table.delete("id < 5")
        (folder / "iceberg").write_text(table.metadata_location)


def read(path: Any, **keywords: Any) -> None:
    """Make a loader, and read an epoch."""
    loader, _ = StructuredDataset.create_dataloader(path, **{"batch_size": 4, "num_workers": 0, **keywords})
    for _ in loader:
        pass


def read_listed(path: Any, **keywords: Any) -> None:
    """As `read`; a manifest is written beside the data."""
    own = {"manifest": f"{path}.{keywords['manifest']}"} if "manifest" in keywords else {}
    read(path, **{**keywords, **own})


def read_files(path: str, **keywords: Any) -> None:
    """Make a loader of the files of a folder, given one by one."""
    read([str(file) for file in sorted(Path(path).rglob("*.parquet"))], **keywords)


def read_beside(path: str, **keywords: Any) -> None:
    """Make a loader with the manifest in the folder of data."""
    place = keywords.get("manifest", "")
    read(path, **{**keywords, "manifest": place if "/" in place else f"{path}/{place}"})


def read_with_other(path: str, **keywords: Any) -> None:
    """Make a loader with the manifest of other data."""
    if "manifest" in keywords:
        keywords["manifest"] = f"{path}_other.parquet"
        StructuredDataset.create_dataloader(f"{path}/../tokens", manifest=keywords["manifest"])
    read(path, **keywords)


def read_with_newer(path: str, **keywords: Any) -> None:
    """Make a loader with the manifest of a newer version of the package."""
    if "manifest" in keywords:
        place = keywords["manifest"] = f"{path}_newer.parquet"
        StructuredDataset.create_dataloader(path, manifest=place)
        table = pq.read_table(place)
        [(key, header)] = table.schema.metadata.items()
        newer = {key: json.dumps(json.loads(header) | {"version": 99})}
        pq.write_table(table.replace_schema_metadata(newer), place)
    read(path, **keywords)


def read_with_file(path: str, **keywords: Any) -> None:
    """Make a loader whose manifest is a file beside its data."""
    if "manifest" in keywords:
        keywords["manifest"] = f"{path}/../{keywords['manifest']}"
    read(path, **keywords)


def read_delta(path: str, **keywords: Any) -> None:
    """Make a loader of a Delta table, and read an epoch."""
    for _ in DeltaDataset.create_dataloader(path, batch_size=4, **keywords)[0]:
        pass


def read_iceberg(path: str, **keywords: Any) -> None:
    """Make a loader of an Iceberg table, and read an epoch."""
    place = Path(path).read_text()
    if "appended" in keywords:
        first = StaticTable.from_metadata(place).history()[0].snapshot_id
        keywords["appended"] = keywords["appended"].replace(after=first)
    for _ in IcebergDataset.create_dataloader(place, batch_size=4, **keywords)[0]:
        pass


class Generating:
    """A strategy that gives each rank one shard of all files."""

    def generate(self, files: Any, num_workers: int, epoch: int, num_ranks: int, rank: int) -> list[Shard]:
        return [Shard(0, tuple(Split(file) for file in files[rank::num_ranks]))]


class Samples:
    """Samples with a lock, which cannot be sent to another process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"id": index}


def combined_samples(path: str, **keywords: Any) -> None:
    """Make a loader of samples, and read an epoch."""
    for _ in combine([Samples()], **{"batch_size": 4, "num_workers": 0, **keywords}):
        pass


def combined(path: str, **keywords: Any) -> None:
    """Make a loader of two datasets, and read an epoch."""
    lists = {"lists": "padded"} if "batch_tokens" in keywords else {}
    for _ in combine([path, path], **{"batch_size": 4, "num_workers": 0, **lists, **keywords}):
        pass


def combined_times(path: str, **keywords: Any) -> None:
    """Make a loader of times and of numbers, where the keywords are of the dataset of times."""
    file = pq.read_table(path)
    pq.write_table(pa.table({"x": file["at"]}), f"{path}_a.parquet")
    pq.write_table(pa.table({"x": file["number"]}), f"{path}_b.parquet")
    times = StructuredDataset.create_dataloader(f"{path}_a.parquet", **keywords)[1]
    numbers = StructuredDataset.create_dataloader(f"{path}_b.parquet")[1]
    for _ in combine([times, numbers], batch_size=4, num_workers=0):
        pass


def half(batch: Any) -> Any:
    """A transform that leaves out rows."""
    return batch.slice(0, len(batch) // 2)


PHASES = [(0, [1, 1]), (2, [1, 2])]


def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that changes nothing."""
    return batch


def drawn(batch: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
    """A transform that draws."""
    return batch.append_column("drawn", pa.array(rng.random()))


PACK = {"pack": Pack(16)}
WRAP = {"pack": Pack(16, method="wrap")}
PAIRS = Windows(2, order="id")
FILTER = {"filters": [("x", "<", 7.2)]}
TWO = {"num_ranks": 2, "rank": 0}
ANY = {"transform": Transform(half, rows="any")}

CALLS: dict[str, Failing] = {
    "count_rows with Transform(rows='any')": Failing({"count_rows": True, **ANY}),
    "the same, with even": Failing({"count_rows": True, "even": "drop", **ANY}),
    "the same, with even='pad' and canonical ranks": Failing(
        {"count_rows": True, "even": "pad", "canonical_ranks": 2, **ANY}
    ),
    "count_rows with class_weights": Failing({"count_rows": True, "class_weights": {"word": {"w0": 2.0}}}),
    "even='drop' with Transform(rows='any')": Failing({"even": "drop", **ANY}, CountsRequiredError),
    "canonical_ranks with Transform(rows='any')": Failing({"canonical_ranks": 2, **ANY}, CountsRequiredError),
    "last_batch='wrap' with Transform(rows='any')": Failing({"last_batch": "wrap", **ANY}, CountsRequiredError),
    "even='pad' with pack": Failing({"even": "pad", **PACK}, CountsRequiredError, path="tokens"),
    "even='drop' under a filter": Failing({"even": "drop", **FILTER}, CountsRequiredError),
    "last_batch='wrap' under a filter": Failing({"last_batch": "wrap", **FILTER}, CountsRequiredError),
    "even='sync' without a process group": Failing({"even": "sync", **FILTER, **TWO}, ShardingError),
    "the same, with pack": Failing({"even": "sync", **PACK, **TWO}, ShardingError, path="tokens"),
    "even='drop' of more ranks than rows": Failing({"even": "drop", "batch_size": 64, **TWO}, ShardingError),
    "the same, with a part of each batch": Failing(
        {"even": "drop", "batch_size": 64, "sharding": Strided("split_batch"), **TWO}, ShardingError
    ),
    "steps_per_epoch with even": Failing({"steps_per_epoch": 3, "even": "drop", **TWO}),
    "last_batch with even": Failing({"last_batch": "pad", "even": "drop", **TWO}),
    "last_batch with steps_per_epoch": Failing({"last_batch": "drop", "steps_per_epoch": 3}),
    "storage_options with filesystem": Failing({"storage_options": {}, "filesystem": pa.fs.LocalFileSystem()}),
    "device with output_format": Failing({"device": "cpu", "output_format": "numpy"}),
    "sequences with output_format": Failing({"sequences": PAIRS, "columns": ["id"], "output_format": "arrow"}),
    "sequences with class_weights": Failing(
        {"sequences": PAIRS, "columns": ["id"], "class_weights": {"word": {"w0": 2.0}}}
    ),
    "sequences with limit": Failing({"sequences": PAIRS, "columns": ["id"], "limit": 10}),
    "sequences of text": Failing({"sequences": PAIRS}, UnsupportedTypeError),
    "sequences of lists": Failing({"sequences": PAIRS.replace(order="x")}, UnsupportedTypeError, path="mixed"),
    "sequences with padding that does not fit": Failing({"sequences": PAIRS.replace(pad=0.5), "columns": ["id"]}),
    "sequences with a subset of files": Failing(
        {"sequences": PAIRS.replace(by="word"), "subset": SIDES.replace(unit="file")["a"], "columns": ["id"]},
        path="runs",
    ),
    "sequences of rows that lie apart": Failing({"sequences": PAIRS.replace(by="word"), "columns": ["id"]}),
    "sequences ordered by nulls": Failing({"sequences": PAIRS.replace(order="holes"), "columns": ["id"]}, path="holes"),
    "batch_tokens with pack": Failing({"batch_tokens": Buckets(64, by="ids"), **PACK}, path="tokens"),
    "batch_tokens with last_batch": Failing(
        {"batch_tokens": Buckets(64, by="ids"), "lists": "padded", "last_batch": "drop"}, path="tokens"
    ),
    "batch_tokens with output_format": Failing(
        {"batch_tokens": Buckets(64, by="ids"), "lists": "padded", "output_format": "arrow"}, path="tokens"
    ),
    "batch_tokens with a part of each batch": Failing(
        {"batch_tokens": Buckets(64, by="ids"), "lists": "padded", "sharding": Strided("split_batch")},
        path="tokens",
    ),
    "pack with output_format": Failing({**PACK, "output_format": "arrow"}, path="tokens"),
    "pack with lists": Failing({**PACK, "lists": "padded"}, path="tokens"),
    "pack with padded lists": Failing({**PACK, "lists": {"ids": Padded(multiple=8)}}, path="tokens"),
    "pack with columns that are no lists": Failing(PACK, UnsupportedTypeError, path="mixed"),
    "wrap with sharding='strided'": Failing({**WRAP, "sharding": "strided", **TWO}, path="tokens"),
    "wrap with canonical_ranks": Failing({**WRAP, "canonical_ranks": 2}, path="tokens"),
    "wrap with limit": Failing({**WRAP, "limit": 30}, path="tokens"),
    "labels of a column that has them": Failing({"pack": Pack(16, labels="ids")}, path="labelled"),
    "a mask for a model without labels": Failing({"pack": Pack(16, keys="hf"), "steps_per_epoch": 2}, path="tokens"),
    "wrap with pad": Failing({"pack": {"length": 16, "method": "wrap", "pad": 1}}, path="tokens"),
    "full_rotation without total_shards": Failing({"sharding": {"kind": "rotate", "full_rotation": True}}),
    "total_shards with stick_to_shard": Failing(
        {"sharding": {"kind": "rotate", "total_shards": 2, "stick_to_shard": True}}
    ),
    "vocabulary without codes": Failing({"strings": {"*": Codes({"word": ["w0"]}), "word": "list"}}),
    "vocabulary of numbers": Failing({"strings": Codes({"x": [0, 1]}), "columns": ["x"]}),
    "strings of numbers": Failing({"strings": {"id": "bytes"}, "columns": ["id"]}),
    "strings of numbers and words": Failing({"strings": {"id": "bytes", "word": "codes"}, "columns": ["id", "word"]}),
    "dtypes of words": Failing({"dtypes": {"word": "float32"}, "columns": ["word"]}),
    "decimals of words": Failing({"decimals": {"word": "scaled"}, "columns": ["word"]}),
    "wrap with long": Failing({"pack": {"length": 16, "method": "wrap", "long": "drop"}}, path="tokens"),
    "shuffle='splits' with a buffer": Failing({"shuffle": "splits", "shuffle_buffer_size": 10}),
    "shuffle='splits' with open splits": Failing({"shuffle": {"scope": "splits", "open_splits": 2}}),
    "shuffle='all' with open splits": Failing({"shuffle": {"scope": "all", "open_splits": 2}}),
    "Shuffle of rows and bytes": Failing({"shuffle": {"window_rows": 8, "window_bytes": 100}}),
    "Shuffle with a buffer": Failing({"shuffle": Shuffle(open_splits=2), "shuffle_buffer_size": 10}),
    "limit with class_weights": Failing({"limit": 10, "class_weights": {"word": {"w0": 2.0}}}),
    "the same, with a fraction": Failing({"limit": 10, "fraction": 0.5, "class_weights": {"word": {"w0": 2.0}}}),
    "all subsets": Failing({"subset": SIDES}),
    "no subset": Failing({"subset": 3}),
    "a sample by another key than the subset": Failing({"subset": SIDES["a"], "fraction": Sample(0.9, by="id")}),
    "a sample of another unit than the subset": Failing({"subset": SIDES["a"], "fraction": Sample(0.9, unit="file")}),
    "a limit that is a fraction": Failing({"limit": 0.5}),
    "limit under a filter": Failing({"limit": 3, **FILTER}),
    "a GPU where there is none": Failing({"device": "cuda:77"}),
    "another device": Failing({"device": "meta"}),
    "rank without num_ranks": Failing({"rank": 0}),
    "num_ranks without rank": Failing({"num_ranks": 2}),
    "ranks and other numbers": Failing({"ranks": ALONE, "num_ranks": 2, "rank": 0}),
    "valid_key that is a column": Failing({"valid_key": "id", "last_batch": "pad"}),
    "last_batch with canonical ranks": Failing({"last_batch": "pad", "canonical_ranks": 2, "batch_size": 4}),
    "canonical_ranks under a filter": Failing({"canonical_ranks": 2, **FILTER}, CountsRequiredError),
    "two columns of one name": Failing({}, SchemaMismatchError, path="doubled"),
    "two columns of one name, other options": Failing(
        {"format_options": {"null_values": ["3"]}, "nulls": "mask"}, SchemaMismatchError, path="doubled"
    ),
    "another delimiter": Failing({}, path="semicolons"),
    "split_rows of lines": Failing({"split_rows": 5}, CountsRequiredError, path="lines"),
    "stop with rows_per_epoch": Failing({"stop": "all", "rows_per_epoch": 8, "batches": "proportional"}, call=combined),
    "temperature with weights": Failing(
        {"weights": {"kind": "weights", "values": [1, 2], "temperature": 2}, "batches": "proportional"}, call=combined
    ),
    "weights that change with batches": Failing({"batches": "single", "weights": PHASES}, call=combined),
    "weights that change with stop": Failing({"stop": "all", "weights": PHASES}, call=combined),
    "weights that change with max_repeats": Failing(
        {"weights": {"kind": "weights", "values": PHASES, "max_repeats": 2}}, call=combined
    ),
    "batches='splits' with temperature": Failing(
        {"weights": Weights(temperature=2), "batches": "splits"}, call=combined
    ),
    "weights of splits with shuffle='all'": Failing(
        {"weights": [1, 2], "batches": "splits", "shuffle": "all"}, call=combined
    ),
    "batches='splits' with source_key": Failing({"source_key": "part", "batches": "splits"}, call=combined),
    "batches='splits' with rows_per_epoch": Failing({"rows_per_epoch": 8, "batches": "splits"}, call=combined),
    "a null": Failing({}, NullValueError, path="holes"),
    "a null under a policy for another column": Failing(
        {"nulls": {"other": "mask"}}, NullValueError, path="more_holes"
    ),
    "a null of floats where it is an error": Failing(
        {"nulls": {"x": "error", "day": "mask"}, "columns": ["x", "day"]}, NullValueError, path="blanks"
    ),
    "a null of dates where it is an error": Failing(
        {"nulls": {"day": "error"}, "columns": ["day"]}, NullValueError, path="blanks"
    ),
    "a null of bytes": Failing({"strings": "bytes", "columns": ["blob"]}, NullValueError, path="blanks"),
    "a null under a filter": Failing({"filters": [("id", ">", 1)]}, NullValueError, path="holes"),
    "a null that a transform returns": Failing({"transform": lambda batch: batch}, NullValueError, path="holes"),
    "a document longer than a sequence": Failing({"pack": Pack(3, long="error")}, path="tokens"),
    "a row longer than batch_tokens": Failing({"batch_tokens": Buckets(3, by="ids"), "lists": "padded"}, path="tokens"),
    "a number of errors that are raised": Failing({"transform": {"function": kept, "max_errors": 3}}),
    "a transform that draws": Failing({"transform": drawn}),
    "draws for any number of rows": Failing({"transform": {"function": drawn, "random": True, "rows": "any"}}),
    "draws of a function of rows alone": Failing({"transform": {"function": kept, "random": True}}),
    "a transform that leaves out rows": Failing({"transform": half}, SchemaMismatchError),
    "processes without their number": Failing({"worker_mode": "processes", "num_workers": None}),
    "processes that read canonical ranks in laps": Failing(
        {"worker_mode": "processes", "num_workers": 2, "canonical_ranks": 2, "steps_per_epoch": 30}
    ),
    "strided rows of lines": Failing({"sharding": "strided"}, CountsRequiredError, path="lines"),
    "contiguous rows of lines": Failing({"sharding": "contiguous"}, CountsRequiredError, path="lines"),
    "even with a strategy that generates": Failing({"split_strategy": Generating(), "even": "drop"}),
    "last_batch with a strategy that generates": Failing({"split_strategy": Generating(), "last_batch": "wrap"}),
    "a mix of packed documents": Failing({**PACK, "rows_per_epoch": 8}, call=combined, path="tokens"),
    "a budget of less than a sequence": Failing({**WRAP, "tokens_per_epoch": 9}, call=combined, path="tokens"),
    "a budget of less than a step": Failing(
        {**WRAP, "tokens_per_epoch": 20}, ShardingError, call=combined, path="tokens"
    ),
    "a mix of whole documents without weights": Failing(
        {**PACK, "tokens_per_epoch": 64, "batches": "proportional"}, call=combined, path="tokens"
    ),
    "a mix of whole documents with less than a step": Failing(
        {**PACK, "weights": [1, 2], "tokens_per_epoch": 20}, ShardingError, call=combined, path="tokens"
    ),
    "the key of a packed dataset": Failing(
        {**WRAP, "weights": [1, 2], "source_key": "document_ids"}, call=combined, path="tokens"
    ),
    "weights of packed splits": Failing({**WRAP, "weights": [1, 2], "batches": "splits"}, call=combined, path="tokens"),
    "a mix of batches by length": Failing({"batch_tokens": Buckets(64, by="ids")}, call=combined, path="tokens"),
    "a mix with sharding": Failing({"sharding": "strided", "weights": Weights(temperature=2)}, call=combined),
    "a mix with canonical_ranks": Failing({"canonical_ranks": 2}, call=combined),
    "a mix with steps_per_epoch": Failing({"steps_per_epoch": 2, "weights": PHASES}, call=combined),
    "a mix with last_batch='wrap'": Failing({"last_batch": "wrap", "stop": "all"}, call=combined),
    "batches='single' with even='pad'": Failing({"batches": "single", "even": "pad"}, call=combined),
    "batches='single' with last_batch='pad'": Failing({"batches": "single", "last_batch": "pad"}, call=combined),
    "times of several units declared as numbers": Failing(
        {"schema": pa.schema({"at": pa.int64()})}, SchemaMismatchError, path="units"
    ),
    "a null in a list, where null lists are filled": Failing(
        {"nulls": Fill({"x": [0, 0]})}, NullValueError, path="null_lists"
    ),
    "an interval that pyarrow cannot read": Failing({}, UnsupportedTypeError, path="intervals"),
    "a time that Python has not": Failing({"output_format": "dict"}, UnsupportedTypeError, path="late"),
    "folders of other keys": Failing({"partitioning": "hive"}, path="hive"),
    "types of folders given twice": Failing(
        {"partitioning": Hive(schema={"day": "int16"}), "schema": pa.schema({"id": pa.int64()})}, path="hive/day=1"
    ),
    "a root that is elsewhere": Failing({"partitioning": Hive("/elsewhere")}, path="hive/day=1"),
    "a folder whose value is no text": Failing({}, path=f"key={BYTES}"),
    "a manifest of a file whose name is no text": Failing({"manifest": "/tmp/tdu-names"}, path="bytes"),
    "times beside numbers": Failing(call=combined_times, path="times"),
    "a stack of times and numbers": Failing({"stack": {"x": ["at", "number"]}}, path="times"),
    "a jagged entry of times and numbers": Failing({"jagged": {"x": ["moments", "numbers"]}}, path="times"),
    "a mix of lines": Failing({}, CountsRequiredError, call=combined, path="lines"),
    "samples that cannot be sent": Failing({"worker_mode": "processes", "num_workers": 1}, call=combined_samples),
    "a value outside of the vocabulary": Failing(
        {"strings": Codes({"word": ["w0"]}), "columns": ["word"]}, UnknownValueError
    ),
    "decimals of many digits": Failing({"decimals": "scaled"}, UnsupportedTypeError, path="decimals"),
    "strings that are not UTF-8": Failing({}, FileReadError, path="latin"),
    "padding that does not fit": Failing({"lists": Padded(0.5, multiple=8)}, path="tokens"),
    "padding of one column that does not fit": Failing({"lists": {"ids": Padded(0.5)}}, path="tokens"),
    "lists of words": Failing({"lists": {"word": "padded"}, "columns": ["word"]}),
    "padded lists that are joined": Failing(
        {"lists": {"*": "padded", "ids": Padded(1)}, "jagged": {"x": ["ids"]}}, path="tokens"
    ),
    "batch_tokens with several lists": Failing({"batch_tokens": 64, "lists": "padded"}, path="both"),
    "batch_tokens without lists": Failing({"batch_tokens": 64, "columns": ["x"]}),
    "unit='file' of files of one name": Failing(
        {"fraction": Sample(0.9, unit="file")}, call=read_files, path="folders"
    ),
    "a manifest that cannot be written": Failing({"manifest": "/proc/no/manifest.parquet"}),
    "a manifest that is a folder": Failing({"manifest": "/tmp"}),
    "a manifest among the data": Failing({"manifest": "manifest.parquet"}, call=read_beside, path="beside"),
    "a manifest of other data": Failing({"manifest": "other"}, call=read_with_other),
    "a manifest that is no Parquet": Failing({"manifest": "text"}, FileReadError, call=read_with_file),
    "a manifest that is other Parquet": Failing(
        {"manifest": "tokens/part.parquet"}, FileReadError, call=read_with_file
    ),
    "a manifest of a newer version": Failing({"manifest": "newer"}, FileReadError, call=read_with_newer),
    "wrap under a filter": Failing(
        {**WRAP, "filters": [("id", "<", 30)], "columns": ["ids"]},
        CountsRequiredError,
        path="mixed",
    ),
    "source_key that is a column": Failing({"source_key": "id"}, call=combined),
    "even='drop' of a mix of few rows": Failing(
        {"even": "drop", "batch_size": 64, "batches": "proportional", **TWO}, ShardingError, call=combined
    ),
    "filesystem with a Delta table": Failing(
        {"filesystem": pa.fs.LocalFileSystem()}, UnknownOptionError, call=read_delta, path="delta"
    ),
    "rows of an Iceberg table by place": Failing({"fraction": 0.5}, call=read_iceberg, path="iceberg"),
    "rows of an Iceberg table by ids that it lacks": Failing(
        {"fraction": Sample(0.5, by=["_row_id"])}, call=read_iceberg, path="iceberg"
    ),
    "a metadata column among the columns": Failing(
        {"columns": ["id", "_file"]}, ColumnNotFoundError, call=read_iceberg, path="iceberg"
    ),
    "a name of rows among the columns": Failing({"columns": ["id", "_pos"]}, ColumnNotFoundError),
    "the same, of Delta": Failing({"columns": ["_file"]}, ColumnNotFoundError, call=read_delta, path="delta"),
    "a name of rows that files do not have": Failing({"metadata_columns": ["_pos", "_row_id"]}),
    "a name of rows that Delta has not": Failing({"metadata_columns": ["_row_id"]}, call=read_delta, path="delta"),
    "a name of rows that is a column": Failing({"metadata_columns": ["_file", "_pos"]}, path="numbered"),
    "only a name of rows that is a column": Failing({"metadata_columns": ["_pos"]}, path="numbered"),
    "numbers of rows of which some are skipped": Failing(
        {"metadata_columns": ["_pos"], "format_options": {"on_bad_lines": "skip", "max_line_bytes": 100}}, path="lines"
    ),
    "numbers of rows in ranges of text": Failing(
        {"metadata_columns": ["_file", "_pos"]}, CountsRequiredError, path="long_lines"
    ),
    "names of documents for a model": Failing(
        {"metadata_columns": ["_file", "_pos"], "pack": Pack(16, keys="hf")}, path="tokens"
    ),
    "appended rows up to a deletion": Failing(
        {"appended": Appended(1)}, SnapshotError, call=read_iceberg, path="iceberg"
    ),
    "a path with a catalog": Failing({"catalog_config": {"type": "sql"}}, call=read_iceberg, path="iceberg"),
    "appended and followed": Failing(
        {"appended": Appended(1, non_appends="ignore"), "follow": True}, call=read_iceberg, path="iceberg"
    ),
    "a table that is followed as a folder": Failing({"follow": Follow(settle=5)}, call=read_iceberg, path="iceberg"),
    "a table that is followed after a folder": Failing(
        {"follow": Follow(after="a")}, call=read_iceberg, path="iceberg"
    ),
    "a folder that is followed, with a list": Failing(
        {"follow": Follow(wait=0, settle=0), "manifest": "list.parquet"}, call=read_listed
    ),
    "canonical_ranks with batch_tokens": Failing(
        {"canonical_ranks": 2, "batch_tokens": 64, "lists": "padded"}, CountsRequiredError, path="tokens"
    ),
    "last_batch='wrap' with class_weights": Failing(
        {"last_batch": "wrap", "class_weights": {"word": {"w0": 2.0}}}, CountsRequiredError
    ),
    "the same, with steps_per_epoch": Failing(
        {"canonical_ranks": 2, "steps_per_epoch": 3, "class_weights": {"word": {"w0": 2.0}}}, CountsRequiredError
    ),
    "the same, with even='sync'": Failing(
        {"canonical_ranks": 2, "even": "sync", "class_weights": {"word": {"w0": 2.0}}}, CountsRequiredError
    ),
}
