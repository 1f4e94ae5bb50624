"""Combinations, as parts of the grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.end_to_end.parts import Part, Seen, draw, drawn_rows, each_once, ids, with_draws
from torch_dataloader_utils import StructuredDataset, Transform, Weights, combine

SIZES = {"web": 25, "code": 9, "books": 4}
FIRST = {"web": 0, "code": 1000, "books": 2000}
MIXED = [FIRST[name] + row for name, rows in SIZES.items() for row in range(rows)]


def write_mix(folder: Path) -> dict[str, Any]:
    """A dataset of a file each."""
    datasets = {}
    for name, rows in SIZES.items():
        table = pa.table({"id": np.arange(FIRST[name], FIRST[name] + rows)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
        datasets[name] = StructuredDataset.create_dataloader(folder / f"{name}.parquet")[1]
    return datasets


def write_drawn(folder: Path) -> dict[str, Any]:
    """The same files, with numbers that are drawn for rows."""
    write_mix(folder)
    transform = Transform(draw, random=True)
    return {name: {"source": folder / f"{name}.parquet", "transform": transform} for name in SIZES}


def write_nested(folder: Path) -> dict[str, Any]:
    """A combination of web and books, three to one, within another."""
    datasets = write_mix(folder)
    text = combine({"web": datasets["web"], "books": datasets["books"]}, weights={"web": 3, "books": 1}).dataset
    return {"text": text, "code": datasets["code"]}


def mixed(**options: Any) -> Callable[..., Any]:
    given = {"batch_size": 4, "split_rows": 6, "shuffle": True, "shuffle_buffer_size": 12, **options}
    return lambda datasets, **place: combine(datasets, **given, **place)


def laps(*of_epochs: tuple[int, int, int]) -> Callable[[list[Seen]], None]:
    """Epochs have so many rows of web, code and books, in laps: no row comes again before all others came as often."""

    def law(epochs: list[Seen]) -> None:
        times: Seen = Counter()
        for epoch, seen in enumerate(epochs):
            times.update(seen)
            for (name, size), rows in zip(SIZES.items(), of_epochs[epoch % len(of_epochs)], strict=True):
                every = range(FIRST[name], FIRST[name] + size)
                assert sum(seen[row] for row in every) == rows
                of_each = [times[row] for row in every]
                assert max(of_each) - min(of_each) <= 1

    return law


def mix(law: Callable[[list[Seen]], None], write: Callable[[Path], Any] = write_mix, **options: Any) -> Part:
    return Part(write, mixed(**options), law, ids)


HALF_WEB = {"web": 2, "code": 1, "books": 1}
CHANGE = [(0, {"web": 4, "code": 1, "books": 0}), (55, {"web": 1, "code": 2, "books": 2})]  # in the second epoch
ORDER = [(0, {"web": 1, "code": 0, "books": 0}), (20, {"web": 1, "code": 1, "books": 1})]

COMBINED = {
    "mix": mix(each_once(MIXED)),
    "mix, ended": mix(each_once(MIXED), weights={"web": 1, "code": 3, "books": 2}),
    "mix, first": mix(laps((19, 9, 3)), stop="first", weights={"web": 6, "code": 3, "books": 1}),
    "mix, all": mix(laps((25, 12, 13)), stop="all", weights=HALF_WEB),
    "mix, all, padded": mix(laps((25, 12, 13)), stop="all", weights=HALF_WEB, even="pad"),
    "mix, repeat": mix(laps((25, 9, 10)), repeat={"books": 2.5}),
    "mix, rows per epoch": mix(laps((20, 10, 10)), rows_per_epoch=40, weights=HALF_WEB),
    "mix, temperature": mix(laps((25, 15, 10)), stop="all", weights=Weights(temperature=2)),
    "mix, single": mix(laps((25, 12, 13)), batches="single", stop="all", weights=HALF_WEB),
    "mix, single, rows per epoch": mix(
        laps((24, 12, 12)), batches="single", batch_size=2, rows_per_epoch=48, weights=HALF_WEB
    ),
    "mix, splits": mix(each_once(MIXED), batches="splits", split_rows=3),
    "mix, repeat, draws": Part(write_drawn, mixed(repeat={"books": 2.5}), with_draws(laps((25, 9, 10))), drawn_rows),
    "curriculum": mix(laps((32, 8, 0), (17, 13, 10)), rows_per_epoch=40, weights=Weights(CHANGE, at="row")),
    "curriculum, once": mix(each_once(MIXED), weights=Weights(ORDER, at="row")),
    "nested": mix(laps((25, 17, 8)), write_nested, stop="all", weights={"text": 2, "code": 1}),
}
