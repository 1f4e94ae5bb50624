"""`canonical_ranks`: global batches that do not depend on the number of ranks.

K virtual ranks take the place of the real ones. Each step of a rank joins the same number of rows of every virtual rank
that it owns, so that all ranks' batches of a step together hold the same rows whatever their number.
"""

from __future__ import annotations

from dataclasses import replace

from torch_dataloader_utils.errors import OptionError, ShardingError
from torch_dataloader_utils.planning.options import PlanOptions


def lane_rows(options: PlanOptions, num_ranks: int) -> int:
    """Rows of each virtual rank in one step.

    Raises:
        ShardingError: the virtual ranks cannot be dealt evenly to the ranks, or a step's rows to the virtual ranks.
    """
    lanes = options.canonical_ranks or num_ranks
    step = options.batch_rows(num_ranks) * num_ranks
    if lanes % num_ranks:
        raise ShardingError(
            f"canonical_ranks={lanes} with num_ranks={num_ranks}: num_ranks must be a divisor of canonical_ranks, one "
            f"of {_divisors(lanes)}."
        )
    if step % lanes:
        raise ShardingError(
            f"canonical_ranks={lanes} with num_ranks={num_ranks} and batches of {step // num_ranks} rows: the "
            f"{step} rows of a step of all ranks must be a multiple of canonical_ranks; possible are {_divisors(step)}."
        )
    return step // lanes


def virtual_options(options: PlanOptions, num_ranks: int) -> PlanOptions:
    """The options of the plan of the virtual ranks: the same for every number of ranks at the same global batch.

    Raises:
        OptionError: options that a short global step cannot follow.
    """
    if options.last_batch not in ("partial", options.even):
        raise OptionError(
            f"last_batch={options.last_batch!r} with canonical_ranks: all ranks share the last step; use "
            "even='drop' or even='pad' instead."
        )
    rows = lane_rows(options, num_ranks)
    buffer = options.buffer_rows
    return replace(
        options,
        batch_size=rows * (options.canonical_ranks or num_ranks) if options.split_batches else rows,
        num_shards=1,
        buffer_rows=None if buffer is None else -(-buffer // rows) * rows,
        canonical_ranks=None,
        levelled=True,
    )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
