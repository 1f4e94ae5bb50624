"""`canonical_ranks`: global batches that do not depend on the number of ranks.

K virtual ranks take the place of the real ones. Each step of a rank joins the same number of rows from each of its
virtual ranks, so that all ranks' batches of a step together hold the same rows for any number of ranks. So a state
needs only the step, whatever number of ranks resumes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.options.late_clashes import CANONICAL_UNKNOWN
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.shares import Shares


@dataclass(frozen=True, eq=False)
class VirtualShares:
    """The shares of virtual ranks, regrouped by real rank: rank r owns every R-th virtual rank, starting at r.

    Attributes:
        shares: the shares of the virtual ranks.
        num_ranks: the number of real ranks (R).
    """

    shares: Shares
    num_ranks: int

    def steps(self) -> list[int]:
        """Batches of each rank."""
        steps = self.shares.steps()
        return [max(steps[rank :: self.num_ranks]) for rank in range(self.num_ranks)]

    def rows(self) -> list[int]:
        """Real rows of each rank, without padding."""
        rows = self.shares.rows()
        return [sum(rows[rank :: self.num_ranks]) for rank in range(self.num_ranks)]

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank after levelling."""
        for virtual in range(rank, len(self.shares.orders), self.num_ranks):
            yield from self.shares.pieces(virtual)

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank delivers because `even` is `"drop"`."""
        return self.shares.not_delivered()


def virtual_options(options: PlanOptions, num_ranks: int, *, exact: bool) -> PlanOptions:
    """The plan options for the virtual ranks: the same for every number of ranks at the same global batch.

    Raises:
        ShardingError: the virtual ranks do not divide evenly among the ranks, or a step's rows among the virtual ranks.
        CountsRequiredError: `exact` is false.
    """
    rows = _rows_of_virtual_rank(options, num_ranks)
    if not exact:
        raise CANONICAL_UNKNOWN.between("canonical_ranks")
    buffer, window_bytes, virtual = options.buffer_rows, options.window_bytes, options.canonical_ranks or num_ranks
    return replace(
        options,
        batch_size=rows * virtual if options.unit == "split_batch" else rows,
        num_shards=1,
        buffer_rows=None if buffer is None else -(-buffer // rows) * rows,
        window_bytes=None if window_bytes is None else max(window_bytes // virtual, 1),
        canonical_ranks=None,
        levelled=True,
    )


def _rows_of_virtual_rank(options: PlanOptions, num_ranks: int) -> int:
    """Rows of each virtual rank in one step."""
    virtual = options.canonical_ranks or num_ranks
    step = options.batch_rows(num_ranks) * num_ranks
    if virtual % num_ranks:
        raise ShardingError(
            f"canonical_ranks={virtual} with num_ranks={num_ranks}: num_ranks must divide canonical_ranks; expected "
            f"one of {_divisors(virtual)}."
        )
    if step % virtual:
        raise ShardingError(
            f"canonical_ranks={virtual} with num_ranks={num_ranks} and batches of {step // num_ranks} rows: the {step} "
            f"rows of a global step must be a multiple of canonical_ranks; expected one of {_divisors(step)}."
        )
    return step // virtual


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
