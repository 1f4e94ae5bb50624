"""Keywords that became fields of values: what a call with them is now, as text that can be pasted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.errors import UnknownOptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import printable

Given = Mapping[str, Any]


@dataclass(frozen=True)
class Retired:
    """Keywords of one feature.

    Attributes:
        names: the keywords that are gone.
        now: from those of a call, and from what else it was given, the text of the keyword that takes their place.
        beside: keywords that live on, but are part of what is written.
    """

    names: tuple[str, ...]
    now: Callable[[Given], str]
    beside: tuple[str, ...] = ()


def value(kind: str, first: str | None, fields: Given) -> str:
    """The text of a value: only its first field, if that says all.

    Args:
        kind: the class.
        first: the text of its first field; None if it is not given.
        fields: the others, by name.
    """
    texts = [f"{name}={shown(field)}" for name, field in fields.items()]
    return first if first is not None and not texts else f"{kind}({', '.join(filter(None, [first, *texts]))})"


def renamed(given: Given, names: Mapping[str, str]) -> dict[str, Any]:
    """The given ones of these keywords, by the names of the fields that they have become."""
    return {field: given[name] for name, field in names.items() if name in given}


def _cache(given: Given) -> str:
    folder = shown(given["cache_dir"]) if "cache_dir" in given else "'folder'"
    return f"cache={value('Cache', folder, renamed(given, {'cache_bytes': 'max_bytes'}))}"


def _buckets(given: Given) -> str:
    tokens = shown(given["batch_tokens"]) if "batch_tokens" in given else "16384"
    return f"batch_tokens={value('Buckets', tokens, renamed(given, {'length_column': 'by', 'long_rows': 'long'}))}"


def _sync(given: Given) -> str:
    return f"even=Sync({shown(given['sync_every'])})"


def _processes(given: Given) -> str:
    if given.keys() == {"persistent_workers"} and given["persistent_workers"] is True:
        return "the default, because worker processes persist: leave it out"
    if given.get("worker_mode") in ("thread", "threads"):
        return f"worker_mode={shown(given['worker_mode'])}: threads have neither"
    fields = renamed(given, {"persistent_workers": "persistent", "multiprocessing_context": "context"})
    persistent = {} if fields.get("persistent", True) is True else {"persistent": fields["persistent"]}
    rest = {name: field for name, field in fields.items() if name == "context" and field is not None}
    text = value("Processes", None, {**persistent, **rest})
    return f"worker_mode={text if persistent or rest else shown('processes')}"


def _transform(given: Given) -> str:
    function = given.get("transform")
    name = getattr(function, "__name__", "")
    text = "function" if function is None else name if name.isidentifier() else shown(function)
    names = {"transform_rows": "rows", "transform_schema": "schema", "transform_format": "format"}
    return f"transform={value('Transform', text, renamed(given, names))}"


def _weights(given: Given) -> str:
    values = shown(given["weights"]) if given.get("weights") is not None else None
    names = {"temperature": "temperature", "weights_unit": "at", "max_repeats": "max_repeats"}
    return f"weights={value('Weights', values, renamed(given, names))}"


RETIRED = (
    Retired(("cache_dir", "cache_bytes"), _cache),
    Retired(("length_column", "long_rows"), _buckets, beside=("batch_tokens",)),
    Retired(("transform_rows", "transform_schema", "transform_format"), _transform, beside=("transform",)),
    Retired(("weights_unit", "temperature", "max_repeats"), _weights, beside=("weights",)),
    Retired(("sync_every",), _sync, beside=("even",)),
    Retired(("persistent_workers", "multiprocessing_context"), _processes, beside=("worker_mode",)),
)


def check_retired(keywords: Given) -> None:
    """Check that no keyword is one that became the field of a value.

    Raises:
        UnknownOptionError: some are; a line for each feature says what they are now.
    """
    lines = []
    for feature in RETIRED:
        given = {name: keywords[name] for name in keywords if name in (*feature.names, *feature.beside)}
        if given.keys() & set(feature.names):
            old = ", ".join(f"{name}={shown(item)}" for name, item in given.items())
            lines.append(printable(f"{old} {'is' if len(given) == 1 else 'are'} now {feature.now(given)}"))
    if lines:
        raise UnknownOptionError("\n".join(lines))
