"""The same plans by Python and by the page's planner, as values that can be compared."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.planning.helpers import data_file
from torch_dataloader_utils import Rotate, Shuffle, Strided
from torch_dataloader_utils.model import DataFile, Piece, split_of
from torch_dataloader_utils.options import parse_options
from torch_dataloader_utils.plan_page.planner_scripts import planner_script, split_segments
from torch_dataloader_utils.planner import plan_options
from torch_dataloader_utils.planning.plan import PLAN_VERSION, Plan
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits

Values = dict[str, Any]
Lists = tuple[Splits, ...]

SHARDING = ("interleave", "contiguous", "rotate", "total_shards", "strided", "shard_batches", "split_batches", "auto")


def cut(files: Sequence[DataFile], unshuffled: int, shuffled: int) -> Lists:
    """The splits of files: of at most so many bytes without a shuffle, and with one."""
    return tuple(make_splits(TargetSizeSplitStrategy(split_bytes=most), files) for most in (unshuffled, shuffled))


def page_data(files: Sequence[DataFile], lists: Lists, seed: int, *, exact: bool = True) -> Values:
    """What the page's planner gets.

    Args:
        files: the files.
        lists: their splits without and with a shuffle.
        seed: of all orders.
        exact: whether every planned row will be delivered.
    """
    return {
        "version": PLAN_VERSION,
        "seed": seed,
        "exact": exact,
        "files": [[file.info.path, file.info.record_count] for file in files],
        "splits": {name: _columns(splits) for name, splits in zip(("unshuffled", "shuffled"), lists, strict=True)},
        "options": {},
    }


def _columns(splits: Splits) -> Values:
    known = splits.counted.tolist()
    return {
        "file": splits.file.tolist(),
        "start": [start if count else None for start, count in zip(splits.start.tolist(), known, strict=True)],
        "rows": [len(split.row_range) if split.row_range is not None else None for split in splits],
        "nbytes": splits.sizes.tolist(),
        "segments": split_segments(splits),
    }


def planned(files: Sequence[DataFile], lists: Lists, given: Mapping[str, Any], *, exact: bool = True) -> Values:
    """Python's plan, as the page's planner returns it; for options that it refuses, the message of its error."""
    try:
        parsed = parse_options(keywords_of(given))
        splits = lists[bool(parsed.shuffle.permutes)]
        shape = replace(plan_options(parsed), assignment=given.get("assignment", "lpt"))
        plan = Plan(files, splits, shape, given["num_ranks"], exact)
    except ValueError as error:
        return {"error": str(error)}
    plain = replace(plan, options=replace(shape, buffer_rows=None, window_bytes=None, open_splits=None))
    epoch, steps = given["epoch"], shape.steps_per_epoch
    ranks = [_rank(plain, epoch, rank, steps) for rank in range(plan.num_ranks)]
    counts = [rank["steps"] for rank in ranks]
    return {
        "sharding": plan.sharding,
        "ranks": ranks,
        "uneven": None if None in counts else {"min_steps": min(counts), "max_steps": max(counts)},
        "left_out": [_piece(piece, plan) for piece in plan.left_out(epoch)],
        "windows": _window(plan.rank(epoch, 0)),
    }


def keywords_of(given: Mapping[str, Any]) -> Values:
    """The keywords of Python for options of the page's planner, in which fields of values are options."""
    options = {name: value for name, value in given.items() if name not in ("num_ranks", "epoch", "assignment")}
    for kind in (Rotate, Strided):
        fields = {name: options.pop(name) for name in kind.fields if name in options}
        if fields:
            options["sharding"] = kind(**fields)
    fields = {name: options.pop(name) for name in ("window_bytes", "window_rows", "open_splits") if name in options}
    if fields and options.get("shuffle", False) not in (False, "splits"):
        options["shuffle"] = Shuffle("rows" if options["shuffle"] is True else options["shuffle"], **fields)
    return options


def _rank(plan: Plan, epoch: int, number: int, steps_per_epoch: int | None) -> Values:
    rank = plan.rank(epoch, number)
    steps = rank.steps if steps_per_epoch is None else steps_per_epoch
    padded = dropped = None
    if rank.rows is not None and steps is not None:
        repeats = sum(len(piece) for shard in rank.shards for piece in shard if piece.pad)
        room = steps * plan.batch_rows
        padded = repeats if steps_per_epoch is None else max(0, room - rank.rows)
        dropped = plan._shares(epoch).targets.tolist()[number] - min(rank.rows, room)
    lists = [[[_piece(x, plan) for x in shard if x.pad is pad] for pad in (False, True)] for shard in rank.shards]
    workers = [{"pieces": real, "padding": padding} for real, padding in lists]
    return {"rows": rank.rows, "steps": steps, "padded": padded, "dropped": dropped, "workers": workers}


def _piece(piece: Piece, plan: Plan) -> list[int | None]:
    rows, places = piece.rows, {file.info.path: place for place, file in enumerate(plan.files)}
    file = places[split_of(piece).file.path]
    if rows is None:
        return [file, None, None]
    pattern = [] if rows.contiguous else [rows.step, rows.block, rows.phase]
    return [file, rows.start, rows.stop, *pattern]


def _window(plan: RankPlan) -> Values | None:
    window = plan.window
    if window is None:
        return None
    variance = window.variance_ratio(plan.batch_rows)
    names = {"open": window.splits, "of": window.of_splits, "rows": window.rows, "windows": window.windows}
    return {**names, "variance": variance, "exact": True}


def planner_page(browser: Any) -> Any:
    """A page with nothing but the planner."""
    page = browser.new_page()
    page.add_script_tag(content=planner_script())
    page.evaluate(
        """() => { globalThis.plans = (text) => JSON.stringify(JSON.parse(text).map(([data, options]) => {
            try { return Planner.plan(data, options); } catch (error) { return { error: error.message }; }
        })); }"""
    )
    return page


def random_case(number: int) -> tuple[list[DataFile], Lists, Values, bool]:
    """Files, their splits, options and whether every row will be delivered: a function of the number alone."""
    draw = random.Random(number)
    unknown, exact = draw.random() < 0.1, draw.random() < 0.9
    groups = [[draw.randint(0, 9) for _ in range(draw.randint(1, 4))] for _ in range(draw.randint(1, 8))]
    scale = draw.choice([1, 1, 1, 10**9 + 7])  # large numbers must be as exact as small ones
    groups = [[rows * scale for rows in file] for file in groups]
    if unknown:
        groups = [[None] * len(rows) for rows in groups]
    live = [
        [draw.randint(0, rows) for rows in file] if draw.random() < 0.2 and not unknown else None for file in groups
    ]
    files = [data_file(f"{i:03d}", rows, draw.sample(range(9), 1), live[i]) for i, rows in enumerate(groups)]
    files = [file for file in files if file.layout.segments]
    limits = [draw.choice(sizes) * scale for sizes in ([1, 50, 100, 10_000], [1, 50, 10_000])]
    options = random_options(draw)
    sizes = {"batch_size", "window_bytes", "window_rows"}
    scaled = {name: value * scale if name in sizes else value for name, value in options.items()}
    return files, cut(files, *limits), scaled, exact


def random_options(draw: random.Random) -> Values:
    """Options of a plan, mostly such as fit each other."""
    ranks, size, sharding = draw.randint(1, 6), draw.randint(1, 6), draw.choice(SHARDING)
    options: Values = {"sharding": sharding, "num_ranks": ranks, "epoch": draw.choice([0, 1, 2, 7, 1000])}
    if sharding == "total_shards":
        options |= {"sharding": "rotate", "total_shards": ranks * draw.randint(1, 3)}
        options |= {"full_rotation": draw.random() < 0.5}
    elif sharding in ("shard_batches", "split_batches"):
        options |= {"sharding": "strided", "unit": {"shard_batches": "batch"}.get(sharding, "split_batch")}
        size *= ranks if sharding == "split_batches" else 1
    elif sharding == "rotate":
        options["stick_to_shard"] = draw.random() < 0.3
    even = draw.choice(["none", "none", "drop", "pad", "sync"])
    plain = even != "none"
    options |= {"batch_size": size, "even": even, "num_workers": draw.choice([None, 0, 1, 2, 3, 5])}
    options["last_batch"] = "partial" if plain else draw.choice(["partial", "drop", "pad", "wrap"])
    if not plain and options["last_batch"] == "partial" and draw.random() < 0.2:
        options["steps_per_epoch"] = draw.randint(1, 9)
    options["assignment"] = draw.choice(["lpt", "lpt", "turn"])
    return options | {"shuffle_seed": draw.choice([0, 42, 2**40])} | _shuffle(draw)


def _shuffle(draw: random.Random) -> Values:
    shuffle = draw.choice([False, "splits", True, True, "all", "nearby"])
    options: Values = {"shuffle": shuffle}
    if shuffle not in (False, "splits"):
        by_rows = draw.random() < 0.4
        size = {"window_rows": draw.randint(1, 30)} if by_rows else {"window_bytes": draw.choice([1, 90, 200, 2**27])}
        options |= size
    if shuffle in (True, "nearby") and draw.random() < 0.4:
        options["open_splits"] = draw.randint(1, 4)
    return options
