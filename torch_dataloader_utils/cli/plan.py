"""`tdu plan`: what each rank and worker gets in an epoch, and how files are split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import BAD, FAINT, GOOD, NULLS_HINT, Output, Result, Screen
from torch_dataloader_utils.errors import NullValueError
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.loader.description import Description, RankShare
from torch_dataloader_utils.model import split_of, split_pieces
from torch_dataloader_utils.planning.even import total_rows
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.plan_table import common_folder
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.splits import plan_spans
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.sources.source import Source

_RANKS_SHOWN, _FILES_SHOWN, _BAR = 32, 24, 24


@dataclass(frozen=True)
class WorkerShare:
    """What one I/O worker of a rank reads; a value is None if known only after reading.

    Attributes:
        worker: its number.
        rows: its rows, without padding.
        padding: the rows that it repeats.
        splits: the number of splits that it reads from.
    """

    worker: int
    rows: int | None
    padding: int
    splits: int


@dataclass(frozen=True)
class FileShare:
    """One file.

    Attributes:
        path: its path.
        rows: its rows, as plans count them; None if known only after reading.
        segments: its row groups, stripes or other segments.
        splits: the splits it is cut into.
        ranks: the ranks that read rows of it.
    """

    path: str
    rows: int | None
    segments: int
    splits: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Overview:
    """The plan of all ranks.

    Attributes:
        description: what the dataset says of itself, with the share of each rank.
        dropped: for each rank, what it is assigned and does not deliver, in `units`; None if known only after reading.
        workers: for each rank, the share of each of its workers.
        files: the files.
        amplification: how often a segment is decoded, on average.
        one: the plan of the rank that `--rank` names.
    """

    description: Description
    dropped: tuple[int | None, ...]
    workers: tuple[tuple[WorkerShare, ...], ...]
    files: tuple[FileShare, ...]
    amplification: float
    one: RankPlan | None = None


def run(data: Data, output: Output, *, epoch: int, html: Path | None) -> Result:
    """The plan; with `html`, also as a page."""
    shown: list[str] = []
    with output.warnings_of_package(lambda: shown):
        dataset, refused = _opened(data.but("device"))
        found = overview(dataset, epoch)
        if data.rank is not None:
            found = replace(found, one=dataset.plan(epoch, data.rank))
        shown += [] if output.as_json else map(str, found.description.warnings)
        if html is not None:
            dataset.plan_page(html, epoch)
            output.notes.line(f"wrote {html}", GOOD)
    if refused is not None:
        output.notes.warnings([f"the plan is that of a loader which raises an error: {refused} {NULLS_HINT}"])
    return Result(_values(found), partial(show, found))


def _opened(data: Data) -> tuple[Any, NullValueError | None]:
    """The dataset; and why its loader is refused, if it is for nulls alone: a plan converts nothing."""
    try:
        return data.open()[1], None
    except NullValueError as error:
        if data.keywords.keys() & {"pack", "batch_tokens", "sequences"}:  # Arrow batches are of rows
            raise
        return data.open(output_format="arrow")[1], error


def overview(dataset: Any, epoch: int) -> Overview:
    """The plans of all ranks, summed up; of this rank only if a strategy generates its shards."""
    passes, description = passes_of(dataset), dataset.describe(epoch)
    source, planner = passes.source, passes.planner
    plan = planner.plan_of_all_ranks(epoch)
    plans = [planner.rank_plan(epoch, share.rank) for share in description.ranks]
    return Overview(
        description,
        tuple(_dropped(plan, description, epoch)),
        tuple(tuple(map(_worker_share, range(len(each.shards)), each.shards)) for each in plans),
        tuple(_file_shares(source, plans)),
        plans[0].read_amplification,
    )


def _dropped(plan: Plan | None, description: Description, epoch: int) -> Iterator[int | None]:
    """For each rank, the rows of a short last batch, and those after its last step."""
    assigned: Sequence[int | None] = [share.rows for share in description.ranks]
    if plan is not None and plan.exact and plan.options.last_batch == "drop":
        assigned = replace(plan, options=replace(plan.options, last_batch="partial")).rows(epoch) or assigned
    for rows, share in zip(assigned, description.ranks, strict=True):
        if rows is None or share.rows is None or share.steps is None:
            yield None
        else:
            yield rows - min(share.rows, share.steps * description.batch_rows * description.sequence_length)


def _worker_share(worker: int, shard: Any) -> WorkerShare:
    real = [piece for piece in shard if not piece.pad]
    known = all(piece.rows is not None for piece in real)
    splits = {split_of(piece).index for piece in split_pieces(real)}
    return WorkerShare(worker, total_rows(real) if known else None, total_rows(shard) - total_rows(real), len(splits))


def _file_shares(source: Source, plans: Sequence[RankPlan]) -> Iterator[FileShare]:
    readers: dict[Any, set[int]] = {}
    for plan in plans:
        for shard in plan.shards:
            for piece in split_pieces(piece for piece in shard if not piece.pad):
                readers.setdefault(split_of(piece).file.key, set()).add(plan.rank)
    for file, splits in zip(source.files, source.splits.of_each_file.tolist(), strict=True):
        ranks = tuple(sorted(readers.get(file.info.key, ())))
        spans = plan_spans(file.layout)
        rows = None if spans is None else sum(stop - start for start, stop in spans)
        yield FileShare(redacted(file.info.path), rows, len(file.layout.segments), splits, ranks)


def _values(found: Overview) -> dict[str, Any]:
    """The overview as plain values: the description, with more about each rank."""
    ranks = zip(found.description.ranks, found.dropped, found.workers, strict=True)
    return {
        **found.description.to_dict(),
        "ranks": [
            {**asdict(share), "dropped": dropped, "workers": [asdict(worker) for worker in workers]}
            for share, dropped, workers in ranks
        ],
        "file_shares": [asdict(file) for file in found.files],
        "read_amplification": found.amplification,
        **({} if found.one is None else {"reads": list(found.one.table())}),
    }


def show(found: Overview, screen: Screen) -> None:
    """Print the plan."""
    said = found.description
    screen.line(
        f"epoch {said.epoch} on {plural(said.num_ranks, 'rank')}: sharding={said.sharding!r}, even={said.even!r}, "
        f"batches of {said.batch_in_words}",
        "bold",
    )
    screen.facts(_facts(found))
    _show_ranks(found, screen)
    if any(len(workers) > 1 for workers in found.workers):
        _show_workers(found, screen)
    _show_files(found, screen)
    if found.one is not None:
        screen.line()
        for line in str(found.one).splitlines():
            screen.line(line)
    if said.warnings:
        screen.line()
        screen.warnings([str(advice) for advice in said.warnings])


def _facts(found: Overview) -> list[tuple[str, str]]:
    said = found.description
    rows = "known only after reading" if said.rows is None else f"{said.rows:,}"
    facts = [(said.units, rows), ("splits", f"{said.splits:,}"), ("shuffle", said.shuffle), ("ranks", said.ranks_from)]
    if said.not_delivered:
        facts.append(
            (
                "left out",
                f"{plural(said.not_delivered, said.units.removesuffix('s'))} that no rank delivers in this epoch",
            )
        )
    if found.amplification > 1:
        facts.append(("decoded", f"{found.amplification:.2f} times: ranks share {said.segment_name}s"))
    return facts


def _show_ranks(found: Overview, screen: Screen) -> None:
    shares = found.description.ranks
    steps = [share.steps for share in shares if share.steps is not None]
    least, most = (min(steps), max(steps)) if steps else (0, 0)
    rows = [
        (
            str(share.rank),
            share.rows,
            share.steps,
            share.padding,
            dropped,
            _bar(share, least, most, "#=" if screen.console.options.ascii_only else "█▒"),
        )
        for share, dropped in zip(shares[:_RANKS_SHOWN], found.dropped, strict=False)
    ]
    units = found.description.units
    screen.line()
    screen.table(("rank", units, "steps", "padding", "dropped", ""), rows, (units, "steps", "padding", "dropped"))
    if len(shares) > _RANKS_SHOWN:
        screen.line(f"... and {len(shares) - _RANKS_SHOWN:,} more ranks; --json has all", FAINT)


def _bar(share: RankShare, least: int, most: int, signs: str) -> Text:
    """The steps as a bar of the first sign, those that not every rank has of the second."""
    if not share.steps or not most:
        return Text("no steps" if share.steps == 0 and most else "", BAD)
    common, width = round(least / most * _BAR), max(1, round(share.steps / most * _BAR))
    tail = share.steps - least
    bar = Text(signs[0] * min(common, width), GOOD)
    if tail:
        bar.append(signs[1] * max(1, width - common), BAD)
        bar.append(f" +{tail:,}", BAD)
    return bar


def _show_workers(found: Overview, screen: Screen) -> None:
    rows = [
        (str(share.rank), str(worker.worker), worker.rows, worker.padding, worker.splits)
        for share, workers in zip(found.description.ranks, found.workers, strict=True)
        for worker in workers
    ]
    screen.line()
    numbers = (found.description.units, "padding", "splits")
    screen.table(("rank", "worker", *numbers), rows[:_RANKS_SHOWN], numbers)
    if len(rows) > _RANKS_SHOWN:
        screen.line(f"... and {len(rows) - _RANKS_SHOWN:,} more workers; --json has all", FAINT)


def _show_files(found: Overview, screen: Screen) -> None:
    segments, shown = f"{found.description.segment_name}s", found.files[:_FILES_SHOWN]
    folder = common_folder(file.path for file in shown)
    rows = [
        (file.path.removeprefix(folder), file.rows, file.segments, file.splits, _runs_of(file.ranks)) for file in shown
    ]
    screen.line()
    if folder:
        screen.line(f"files in {folder}", FAINT)
    numbers = (found.description.units, segments, "splits")
    screen.table(("file", *numbers, "ranks"), rows, numbers)
    if len(found.files) > _FILES_SHOWN:
        screen.line(f"... and {len(found.files) - _FILES_SHOWN:,} more files; --json has all", FAINT)


def _runs_of(ranks: Sequence[int]) -> str:
    """Ranks as text, runs of them joined."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)
