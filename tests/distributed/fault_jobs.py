"""Ranks that do not do the same, stall, stop or die: `forkrun.py RANKS fault_jobs.py SCENARIO DATA OUT`.

Each rank writes OUT/rank.json: the error of each thing it tried, and the seconds until then.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem

import torch_dataloader_utils
from torch_dataloader_utils import StructuredDataset, Sync
from torch_dataloader_utils.distributed import agreement, meeting
from torch_dataloader_utils.distributed.meeting import Board

STALL = 6.0  # seconds that a rank stalls, or is stopped
LIMIT = 1.5  # the timeout of the others

create = StructuredDataset.create_dataloader


class Stalling(LocalFileSystem):
    """The local disk under a protocol of its own, which stalls on rank 0."""

    protocol = "stalling"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("stalling://")))

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        if not dist.get_rank():
            time.sleep(STALL)
        return super().ls(path, detail, **options)


def tried(make: Callable[[], Any]) -> dict[str, Any]:
    """A loader, and its first pass: its rows, or the error."""
    begin = time.monotonic()
    try:
        loader, _ = make()
        rows = [row for batch in loader for row in batch["id"].tolist()]
    except Exception as error:  # noqa: BLE001 - compared by the test
        notes = " ".join(getattr(error, "__notes__", []))
        return {
            "error": f"{type(error).__name__}: {error}",
            "notes": notes,
            "seconds": time.monotonic() - begin,
        }
    return {"error": None, "rows": rows}


def apart(data: str, out: Path) -> dict[str, Any]:
    """Options that only some ranks pass; afterwards all are still in step."""
    rank = dist.get_rank()

    def on(this: int, **options: Any) -> Callable[[], Any]:
        return lambda: create(data, **(options if rank == this else {}))

    if rank == 1:  # the others are at their next step when this rank knows that plans differ
        agreement.find_mismatch = slowly(agreement.find_mismatch, 0.3)
    found = {
        "count_rows": tried(on(0, count_rows=True)),
        "manifest": tried(on(1, manifest=str(out / "m.parquet"))),
        "strings": tried(on(2, strings="codes")),
        "both": tried(on(1, manifest=str(out / "n.parquet"), count_rows=True)),
        "sync": tried(on(0, even="sync")),
        "by hand": tried(on(0, num_ranks=2, rank=0, count_rows=True)),
    }
    version = torch_dataloader_utils.__version__
    if rank == 1:
        torch_dataloader_utils.__version__ = "0.2.0"
    found["version"] = tried(lambda: create(data, count_rows=True))
    torch_dataloader_utils.__version__ = version
    if rank == 0:  # a loader that only this rank creates, and does not read, and one that it reads alone
        len(create(data)[0])
        found["alone"] = tried(lambda: create(data, num_ranks=1, rank=0, count_rows=True, filters=[("id", ">=", 0)]))
    found["manifests"] = tried(lambda: create(data, manifest=str(out / f"of_{rank}.parquet"), count_rows=True))
    # Rank 1 fails before it meets the others: the last, because they are one step ahead of it then.
    found["option"] = tried(lambda: create(data, count_rows=True, timeout=LIMIT, batch_size=0 if rank == 1 else 8))
    return found


def apart_in_turn(data: str, out: Path) -> dict[str, Any]:
    """Options that only some ranks pass; rank 1 is at each loader when the others have given it up already."""
    rank = dist.get_rank()
    if rank == 1:  # it has arrived, and the others are done before it looks
        Board.agree = slowly(Board.agree, 0.3)  # type: ignore[method-assign]
    found = {
        "first": tried(lambda: create(data, timeout=12, count_rows=rank == 0)),
        "second": tried(lambda: create(data, timeout=12, on_error="skip" if rank == 2 else "raise")),
    }
    if rank == 1:  # it arrives when the others no longer wait for it
        time.sleep(2 * meeting._SIGN)
    found["third"] = tried(lambda: create(data, timeout=12, count_rows=rank == 2))
    found["shared"] = tried(lambda: create(f"{data}/none", timeout=12, manifest=str(out / "m.parquet")))
    if rank == 1:
        time.sleep(2 * meeting._SIGN)
    found["fourth"] = tried(lambda: create(data, timeout=12, count_rows=rank == 0))
    found["same"] = tried(lambda: create(data, timeout=12))
    return found


def slowly(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The function, but it takes longer."""

    def delayed(*arguments: Any) -> Any:
        time.sleep(seconds)
        return call(*arguments)

    return delayed


def stalled(data: str, out: Path) -> dict[str, Any]:
    """Rank 0 lists the files for all, and its store hangs."""
    fsspec.register_implementation("stalling", Stalling)
    return {"manifest": tried(lambda: create(f"stalling://{data}", manifest=str(out / "m.parquet"), timeout=LIMIT))}


def stop_a_while() -> None:
    """Stop this process as SIGSTOP does, and continue later."""
    subprocess.Popen(["sh", "-c", f"sleep {STALL}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def stopped(data: str, out: Path) -> dict[str, Any]:
    """The last rank is stopped before an epoch."""
    loader, dataset = create(data, timeout=LIMIT)
    assert sum(1 for _ in loader)
    if dist.get_rank() == dist.get_world_size() - 1:
        stop_a_while()
    return {"pass": tried(lambda: (loader, dataset))}


def stopped_in_sync(data: str, out: Path) -> dict[str, Any]:
    """The last rank is stopped in an epoch of even="sync"."""
    return {"pass": tried(lambda: (in_training(stop_a_while), None))}


def killed_in_sync(data: str, out: Path) -> dict[str, Any]:
    """The last rank is killed in an epoch of even="sync"; the launcher's SIGTERM does not end the others."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return {"pass": tried(lambda: (in_training(lambda: os.kill(os.getpid(), signal.SIGKILL)), None))}


def in_training(fault: Callable[[], None]) -> Any:
    """The batches of an epoch, in which something happens to the last rank."""
    loader, _ = create(sys.argv[2], even=Sync(2), batch_size=8, timeout=LIMIT)
    for step, batch in enumerate(loader):
        if step == 3 and dist.get_rank() == dist.get_world_size() - 1:
            fault()
        yield batch


def store_of_rank_0(data: str, out: Path) -> dict[str, Any]:
    """Rank 0, whose process runs the job's store, is stopped."""
    loader, dataset = create(data, timeout=LIMIT)
    assert sum(1 for _ in loader)
    if dist.get_rank() == 0:
        subprocess.Popen(["sh", "-c", f"sleep {4 * STALL}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"pass": tried(lambda: (loader, dataset)), "again": tried(lambda: (loader, dataset))}


def own_store(out: Path) -> str:
    """The address of a store in the process of rank 0, unlike that of torchrun."""
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    chosen = out / "port"
    if os.environ["RANK"] == "0":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            (out / "beside").write_text(f"tcp://127.0.0.1:{free.getsockname()[1]}")
        (out / "beside").rename(chosen)
    while not chosen.exists():
        time.sleep(0.01)
    return chosen.read_text()


def main() -> None:
    scenario, data, given = sys.argv[1:]
    out, rank = Path(given), int(os.environ["RANK"])
    torch.set_num_threads(1)
    where = own_store(out) if scenario == "store_of_rank_0" else "env://"
    ranks = {"rank": rank, "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", timeout=timedelta(minutes=30), init_method=where, **ranks)
    found = globals()[scenario](data, out)
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    if scenario == "stalled":
        time.sleep(0.5)
    # Without Python's own shutdown: gloo's threads may still hold what asks for the GIL then, which aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
