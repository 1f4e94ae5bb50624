"""Two ranks train on a folder to which a job adds hours, and are killed again and again: each row counts once."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.following.folders import table
from torch_dataloader_utils import Files, Follow, stream

RANKS, KILLS, HOURS = 2, 50, 60
SETTLE = 1.0
FORK = multiprocessing.get_context("fork")  # a process that imports all of this takes seconds to start


def write(folder: Path, seed: int) -> None:
    """Adds hours: late ones, ones that are replaced before they have settled, piece by piece, and by renaming."""
    rng, first = random.Random(seed), 0
    for hour in range(HOURS):
        rows = rng.randint(1, 40)
        own = max(0, hour - rng.choice([0, 0, 0, 1, 5]))
        target = folder / f"h={own}" / f"{hour}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        sink = pa.BufferOutputStream()
        pq.write_table(table(range(first, first + rows)), sink)
        data, how = sink.getvalue().to_pybytes(), rng.choice(["pieces", "renamed", "replaced"])
        if how == "renamed":
            target.with_name(f"{hour}.parquet.tmp").write_bytes(data[:50])
            time.sleep(0.02)
            target.with_name(f"{hour}.parquet.tmp").write_bytes(data)
            target.with_name(f"{hour}.parquet.tmp").rename(target)
        else:
            with target.open("wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                time.sleep(0.05)
                file.write(data[len(data) // 2 :])
        if how == "replaced":
            pq.write_table(table(range(first, first + rows)), target, compression="none")
        first += rows
        time.sleep(rng.random() / 10)
    (folder / "_rows").write_text(str(first))


def train(folder: Path, rank: int, step: int) -> None:
    """Passes without end from a checkpoint on; a checkpoint of this rank after each step."""
    follow = Follow(poll=0.05, wait=0.3, settle=SETTLE, rounds=folder / "rounds")
    loader = stream(
        Files(str(folder / "data"), follow=follow), num_ranks=RANKS, rank=rank, even="pad", batch_size=8, shuffle=True,
        num_workers=0,
    )  # fmt: skip
    learnt: list[int] = []
    if step:
        saved = json.loads(checkpoint(folder, step, rank).read_text())
        learnt = saved["learnt"]
        loader.load_state_dict(saved["state"])
    while True:
        for batch in loader:
            learnt += batch["id"][batch["valid"]].tolist()
            step += 1
            path = checkpoint(folder, step, rank)
            path.with_suffix(".part").write_text(json.dumps({"learnt": learnt, "state": loader.state_dict()}))
            path.with_suffix(".part").replace(path)


def checkpoint(folder: Path, step: int, rank: int) -> Path:
    return folder / "checkpoints" / f"{step:06d}-{rank}.json"


def last_step(folder: Path) -> int:
    """The last step of which all ranks have a checkpoint; those of later ones are those of no job."""
    steps = Counter(int(path.name[:6]) for path in (folder / "checkpoints").glob("*.json"))
    last = max((step for step, ranks in steps.items() if ranks == RANKS), default=0)
    for path in (folder / "checkpoints").glob("*.json"):
        if int(path.name[:6]) > last:
            path.unlink()
    return last


def learnt(folder: Path, step: int) -> list[int]:
    files = [checkpoint(folder, step, rank) for rank in range(RANKS)]
    return sorted(row for path in files for row in json.loads(path.read_text())["learnt"])


def started(folder: Path) -> list[Any]:
    step = last_step(folder)
    ranks = [FORK.Process(target=train, args=(folder, rank, step)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    return ranks


def killed(ranks: list[Any]) -> None:
    for process in ranks:
        assert process.is_alive(), "a rank ended by itself"
        os.kill(process.pid, signal.SIGKILL)
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_ranks_that_are_killed_learn_each_row_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "data").mkdir()
    (tmp_path / "checkpoints").mkdir()
    writer = FORK.Process(target=write, args=(tmp_path / "data", seed))
    writer.start()
    while not settled(tmp_path / "data"):  # a rank that waits in vain for the first file ends with an error
        time.sleep(0.05)
    for _ in range(KILLS):
        ranks = started(tmp_path)
        time.sleep(0.1 + rng.random() * 0.3)
        killed(ranks)
    writer.join()
    rows = int((tmp_path / "data" / "_rows").read_text())
    ranks, end = started(tmp_path), time.monotonic() + 60
    while len(list((tmp_path / "checkpoints").glob("*.json"))) == 0 or count(tmp_path) < rows:
        assert time.monotonic() < end
        assert all(process.is_alive() for process in ranks)
        time.sleep(0.2)
    killed(ranks)
    assert learnt(tmp_path, last_step(tmp_path)) == list(range(rows))
    shutil.rmtree(tmp_path / "checkpoints")


def settled(folder: Path) -> bool:
    """Whether a file there can be read."""
    return any(time.time() - path.stat().st_mtime > SETTLE for path in folder.rglob("*.parquet"))


def count(folder: Path) -> int:
    """How many rows the ranks have learnt together, by their newest checkpoints."""
    total = 0
    for rank in range(RANKS):
        newest = max((folder / "checkpoints").glob(f"*-{rank}.json"), default=None)
        total += 0 if newest is None else len(json.loads(newest.read_text())["learnt"])
    return total
