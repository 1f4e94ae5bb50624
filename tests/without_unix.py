"""A program for a process of its own: reads files where Python has none of what Windows lacks.

`sys.platform` is win32, and what Python's documentation calls available on Unix alone is removed before this package
is imported. It is not Windows: paths, descriptors and the compiled libraries are Unix's.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - it and all others are imported before, as they look for the platform, too
import os
import signal
import sys
import tempfile
from pathlib import Path

import fsspec.implementations.local
import fsspec.implementations.memory
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet
import pytest
import torch.distributed
import torch.utils.data  # noqa: F401

MISSING = {
    os: (
        "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK MFD_CLOEXEC fork forkpty fstatvfs geteuid getgid getuid killpg "
        "memfd_create mkfifo posix_fadvise posix_spawn pread preadv pwrite register_at_fork sched_getaffinity statvfs "
        "sysconf uname"
    ),
    signal: "SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGKILL SIG_BLOCK SIG_UNBLOCK SIG_SETMASK pthread_sigmask setitimer",
}


def remove() -> None:
    for module, names in MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None  # type: ignore[assignment]
    sys.platform = "win32"


def main() -> None:
    import torch_dataloader_utils as tdu

    rows = pa.table({"id": range(10_000), "x": [float(row) for row in range(10_000)]})
    pyarrow.parquet.write_table(rows, "rows.parquet", row_group_size=1_000)
    pyarrow.feather.write_feather(rows, "rows.feather", chunksize=1_000)
    pyarrow.csv.write_csv(rows, "rows.csv")
    pyarrow.orc.write_table(rows, "rows.orc")
    for file in ("rows.parquet", "rows.feather", "rows.csv", "rows.orc"):
        loader = tdu.stream(file, batch_size=300, shuffle=True, num_workers=2)
        for epoch in range(2):
            loader.set_epoch(epoch)
            assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(10_000)), file
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch["id"].tolist() for batch in batches]
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == rest, file
        assert loader.metrics()["rows"] > 0
    fsspec.filesystem("memory").pipe("/rows.parquet", Path("rows.parquet").read_bytes())
    processes = {"worker_mode": "processes", "num_workers": 1}
    copied = {"sequences": tdu.Windows(2, order="id", sort="folder")}
    in_order = tdu.stream("rows.parquet", sequences=tdu.Windows(2, order="id"), batch_size=300, num_workers=2)
    assert sum(len(batch["id"]) for batch in in_order) == 9_999
    failing = (("rows.parquet", processes), ("memory://rows.parquet", {"cache": "folder"}), ("rows.parquet", copied))
    for path, keywords in failing:
        with pytest.raises(tdu.OptionError, match="Unix") as caught:
            next(iter(tdu.stream(path, **keywords)))
        assert caught.value.remedies


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        remove()
        main()
        os.chdir("/")
