"""Files by their row groups, plans over them, and the batches that a plan means, row by row."""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from torch_dataloader_utils import Rotate, Strided
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.model import (
    DataFile,
    DataFileInfo,
    FileLayout,
    Piece,
    RankCursor,
    Rows,
    Segment,
    Split,
    Window,
)
from torch_dataloader_utils.planning.phases import Phase, plain_options
from torch_dataloader_utils.planning.plan import Plan, PlanOptions, RankPlan
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.seeding import window_order

RowId = tuple[str, int]


def data_file(
    name: str, groups: Sequence[int | None], pruned: Iterable[int] = (), live: Sequence[int] | None = None
) -> DataFile:
    """A file of row groups with that many rows (10 bytes each; None: unknown, 100 bytes), without the pruned ones."""
    segments, at = [], 0
    for number, rows in enumerate(groups):
        size = 100 if rows is None else 10 * rows
        segments.append(Segment(number, at, rows, size, None if live is None else live[number]))
        at += rows or 0
    kept = tuple(segment for segment in segments if segment.number not in set(pruned))
    info = DataFileInfo(name, 5 * at, None if None in groups else at)
    return DataFile(info, FileLayout(kept, counted=live is not None))


def data_files(groups: Sequence[Sequence[int]]) -> list[DataFile]:
    return [data_file(f"{i:03d}.parquet", rows) for i, rows in enumerate(groups)]


def chunk_files(*rows: int) -> list[DataFile]:
    """C0, C1, ...: files of one row group, each one split."""
    return [data_file(f"C{i}", [n]) for i, n in enumerate(rows)]


def make_plan(
    files: Sequence[DataFile],
    ranks: int = 1,
    *,
    split_rows: int | None = None,
    exact: bool = True,
    grows: bool = False,
    **options: object,
) -> Plan:
    splits = make_splits(TargetSizeSplitStrategy(split_rows=split_rows), files)
    return Plan(files, splits, PlanOptions(**options), ranks, exact, grows=grows)


def phase(
    options: PlanOptions, num_ranks: int, delivered: int | tuple[int, ...] | tuple[RankCursor | None, ...]
) -> Phase:
    """A phase that came so far: batches of all ranks or of each, or a cursor of each."""
    if isinstance(delivered, int) or all(isinstance(count, int) for count in delivered):
        return Phase(plain_options(options, num_ranks, Feature()), delivered)
    return Phase(plain_options(options, num_ranks, Feature()), 1, dict(enumerate(delivered)))


def row_ids(pieces: Iterable[Piece]) -> list[RowId]:
    """The rows of pieces of splits and of windows (whose live rows are all of their rows), in order of delivery."""
    found: list[RowId] = []
    for piece in pieces:
        source = piece.source
        if isinstance(source, Window):
            rows = row_ids(source.pieces)
            if source.key is not None:
                rows = [rows[place] for place in window_order(len(rows), source.key)]
            found += rows if piece.rows is None else [rows[place] for place in piece.rows.numbers()]
        else:
            found += [(source.file.path, int(row)) for row in piece.rows.numbers()]
    return found


def all_rows(files: Iterable[DataFile]) -> list[RowId]:
    """Every plan row of the files, in file order."""
    found = []
    for file in files:
        starts = file.layout.plan_starts()
        for i, segment in enumerate(file.layout.segments):
            count = segment.live_rows if file.layout.counted else segment.rows
            found += [(file.info.path, row) for row in range(starts[i], starts[i] + count)]
    return found


def delivered(plan: Plan, epoch: int, rank: int) -> list[list[tuple[RowId, bool]]]:
    """The batches of a rank as its workers deliver them, a batch each in turn: (row, whether it is real)."""
    queues = []
    for shard in plan.rank(epoch, rank).shards:
        rows = [(row, not piece.pad) for piece in shard for row in row_ids([piece])]
        queues.append([rows[i : i + plan.batch_rows] for i in range(0, len(rows), plan.batch_rows)])
    longest = max(map(len, queues))
    return [queue[k] for k in range(longest) for queue in queues if k < len(queue)]


def real_rows(batches: Iterable[list[tuple[RowId, bool]]]) -> list[RowId]:
    return [row for batch in batches for row, is_real in batch if is_real]


def rank_rows(plan: Plan, epoch: int, rank: int) -> list[RowId]:
    """The real rows of a rank, as delivered."""
    return real_rows(delivered(plan, epoch, rank))


def numbers(plan: Plan, epoch: int, rank: int) -> list[int]:
    """The rows of a rank as numbers in the one file of a plan."""
    return [row for _, row in rank_rows(plan, epoch, rank)]


def chunks(plan: RankPlan) -> list[str]:
    """The files whose splits a rank delivers, in order over its workers."""
    return [piece.source.file.path for shard in plan.shards for piece in shard]


def split_of(file: DataFile, start: int, stop: int) -> Split:
    return Split(file.info, Rows(start, stop))


groups = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=6)

POLICIES = ("interleave", "contiguous", "rotate", "total_shards", "strided", "shard_batches", "split_batches", "auto")


# Rows shuffled by each rule: not, in windows of rows, of whole splits, of a number of splits, of all.
window_sizes = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"buffer_rows": st.integers(1, 30), "open_splits": st.integers(1, 4) | st.just("all")}),
    st.fixed_dictionaries(
        {"window_bytes": st.integers(1, 300), "open_splits": st.none() | st.integers(1, 4) | st.just("all")}
    ),
)


@st.composite
def settings_of(
    draw: st.DrawFn,
    even: Sequence[str] = ("none", "drop", "pad"),
    sharding: Sequence[str] = POLICIES,
    last_batch: Sequence[str] = ("partial",),
    buffers: bool = False,
) -> tuple[int, dict[str, object]]:
    """(ranks, keywords of PlanOptions) with each policy in each of its forms; with `buffers` also row shuffle."""
    ranks, size, name = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.sampled_from(sharding))
    found: dict[str, object] = {"sharding": name}
    if name == "total_shards":
        found = {"sharding": Rotate(ranks * draw(st.integers(1, 3)), full_rotation=draw(st.booleans()))}
    elif name in ("shard_batches", "split_batches"):
        found = {"sharding": Strided({"shard_batches": "batch", "split_batches": "split_batch"}[name])}
        size = size * ranks if name == "split_batches" else size
    found |= {
        "batch_size": size,
        "num_shards": draw(st.integers(1, 4)),
        "assignment": draw(st.sampled_from(["lpt", "turn"])),
        "even": draw(st.sampled_from(even)),
        "last_batch": draw(st.sampled_from(last_batch)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }
    if buffers:
        found |= draw(window_sizes)
    return ranks, found
