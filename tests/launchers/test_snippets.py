"""Loops as users of rank-sharded loaders write them, for each launcher: only paths, devices and catalogs are ours."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import forkrun
from tests.distributed_page import ACCELERATE, DDP, HOROVOD, ICEBERG

ROWS = 9_000

BEFORE = '''
import json, os, sys
import torch

class Model(torch.nn.Module):
    """Notes which rows it is trained on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, feature, label):
        self.seen.append(feature.tolist())
        return ((self.layer(feature[:, None] / 9_000)[:, 0] - label) ** 2).mean()

model = Model()
seen = model.seen
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
num_epochs, done = 2, []
'''
AFTER = """
    done.append(sum(seen, []))
    seen.clear()

with open(os.path.join(sys.argv[1], f"{dataset.world.rank}.json"), "w") as out:
    json.dump(done, out)
sys.stdout.flush()
os._exit(0)
"""

# What the page has and this machine has not, with what stands for it here.
OURS = {
    '"s3://bucket/training-data/"': '"data/"',
    '"nccl"': '"gloo"',
    "torch.cuda.set_device(hvd.local_rank())\n": "",
    '"type": "glue",': '"type": "sql", "name": "local",',
    '"region_name": "us-east-1",': '"uri": "sqlite:///catalog.db",',
    "        ...\n": '        model(batch["feature_a"], batch["label"])\n',
}
CASES = {
    "ddp": (DDP, None),
    "accelerate": (ACCELERATE, "accelerate"),
    "horovod": (HOROVOD, "horovod"),
    "iceberg": (ICEBERG, "pyiceberg"),
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Rows named by a feature that floats hold exactly."""
    ids = np.arange(ROWS, dtype=np.float32)
    return pa.table({"feature_a": ids, "label": ids % 2, "region_id": np.arange(ROWS) // 20})


@pytest.fixture
def folder(tmp_path: Path, table: pa.Table, request: pytest.FixtureRequest) -> Path:
    """A working folder with the rows as six files (of steps that are the same on two ranks), or as a table."""
    if request.node.callspec.params["name"] != "iceberg":
        (tmp_path / "data").mkdir()
        for number in range(6):
            pq.write_table(table.slice(number * 1_500, 1_500), tmp_path / "data" / f"{number}.parquet")
        return tmp_path
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("my_db")
    made = catalog.create_table("my_db.events", schema=table.schema)
    for number in range(6):
        made.append(table.slice(number * 1_500, 1_500))
    catalog.close()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_row_once_an_epoch(name: str, folder: Path) -> None:
    snippet, package = CASES[name]
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = folder / "train.py"
    for theirs, ours in OURS.items():
        snippet = snippet.replace(theirs, ours)
    program.write_text(BEFORE + snippet + AFTER)
    launcher = ["horovodrun", "-np", "2", sys.executable] if name == "horovod" else forkrun.command()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*launcher, str(program), str(folder)],
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    first = 100 if name == "iceberg" else 0  # of region 5
    for epoch in range(2):
        assert Counter(ranks[0][epoch] + ranks[1][epoch]) == Counter(map(float, range(first, ROWS)))
    assert ranks[0][0] != ranks[0][1]
