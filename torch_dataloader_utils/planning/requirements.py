"""The row counts a plan needs, checked before any epoch is planned."""

from __future__ import annotations

from collections.abc import Sequence

from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError, Example, Remedy, ShardingError, use
from torch_dataloader_utils.planning.mixing import DatasetShare
from torch_dataloader_utils.planning.options import PlanOptions


def check_unknown_counts(options: PlanOptions) -> None:
    """Check that the options work without knowing how many rows will be delivered.

    Raises:
        CountsRequiredError: an option needs row counts.
    """
    if options.even in ("drop", "pad"):
        raise CountsRequiredError(
            f"even={options.even!r} needs the number of rows that will be delivered, known only after reading.",
            remedies=[
                use("counts once", count_rows=True),
                use("exactly n steps", without=["even"], steps_per_epoch=Example("n", 2)),
                use("all ranks stop with the first", even="sync"),
            ],
        )
    if options.last_batch == "wrap":
        raise CountsRequiredError(
            "last_batch='wrap' takes rows of the next ranks, whose number is known only after reading.",
            remedies=[use("counts once", count_rows=True), use(last_batch="pad")],
        )


def check_even_rows(
    options: PlanOptions, datasets: Sequence[DatasetShare], num_ranks: int, *, may_be_empty: bool = False
) -> None:
    """Check that each epoch has rows for `even`, and enough for a step.

    Args:
        options: of the plan.
        datasets: the rows of each dataset.
        num_ranks: the number of ranks (R).
        may_be_empty: whether an epoch may have no rows at all: then no rank has a step.

    Raises:
        EmptyDatasetError: an epoch has no rows.
        ShardingError: `even="drop"` would leave out all rows.
    """
    laps = options.total_shards // num_ranks if options.total_shards else 1
    rows = min(sum(dataset.lap_rows(lap, laps) for dataset in datasets) for lap in range(laps))
    even, step = options.even, num_ranks * options.batch_rows(num_ranks)
    units = "rows" if options.sequence_length == 1 else "tokens"
    if not rows and may_be_empty:
        return
    if not rows:
        total = int(datasets[0].table.lengths.sum())
        raise EmptyDatasetError(
            f"even={even!r}: an epoch has no {units[:-1]} to deliver (N={total} {units}, R={num_ranks} ranks); check "
            "path and filters."
        )
    if even == "drop" and rows < step:
        raise ShardingError(
            f"even='drop' with N={rows} {units} in an epoch, R={num_ranks} ranks and batches of B={step // num_ranks}: "
            f"one step needs R*B={step}, and less on fewer ranks.",
            remedies=[use("repeats rows", even="pad"), *_smaller(options, rows, num_ranks)],
        )


def _smaller(options: PlanOptions, rows: int, num_ranks: int) -> list[Remedy]:
    """The largest batches of which these rows fill one step, if each rank then has a row."""
    size = rows // num_ranks
    if not size or options.sequence_length > 1:
        return []
    return [use(batch_size=size * num_ranks if options.split_batches else size)]
