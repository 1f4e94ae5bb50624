"""Makes the first batch of each file in a process of its own, and prints what that imported or lost, as JSON.

    python first_batch_job.py imports|interrupts OPTIONS FILE...

`imports`: the modules that `next` imported, other than this package's and Python's own. `interrupts`: whether a Ctrl-C
during the first batch, and those after it, was lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch_dataloader_utils import StructuredDataset

OURS = {"torch_dataloader_utils", *sys.stdlib_module_names}
BEFORE, PATIENCE = 0.02, 5.0  # seconds: to the signal, and until it counts as lost


def imports(loader: Any) -> list[str]:
    """What the first `next` imports."""
    batches = iter(loader)
    had = set(sys.modules)
    next(batches)
    # Platform-dependent modules of Python itself, which have no fixed name.
    new = {name for name in set(sys.modules) - had if not name.startswith("_sysconfigdata")}
    return sorted(name for name in new if name.partition(".")[0] not in OURS)


def interrupts(loader: Any) -> bool:
    """Whether a Ctrl-C is lost."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(BEFORE, os.kill, (os.getpid(), signal.SIGINT)).start()  # on a busy machine it comes within this
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for _ in loader:
                pass
    except KeyboardInterrupt:
        return False
    return True


def in_a_fork(what: str, path: str, options: dict[str, Any]) -> Any:
    """What a forked process finds; nothing is imported here in between."""
    receiver, sender = os.pipe()
    if not os.fork():
        loader, _ = StructuredDataset.create_dataloader(path, batch_size=2, num_ranks=1, rank=0, **options)
        found = (imports if what == "imports" else interrupts)(loader)
        os.write(sender, json.dumps(found).encode())
        os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text)


if __name__ == "__main__":
    what, options, *paths = sys.argv[1:]
    sys.stdout.write(json.dumps({Path(path).stem: in_a_fork(what, path, json.loads(options)) for path in paths}))
