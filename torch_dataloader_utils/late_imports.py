"""Modules of pyarrow that cost up to 0.3 s to import, loaded at first use: `from ...late_imports import pc`.

Most of that time is spent on generated documentation (`pyarrow.compute`) and on pandas (`pyarrow.dataset`). Plain
reading needs neither. `pa.array` imports pandas, too, so what is read goes through `as_arrow`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["acero", "as_arrow", "ds", "import_now", "pc"]

if TYPE_CHECKING:
    import pyarrow.acero as acero
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
else:

    class _Late:
        """A module that is imported when one of its attributes is first used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self._name), name)
            setattr(self, name, value)  # later uses cost what they cost in a module
            return value

    acero, ds, pc = map(_Late, ("pyarrow.acero", "pyarrow.dataset", "pyarrow.compute"))


def import_now(names: Iterable[str]) -> None:
    """Import modules before they are needed, because pyarrow's own import of pandas, in C++, swallows a Ctrl-C.

    What is not installed is left out: pyarrow does without.
    """
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def as_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """The numbers or booleans, shape [n], as an Arrow array; numbers without a copy."""
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])
