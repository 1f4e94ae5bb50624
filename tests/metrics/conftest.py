"""Data shared by these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metrics.throttled import write


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data"))
