"""Modules of pyarrow that cost up to 0.3 s to import, loaded at first use: `from ...late_imports import pc`.

Most of that time is spent on generated documentation (`pyarrow.compute`) and on pandas (`pyarrow.dataset`). Plain
reading needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["acero", "ds", "pc"]

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
