"""Totals as a flat dict of floats, for loggers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch_dataloader_utils.metrics.totals import STAGES, Totals

# What is given for each I/O worker, in seconds.
WORKER_SECONDS = (*STAGES, "queue_full", "queue_empty")


def metrics(
    totals: Totals, lap_rows: Mapping[int | str, float] = MappingProxyType({}), *, detail: bool = False
) -> dict[str, float]:
    """The totals by name; see docs/metrics.md for each. A fraction of nothing is 0.

    Args:
        totals: what happened, over any interval.
        lap_rows: a rank's rows of each dataset of a combination, if it reads all of them once.
        detail: whether to include seconds by stage, also for each I/O worker.
    """
    hits, misses = totals.of_workers("cache_hits"), totals.of_workers("cache_misses")
    flat = {
        "data_wait_s": totals.waited,
        # The two are read one after the other, which shows in intervals of microseconds.
        "data_wait_fraction": min(_fraction(totals.waited, totals.seconds), 1.0),
        "epoch_s": totals.seconds,
        "steps": float(totals.steps),
        "rows": float(totals.rows),
        "rows_per_s": _fraction(totals.rows, totals.seconds),
        "bytes_read": float(totals.of_workers("bytes_read")),
        "requests": float(totals.of_workers("requests")),
        "retries": float(totals.of_workers("retries")),
        "cache_hit_fraction": _fraction(hits, hits + misses),
        "skipped_files": float(totals.skipped[0]),
        "skipped_rows": float(totals.skipped[1]),
        "pad_fraction": _fraction(totals.of_workers("repeats"), totals.of_workers("rows")),
    }
    flat |= {f"rows/{source}": float(rows) for source, rows in sorted(totals.sources.items())}
    flat |= {
        f"laps/{source}": rows / lap_rows[source]
        for source, rows in sorted(totals.sources.items())
        if lap_rows.get(source)
    }
    return flat | (_detail(totals) if detail else {})


def _detail(totals: Totals) -> dict[str, float]:
    flat = {"list_s": totals.listed, "batch_s": batch_seconds(totals)}
    flat |= {f"{name}_s": totals.of_workers(name) for name in WORKER_SECONDS}
    for worker, sums in sorted(totals.workers.items()):
        flat[f"worker/{worker}/rows"] = float(sums["rows"])
        flat |= {f"worker/{worker}/{name}_s": sums[name] for name in WORKER_SECONDS}
    return flat


def batch_seconds(totals: Totals) -> float:
    """The seconds blocked in `next` in which it did not wait for a block: cutting batches, `collate_fn`, the device."""
    return max(totals.waited - totals.of_workers("queue_empty"), 0.0)


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
