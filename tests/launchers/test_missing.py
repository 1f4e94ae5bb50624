"""Integrations without their framework: the error says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from torch_dataloader_utils import MissingExtraError


def test_lightning_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch_dataloader_utils.integrations.lightning"
    for blocked in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, blocked, None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingExtraError, match="pip install lightning"):
        importlib.import_module(name)
    assert name not in sys.modules
