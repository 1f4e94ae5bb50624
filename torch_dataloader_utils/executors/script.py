"""The user's script in worker processes: imported when something names it, not whenever a process starts.

multiprocessing imports the main module in each process that it spawns, which takes seconds if the script imports torch.
A process that has the module already is left alone, so a worker's own `__main__` is given the attributes by which
multiprocessing recognizes the module. They travel with the worker's name, which is unpickled before anything else. Then
the first access to a missing attribute of `__main__`, such as that of a transform being unpickled, imports the script.

If a future Python recognizes the module in another way, workers import the script when they start, as other processes
do.
"""

from __future__ import annotations

import importlib
import multiprocessing
import operator
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from multiprocessing.context import BaseContext
from multiprocessing.spawn import get_preparation_data
from types import ModuleType
from typing import Any

WORKER_NAME = "tdu-worker"

_importing = True  # until a worker's own code runs, only multiprocessing can be importing the script


def deferred(name: str) -> bool:
    """Whether a worker with this name imports the user's script on demand."""
    return isinstance(name, _Name)


def importing() -> bool:
    """Whether this process is a worker that is importing the user's script."""
    return _importing and multiprocessing.current_process().name == WORKER_NAME


def worker_name(context: BaseContext) -> str:
    """The name to start a worker process with; in processes of Python's own kinds, it defers the script's import."""
    if type(context).__module__ != "multiprocessing.context" or context.get_start_method() == "fork":
        return WORKER_NAME
    data = get_preparation_data(WORKER_NAME)
    module, path = data.get("init_main_from_name"), data.get("init_main_from_path")
    if module is not None and module.rpartition(".")[2] != "__main__":
        return _Name({"__spec__": ModuleSpec(module, None)})
    return _Name({"__file__": path}) if path is not None else WORKER_NAME


class _Name(str):
    """The name of a worker process, which sets attributes of the process's `__main__` when it is unpickled there."""

    def __new__(cls, attributes: dict[str, Any]) -> _Name:
        name = super().__new__(cls, WORKER_NAME)
        name._main = _Main(attributes)
        return name

    _main: _Main

    def __reduce__(self) -> tuple[Any, ...]:
        # Only Python's own functions: the process may not have the user's sys.path yet.
        return operator.getitem, ((self._main, WORKER_NAME), 1)


class _Main:
    """Unpickles as the module `__main__`, with these attributes."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, ("__main__",), self._attributes


def started(deferred: bool) -> None:
    """Note that the worker's own code runs; if the script's import was deferred, let a missing attribute cause it."""
    global _importing
    _importing = False
    main = sys.modules["__main__"]
    if deferred and main.__name__ == "__main__":  # multiprocessing calls it `__mp_main__` once it has imported it
        module, path = getattr(main.__spec__, "name", None), getattr(main, "__file__", None)
        main.__getattr__ = _Script(main, module, path).attribute  # type: ignore[method-assign]


class _Script:
    """The user's script, as a module that is imported once.

    Args:
        main: the module that stands for it until then.
        module: its name; None if it has none.
        path: its file; used if it has no name.
    """

    def __init__(self, main: ModuleType, module: str | None, path: str | None) -> None:
        self._main, self._module, self._path = main, module, path

    def attribute(self, name: str) -> Any:
        """An attribute of the script.

        Raises:
            AttributeError: the script has no such attribute, or is being imported.
        """
        missing = AttributeError(f"module '__main__' has no attribute {name!r}", name=name, obj=self._main)
        if _importing or (name.startswith("__") and name.endswith("__")):
            raise missing  # tools look for such names in every module
        if sys.modules["__main__"] is self._main:
            self._import()
        with suppress(KeyError):
            return vars(sys.modules["__main__"])[name]
        raise missing

    def _import(self) -> None:
        import runpy

        global _importing
        _importing = True
        try:
            script = ModuleType("__mp_main__")  # multiprocessing's name for it: it is not run as the main program
            if self._module is None:
                content = runpy.run_path(str(self._path), run_name="__mp_main__")
            else:
                content = runpy.run_module(self._module, run_name="__mp_main__", alter_sys=True)
            vars(script).update(content)
            sys.modules["__main__"] = sys.modules["__mp_main__"] = script
        finally:
            _importing = False
