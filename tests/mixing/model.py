"""The executable model of mixes, where it is at hand."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "shared" / "model" / "mix_model.py"

needs_model = pytest.mark.skipif(not PATH.exists(), reason="the model is not on this machine")


@cache
def model_of_mixes() -> ModuleType:
    """The module."""
    spec = importlib.util.spec_from_file_location("mix_model", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mix_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
