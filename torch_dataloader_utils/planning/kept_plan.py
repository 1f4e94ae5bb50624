"""A plan as bytes that anybody may keep: its files are named without secrets, as in messages."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.model import DataFileInfo, FileKey
from torch_dataloader_utils.redaction import redacted


def packed(values: Mapping[str, Any]) -> bytes:
    """The pickled attributes of a plan, in which no file's name holds a secret."""
    names = _names(values["layouts"])
    layouts = {(key[0], names[key]): layout for key, layout in values["layouts"].items()}
    sink = io.BytesIO()
    _Pickler(sink, names).dump({**values, "layouts": layouts})
    return sink.getvalue()


def _names(keys: Iterable[FileKey]) -> dict[FileKey, str]:
    """For each file a name without secrets; those that differ only in what is hidden are numbered."""
    names: dict[FileKey, str] = {}
    taken: set[FileKey] = set()
    numbers: Counter[FileKey] = Counter()
    for part, path in keys:
        name = plain = redacted(path)
        while (part, name) in taken:
            numbers[part, plain] += 1
            name = f"{plain} ({numbers[part, plain] + 1})"
        names[part, path] = name
        taken.add((part, name))
    return names


class _Pickler(pickle.Pickler):
    def __init__(self, sink: io.BytesIO, names: Mapping[FileKey, str]) -> None:
        super().__init__(sink)
        self._names = names

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, DataFileInfo):
            return NotImplemented
        path = self._names.get(value.key) or redacted(value.path)
        return NotImplemented if path == value.path else replace(value, path=path).__reduce_ex__(4)
