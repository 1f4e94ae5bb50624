"""What ranks agree on before a pass: that they follow one plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass

from torch_dataloader_utils.distributed.collectives import gathered_numbers, gathered_objects
from torch_dataloader_utils.distributed.meeting import expect_failure, meet
from torch_dataloader_utils.distributed.peers import Peers
from torch_dataloader_utils.distributed.ranks import World, initialized_distributed
from torch_dataloader_utils.distributed.records import Step, differing_options
from torch_dataloader_utils.errors import PlanMismatchError, ShardingError
from torch_dataloader_utils.printing import listed


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank is about to do. All ranks must do the same, each as a different rank. All values are int64.

    Attributes:
        rank: the global rank.
        num_ranks: all ranks.
        epoch: the epoch.
        data: digest of files, row counts and splits.
        options: digest of the options that shape the plan.
        failed: whether this rank could not make its plan; it reports that, so that the others stop instead of waiting.
        position: digest of its position in the epoch.
    """

    rank: int
    num_ranks: int
    epoch: int
    data: int
    options: int
    failed: bool = False
    position: int = 0


def has_peers(world: World, explicit: bool) -> bool:
    """Whether there are other ranks to agree with: torch.distributed is initialised, and the loader is not alone.

    A loader made with explicit (1, 0), such as one for validation on rank 0, has no peers.

    Raises:
        ShardingError: a loader that was detected to be alone is not.
    """
    dist = initialized_distributed()
    if dist is None or dist.get_world_size() == 1:
        return False
    if world.num_ranks == 1 and not world.given:
        raise ShardingError(
            f"torch.distributed has {dist.get_world_size()} processes, but at this loader's first use (len, plan) "
            f"there was one (from {world.source}), so each would read all rows. Use the loader only after "
            "init_process_group, or pass num_ranks and rank (1 and 0 if each process must read all rows)."
        )
    return not (explicit and world.num_ranks == 1)


def check_reports(report: RankReport, peers: Peers, step: Step) -> None:
    """Compare reports with all peers: one all_gather of seven numbers (in a mesh, one along each dimension).

    Args:
        report: of this rank.
        peers: the processes to compare with.
        step: names the options, and the seconds to wait for the others.

    Raises:
        PlanMismatchError: on every rank, if the reports do not match or a rank did not arrive in time.
    """
    board = meet(peers, step)
    rows = gathered_numbers([int(number) for number in astuple(report)], peers, board)
    mismatch = find_mismatch([RankReport(*row) for row in rows], peers.world.num_ranks)
    if mismatch:
        differing = _differing(peers, step)
        expect_failure(peers.members)
        raise PlanMismatchError(f"{mismatch} They differ in: {differing}." if differing else mismatch)


def _differing(peers: Peers, step: Step) -> str:
    """The options that differ between the peers; "" for none.

    They are gathered, not read from the peers' records, over which a peer that is ahead writes its next step.
    """
    with suppress(PlanMismatchError, RuntimeError):  # a peer that has ended meanwhile: the mismatch matters more
        options = gathered_objects({**step.options, **step.named}, peers, Step("compare options", step.limit))
        return differing_options(dict(zip(peers.members, options, strict=True)))
    return ""


def find_mismatch(reports: Sequence[RankReport], num_ranks: int | None = None) -> str | None:
    """What is wrong with these reports, or None if they match.

    Args:
        reports: of all processes, in their order.
        num_ranks: the expected number of ranks, each with as many processes; None for the number of processes.
    """
    failed = [rank for rank, report in enumerate(reports) if report.failed]
    if failed:
        return f"process(es) {listed(failed)} could not make their plan: see the error in their own output."
    expected = num_ranks or len(reports)
    if {report.num_ranks for report in reports} != {expected}:
        return (
            f"{len(reports)} processes take part, but passed num_ranks={listed(p.num_ranks for p in reports)}: "
            f"expected num_ranks={expected} on each. (For a loader that only one process uses, pass num_ranks=1, "
            "rank=0. For processes that read the same rows, such as tensor-parallel ones, pass ranks=mesh.)"
        )
    each = len(reports) // expected
    times = Counter(report.rank for report in reports)
    wrong = [rank for rank in range(expected) if times[rank] > each]
    if wrong:
        often = "more than once" if each == 1 else f"to more than {each} processes"
        return (
            f"rank {listed(wrong)} was given {often}: the processes have ranks "
            f"{listed(p.rank for p in reports)}. Pass the global rank (dist.get_rank()), not the local one."
        )
    return _unequal(reports)


def _unequal(reports: Sequence[RankReport]) -> str | None:
    first = reports[0]
    for name, word, hint in (
        ("epoch", "epoch", "call dataset.set_epoch with the same number on every rank"),
        (
            "data",
            "data",
            "all ranks must see the same files, with the same rows, filters and split options, leave out the same "
            "damaged ones, and set the same row weights",
        ),
        (
            "options",
            "options",
            "all ranks must pass the same batch_size, shuffle, shuffle_seed, sharding, even and worker counts",
        ),
        ("position", "position", "load the same checkpoint on every rank"),
    ):
        others = [report.rank for report in reports if getattr(report, name) != getattr(first, name)]
        if others:
            values = [getattr(report, name) for report in reports]
            shown = listed(values if name == "epoch" else [f"{value & 0xFFFFFFFF:08x}" for value in values])
            return (
                f"rank {listed(others)} and rank {first.rank} have different plans: the {word} of ranks "
                f"{listed(p.rank for p in reports)} is {shown}; {hint}."
            )
    return None
