"""What ranks leave in the job's store as they meet, pass after pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
