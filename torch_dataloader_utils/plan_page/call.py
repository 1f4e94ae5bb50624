"""The call that creates a dataset's loader, as values from which the plan page writes Python and YAML."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from torch_dataloader_utils.options import Options, options_of
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.source import Source

Values = dict[str, Any]

_PATHS = 20  # more are a list that code makes
_RANKS = ("num_ranks", "rank")  # the page writes them
# The options that the page can change.
_CHANGED = (
    *("num_workers", "batch_size", "sharding", "total_shards", "full_rotation", "stick_to_shard", "shard_batches"),
    *("split_batches", "even", "last_batch", "steps_per_epoch", "shuffle", "shuffle_bytes", "shuffle_buffer_size"),
    "shuffle_open_splits",
)


def call_values(dataset: str, source: Source, options: Options) -> Values:
    """The call's function, what it reads, and the options that were given.

    Args:
        dataset: the name of the kind of dataset.
        source: what it reads.
        options: the options of its loader.
    """
    combined = len(source.parts) > 1
    return {
        "function": "combine" if combined else f"{dataset}.create_dataloader",
        "target": _target(source, combined=combined),
        "options": _given(options),
        "defaults": {name: _checked(item, item.default) for name, item in _changed().items()},
        "explicit_ranks": options.shard.num_ranks is not None,
        "table": source.snapshot is not None,
    }


def _changed() -> dict[str, Field[Any]]:
    return {name: item for name, item in options_of("files").items() if name in _CHANGED}


def _target(source: Source, *, combined: bool) -> Values:
    """The call's first argument: its name, and its value if the value is text."""
    if combined:
        return {"name": "datasets", "code": _datasets(source)}
    paths = list(source.paths)
    if len(paths) > _PATHS:
        return {"name": "path", "code": "paths"}
    return {"name": "table" if source.snapshot else "path", "value": paths[0] if len(paths) == 1 else paths}


def _datasets(source: Source) -> str:
    """The datasets of a combination as code: a dict if they have names."""
    variables = [f"dataset_{number}" for number in range(len(source.parts))]
    names = source.scan.names if isinstance(source.scan, CombinedScan) else ()
    if not names:
        return f"[{', '.join(variables)}]"
    pairs = zip(names, variables, strict=True)
    return f"{{{', '.join(f'{json.dumps(printable(name))}: {variable}' for name, variable in pairs)}}}"


def _given(options: Options) -> dict[str, Values]:
    """The options that differ from their defaults, by keyword, each as its value, as code or hidden."""
    given = {}
    for values in filter(is_dataclass, (getattr(options, group.name) for group in fields(options))):
        for item in fields(values):
            value = getattr(values, item.name)
            if not _is_default(item, value, options) and item.name not in _RANKS:
                given[item.name] = _shown(item, value)
    return given


def _is_default(item: Field[Any], value: Any, options: Options) -> bool:
    if item.name == "split_bytes":  # parsing replaces None
        return bool(value == options.shuffle.split_bytes)
    default = _checked(item, item.default)
    return value is default or (isinstance(value, type(default)) and _plain(value) == _plain(default) is not None)


def _checked(item: Field[Any], value: Any) -> Any:
    """The value as the option stores it: sizes as numbers, for example."""
    check = item.metadata.get("check")
    return value if check is None else check(item.name, value)


def _shown(item: Field[Any], value: Any) -> Values:
    """An option as the page may show it: credentials and large values are hidden, and objects are not plain."""
    if not item.repr:
        return {"hidden": True}
    plain = _plain(value)
    if plain is None:
        name = getattr(value, "__name__", item.name)
        return {"code": name if name.isidentifier() else item.name}  # "<lambda>" is no code
    return {"value": _without_secrets(json.loads(plain))}


def _plain(value: Any) -> str | None:
    """The value as JSON, a path as text; None if JSON cannot hold it."""
    try:
        return json.dumps(value, allow_nan=False, default=os.fspath)
    except (TypeError, ValueError):
        return None


def _without_secrets(value: Any) -> Any:
    """The plain value without the queries and passwords of URLs."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {name: _without_secrets(inner) for name, inner in value.items()}
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value
