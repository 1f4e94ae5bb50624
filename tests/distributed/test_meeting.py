"""What ranks leave in the job's store as they meet, pass after pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCRIPT = """
import torch.distributed as dist
from torch_dataloader_utils.distributed.collectives import smallest
from torch_dataloader_utils.distributed.meeting import meet
from torch_dataloader_utils.distributed.peers import job_peers
from torch_dataloader_utils.distributed.records import Step

store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
peers, step, sizes = job_peers(), Step("begin a pass", 60), []
for _ in range(5):
    meet(peers, step)
    agree = smallest(peers, step)  # as even="sync" does, without a meeting
    assert [agree(3), agree(2)] == [3, 2]
    sizes.append(store.num_keys())
assert len(set(sizes)) == 1, sizes
dist.destroy_process_group()
"""


def test_passes_that_stop_together_leave_no_keys_behind() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


def test_a_job_without_a_store_is_told_which_backends_have_one(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    script = f"""
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers a backend that needs no store
from torch_dataloader_utils import StructuredDataset

dist.init_process_group("fake", store=dist.Store(), rank=0, world_size=2)  # what torch passes for "mpi"
StructuredDataset.create_dataloader({str(tmp_path / "x.parquet")!r}, manifest={str(tmp_path / "m")!r})
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=180)
    assert "OptionError: torch.distributed was initialised with the backend 'fake', without a store" in done.stderr
