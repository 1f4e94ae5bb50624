"""Values that no option expects."""

import datetime
import os
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tests.fuzz.mutations import nested


class Hostile:
    """Raises whenever it is looked at: shown, measured, iterated, compared, hashed, or used as a path."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("hostile")

    __str__ = __repr__ = __len__ = __iter__ = __fspath__ = __eq__ = __hash__ = __bool__ = __index__ = _raise
    __getitem__ = __contains__ = __float__ = __int__ = __lt__ = __call__ = _raise


class Endless:
    """A list that does not end."""

    def __iter__(self) -> Iterator[int]:
        n = 0
        while True:
            yield n
            n += 1


class HostilePath(os.PathLike):  # type: ignore[type-arg]
    """A path that raises when it is asked for its name."""

    def __fspath__(self) -> str:
        raise RuntimeError("hostile")


def no_arguments() -> None:
    """A function that takes nothing."""


STRANGE: dict[str, Any] = {
    "None": None,
    "True": True,
    "minus one": -1,
    "zero": 0,
    "one": 1,
    "2**31": 2**31,
    "2**63": 2**63,
    "10**400": 10**400,
    "minus 10**400": -(10**400),
    "half": 0.5,
    "NaN": float("nan"),
    "inf": float("inf"),
    "complex": 1j,
    "Decimal": Decimal("NaN"),
    "numpy int": np.int64(3),
    "numpy array": np.arange(3),
    "numpy strings": np.array(["x", "y"]),
    "empty": "",
    "nul": "a\0b",
    "surrogate": "\ud800",
    "long": "x" * 100_000,
    "digits": "9" * 5000,
    "percent": "%s{}%(x)s",
    "bytes": b"x\xff",
    "empty list": [],
    "list of None": [None],
    "nested": nested(3000),
    "mixed": ["x", 1, None],
    "empty dict": {},
    "dict": {"x": None},
    "odd keys": {1: 2, None: []},
    "nul key": {"\0": "\ud800"},
    "set": {"x"},
    "tuple": ("x",),
    "generator": "a generator",  # made anew for each call
    "endless": Endless(),
    "object": object(),
    "class": int,
    "lambda": no_arguments,
    "tensor": torch.arange(3),
    "dtype": torch.float32,
    "schema": pa.schema([("x", pa.string())]),
    "table": pa.table({"x": [1]}),
    "date": datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
    "hostile": Hostile(),
    "hostile list": [Hostile()],
    "hostile dict": {"x": Hostile()},
    "hostile path": HostilePath(),
}


def fresh(name: str) -> Any:
    """The value with this name."""
    return iter(["x"]) if name == "generator" else STRANGE[name]
