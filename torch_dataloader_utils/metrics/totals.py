"""Sums of what was measured, cumulative or over an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias, TypeVar, get_args

from torch_dataloader_utils.events import BlockEvent, Count, Stage

Sums: TypeAlias = Mapping[str, float]  # by attribute of `Work`, and `rows` and `queue_empty`
Key = TypeVar("Key")

STAGES = get_args(Stage)
_OF_WORK = (*STAGES, "queue_full", *(name for name in get_args(Count) if name != "repeats"))


@dataclass(frozen=True, slots=True)
class Totals:
    """What happened since a dataset was created, or within an interval.

    Attributes:
        waited: seconds for which `next` was blocked within passes.
        seconds: for which a pass was live.
        steps: batches delivered.
        rows: their rows, including repeats.
        listed: seconds spent listing files and reading their footers, or planning a table's snapshot.
        workers: what each I/O worker did for the blocks that were taken, by its number.
        sources: rows of these blocks by dataset of a combination; empty for a single dataset.
        ids: ids that a `Preprocess` made for these blocks, by (output, "all", "missing" or "unknown").
        failed: rows of these blocks for which a transform failed, by dataset; of a single dataset, by None.
        tokens: of documents packed for these blocks, by (dataset, "tokens", "real_tokens" or "trained_tokens").
        skipped: damaged files that are left out, and their rows as far as known; those at the end of an interval.
    """

    waited: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    listed: float = 0.0
    workers: Mapping[int, Sums] = field(default_factory=dict)
    sources: Mapping[int | str, float] = field(default_factory=dict)
    ids: Mapping[tuple[str, str], float] = field(default_factory=dict)
    failed: Mapping[int | str | None, float] = field(default_factory=dict)
    tokens: Mapping[tuple[int | str | None, str], float] = field(default_factory=dict)
    skipped: tuple[int, int] = (0, 0)

    def since(self, before: Totals) -> Totals:
        """What was added after `before`."""
        return Totals(
            self.waited - before.waited,
            self.seconds - before.seconds,
            self.steps - before.steps,
            self.rows - before.rows,
            self.listed - before.listed,
            {worker: _less(sums, before.workers.get(worker, {})) for worker, sums in self.workers.items()},
            _less(self.sources, before.sources),
            _less(self.ids, before.ids),
            _less(self.failed, before.failed),
            _less(self.tokens, before.tokens),
            self.skipped,
        )

    def share_of_ids(self, output: str, kind: str) -> float:
        """The share of an output's ids that stand for "missing" or "unknown" values."""
        return _fraction(self.ids.get((output, kind), 0.0), self.ids.get((output, "all"), 0.0))

    @property
    def with_ids(self) -> list[str]:
        """The outputs of which ids were counted."""
        return sorted({output for output, _ in self.ids})

    def of_workers(self, name: str) -> float:
        """A sum over all workers."""
        return sum((sums.get(name, 0.0) for sums in self.workers.values()), 0.0)


def _less(sums: Mapping[Key, float], before: Mapping[Key, float]) -> dict[Key, float]:
    return {name: value - before.get(name, 0.0) for name, value in sums.items()}


class BlockTotals:
    """Sums over the blocks taken. One thread at a time adds a block; any thread may read."""

    def __init__(self) -> None:
        self._workers: dict[int, dict[str, float]] = {}
        self._sources: dict[int | str, float] = {}
        self._ids: dict[tuple[str, str], float] = {}
        self._failed: dict[int | str | None, float] = {}
        self._tokens: dict[tuple[int | str | None, str], float] = {}

    def add(self, event: BlockEvent) -> None:
        """Add a block."""
        work, rows = event.work, event.rows
        sums = self._workers.setdefault(event.shard, dict.fromkeys(_NAMES, 0.0))
        for name in _OF_WORK:
            sums[name] += getattr(work, name)
        sums["rows"] += rows
        sums["queue_empty"] += event.queue_empty
        sums["repeats"] += min(work.repeats, rows)  # of a block begun before, only the rest
        read = sum(count for _, count in work.sources)
        for source, count in work.sources:
            self._sources[source] = self._sources.get(source, 0.0) + (count if read == rows else count * rows / read)
        for output, *counts in work.ids:
            for kind, count in zip(("all", "missing", "unknown"), counts, strict=True):
                self._ids[output, kind] = self._ids.get((output, kind), 0.0) + count
        for row in work.failed:
            self._failed[row.source] = self._failed.get(row.source, 0.0) + 1
        for key, tokens in tokens_of(event).items():
            self._tokens[key] = self._tokens.get(key, 0.0) + tokens

    def sums(
        self,
    ) -> tuple[
        dict[int, Sums],
        dict[int | str, float],
        dict[tuple[str, str], float],
        dict[int | str | None, float],
        dict[tuple[int | str | None, str], float],
    ]:
        """The sums by worker, rows by source, ids by output and kind, failed rows by source, tokens by both."""
        # Copies of dicts are atomic: the thread that takes blocks may add to them.
        workers: dict[int, Sums] = {worker: sums.copy() for worker, sums in self._workers.copy().items()}
        return workers, self._sources.copy(), self._ids.copy(), self._failed.copy(), self._tokens.copy()


def tokens_of(event: BlockEvent) -> dict[tuple[int | str | None, str], float]:
    """The tokens of a block that was taken, by dataset and kind; of one begun before, the part that is left."""
    found: dict[tuple[int | str | None, str], float] = {}
    packed = sum(each.rows for each in event.work.tokens)
    part = event.rows / packed if packed else 0.0
    for each in event.work.tokens:
        source, trained = each.source, each.trained
        counts = {"tokens": each.tokens, "real_tokens": each.real}
        counts |= {} if trained is None else {"trained_tokens": trained}
        for kind, count in counts.items():
            found[source, kind] = found.get((source, kind), 0.0) + (count if part == 1 else round(count * part))
    return found


_NAMES = ("rows", "queue_empty", "repeats", *_OF_WORK)


# Totals as a flat dict of floats, for loggers.


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
    hits, misses = totals.of_workers("cache_hit_bytes"), totals.of_workers("cache_miss_bytes")
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
        "bytes_decoded": float(totals.of_workers("bytes_decoded")),
        "bytes_by_pyarrow": float(totals.of_workers("bytes_by_pyarrow")),
        "cache_hits": float(totals.of_workers("cache_hits")),
        "cache_hit_bytes": float(hits),
        "cache_hit_fraction": _fraction(hits, hits + misses),
        "skipped_files": float(totals.skipped[0]),
        "skipped_rows": float(totals.skipped[1]),
        "rows_failed": float(sum(totals.failed.values())),
        "pad_fraction": _fraction(totals.of_workers("repeats"), totals.of_workers("rows")),
    }
    flat |= {f"rows/{source}": float(rows) for source, rows in sorted(totals.sources.items())}
    flat |= {
        f"laps/{source}": rows / lap_rows[source]
        for source, rows in sorted(totals.sources.items())
        if lap_rows.get(source)
    }
    flat |= _tokens(totals)
    flat |= {f"rows_failed/{source}": rows for source, rows in totals.failed.items() if source is not None}
    for output in totals.with_ids:
        flat |= {f"{kind}_fraction/{output}": totals.share_of_ids(output, kind) for kind in ("missing", "unknown")}
    return flat | (_detail(totals) if detail else {})


def _tokens(totals: Totals) -> dict[str, float]:
    flat: dict[str, float] = {}
    for kind in dict.fromkeys(kind for _, kind in totals.tokens):
        of_each = {source: count for (source, of), count in totals.tokens.items() if of == kind}
        flat[kind] = sum(of_each.values())
        flat |= {f"{kind}/{source}": count for source, count in of_each.items() if source is not None}
    return flat | ({"tokens_per_s": _fraction(flat["tokens"], totals.seconds)} if flat else {})


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
