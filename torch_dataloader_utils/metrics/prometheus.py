"""Metrics in Prometheus' text format 0.0.4, as `/metrics` serves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_PREFIX = "tdu_"


class _Family(NamedTuple):
    """A metric of Prometheus."""

    name: str
    kind: str
    help: str


# By key of `metrics`. Prometheus wants base units in names, and `_total` at the end of those of counters.
_FAMILIES = {
    "data_wait_s": _Family("data_wait_seconds_total", "counter", "Seconds blocked in next."),
    "data_wait_fraction": _Family("data_wait_ratio", "gauge", "Share of the time of all passes blocked in next."),
    "epoch_s": _Family("epoch_seconds_total", "counter", "Seconds for which a pass was live."),
    "steps": _Family("steps_total", "counter", "Batches delivered."),
    "rows": _Family("rows_total", "counter", "Rows delivered, including repeats; batches with batch_tokens."),
    "rows_per_s": _Family("rows_per_second", "gauge", "Rows delivered per second of all passes."),
    "bytes_read": _Family("read_bytes_total", "counter", "Bytes that remote stores sent."),
    "requests": _Family("requests_total", "counter", "Requests to remote stores."),
    "retries": _Family("retries_total", "counter", "Requests repeated after a failure."),
    "bytes_decoded": _Family("decoded_bytes_total", "counter", "Stored bytes of Parquet decoded by the package."),
    "bytes_by_pyarrow": _Family(
        "pyarrow_decoded_bytes_total", "counter", "Stored bytes of Parquet decoded by pyarrow."
    ),
    "cache_hits": _Family("cache_hits_total", "counter", "Blocks of bytes found in the cache."),
    "cache_hit_bytes": _Family("cache_hit_bytes_total", "counter", "Bytes found in the cache."),
    "cache_hit_fraction": _Family("cache_hit_ratio", "gauge", "Share of the bytes found in the cache."),
    "skipped_files": _Family("skipped_files", "gauge", "Damaged files left out."),
    "skipped_rows": _Family("skipped_rows", "gauge", "Rows of damaged files left out, as far as known."),
    "rows_failed": _Family("failed_rows_total", "counter", "Rows for which a transform failed, without an error."),
    "tokens": _Family("tokens_total", "counter", "Places for tokens in sequences or batches, with padding."),
    "real_tokens": _Family("real_tokens_total", "counter", "Tokens of documents in sequences or batches."),
    "trained_tokens": _Family("trained_tokens_total", "counter", "Tokens of documents whose labels are trained."),
    "tokens_per_s": _Family("tokens_per_second", "gauge", "Places for tokens per second of all passes."),
    "pad_fraction": _Family("pad_ratio", "gauge", "Share of rows that are repeats."),
}
_SOURCE_ROWS = _Family("source_rows_total", "counter", "Rows by dataset of a combination.")
_SOURCE_FAILED = _Family("source_failed_rows_total", "counter", "Rows for which a transform failed, by dataset.")
_SOURCE_TOKENS = {
    kind: _Family(f"source_{kind}_total", "counter", f"{_FAMILIES[kind].help[:-1]}, by dataset.")
    for kind in ("tokens", "real_tokens", "trained_tokens")
}
_SOURCE_LAPS = _Family("source_laps_total", "counter", "Laps by dataset of a combination.")
_WORKER_ROWS = _Family("worker_rows_total", "counter", "Rows by I/O worker.")
_WORKER_SECONDS = _Family("worker_seconds_total", "counter", "Seconds by I/O worker and stage.")
_STAGE_SECONDS = _Family("stage_seconds_total", "counter", "Seconds by stage.")
# The rest of a wait while it lasts: it falls once the block that `next` waits for arrives, and a counter must not.
_NOT_A_COUNTER = "batch_s"
_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(metrics: Mapping[str, float], rank: int) -> str:
    """The metrics as text, one metric after another, each with its help and type; `batch_s` is left out.

    Args:
        metrics: cumulative ones, from `loader.metrics(total=True)`: Prometheus computes rates itself.
        rank: the value of the label `rank`.
    """
    samples: dict[_Family, list[str]] = {}
    for key, value in metrics.items():
        if key == _NOT_A_COUNTER:
            continue
        family, labels = _sample(key)
        pairs = {"rank": str(rank)} | labels
        text = ",".join(f'{name}="{_escaped(label)}"' for name, label in pairs.items())
        samples.setdefault(family, []).append(f"{_PREFIX}{family.name}{{{text}}} {float(value)!r}")
    return "".join(f"{line}\n" for family, lines in samples.items() for line in (*_header(family), *lines))


def _escaped(label: str) -> str:
    """The label as the format has it; lone surrogates, of names that are not UTF-8, have no bytes of their own."""
    return label.translate(_LABEL).encode("utf-8", "backslashreplace").decode()


def _header(family: _Family) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{family.name} {family.help}"
    yield f"# TYPE {_PREFIX}{family.name} {family.kind}"


def _sample(key: str) -> tuple[_Family, dict[str, str]]:
    """The metric of a key, and its labels besides the rank."""
    if key in _FAMILIES:
        return _FAMILIES[key], {}
    match key.split("/"):
        case ["rows", *names]:  # a dataset's name may contain a slash
            return _SOURCE_ROWS, {"source": "/".join(names)}
        case ["rows_failed", *names]:
            return _SOURCE_FAILED, {"source": "/".join(names)}
        case [kind, *names] if names and kind in _SOURCE_TOKENS:
            return _SOURCE_TOKENS[kind], {"source": "/".join(names)}
        case ["laps", *names]:
            return _SOURCE_LAPS, {"source": "/".join(names)}
        case ["worker", worker, "rows"]:
            return _WORKER_ROWS, {"worker": worker}
        case ["worker", worker, stage]:
            return _WORKER_SECONDS, {"worker": worker, "stage": stage.removesuffix("_s")}
        case [stage] if stage.endswith("_s"):
            return _STAGE_SECONDS, {"stage": stage.removesuffix("_s")}
    raise ValueError(f"{key!r} is not a metric of a loader: expected the dict that loader.metrics() returns.")
