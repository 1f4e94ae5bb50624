"""Plain values as JSON holds them; those that it has no form for, as a dict of their kind."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown


class _JsonForm(NamedTuple):
    type: type
    write: Callable[[Any], str | int]
    read: Callable[[Any], Any]


_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_MICROSECOND = timedelta(microseconds=1)


_KINDS: Mapping[str, _JsonForm] = {
    "bytes": _JsonForm(
        bytes, lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, None, True)
    ),
    "timestamp": _JsonForm(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": _JsonForm(date, date.isoformat, date.fromisoformat),
    "time": _JsonForm(time, time.isoformat, time.fromisoformat),
    "duration": _JsonForm(timedelta, lambda value: value // _MICROSECOND, lambda number: number * _MICROSECOND),
    "decimal": _JsonForm(Decimal, str, Decimal),
    "float": _JsonForm(float, repr, lambda text: _INFINITE[text]),  # others are numbers of JSON
}


_PYTHON: Mapping[str, type] = {
    "int64": int,
    "uint64": int,
    "bool": bool,
    "large_string": str,
    "large_binary": bytes,
    "date32[day]": date,
}


def python_type(name: str) -> type | None:
    """That of the values of a vocabulary of this Arrow type; None if they have no form in JSON."""
    return datetime if name == "timestamp[us]" or name.startswith("timestamp[us, tz=") else _PYTHON.get(name)


def encoded(value: Any) -> Any:
    """A plain value as JSON holds it.

    Raises:
        OptionError: it is of another type than these.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    for name, kind in _KINDS.items():
        if isinstance(value, kind.type) and value == value and not getattr(value, "nanosecond", 0):
            return {name: kind.write(value)}
    raise OptionError(f"{shown(value)} cannot be saved: values of type {type(value).__name__} have no form in JSON.")


def decoded(value: Any) -> Any:
    """What `encoded` was given, with lists for tuples.

    Raises:
        ValueError: it returned something else.
    """
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or next(iter(value)) not in _KINDS:
        raise ValueError(f"{shown(value)} is not a value")
    ((name, text),) = value.items()
    return _KINDS[name].read(text)
