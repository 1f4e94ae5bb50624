"""Reads while signals arrive: `signals_job.py CONTEXT FOLDER OUT`; writes what came of it to OUT, as JSON.

When it has read some steps it writes OUT.ready. A SIGTERM is noted, and the pass goes on to its end.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

from torch_dataloader_utils import StructuredDataset


def sleep() -> None:
    time.sleep(60)


def main() -> None:
    context, folder, out = sys.argv[1:]
    noted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    signal.signal(signal.SIGUSR1, lambda number, frame: noted.append(number))
    options = {} if context == "thread" else {"num_workers": 2, "worker_mode": "process"}
    if context in ("fork", "forkserver", "spawn"):
        options["multiprocessing_context"] = context
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=20, timeout=30, **options)
    rows: list[int] = []
    try:
        for step, batch in enumerate(loader):
            rows += batch["id"].tolist()
            if step == 5:
                Path(f"{out}.ready").touch()
            time.sleep(0.03)
        error = None
    except Exception as raised:  # noqa: BLE001 - compared by the test
        error = repr(raised)
    # A process of the user's, from the same fork server, ends as ever.
    other = multiprocessing.get_context("forkserver" if context in ("default", "forkserver") else "spawn").Process(
        target=sleep
    )
    other.start()
    other.terminate()
    other.join(20)
    found = {"error": error, "rows": rows, "noted": noted, "other": other.exitcode}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
