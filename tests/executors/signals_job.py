"""Reads while signals arrive: `signals_job.py CONTEXT FOLDER OUT HOW`; writes what came of it to OUT, as JSON.

When it has read some steps it writes OUT.ready. By HOW:

    handlers    SIGTERM and SIGUSR1 are noted, and the pass goes on to its end
    loop        the same, by an event loop
    early       the same, from a fork server that ran before, and imported what the cookbook says
    stuck       its workers do not return from the transform, and nothing handles signals
    programs    a transform starts a program and ends it; another reads CSV while its worker gets SIGTERM
    left        a child of multiprocessing's leaves a pass open when it ends
    active      it terminates all children that it finds, the workers, and joins them
"""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.csv

from torch_dataloader_utils import Processes, StructuredDataset

OUT = Path(sys.argv[3])


def loader_of(transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> Any:
    _, context, folder, *_ = sys.argv
    options: dict[str, Any] = {} if context == "thread" else {"num_workers": 2, "worker_mode": "processes"}
    if context in ("fork", "forkserver", "spawn"):
        options["worker_mode"] = Processes(context=context)
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=20, timeout=30, transform=transform, **options)
    return loader


async def rows_while_signals_arrive() -> list[int]:
    rows: list[int] = []
    for step, batch in enumerate(loader_of()):
        rows += batch["id"].tolist()
        if step == 5:
            Path(f"{OUT}.ready").touch()
        await asyncio.sleep(0.03)
    return rows


def handlers() -> dict[str, Any]:
    noted: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: noted.append(number))
    rows = asyncio.run(rows_while_signals_arrive())
    # A process of the user's, from the same fork server, ends as ever.
    method = "forkserver" if sys.argv[1] in ("default", "forkserver") else "spawn"
    other = multiprocessing.get_context(method).Process(target=sleep)
    other.start()
    other.terminate()
    other.join(20)
    return {"rows": rows, "noted": noted, "other": other.exitcode}


def sleep() -> None:
    time.sleep(60)


def loop() -> dict[str, Any]:
    noted: list[int] = []

    async def read() -> list[int]:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            asyncio.get_running_loop().add_signal_handler(number, noted.append, number)
        return await rows_while_signals_arrive()

    return {"rows": asyncio.run(read()), "noted": noted}


def early() -> dict[str, Any]:
    multiprocessing.set_forkserver_preload(["torch_dataloader_utils.executors.in_fork_server"])
    first = multiprocessing.get_context("forkserver").Process(target=print)
    first.start()
    first.join()
    return handlers()


def stuck() -> dict[str, Any]:
    list(loader_of(never))
    return {}


def never(batch: dict[str, Any]) -> dict[str, Any]:
    if multiprocessing.parent_process() is not None:
        Path(f"{OUT}.ready").touch()
        time.sleep(600)
    return batch


def programs() -> dict[str, Any]:
    return {"rows": [row for batch in loader_of(by_program) for row in batch["id"].tolist()]}


def by_program(batch: dict[str, Any]) -> dict[str, Any]:
    if multiprocessing.parent_process() is None:
        return batch
    program = subprocess.Popen(["sleep", "100"])
    program.terminate()
    if program.wait(20) != -signal.SIGTERM:
        raise ValueError("the program did not end by SIGTERM")
    sender = threading.Thread(target=send_sigterm)
    sender.start()
    pyarrow.csv.read_csv(io.BytesIO(b"a\n" + b"12345\n" * 2_000_000))  # some tenths of a second
    sender.join()
    return batch


def send_sigterm() -> None:
    for _ in range(50):
        time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGTERM)


def left() -> dict[str, Any]:
    method = "fork" if sys.argv[1] == "fork" else "spawn"
    child = multiprocessing.get_context(method).Process(target=leave)
    child.start()
    child.join(60)
    exitcode = child.exitcode
    child.kill()
    return {"exitcode": exitcode}


def leave() -> None:
    global kept
    kept = iter(loader_of())
    next(kept)


def active() -> dict[str, Any]:
    kept = iter(loader_of())
    next(kept)
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(20)
    return {"exitcodes": [child.exitcode for child in children]}


if __name__ == "__main__":
    how: dict[str, Callable[[], dict[str, Any]]]
    how = {
        "handlers": handlers,
        "loop": loop,
        "early": early,
        "stuck": stuck,
        "programs": programs,
        "left": left,
        "active": active,
    }
    found = how[sys.argv[4]]()
    OUT.write_text(json.dumps(found))
