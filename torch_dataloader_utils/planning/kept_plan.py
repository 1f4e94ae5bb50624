"""A plan as bytes that anybody may keep: its files are named without secrets, as in messages."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.redaction import printable


def packed(values: Mapping[str, Any]) -> bytes:
    """The pickled attributes of a plan, in which no file's name holds a secret."""
    layouts = {(part, printable(path)): layout for (part, path), layout in values["layouts"].items()}
    sink = io.BytesIO()
    _Pickler(sink).dump({**values, "layouts": layouts})
    return sink.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, DataFileInfo):
            return NotImplemented
        path = printable(value.path)
        return NotImplemented if path == value.path else replace(value, path=path).__reduce_ex__(4)
