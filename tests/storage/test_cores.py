"""The cores that a process may use: the quotas of control groups count, as those of containers do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_dataloader_utils.storage import usable_cores
from torch_dataloader_utils.storage.cores import quota


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),  # in a container
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),  # the root of a machine
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),  # a group above
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "100000 100000"}, 1),
        ("0::/not/mounted", {"cpu.max": "400000 100000"}, 4),
        ("4:cpu,cpuacct:/d\n0::/", {"cpu/d/cpu.cfs_quota_us": "250000", "cpu/d/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu,cpuacct:/d", {"cpu/d/cpu.cfs_quota_us": "-1", "cpu/d/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/d", {"cpu/d/cpu.cfs_quota_us": "100000", "cpu/d/cpu.cfs_period_us": "100000"}, None),
        ("0::/a:b", {"a:b/cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "damaged"}, None),
    ],
)
def test_quotas_are_whole_cores(tmp_path: Path, groups: str, files: dict[str, str], cores: int | None) -> None:
    assert quota(groups, write(tmp_path, files)) == cores


def test_no_more_than_the_affinity() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
