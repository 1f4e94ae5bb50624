"""What the ranks of a fit do: `forkrun.py RANKS cluster_jobs.py SCENARIO DATA OUT`; each writes OUT/rank.json."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from torch_dataloader_utils import Files, stream
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    Impute,
    Keep,
    Preprocess,
    Robust,
    Standardize,
    TargetEncode,
)
from torch_dataloader_utils.preprocess import ranks as module
from torch_dataloader_utils.preprocess.grid import Grid

GRID = 1024  # cells: few rows need a second scan, and exact quantiles another one

SPEC: dict[Any, Any] = {
    "x": [Clip(quantiles=(0.01, 0.99)), Standardize()],  # two scans
    "y": {"y": [Impute("median", indicator=True), Robust()], "y_bucket": Bucketize(quantiles=5)},
    "few": {
        "few": [Impute("most_frequent"), Standardize()],
        "few_id": Categorize(nulls="category"),
        "rate": [Impute("most_frequent"), TargetEncode("label", by="id")],
    },
    "text": {
        "text": Categorize(min_count=3),
        "filled": [Impute("most_frequent"), Categorize(max_size=20)],
        "mean": TargetEncode("y", by=["id", "few"], folds=3),
    },
    "id": Categorize(min_count=2, max_size=500, order="value"),
    ("text", "few"): Cross(Categorize(max_size=50)),
    "tags": Categorize(),
    "label": Keep(classes=True),
}
GROWING: dict[Any, Any] = {
    **SPEC,
    "x": Standardize(),
    "few": {"few": [Impute("most_frequent"), Standardize()], "few_id": Categorize(nulls="category")},
    "text": {
        "text": Categorize(min_count=3),
        "filled": [Impute("most_frequent"), Categorize(max_size=20)],
        "most": Impute("most_frequent"),
    },
    "label": {"label": Keep(classes=True), "median": [Impute("median"), Categorize(min_count=2)]},
}
OLD, NEW = [("id", "<", 1000)], [("id", ">=", 1000)]  # the rows that come first, and those that come then
PLACED: dict[Any, Any] = {"text": {"mean": TargetEncode("y")}}  # folds by the places of rows


def fitted(source: Any, spec: Any = SPEC, **options: Any) -> dict[str, Any]:
    """What a fit finds, or its error."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("torch_dataloader_utils")
    log.addHandler(handler)
    level, limit, began = log.level, Grid.limit, time.monotonic()
    log.setLevel(logging.INFO)
    Grid.limit = GRID
    try:
        prep = Preprocess(spec).fit(source, **{"quantiles": 1, **options})
    except Exception as error:  # noqa: BLE001 - which one is the question
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began}
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        Grid.limit = limit
    counts: dict[str, Any] = {name: prep.counts(name) for name in ("id", "text") if name in prep.outputs}
    if "label" in prep.outputs:
        counts["label"] = list(map(list, prep.class_counts("label").items()))
    said = [line for line in lines if line.startswith("fitted on")]
    found = {"digest": prep.digest, "text": repr(prep), "counts": counts, "said": said}
    found["errors"] = prep.quantile_errors()
    if "mean" in prep.outputs:
        found["trained"] = prep.for_training().mark
    return found


def same(data: str) -> dict[str, Any]:
    """Each way to name the ranks; in one round and in as many as there can be."""
    group = dist.new_group()
    found = {
        "path": fitted(data),
        "filtered": fitted(data, filters=[("label", "==", 1)]),
        "placed": fitted(data, PLACED),
        "group": fitted(data, ranks=group),
        "loader": fitted(stream(data, batch_size=10, output_format="arrow")),
        "table": fitted(pq.read_table(data)),
        "spilled": fitted(data, memory="100KiB"),
        "exact": fitted(data, quantiles="exact"),
        "list": fitted([Files(f"{data}/a.parquet"), stream(f"{data}/c.parquet", output_format="arrow")]),
        "list with rows in memory": fitted([pq.read_table(f"{data}/a.parquet"), Files(f"{data}/c.parquet")]),
    }
    module._ROUND_BYTES = 1  # type: ignore[attr-defined]
    return {**found, "rounds": fitted(data)}


def mesh(data: str) -> dict[str, Any]:
    """Of two ranks in which two processes each read the same rows: all four share the scans."""
    return fitted(data, ranks=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))


def learned(prep: Preprocess) -> dict[str, Any]:
    """What shows of a fit of `GROWING`."""
    vocabularies = {name: prep.vocabulary(name) for name in ("id", "text", "filled", "few_id", "tags", "median")}
    counts = {name: prep.counts(name) for name in vocabularies}
    numbers = repr({name: prep.parameters(name) for name in ("x", "y", "y_bucket", "few", "most")})
    return {
        "digest": prep.digest,
        "text": repr(prep),
        "parents": prep.parents,
        "numbers": numbers,
        "vocabularies": vocabularies,
        "counts": counts,
        "classes": list(prep.class_counts("label").values()),
    }


def grown(data: str) -> dict[str, Any]:
    """Fits that grow: together; from what the first rank saved; alone; by parts in memory; by ids."""
    Grid.limit, file = GRID, Path(sys.argv[3], "prep.json")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    more = pq.read_table(data, filters=NEW)
    prep = Preprocess(GROWING).fit(data, filters=OLD, quantiles=1)
    found: dict[str, Any] = {"first": learned(prep)}
    if rank == 0:
        prep.save(file)
    dist.barrier()
    found["in memory"] = learned(pickle.loads(pickle.dumps(prep)).fit(data, filters=NEW, update=True, quantiles=1))
    found["from files"] = learned(Preprocess.load(file).fit(data, filters=NEW, update=True, quantiles=1))
    own = more.slice(rank * -(-len(more) // ranks), -(-len(more) // ranks))
    found["parts"] = learned(copy.copy(prep).fit(own, update=True, quantiles=1, ranks=dist.group.WORLD))
    found["in two steps"] = learned(_in_two_steps(copy.copy(prep), data))
    found["ids"] = learned(copy.copy(prep).fit(data, filters=NEW, update="ids", quantiles=1))
    found["ids first"] = learned(_in_two_steps(copy.copy(prep), data, "ids"))
    module._ROUND_BYTES = 1  # type: ignore[attr-defined]
    found["rounds"] = learned(
        Preprocess(GROWING)
        .fit(data, filters=OLD, memory="100KiB", quantiles=1)
        .fit(data, filters=NEW, update=True, quantiles=1, memory="1KiB")
    )
    found["alone"] = _updated(prep, more, num_ranks=1, rank=0)
    without = Preprocess.load(file)
    without.save(file.with_name(f"{rank}-without.json"), state=False)
    other = Preprocess.load(file.with_name(f"{rank}-without.json")) if rank == ranks - 1 else prep
    found["one without"] = _updated(other, data, filters=NEW, timeout=20)
    found["one is another"] = _updated(prep if rank else Preprocess(GROWING).fit(more, quantiles=1), data, timeout=20)
    found["well"] = learned(prep.fit(data, filters=NEW, update=True, quantiles=1))
    prep.save(file.with_name(f"prep-{rank}.json"))
    return found


def _in_two_steps(prep: Preprocess, data: str, first: Any = True) -> Preprocess:
    prep.fit(data, filters=[("id", ">=", 1000), ("id", "<", 2000)], update=first, quantiles=1)
    return prep.fit(data, filters=[("id", ">=", 2000)], update=True, quantiles=1)


def _updated(prep: Preprocess, source: Any, **options: Any) -> dict[str, Any]:
    try:
        return learned(copy.copy(prep).fit(source, update=True, quantiles=1, **options))
    except Exception as error:  # noqa: BLE001 - which one is the question
        return {"error": f"{type(error).__name__}: {error}"}


def parts(data: str) -> dict[str, Any]:
    """Rows in memory of which each rank has a part, the last none."""
    table, rank, ranks = pq.read_table(data), dist.get_rank(), dist.get_world_size()
    cut = -(-len(table) // max(1, ranks - 1))
    return {"parts": fitted(table.slice(rank * cut, cut), ranks=dist.group.WORLD)}


def alone(data: str) -> dict[str, Any]:
    """A fit of the first rank alone, which waits for nobody."""
    return fitted(data, num_ranks=1, rank=0, timeout=5) if dist.get_rank() == 0 else {}


def errors(data: str) -> dict[str, Any]:
    """What goes wrong on one rank, and a fit after it."""
    last = dist.get_rank() == dist.get_world_size() - 1
    other = {**SPEC, "y": Standardize()}
    return {
        "column": fitted(data, {"x": Standardize(), "absent" if last else "y": Standardize()}, timeout=20),
        "file": fitted(f"{data}/none" if last else data, timeout=20),
        "spec": fitted(data, other if last else SPEC, timeout=20),
        "data": fitted(data, filters=[("label", "==", 1)] if last else None, timeout=20),
        "while scanning": _breaking(data, last),
        "while swapping": _failing_to_swap(data, last),
        "well": fitted(data),
    }


def _breaking(data: str, last: bool) -> dict[str, Any]:
    if not last:
        return fitted(data, timeout=20)
    from torch_dataloader_utils.preprocess.scan import FitScan

    add, FitScan.add = FitScan.add, _broken  # type: ignore[method-assign]
    try:
        return fitted(data, timeout=20)
    finally:
        FitScan.add = add  # type: ignore[method-assign]


def _broken(*_: Any) -> None:
    raise OSError("the disk is gone")


def _failing_to_swap(data: str, last: bool) -> dict[str, Any]:
    partition = module.ValueCounts.partition
    if last:
        module.ValueCounts.partition = _broken  # type: ignore[assignment,method-assign]
    try:
        return fitted(data, timeout=20)
    finally:
        module.ValueCounts.partition = partition  # type: ignore[method-assign]


def missing(data: str) -> dict[str, Any]:
    """The last rank does not fit at all."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(5)
        return {}
    return fitted(data, timeout=2)


def main() -> None:
    scenario, data, out = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    run: Callable[[str], Any] = globals()[scenario]
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(run(data)))
    if scenario != "missing":
        dist.barrier()
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
