"""The executable models of what the loader promises, where they are at hand: they are no part of the package."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

_FOLDER = Path(__file__).parents[2] / "shared" / "model"


@cache
def model(name: str) -> ModuleType:
    """The module of a model; the test is skipped where it is not on this machine."""
    path = _FOLDER / f"{name}.py"
    if not path.exists():
        pytest.skip("the model is not on this machine")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module
