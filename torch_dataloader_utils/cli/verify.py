"""`tdu verify`: whether all ranks and workers together deliver every row exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, count

from rich.text import Text

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import BAD, FAINT, GOOD, Output, Result, Screen
from torch_dataloader_utils.cli.reading import Delivered, delivered_rows
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.planning.sharding import Policy, register_policy
from torch_dataloader_utils.planning.verification import PlanFault, Verified, verified
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.source import Source

_SHOWN = 20  # faults
_NUMBERS = count()


@dataclass(frozen=True)
class CheckedPlan:
    """The plan of the epochs that deliver every row once together: several if a rank reads one of many shards in each.

    Attributes:
        epochs: these epochs.
        num_ranks: the number of ranks.
        num_workers: the number of I/O workers of a rank.
        plan: the union of the plans of all ranks.
        broken: the promises of `even` that the plan does not keep.
        exact: whether all planned rows are delivered; if not, filters or `transform` drop some while reading.
        segment_name: what the format calls a segment.
        steps_per_epoch: the steps after which each rank ends, whatever rows it is assigned; None for all of them.
    """

    epochs: list[int]
    num_ranks: int
    num_workers: int
    plan: Verified
    broken: list[str]
    exact: bool
    segment_name: str
    steps_per_epoch: int | None

    @property
    def ok(self) -> bool:
        """Whether every row is delivered once, and every promise kept."""
        return not self.plan.faults and not self.broken


def run(data: Data, output: Output, *, epoch: int, read: bool, id_column: str | None) -> Result:
    """Whether the plan is complete and disjoint; with `read`, whether the rows that arrive are those planned."""
    data = located(data)
    with output.warnings_of_package():
        _, dataset = data.open(output_format="arrow")
        passes = passes_of(dataset)
        checked = checked_plan(passes.source, passes.options, epoch)
    arrived = delivered_rows(data, dataset, checked.epochs, id_column, output) if read and checked.ok else None
    ok = checked.ok and (arrived is None or arrived.ok)
    values = {"ok": ok, **asdict(checked)} | ({} if arrived is None else {"read": asdict(arrived)})
    return Result(values, partial(show, checked, arrived), failed=not ok)


def located(data: Data) -> Data:
    """The data with a policy that planning does not check, so that this command can say which rows it gets wrong."""
    sharding = data.keywords.get("sharding")
    if not callable(sharding):
        return data
    name = f"to verify: {next(_NUMBERS)}"  # in one process, several may be verified
    register_policy(name, Policy(sharding, complete=False, disjoint=True))
    return data.but(sharding=name)


def checked_plan(source: Source, options: Options, epoch: int) -> CheckedPlan:
    """The union of what the workers of all ranks deliver, compared with what there is."""
    planner = Planner(source, options)
    world, plan = planner.known_world, planner.plan_of_all_ranks(epoch)
    epochs = _epochs(options, world.num_ranks, epoch)

    def pieces(rank: int) -> Iterator[Piece]:
        for number in epochs:
            yield from chain.from_iterable(planner.rank_plan(number, rank).shards)

    left_out = () if plan is None else chain.from_iterable(plan.left_out(number) for number in epochs)
    union = verified(source.files, {rank: pieces(rank) for rank in range(world.num_ranks)}, left_out)
    steps = [] if plan is None else [plan.steps(number) for number in epochs]
    return CheckedPlan(
        epochs,
        world.num_ranks,
        options.worker.num_shards,
        union,
        list(_broken(options, union, world.num_ranks * planner.batch_rows, [each for each in steps if each])),
        source.exact,
        getattr(getattr(source.scan, "opener", None), "segment_name", "segment"),
        options.shard.steps_per_epoch,
    )


def _epochs(options: Options, num_ranks: int, epoch: int) -> list[int]:
    total = options.shard.total_shards
    laps = total // num_ranks if total else 1
    first = epoch - epoch % laps
    return list(range(first, first + laps))


def _broken(options: Options, union: Verified, global_batch: int, steps: Sequence[list[int]]) -> Iterator[str]:
    """What `even` promises and the plan does not keep."""
    even = options.shard.even
    if even not in ("drop", "pad") or options.shard.steps_per_epoch is not None:
        return
    for number, each in enumerate(steps):
        if len(set(each)) > 1:
            yield f"even={even!r}: the ranks have different numbers of steps in epoch {number}: {each}."
    if even == "drop" and len(steps) == 1 and union.left_out != union.expected % global_batch:
        yield (
            f"even='drop' leaves out {union.left_out:,} rows, expected {union.expected % global_batch:,}: "
            f"{union.expected:,} modulo a global batch of {global_batch:,}."
        )
    padded = sum(each[0] for each in steps if each) * global_batch
    if even == "pad" and union.delivered + union.padding != padded:
        yield f"even='pad' delivers {union.delivered + union.padding:,} rows with repeats, expected {padded:,}."


def show(checked: CheckedPlan, arrived: Delivered | None, screen: Screen) -> None:
    """Print what was checked, and the faults."""
    plan, unit = checked.plan, checked.plan.unit if checked.plan.unit == "row" else checked.segment_name
    epochs = (
        f"epochs {checked.epochs[0]} to {checked.epochs[-1]}"
        if len(checked.epochs) > 1
        else f"epoch {checked.epochs[0]}"
    )
    workers = "" if checked.num_workers == 1 else f", {plural(checked.num_workers, 'worker')} each"
    screen.line(f"{epochs} on {plural(checked.num_ranks, 'rank')}{workers}", "bold")
    screen.facts([*_facts(checked, unit), *([] if arrived is None else [arrived.fact])])
    if plan.faults:
        screen.line()
        _show_faults(plan.faults, unit, checked.segment_name, screen)
    for sentence in checked.broken:
        screen.line(sentence, BAD)
    if arrived is not None:
        arrived.show_faults(screen)
    if checked.ok and (arrived is None or arrived.ok):
        screen.line(_praise(checked, unit), GOOD)
    else:
        screen.line(f"{plan.missing:,} missing, {plan.repeated:,} repeated.", BAD)


def _praise(checked: CheckedPlan, unit: str) -> str:
    if checked.steps_per_epoch is not None:
        return f"Every {unit} is assigned exactly once; each rank ends after {plural(checked.steps_per_epoch, 'step')}."
    left = checked.plan.left_out
    return f"Every {unit} exactly once{f', but for the {left:,} that are left out' if left else ''}."


def _facts(checked: CheckedPlan, unit: str) -> list[tuple[str, str]]:
    plan = checked.plan
    counted = "" if checked.exact or unit != "row" else ", before filters and transform"
    return [
        (f"{unit}s", f"{plan.expected:,}{counted}"),
        ("delivered" if checked.steps_per_epoch is None else "assigned", f"{plan.delivered:,}"),
        *([("left out", f"{plan.left_out:,}, as the options say")] if plan.left_out else []),
        *([("padding", f"{plan.padding:,} marked repeats, as the options say")] if plan.padding else []),
    ]


def _show_faults(faults: Sequence[PlanFault], unit: str, segment_name: str, screen: Screen) -> None:
    header = ("problem", "file", f"{unit}s", segment_name, "ranks")
    rows = [_fault_row(fault) for fault in faults[:_SHOWN]]
    screen.table(header, rows)
    if len(faults) > _SHOWN:
        screen.line(Text(f"... and {len(faults) - _SHOWN:,} more", FAINT))


def _fault_row(fault: PlanFault) -> tuple[str | Text, ...]:
    problem = "missing" if not fault.times else f"{fault.times} times" if fault.times > 1 else "left out, too"
    rows = f"{fault.start:,} to {fault.stop - 1:,}"
    segments = f"{fault.segments[0]} to {fault.segments[-1]}" if len(fault.segments) > 1 else str(fault.segments[0])
    ranks = ", ".join(map(str, fault.ranks)) or "-"
    return Text(problem, BAD), printable(fault.path), rows, segments, ranks
