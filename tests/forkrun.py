"""Ranks as torchrun starts them, forked from a process that has imported torch: `forkrun.py RANKS SCRIPT ARGUMENTS`.

Each rank has torchrun's variables and runs the script as its main program. Once one fails, the others are ended, and so
says the exit status. torchrun itself, whose processes import torch for seconds each, starts the examples and some jobs.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from datetime import timedelta
from pathlib import Path

# Before the fork, so that it is done once. None of these starts a thread of Python.
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
import torch.distributed as dist

import torch_dataloader_utils.api.files  # noqa: F401 - imported for the ranks


def main(num_ranks: int, script: str, arguments: list[str]) -> int:
    """Start the ranks and wait for them: 0 if all ended well, in the launcher; each rank's script, in a rank."""
    address, write = os.pipe()
    ranks = set()
    for rank in range(num_ranks):
        if not (child := os.fork()):
            os.close(write)
            port = os.read(address, 5).decode()
            run_rank(rank, num_ranks, port, script, arguments)
            return 0
        ranks.add(child)
    # The store of all ranks is here, as with torchrun; its port is known, and its threads begin, after the forks.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    os.write(write, f"{store.port:05}".encode() * num_ranks)
    failed = False
    while ranks:
        child, status = os.wait()
        ranks.discard(child)
        if status and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return int(failed)


def run_rank(rank: int, num_ranks: int, port: str, script: str, arguments: list[str]) -> None:
    """Run the script as this process's program, with torchrun's variables for the rank."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update(GROUP_RANK="0", GROUP_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_RUN_ID="forked")
    sys.argv = [script, *arguments]
    sys.path[:1] = [str(Path(script).parent.resolve()), str(Path(__file__).parents[1])]
    runpy.run_path(script, run_name="__main__")
    from tests.gloo import end_before_them

    end_before_them()


def command(num_ranks: int = 2) -> list[str]:
    """What starts so many ranks; the script and its arguments follow."""
    return [sys.executable, __file__, str(num_ranks)]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
