"""Loaders of tables that grow, or of which rows were deleted, as parts of the grid."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from tests.delta.by_hand import delete_rows, live, require
from tests.end_to_end.parts import Part, Seen, each_once, ids
from tests.iceberg.conftest import sql_config
from torch_dataloader_utils import Appended, DeltaDataset, Follow, IcebergDataset

OLD, NEW = 60, 30  # rows
OPTIONS: dict[str, Any] = {"batch_size": 5, "split_rows": 5, "shuffle": True, "shuffle_buffer_size": 15}

# ---------------------------------------------------------------------------------------------------------- Iceberg


def write_growing(folder: Path) -> dict[str, Any]:
    """A table of ten rows a commit: where its catalog is, its snapshot of the old rows, and a state after these.

    The state is of a loader that follows the table and has read a pass of it.
    """
    config = {"name": "test", **sql_config(folder)}
    with SqlCatalog(**config) as catalog:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
        for first in range(0, OLD, 10):
            table.append(pa.table({"id": range(first, first + 10)}))
        found = {"config": config, "start": table.metadata.current_snapshot_id}
        for replay in (0, 0.5):
            loader = following(found, replay=replay, num_ranks=1, rank=0, num_workers=0)
            assert sum(len(batch["id"]) for batch in loader) == OLD
            found[f"state {replay}"] = json.dumps(loader.state_dict())
        for first in range(OLD, OLD + NEW, 10):
            table.append(pa.table({"id": range(first, first + 10)}))
    return found


def following(data: dict[str, Any], replay: float = 0, **options: Any) -> Any:
    given = {"catalog_config": data["config"], "follow": Follow(wait=0, replay=replay), **OPTIONS, **options}
    return IcebergDataset.create_dataloader("ns.t", **given)[0]


def restarted(data: dict[str, Any], replay: float = 0, **place: Any) -> Any:
    """A loader that follows, at the place where the old rows were read."""
    loader = following(data, replay=replay, **place)
    loader.load_state_dict(json.loads(data[f"state {replay}"]))
    return loader


def replaying(data: dict[str, Any], **options: Any) -> Any:
    """A loader of the rows appended since the snapshot, and older ones.

    Which older rows, and how many of them, follows from the paths of data files, which Iceberg draws at random. With
    small batches and windows, each of three ranks has several batches whatever they are.
    """
    small = {"batch_size": 2, "shuffle_buffer_size": 5}
    given = {"catalog_config": data["config"], "appended": Appended(data["start"], replay=0.5)}
    given |= {**OPTIONS, **small, **options}
    return IcebergDataset.create_dataloader("ns.t", **given)[0]


def check_replay(seen: Seen) -> None:
    """Each appended row once, and some of two older files, none twice: half as many, give or take."""
    assert set(seen.values()) == {1}
    assert seen.keys() >= set(range(OLD, OLD + NEW))
    assert NEW < seen.total() <= NEW + 20


def appended_once(passes: list[Seen]) -> None:
    assert passes[0] == Counter(range(OLD, OLD + NEW))
    assert not any(passes[1:])


def replayed_once(passes: list[Seen]) -> None:
    check_replay(passes[0])
    assert not any(passes[1:])


def replayed(epochs: list[Seen]) -> None:
    for seen in epochs:
        check_replay(seen)


NEEDS_JOB = "follow=True with num_ranks=. needs a process group"

# ------------------------------------------------------------------------------------------------------------ Delta


def write_delta(folder: Path) -> Path:
    """Files of ten rows; every fourth row of each is deleted by a vector."""
    for first in range(0, OLD, 10):
        write_deltalake(folder, pa.table({"id": range(first, first + 10)}), mode="append")
    require(folder, "deletionVectors")
    delete_rows(folder, {path: range(0, 10, 4) for path in live(folder)})
    return folder


def of_delta(folder: Path, **place: Any) -> Any:
    names = ["_file", "_pos"]
    return DeltaDataset.create_dataloader(str(folder), metadata_columns=names, **OPTIONS, **place)[0]


def named_in_delta(batch: Any) -> list[int]:
    """The rows of a batch, which have the numbers that they had before others were deleted."""
    assert batch["_file"].tolist() == [row // 10 for row in ids(batch)]
    assert batch["_pos"].tolist() == [row % 10 for row in ids(batch)]
    return ids(batch)


TABLES = {
    "follow": Part(write_growing, restarted, appended_once, ids, refused=NEEDS_JOB, epoch=0),
    "replay": Part(write_growing, replaying, replayed, ids),
    "follow, replay": Part(
        write_growing,
        lambda data, **place: restarted(data, replay=0.5, **place),
        replayed_once,
        ids,
        refused=NEEDS_JOB,
        epoch=0,
    ),
    "delta": Part(write_delta, of_delta, each_once(row for row in range(OLD) if row % 10 % 4), named_in_delta),
}
