"""Checks of options that depend on who iterates."""

from __future__ import annotations

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.options import Options


def check_processes(options: Options) -> None:
    """Check that worker processes can read in the order that the options need.

    Raises:
        OptionError: they cannot.
    """
    shard, workers = options.shard, options.worker
    if shard.canonical_ranks and shard.steps_per_epoch and workers.worker_mode == "process" and workers.num_workers:
        raise OptionError(
            f"canonical_ranks={shard.canonical_ranks} with steps_per_epoch={shard.steps_per_epoch} and "
            "worker_mode='process': a process reads several virtual ranks, which start again at different times.",
            remedies=[use(worker_mode="thread")],
        )


def check_foreign(options: Options, worker: tuple[int, int] | None) -> None:
    """Check that the options work in a worker of a foreign loader.

    Args:
        options: of the loader.
        worker: (index, count); None outside of such a worker.

    Raises:
        OptionError: they do not.
    """
    check_device(options.worker.device, worker)
    if options.mixing is not None and worker is not None and worker[1] > 1:
        raise OptionError(
            f"a mix within {worker[1]} workers of a foreign loader: its batches combine rows of all datasets. Use one "
            "worker, or none, or do not mix rows.",
            remedies=[use(batches="splits")],
        )
    if options.shard.canonical_ranks and worker is not None and worker[1] > 1:
        raise OptionError(
            f"canonical_ranks within {worker[1]} workers of a foreign loader: its batches combine rows of all shards. "
            "Use one worker, or none, or no virtual ranks.",
            remedies=[leave_out("canonical_ranks")],
        )


def check_device(device: str | None, worker: tuple[int, int] | None) -> None:
    """Check that whoever iterates can hand over batches on the device; `worker` as for `check_foreign`.

    Raises:
        OptionError: a worker of a foreign loader cannot send them to the process that trains.
    """
    if worker is not None and device not in (None, "cpu"):
        raise OptionError(
            f"device={device!r} within {worker[1]} worker(s) of a foreign loader: tensors on a GPU cannot be sent from "
            "one process to another. Iterate the loader that create_dataloader returns, or read on the CPU.",
            remedies=[leave_out("device")],
        )
