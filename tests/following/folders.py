"""Folders that grow, for tests: files of ids, written whole or piece by piece."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import Files, Follow, stream

NOW: dict[str, Any] = {"wait": 0, "settle": 0}


def table(ids: Iterable[int]) -> pa.Table:
    return pa.table({"id": pa.array(list(ids), pa.int64())})


def add(folder: Path, name: str, ids: Sequence[int], age: float = 0) -> Path:
    """A file with these ids, last written `age` seconds ago, that appears as a whole."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}")
    pq.write_table(table(ids), beside)
    os.utime(beside, (time.time() - age, time.time() - age))
    beside.replace(path)
    return path


def opened(
    folder: Path | str, follow: dict[str, Any] | None = None, source: dict[str, Any] | None = None, **options: Any
) -> Any:
    follows = Follow(**{**NOW, **(follow or {})})
    return stream(Files(str(folder), follow=follows, **(source or {})), **{"batch_size": 4, **options})


def ids_of(batches: Iterable[Any]) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]
