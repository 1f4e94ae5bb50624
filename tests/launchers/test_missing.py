"""Integrations without their framework: the error says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from torch_dataloader_utils import MissingExtraError


@pytest.mark.parametrize(
    ("framework", "module"),
    [("lightning", "pytorch"), ("accelerate", "utils"), ("trl", "trainer"), ("torchtitan", "components.dataloader")],
)
def test_the_framework_is_missing(framework: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"torch_dataloader_utils.integrations.{framework}"
    for blocked in (framework, f"{framework}.{module}"):
        monkeypatch.setitem(sys.modules, blocked, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingExtraError, match=f"pip install {framework}"):
        importlib.import_module(name)
    assert name not in sys.modules
