"""Workers of a foreign loader, each of which reads a shard of the rank in-line."""

from __future__ import annotations

from dataclasses import replace

from torch_dataloader_utils.errors import OptionError, leave_out, use
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planning.rank_plan import RankPlan


def check_foreign(options: Options, worker: tuple[int, int] | None) -> None:
    """Check that the options work in a worker of a foreign loader.

    Args:
        options: of the loader.
        worker: (index, count); None outside of such a worker.

    Raises:
        OptionError: they do not.
    """
    check_device(options.worker.device, worker)
    if options.features.mixes_rows and worker is not None and worker[1] > 1:
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


def of_worker(plan: RankPlan, number: int, count: int) -> RankPlan:
    """The plan of one worker among `count` of a foreign loader: its shard."""
    if count == 1:
        return plan
    return replace(plan, shards=(plan.shards[number],))
