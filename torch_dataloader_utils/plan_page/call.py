"""The call that creates a dataset's loader, as texts of Python and YAML that the plan page puts together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from torch_dataloader_utils.options import Options, SourceValue, options_of
from torch_dataloader_utils.redaction import printable, redacted
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.values import ByColumn, Checked, Value, declared

# Plain values as Python and YAML write them, exactly: whole numbers of any size, and keys of any type.

_WORDS = {"python": {None: "None", True: "True", False: "False"}, "yaml": {None: "null", True: "true", False: "false"}}
_BARE = re.compile(r"(\.{0,2}/|[A-Za-z_])[\w./-]*", re.ASCII)  # text that YAML takes for text, without quotes
_RESERVED = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))  # unless it is one of these words


def written(value: Any) -> dict[str, str] | None:
    """The value as text, by language ("python" and "yaml"); None if it is not plain: numbers, texts, lists, dicts."""
    try:
        texts = {language: _text(value, language) for language in _WORDS}
    except TypeError:
        return None
    return {**texts, "yaml": value} if isinstance(value, str) and _is_bare(value) else texts


def quoted(text: str) -> str:
    """The text in double quotes, as Python and YAML both read it."""
    escaped = json.dumps(text, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in escaped)


def _text(value: Any, language: str) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[language][value]
    if isinstance(value, (str, os.PathLike)):
        return quoted(os.fspath(value))
    if isinstance(value, np.generic):
        return _text(value.item(), language)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value), language)
    if isinstance(value, Value):
        return _value(value, language)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key, language)}: {_text(inner, language)}' for key, inner in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return _sequence([_text(inner, language) for inner in value], isinstance(value, tuple) and language == "python")
    raise TypeError(f"{type(value).__name__} is no plain value")


def _value(value: Value, language: str) -> str:
    def sized(name: str, item: Any) -> Any:
        return _sized(item) if name.endswith("_bytes") else item

    if language == "python":
        return value.text(lambda name, item: _text(sized(name, item), language))
    fields = {name: sized(name, item) for name, item in value.given().items()}
    return _text({"kind": type(value).__name__.lower(), **fields}, language)


def _sequence(texts: list[str], is_tuple: bool) -> str:
    joined = ", ".join(texts)
    return f"({joined}{',' * (len(texts) == 1)})" if is_tuple else f"[{joined}]"


def _float(value: float, language: str) -> str:
    text = repr(value)
    if text[-1] in "fn":  # inf and nan
        return f'float("{text}")' if language == "python" else text.replace("inf", ".inf").replace("nan", ".nan")
    return re.sub(r"^(-?\d+)e", r"\1.0e", text)  # PyYAML takes 1e-07 for text


def _is_bare(text: str) -> bool:
    return _BARE.fullmatch(text) is not None and text.lower() not in _RESERVED


def _escaped(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) < 2**16 else f"\\U{ord(sign):08x}"


Values = dict[str, Any]

_PATHS = 20  # more are a list that code makes
_RANKS = ("num_ranks", "rank")  # the page writes them
# Options that are written elsewhere: fields of what is read, and ranks.
_WRITTEN = (options_of("files").keys() - options_of("stream").keys()) | {"follow", *_RANKS}
_LONGEST = 20_000  # characters of an option
_HIDDEN = "not shown here: credentials, or too long"
_HIDDEN_CATALOG = "fill in the catalog's properties; not shown here, because they may hold credentials"
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
# The options that keep a table at one snapshot.
_PINS = frozenset(("version", "as_of", "snapshot_id"))
# The options that the page can change.
_CHANGED = (*("num_workers", "batch_size", "sharding", "even", "last_batch", "steps_per_epoch", "shuffle"),)


def call_values(
    dataset: str, source: Source, options: Options, of_source: Mapping[str, Any] = MappingProxyType({})
) -> Values:
    """The call's function, what it reads, and the options that were given.

    Args:
        dataset: the name of the kind of dataset.
        source: what it reads.
        options: the options of its loader.
        of_source: from `source_values` or `combination_values`; empty for a table of the user's own format.
    """
    fields_given = {item["name"]: item for item in of_source.get("fields", ())}
    return {
        "function": "stream" if source.group is None else "combine",
        "target": of_source.get("target") or _target(dataset, source, of_source),
        "options": {**of_source.get("options", {}), **_given(options)},
        # The page shows none of None's warnings, so that it needs no word for it.
        "defaults": {**{name: _checked(item, item.default) for name, item in _changed().items()}, "even": "none"},
        "explicit_ranks": options.shard.num_ranks is not None,
        "note": _newest(dataset, source, fields_given),
    }


def source_values(chosen: SourceValue) -> Values:
    """The kind of what is read, and its fields, but the first, that differ from their defaults; no credentials."""
    items = {item.name: item for item in declared(type(chosen))}
    given = {name: value for name, value in chosen.given().items() if name in items}
    shown = [
        {"name": name, **_shown(items[name], value, chosen.fields[name].hides(value))} for name, value in given.items()
    ]
    return {"kind": type(chosen).__name__, "first": next(iter(chosen.fields)), "fields": shown}


def combination_values(parts: Mapping[str | int, Any], defaults: Mapping[str, Any]) -> Values:
    """The parts of a combination, and the keywords that are their defaults, as the page may show them: no credentials.

    Args:
        parts: by name or number, a source or a dict of keywords; None for a dataset that was made before.
        defaults: the keywords.
    """
    items, names = options_of("combine"), list(parts)
    shown = {name: _plain_part(part, items) for name, part in parts.items()}
    python = [None if part is None else _text(part, "python") for part in shown.values()]
    target = {"name": "datasets", "python": _datasets(names, python)}
    if None not in python:
        target["yaml"] = _text(shown if _are_named(names) else list(shown.values()), "yaml")
    classes = sorted(set[str]().union(*map(_classes, shown.values())))
    of_datasets = {**target, "imports": classes} if classes else target
    return {"target": of_datasets, "options": {name: _shown(items[name], value) for name, value in defaults.items()}}


def _plain_part(part: Any, items: Mapping[str, Field[Any]]) -> Any:
    """A part as texts can hold it; None for one that is no plain value, too long, or may hold a credential."""
    if isinstance(part, Mapping):  # a dict is always by column
        by_column = {name for name, item in items.items() if isinstance(item.metadata["check"], ByColumn)}
        part = {n: {"*": v} if n in by_column and isinstance(v, Value) else v for n, v in part.items()}
    texts = None if part is None or _hides(part) else written(part)
    return part if texts is not None and len(texts["python"]) <= _LONGEST else None


def _hides(part: Any) -> bool:
    """Whether the text of a part would lack, or show, what may be a credential."""
    if isinstance(part, SourceValue):
        return _has_secret(part) or any(part.fields[name].hides(value) for name, value in part.given().items())
    if isinstance(part, Mapping):
        return "storage_options" in part or any(map(_hides, part.values()))
    return _has_secret(part)


def _are_named(names: Sequence[Any]) -> bool:
    return all(isinstance(name, str) for name in names)


def target_values(value: str | list[str]) -> Values:
    """The call's first argument: its name, its value, and the value as text."""
    return {"name": "source", "value": value, **(written(value) or {})}


def _changed() -> dict[str, Field[Any]]:
    return {name: item for name, item in options_of("files").items() if name in _CHANGED}


def _target(dataset: str, source: Source, of_source: Mapping[str, Any]) -> Values:
    """The call's first argument; only as Python if no text stands for its value."""
    paths = list(source.paths)
    if source.group is not None:
        names = list(source.group.names)
        return {"name": "datasets", "python": _datasets(names, [None] * len(names))}
    if dataset == "TableDataset":  # a table is an object of the user's
        return {"name": "source", "value": paths[0], "python": "table"}
    many = {"name": "source", "python": "paths"}
    first = many if len(paths) > _PATHS else target_values(paths[0] if len(paths) == 1 else paths)
    alone = source.snapshot is None and not of_source.get("fields")  # a path stands for its files
    return first if alone else {**first, **of_source}


def _datasets(names: Sequence[Any], texts: Sequence[str | None]) -> str:
    """The datasets of a combination as code: a dict if they have names; variables stand for those without a text."""
    codes = [text or f"dataset_{number}" for number, text in enumerate(texts)]
    if not _are_named(names):
        return f"[{', '.join(codes)}]"
    return f"{{{', '.join(f'{quoted(redacted(name))}: {code}' for name, code in zip(names, codes, strict=True))}}}"


def _newest(dataset: str, source: Source, of_table: Mapping[str, Any]) -> str | None:
    """What the page shows of a table of which the call reads the newest snapshot."""
    ends = "until" in of_table.get("appended", {}).get("python", "")
    if source.snapshot is None or dataset == "TableDataset" or _PINS & of_table.keys() or ends:
        return None
    return printable(f"the newest when this page was written: {source.snapshot.cursor}")


def _given(options: Options) -> dict[str, Values]:
    """The options that differ from their defaults, by keyword, each as text, as code or hidden."""
    groups = [group for item in fields(options) if isinstance(group := getattr(options, item.name), Checked)]
    keywords = [item for group in groups for item in fields(group) if item.metadata["keyword"]]
    given = [(item, options.given(item.name)) for item in keywords if item.name not in _WRITTEN]
    return {item.name: _shown(item, value) for item, value in given if not _is_default(item, value, options)}


def _is_default(item: Field[Any], value: Any, options: Options) -> bool:
    if item.name == "split_bytes":  # parsing replaces None
        return bool(value == options.shuffle.split_bytes)
    default = _checked(item, item.default)
    return value is default or (isinstance(value, type(default)) and written(value) == written(default) is not None)


def _checked(item: Field[Any], value: Any) -> Any:
    """The value as the option stores it: sizes as numbers, for example."""
    check = item.metadata.get("check")
    return value if check is None else check(item.name, value)


def _shown(item: Field[Any], value: Any, hidden: bool | None = None) -> Values:
    """An option as the page may show it: credentials and large values are hidden, and objects are not plain."""
    if (not item.repr if hidden is None else hidden) or _has_secret(value):
        return {"hidden": _HIDDEN_CATALOG if item.name == "catalog" else _HIDDEN}
    if item.name == "as_of" and isinstance(value, datetime):
        value = value.isoformat()
    texts = written(_sized(value) if item.name.endswith("_bytes") else value)
    if texts is None:
        name = getattr(value, "__name__", item.name)
        return {"code": name if name.isidentifier() else item.name}  # "<lambda>" is no code
    if isinstance(value, Value) and isinstance(item.metadata.get("check"), ByColumn):
        texts["yaml"] = _text({"*": value}, "yaml")  # a dict is always by column
    if len(texts["python"]) > _LONGEST:
        return {"hidden": _HIDDEN}
    classes = sorted(_classes(value))
    return {**texts, "imports": classes} if classes else texts


def _classes(value: Any) -> set[str]:
    """The names of the classes that the text of a value in Python uses."""
    own = {value.made_by} if isinstance(value, Value) else set()
    if isinstance(value, (Value, Mapping)):
        value = value.given().values() if isinstance(value, Value) else value.values()
    elif not isinstance(value, (list, tuple)):
        return own
    return own.union(*map(_classes, value))


def _sized(size: Any) -> Any:
    """Bytes as people write them: "64MiB"."""
    fits = (f"{size // unit}{name}" for name, unit in _UNITS.items() if isinstance(size, int) and size % unit == 0)
    return next(fits, size)


def _has_secret(value: Any) -> bool:
    """Whether a text in it has a part that `redacted` leaves out; without it, the option would be another one."""
    if isinstance(value, (str, os.PathLike)):
        return redacted(str(value)) != str(value)
    if isinstance(value, Value):
        return any(map(_has_secret, value.given().values()))
    if isinstance(value, Mapping):
        return any(map(_has_secret, [*value.keys(), *value.values()]))
    return isinstance(value, (list, tuple)) and any(map(_has_secret, value))
