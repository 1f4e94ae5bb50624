"""Options that exclude each other: one table, of which all messages and a table of the documentation are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.errors import CountsRequiredError, Example, Remedy, leave_out, use
from torch_dataloader_utils.options.clash import Clash, Half, Ways
from torch_dataloader_utils.options.mix import Weights
from torch_dataloader_utils.options.sharding import WORDS, Strided

if TYPE_CHECKING:
    from torch_dataloader_utils.options.keywords import Options

_STEPS = Example("n", 2)
_PART = Example("f", 0.5)
_LENGTH = Example("n", 2048)
_ROWS = Example("steps * batch_size * ranks", 8)
_TOKENS = Example("tokens", 2**20)
_JOIN = "use torch's Join around the loop"
_MASKED = "all ranks get equal steps, and what it repeats is masked"


# ------------------------------------------------------------------------------------------------------ what is given

COUNT_ROWS = Half("count_rows", "`count_rows=True`", lambda options: options.shard.count_rows)
STEPS = Half("steps_per_epoch", "`steps_per_epoch`", lambda options: options.shard.steps_per_epoch is not None)
CANONICAL = Half("canonical_ranks", "`canonical_ranks`", lambda options: options.shard.canonical_ranks is not None)
EVEN = Half("even", '`even="drop"`, `"pad"` or `"sync"`', lambda options: options.shard.levels)
EVEN_COUNTED = Half("even", '`even="drop"` or `"pad"`', lambda options: options.shard.even in ("drop", "pad"))
EVEN_LEAVES_OUT = Half("even", '`even="drop"` or `"sync"`', lambda options: options.shard.even in ("drop", "sync"))
EVEN_OTHER = Half("even", "another `even`", lambda o: o.shard.levels and o.shard.even != o.batch.last_batch)
LAST = Half("last_batch", "`last_batch`", lambda options: options.batch.last_batch != "partial")
LAST_ALONE = Half(
    "last_batch", "`last_batch` without the same `even`", lambda o: o.batch.last_batch not in ("partial", o.shard.even)
)
LAST_DROP = Half("last_batch", '`last_batch="drop"`', lambda options: options.batch.last_batch == "drop")
LAST_WRAP = Half("last_batch", '`last_batch="wrap"`', lambda options: options.batch.last_batch == "wrap")
STRIDED = Half("sharding", '`sharding="strided"`', lambda options: options.shard.sharding == Strided())
SPLIT_BATCH = Half("sharding", '`Strided("split_batch")`', lambda options: options.shard.unit == "split_batch")
TOTAL_SHARDS = Half("sharding", "`Rotate(total_shards)`", lambda options: options.shard.total_shards is not None)
CUT_BY_ROWS = Half("sharding", '`sharding="contiguous"`, `"strided"` or `"rotate"`')
NUMBERS = Half(
    "num_ranks",
    "a `num_ranks` or `rank` that differs",
    lambda options: options.shard.is_elsewhere,
    lambda options: f"num_ranks={options.shard.num_ranks}, rank={options.shard.rank}",
)
RANKS = Half("ranks", "`ranks`", lambda options: options.shard.ranks is not None, "ranks")

LIMIT = Half("limit", "`limit`", lambda options: options.subset.limit is not None)
WEIGHTED = Half(
    "class_weights", "`class_weights`", lambda options: options.subset.class_weights is not None, "class_weights"
)
SUBSET = Half("subset", "`subset`", lambda options: options.subset.subset is not None)
SAMPLE = Half("fraction", "a `fraction` with another `by` or `unit`", lambda options: options.subset.differ)
RESIZES = Half(
    "transform",
    '`Transform(rows="any")`',
    lambda options: options.read.transform_rows == "any",
    "Transform(rows='any')",
)
EMPTIES = Half(
    "transform",
    '`ChatTemplate(long="drop")`',
    lambda options: _empties_rows(options.read.transform),
    "ChatTemplate(long='drop')",
)
STORAGE = Half("storage_options", "`storage_options`", lambda o: o.read.storage_options is not None, "storage_options")
FILESYSTEM = Half("filesystem", "`filesystem`", lambda options: options.read.filesystem is not None, "filesystem")
FOLLOW = Half("follow", "`follow=True`", lambda options: options.follow.follows, "follow=True")

PACK = Half("pack", "`pack`", lambda options: options.pack.pack is not None, "pack")
NO_PACK = Half("pack", "no `pack`", lambda options: options.pack.pack is None and not options.part_is_packed)
WRAP = Half("pack", '`Pack(method="wrap")`', lambda options: options.pack.wraps, "Pack(method='wrap')")
BEST_FIT = Half("pack", "`pack` by best fit", lambda options: options.pack.pack is not None and not options.pack.wraps)
CUT_OFF = Half(
    "pack",
    '`Pack(method="wrap")` without padding',
    lambda o: o.pack.wraps and o.shard.even != "pad" and o.batch.last_batch not in ("pad", "wrap"),
    "Pack(method='wrap')",
)
TOKENS = Half(
    "batch_tokens",
    "`batch_tokens`",
    lambda options: options.bucket.batch_tokens is not None,
    lambda options: f"batch_tokens={options.given('batch_tokens').short()}",
)
SEQUENCES = Half("sequences", "`sequences`", lambda options: options.sequence.sequences is not None, "sequences")
SKIPS = Half("transform", "`Transform(on_error=)`", lambda o: o.read.transform_skips, "Transform(on_error=)")
NO_ARRAYS = Half(
    "output_format", '`output_format="arrow"` or `"dict"`', lambda o: o.batch.output_format not in ("torch", "numpy")
)
NO_TENSORS = Half(
    "output_format", 'an `output_format` other than `"torch"`', lambda o: o.batch.output_format != "torch"
)
LISTS = Half("lists", 'a `lists` other than `"ragged"`', lambda options: options.convert.lists != "ragged")
STACK = Half("stack", "`stack`", lambda options: options.convert.stack is not None)
JAGGED = Half("jagged", "`jagged`", lambda options: options.convert.jagged is not None)

BUFFER = Half("shuffle_buffer_size", "`shuffle_buffer_size`", lambda o: o.shuffle.shuffle_buffer_size is not None)
SPLITS = Half("shuffle", '`shuffle="splits"`', lambda o: o.given("shuffle") == "splits")
PARTITION = Half("shuffle", '`shuffle="partition"`', lambda options: options.shuffle.by_partition)
WINDOWS = Half("shuffle", "`Shuffle(...)` with more than a scope", lambda options: options.shuffle.says_more)

PROCESSES = Half("worker_mode", '`worker_mode="processes"`', lambda options: options.worker.worker_mode == "processes")
LAPS_OF_PROCESSES = Half(
    "worker_mode",
    '`steps_per_epoch` and `worker_mode="processes"`',
    lambda o: PROCESSES.holds(o) and bool(o.worker.num_workers) and STEPS.holds(o),
)
NO_WORKERS = Half("num_workers", "no `num_workers`", lambda options: options.worker.num_workers is None)
GENERATES = Half(
    "split_strategy",
    "a `split_strategy` that generates shards",
    lambda options: hasattr(options.split.split_strategy, "generate"),
    "a split_strategy that generates shards",
)
DEVICE = Half("device", "`device`", lambda options: options.worker.device is not None)
GPU = Half("device", "a `device` that is a GPU", lambda options: options.worker.device not in (None, "cpu"))
PINNED = Half("pin_memory", "`pin_memory=True`", lambda options: options.worker.pin_memory)

STOP = Half("stop", "`stop`", lambda options: options.mix.stop != "once")
REPEAT = Half("repeat", "`repeat`", lambda options: options.mix.repeat is not None)
ROWS_PER_EPOCH = Half("rows_per_epoch", "`rows_per_epoch`", lambda options: options.mix.rows_per_epoch is not None)
TOKENS_PER_EPOCH = Half(
    "tokens_per_epoch", "`tokens_per_epoch`", lambda options: options.mix.tokens_per_epoch is not None
)
LENGTHS = (STOP, REPEAT, ROWS_PER_EPOCH, TOKENS_PER_EPOCH)
WEIGHTS = Half("weights", "`weights`")
GIVEN_WEIGHTS = Half("weights", "`weights`", lambda options: options.mix.weights is not None)
BY_TOKENS = Half(
    "weights",
    '`Weights(...)` with `at="token"` or `unit="token"`',
    lambda options: "token" in (options.mix.weights_unit, options.mix.weighs),
)
BY_ROWS = Half(
    "weights",
    '`Weights(...)` with `at="row"` or `unit="row"`',
    lambda options: "row" in (options.mix.weights_unit, options.mix.weighs),
)
PHASES = Half("weights", "`weights` that change", lambda o: o.mix.phases is not None, "weights that change")
SHAPED = Half(
    "weights",
    "`Weights(...)` with `temperature` or `max_repeats`",
    lambda options: options.mix.temperature != 1 or options.mix.max_repeats is not None,
)
SOURCE_KEY = Half("source_key", "`source_key`", lambda options: options.mix.source_key is not None)
BUDGETED = (TOKENS_PER_EPOCH, STEPS)
UNBOUNDED = Half(
    "",
    '`combine` with `batches="proportional"` or `"single"`, without `tokens_per_epoch` or `steps_per_epoch`',
    lambda options: options.mixes_rows and not any(half.holds(options) for half in BUDGETED),
    lambda options: f"batches={options.mix.batches!r}",
)
STREAMS = Half(
    "",
    "a mix of sequences, or of batches by length, that are counted as they are made",
    lambda options: options.streams,
    lambda options: f"a mix {'of sequences' if options.pack.pack is not None else 'by batch_tokens'}",
)
MIXED = Half("batches", '`combine` with `batches="proportional"` or `"single"`', lambda options: options.mixes_rows)
MIXED_ROWS = Half(
    "batches", "`combine` that mixes rows", lambda options: options.mixes_rows and not options.streams, "a mix of rows"
)
STREAMS_OF_STEPS = Half(
    "steps_per_epoch",
    "`steps_per_epoch` of such a mix",
    lambda options: STEPS.holds(options) and options.streams,
    lambda options: f"steps_per_epoch={options.shard.steps_per_epoch}",
)
SINGLE = Half("batches", '`batches="single"`', lambda o: o.mixes_rows and o.mix.batches == "single")
MERGED = Half("batches", '`batches="splits"`', lambda options: options.mix.batches == "splits")
MERGED_IN_ANY_ORDER = Half(
    "batches",
    '`batches="splits"` and `shuffle="all"`',
    lambda options: MERGED.holds(options) and options.shuffle.permutes == "all",
    "batches='splits' and shuffle='all'",
)
MERGED_PACKED = Half(
    "batches",
    '`pack` and `batches="splits"`',
    lambda options: options.pack.pack is not None and options.mix.batches == "splits",
    "pack and batches='splits'",
)
MADE = Half(
    "pack",
    "`pack` or `batch_tokens`",
    lambda options: options.pack.pack is not None or options.bucket.batch_tokens is not None,
    lambda options: "batch_tokens" if options.pack.pack is None else "pack",
)
NOT_PACKED = Half("pack", "neither `pack` nor `batch_tokens`", lambda options: not MADE.holds(options), "no pack")
UNEVEN = Half("batches", '`batches="single"` or `"splits"`', lambda options: options.mix.batches != "proportional")
UNEQUAL = Half(
    "sharding",
    'a `sharding` other than `"interleave"`, `"contiguous"` or `"auto"`',
    lambda options: options.shard.sharding not in WORDS,
)
OWN_SHARES = Half(
    "sharding",
    "a `sharding` other than a word or `Strided`",
    lambda o: not isinstance(o.shard.sharding, Strided) and o.shard.sharding not in WORDS,
)
EVEN_PAD = Half("even", '`even="pad"`', lambda options: options.shard.even == "pad")
LAST_PAD = Half("last_batch", '`last_batch="pad"`', lambda options: options.batch.last_batch == "pad")

COMBINES = Half("", "`combine`", lambda options: options.datasets > 0, "combine")
PART = Half("", "a part of a combination", lambda options: bool(options.part), lambda options: options.part)
IN_MEMORY = Half("", "files in the memory of a process, such as `memory://`")
UNKNOWN = Half("", "rows whose number is known only after reading")
UNPARTITIONED = Half("", "files of one folder that is not named `key=value`, or a table without partitions")
NO_ROW_COUNTS = Half("", "files that do not record how many rows they have, such as CSV")

# --------------------------------------------------------------------------------------------------------- what to do


def _uncounted(*left_out: str) -> Ways:
    """What gives all ranks equal steps although no rows are counted, without the options that then have no place."""

    def ways(options: Options) -> list[Remedy]:
        shard, needing = options.shard, [half.keyword for half in (LAST, CANONICAL) if half.holds(options)]
        counts = ["count_rows"] if shard.count_rows and "count_rows" not in left_out else []
        first = [*left_out, *counts, *needing]
        steps = [*first, *(["even"] if shard.levels else [])]
        sync = [*first, *(["steps_per_epoch"] if shard.steps_per_epoch is not None else [])]
        if shard.steps_per_epoch is not None:
            return [leave_out(*steps)]
        if shard.even == "sync":
            return [leave_out(*first)]
        return [
            use("exactly n steps", without=steps, steps_per_epoch=_STEPS),
            use("all ranks stop with the first", without=sync, even="sync"),
        ]

    return ways


def _uncounted_or_followed(options: Options) -> Sequence[Remedy]:
    if not options.follow.follows:
        return [*by_wrap(options), *_uncounted()(options)]
    halves = (half for half in (EVEN_COUNTED, LAST_WRAP, CANONICAL) if half.holds(options))
    return [leave_out(*(half.keyword for half in halves), effect=_JOIN)]


def _followed(name: str) -> Ways:
    """What keeps all rows of a pass, without the option of this name."""

    def ways(options: Options) -> list[Remedy]:
        if options.uncounted:
            return [leave_out(name, effect=_JOIN)]
        return [use(_MASKED, even="pad", without=[name] if name != "even" else [])]

    return ways


def _empties_rows(transform: Any) -> bool:
    """Whether a transform, or one of several, makes rows without tokens in the place of those that it leaves out."""
    several = transform if isinstance(transform, tuple) else (transform,)
    return any(getattr(function, "empties_rows", False) is True for function in several)


def by_wrap(options: Options) -> list[Remedy]:
    """What packs tokens, which can be counted, instead of whole documents, unless another option has no place there."""
    pack, others = options.pack.pack, (CANONICAL, LIMIT, STRIDED, RESIZES, STEPS)
    if options.shard.even == "sync":  # steps are equal without counts
        return []
    if pack is None or options.pack.wraps or any(half.holds(options) for half in others):
        return []
    given = {name: value for name, value in pack.given().items() if name not in ("long", "pad")}
    return [use("cuts documents, and counts tokens", pack=type(pack)(**given | {"method": "wrap"}), count_rows=True)]


def whole_documents(options: Options) -> Remedy:
    """What packs whole documents, without the options that need the number of sequences."""
    assert options.pack.pack is not None
    pack, counted = options.pack.pack.replace(method="best_fit"), (EVEN_COUNTED, LAST_WRAP, CANONICAL)
    names = [half.keyword for half in (*counted, COUNT_ROWS) if half.holds(options)]
    if not any(half.holds(options) for half in counted):
        return use("needs no counts", pack=pack, without=names)
    without = [name for name in names if name != "even"]
    return use("needs no counts, and all ranks stop with the first", pack=pack, even="sync", without=without)


def _or_whole_documents(remedy: Remedy) -> Ways:
    return lambda options: [remedy, whole_documents(options)]


def _fewer(options: Options) -> list[Remedy]:
    sample = [] if options.subset.fraction is not None else [use(fraction=_PART, without=["limit"])]
    return [leave_out("limit"), leave_out("class_weights"), *sample]


def _same_sample(options: Options) -> list[Remedy]:
    sample = options.subset.fraction
    return [] if sample is None else [use(fraction=sample.replace(by=None, unit=None))]


def _in_windows(options: Options) -> list[Remedy]:
    return [
        use(without=["shuffle_buffer_size"], shuffle=options.shuffle.settled.shuffle),
        leave_out("shuffle_buffer_size"),
    ]


def by_splits(options: Options) -> Remedy:
    """What merges splits instead of mixing rows, without the options that only a mix of rows has."""
    halves = (*LENGTHS, *([GIVEN_WEIGHTS] if options.pack.pack is not None else [PHASES]), SHAPED, SOURCE_KEY)
    names = dict.fromkeys(half.keyword for half in halves if half.holds(options))
    return use("merges the datasets split by split", batches="splits", without=list(names))


def _bounded(options: Options) -> list[Remedy]:
    """What says how long an epoch of a mix is of which nothing is counted before reading, or counts tokens."""
    others = [half.keyword for half in (STOP, REPEAT) if half.holds(options)]
    ways: dict[str, Any] = {"tokens_per_epoch": _TOKENS}
    ways |= {} if options.mix.weights is not None else {"weights": _weights_of(options)}
    found = [use(without=others, **ways)]
    if options.pack.pack is not None and not options.pack.pack.together:
        pack = options.pack.pack.replace(method="wrap", long="split", pad=0)
        found.append(use("cuts documents where a sequence ends", pack=pack))
    return [*found, by_splits(options)]


def _weights_of(options: Options) -> Example:
    return Example("weights", [1] * max(options.datasets, 1))


def _length_in_tokens(options: Options) -> list[Remedy]:
    weighs = not options.streams or options.mix.weights is not None
    weights: dict[str, Any] = {} if weighs else {"weights": _weights_of(options)}
    return [use(tokens_per_epoch=_TOKENS, without=["rows_per_epoch"], **weights)]


def _other_length(options: Options) -> list[Remedy]:
    names = [half.keyword for half in (STOP, REPEAT) if half.holds(options)]
    if not TOKENS_PER_EPOCH.holds(options):
        return [leave_out(*names)]
    return [leave_out(*names, other) for other in ("tokens_per_epoch", "steps_per_epoch")]


def _plain_weights(options: Options) -> list[Remedy]:
    return [use(weights=options.mix.weights or _weights_of(options))]


def _in_unit_of_batches(options: Options) -> list[Remedy]:
    mix, unbounded = options.mix, options.streams and UNBOUNDED.holds(options)
    length: dict[str, Any] = {"tokens_per_epoch": _TOKENS} if unbounded else {}
    weights = Weights(mix.weights, temperature=mix.temperature, max_repeats=mix.max_repeats)
    return [use(weights=weights, **length)]


def _mixed_or_unweighted(options: Options) -> list[Remedy]:
    mixed = [use(batches="proportional")] if options.pack.wraps else []
    return [*mixed, leave_out("weights")]


def without_or_by_splits(name: str) -> Ways:
    """What mixes no rows, or does without the option of this name."""
    return lambda options: [leave_out(name), by_splits(options)]


def _steps_in_rows(options: Options) -> list[Remedy]:
    others = [half.keyword for half in LENGTHS[:2] if half.holds(options)]
    length: dict[str, Any] = {"rows_per_epoch": _ROWS, "even": "drop"}
    rows = use(without=["steps_per_epoch", *others], **length)
    return [*([] if SINGLE.holds(options) else [rows]), *without_or_by_splits("steps_per_epoch")(options)]


def _repeated(options: Options) -> list[Remedy]:
    padded = [] if SINGLE.holds(options) else [use(last_batch="pad")]
    return [*padded, *without_or_by_splits("last_batch")(options)]


def _in_any_order(options: Options) -> list[Remedy]:
    partitions = [use("reads partitions in any order", shuffle=True)]
    names = [half.keyword for half in (OWN_SHARES, PACK, TOKENS, GENERATES) if half.holds(options)]
    return partitions + ([leave_out(*names)] if names else [])


def _dropped(options: Options) -> list[Remedy]:
    first, *others = [half.keyword for half in (EVEN_PAD, LAST_PAD) if half.holds(options)]
    return [Remedy({first: "drop"}, tuple(others)), use(batches="proportional")]


def _of_changing_weights(options: Options) -> list[Remedy]:
    packs = options.pack.pack is not None
    length: dict[str, Any] = {"tokens_per_epoch": _TOKENS} if packs else {"rows_per_epoch": Example("n", 40)}
    return [use(without=["stop"], **length), use("weights then only order the rows", stop="once")]


def _one_length(options: Options) -> list[Remedy]:
    names = [half.keyword for half in LENGTHS if half.holds(options)]
    return [leave_out(*(other for other in names if other != name)) for name in names]


def _mixed(options: Options) -> list[Remedy]:
    names = [half.keyword for half in (*LENGTHS, SHAPED, SOURCE_KEY) if half.holds(options)]
    return [use(batches="proportional"), use(batches="single"), leave_out(*names)]


# ---------------------------------------------------------------------------------------------------------- the table

# What stays unknown although rows could be counted, and why; `Options.uncounted` says it, too.
UNCOUNTED = (
    (BEST_FIT, "sequences are counted as documents are packed"),
    (TOKENS, "batch_tokens cuts batches by length"),
    (WEIGHTED, "class_weights draws the copies of rows in each epoch"),
    (RESIZES, "transform may change the number of rows"),
)
COUNTS_NEEDED = {
    half: Clash(
        halves=(EVEN_COUNTED, LAST_WRAP, CANONICAL),
        beside=half,
        why=why,
        told="{half} needs counts before reading, but {why}.",
        ways=_uncounted_or_followed,
        error=CountsRequiredError,
    )
    for half, why in UNCOUNTED
}
PACKED_CLASSES = Clash(
    halves=(WEIGHTED,),
    beside=PACK,
    why="a sequence holds documents of several classes",
    ways=[leave_out("class_weights"), leave_out("pack")],
)
FOLLOWED_PART = Clash(
    halves=(FOLLOW,),
    beside=PART,
    why="reads other rows in each pass, so it cannot be combined",
    told="{beside} has {half} and {why}.",
    ways=[leave_out("follow")],
)
# In the order in which they are checked.
CLASHES = (
    Clash(
        halves=(STORAGE,),
        beside=FILESYSTEM,
        why="a filesystem has its own options",
        ways=[leave_out("storage_options"), leave_out("filesystem")],
    ),
    Clash(
        halves=(LIMIT,),
        beside=WEIGHTED,
        why="how many copies rows have is known only after reading",
        ways=_fewer,
    ),
    Clash(halves=(SAMPLE,), beside=SUBSET, why="one key and one unit choose rows for both", ways=_same_sample),
    Clash(
        halves=(NUMBERS,),
        beside=RANKS,
        why="this process is another rank of them",
        also=lambda options: f" ({options.shard.place_of_peers})",
        ways=[leave_out("num_ranks", "rank"), leave_out("ranks")],
    ),
    Clash(
        halves=(STEPS,),
        beside=EVEN,
        why="exactly n steps on each rank are already even",
        ways=[leave_out("even"), leave_out("steps_per_epoch")],
    ),
    Clash(
        halves=(BUFFER,),
        beside=SPLITS,
        why="the rows of a split are kept in order, so there are no windows",
        ways=[use("shuffles rows in windows", shuffle=True), leave_out("shuffle_buffer_size")],
    ),
    Clash(halves=(BUFFER,), beside=WINDOWS, why="Shuffle says the size of a window, too", ways=_in_windows),
    *(
        Clash(halves=halves, beside=PARTITION, why=why, ways=_in_any_order)
        for halves, why in (
            ((OWN_SHARES,), "all ranks must be in the same partition, so they share the rows of each"),
            ((PACK,), "a sequence holds documents of several partitions"),
            ((TOKENS,), "batches of like lengths are in another order"),
            ((GENERATES,), "it makes the shards, in whatever order"),
            ((COMBINES,), "each dataset has partitions of its own"),
        )
    ),
    Clash(
        halves=(PROCESSES,),
        beside=NO_WORKERS,
        why="needs num_workers, the number of processes",
        told="{half} {why}.",
        ways=[use(num_workers=2), leave_out("worker_mode")],
    ),
    Clash(
        halves=(EMPTIES,),
        beside=NO_PACK,
        why="rows that are left out become empty lists, which only pack leaves out",
        told="{half} with {beside}: {why}.",
        also=lambda options: "; give pack to combine" if options.part else "",
        ways=lambda options: [*([] if options.part else [use(pack=_LENGTH)]), leave_out("transform")],
    ),
    Clash(
        halves=(COUNT_ROWS,),
        beside=RESIZES,
        why="counting does not run transform, which can change the number of rows",
        ways=_uncounted("count_rows"),
    ),
    *(
        Clash(
            halves=(half,),
            beside=FOLLOW,
            why="a pass reads each appended row once, and no later pass reads what it leaves out",
            told="{beside} with {half}: {why}.",
            ways=ways,
        )
        for half, ways in (
            (STEPS, _followed("steps_per_epoch")),
            (EVEN_LEAVES_OUT, _followed("even")),
            (LAST_DROP, [use(last_batch="pad"), leave_out("last_batch")]),
            (CUT_OFF, [use(even="pad"), use(last_batch="pad")]),
            (TOTAL_SHARDS, [leave_out("sharding")]),
        )
    ),
    Clash(
        halves=(COUNT_ROWS,),
        beside=WEIGHTED,
        why="the copies of rows are drawn anew in each epoch, so one count does not hold for all",
        ways=_uncounted("count_rows"),
    ),
    *(
        Clash(halves=(half,), beside=PACK, why="batches are tensors", ways=[leave_out(half.keyword)])
        for half in (NO_ARRAYS, LISTS, STACK, JAGGED)
    ),
    PACKED_CLASSES,
    *(
        Clash(halves=(half,), beside=WRAP, why=why, ways=_or_whole_documents(remedy))
        for half, why, remedy in (
            (STRIDED, "ranks would take single tokens in turn", use(sharding=Strided("batch"))),
            (CANONICAL, "steps are of tokens", leave_out("canonical_ranks")),
            (LIMIT, "limit counts rows", use(without=["limit"], fraction=_PART, count_rows=True)),
        )
    ),
    Clash(
        halves=(TOKENS,),
        beside=PACK,
        why="packed batches have batch_size sequences of one length",
        ways=[leave_out("batch_tokens"), leave_out("pack")],
    ),
    Clash(
        halves=(NO_ARRAYS,),
        beside=TOKENS,
        why="only tensors and arrays are padded",
        ways=[leave_out("output_format"), use(output_format="numpy")],
    ),
    Clash(
        halves=(SPLIT_BATCH,),
        beside=TOKENS,
        why="batch_tokens is the budget of a batch of one rank",
        ways=[use(sharding=Strided("batch")), leave_out("sharding")],
    ),
    *(
        Clash(halves=(half,), beside=SEQUENCES, why=why, ways=[*ways, leave_out("sequences")])
        for half, why, ways in (
            (COMBINES, "a window has rows of one dataset, and datasets are not cut into windows together", ()),
            (PACK, "packing joins documents, each a row", [leave_out("pack")]),
            (TOKENS, "all windows have one length", [leave_out("batch_tokens")]),
            (NO_ARRAYS, "windows are arrays [B, length]", [use(output_format="numpy"), leave_out("output_format")]),
            (WEIGHTED, "copies of rows have one place in time", [leave_out("class_weights")]),
            (RESIZES, "rows would have no place in time", [leave_out("transform")]),
            (SKIPS, "windows would have gaps where rows are left out", [leave_out("transform")]),
            (LIMIT, "the first rows cut the last window short", [leave_out("limit")]),
            (FOLLOW, "what is appended goes on in windows of earlier passes", [leave_out("follow")]),
        )
    ),
    Clash(
        halves=(EVEN, LAST),
        beside=STREAMS,
        why="all ranks have equal steps, and all batches are full",
        ways=[leave_out("even", "last_batch")],
    ),
    *COUNTS_NEEDED.values(),
    Clash(
        halves=(LAST,),
        beside=TOKENS,
        why="batches differ in their rows, so none is short",
        ways=[leave_out("last_batch")],
    ),
    Clash(
        halves=(DEVICE,),
        beside=NO_TENSORS,
        why="only tensors are put on a device",
        ways=[leave_out("output_format"), leave_out("device")],
    ),
    Clash(
        halves=(GPU,),
        beside=PINNED,
        why="batches on a GPU cannot be page-locked, and what they are copied from already is",
        ways=[leave_out("pin_memory")],
    ),
    Clash(
        halves=(LAST,),
        beside=EVEN_OTHER,
        why="even decides about the last batch",
        ways=[leave_out("last_batch"), leave_out("even")],
    ),
    Clash(halves=(LAST,), beside=STEPS, why="its batches are all full", ways=[leave_out("last_batch")]),
    Clash(
        halves=(LAST_ALONE,),
        beside=CANONICAL,
        why="all ranks share the last step",
        ways=[
            use(even="drop", without=["last_batch"]),
            use(even="pad", without=["last_batch"]),
            leave_out("canonical_ranks"),
        ],
    ),
    Clash(
        halves=(EVEN_COUNTED, LAST_WRAP),
        beside=GENERATES,
        why="they are delivered as given",
        ways=[
            leave_out("even", "last_batch"),
            use("all ranks stop with the first", even="sync", without=["last_batch"]),
            use("exactly n steps", steps_per_epoch=_STEPS, without=["even", "last_batch"]),
        ],
    ),
    Clash(
        halves=(CANONICAL,),
        beside=LAPS_OF_PROCESSES,
        why="with steps_per_epoch, a process reads several virtual ranks, which start again at different times",
        ways=[use(worker_mode="threads")],
    ),
    Clash(
        halves=(GENERATES,),
        beside=COMBINES,
        why="generate() makes the shards of a single dataset, and split(files) cuts those of several",
        ways=[leave_out("split_strategy")],
    ),
    FOLLOWED_PART,
    *(
        Clash(halves=halves, beside=beside, why="each decides how long an epoch is", ways=_one_length)
        for halves, beside in (
            ((REPEAT, ROWS_PER_EPOCH, TOKENS_PER_EPOCH), STOP),
            ((ROWS_PER_EPOCH, TOKENS_PER_EPOCH), REPEAT),
        )
    ),
    Clash(
        halves=(STOP, REPEAT, TOKENS_PER_EPOCH),
        beside=STREAMS_OF_STEPS,
        why="each decides how long an epoch is",
        ways=_other_length,
    ),
    Clash(
        halves=(ROWS_PER_EPOCH,),
        beside=MADE,
        why="an epoch has a number of tokens",
        ways=_length_in_tokens,
    ),
    Clash(
        halves=(TOKENS_PER_EPOCH,),
        beside=NOT_PACKED,
        why="an epoch has rows",
        ways=[use(rows_per_epoch=Example("n", 40), without=["tokens_per_epoch"])],
    ),
    Clash(halves=(BY_TOKENS,), beside=NOT_PACKED, why="batches are made of rows", ways=_in_unit_of_batches),
    Clash(halves=(BY_ROWS,), beside=MADE, why="batches are made of sequences or tokens", ways=_in_unit_of_batches),
    Clash(
        halves=(SHAPED,),
        beside=STREAMS,
        why="how many tokens a dataset has is known only after reading",
        ways=_plain_weights,
    ),
    Clash(
        halves=(GIVEN_WEIGHTS,),
        beside=MERGED_PACKED,
        why="a sequence has documents of several datasets, whatever their order",
        ways=_mixed_or_unweighted,
    ),
    Clash(
        halves=(*LENGTHS, SHAPED, SOURCE_KEY),
        beside=MERGED,
        why="every row is delivered once, split by split",
        ways=_mixed,
    ),
    Clash(
        halves=(UNEVEN,),
        beside=PHASES,
        why="each batch has rows by the weights of its step",
        ways=[use(batches="proportional")],
    ),
    Clash(
        halves=(STOP,),
        beside=PHASES,
        why="the rows of an epoch would follow from all of them",
        ways=_of_changing_weights,
    ),
    Clash(
        halves=(BEST_FIT, TOKENS),
        beside=UNBOUNDED,
        why="how many sequences or batches a dataset has shows only as they are made",
        ways=_bounded,
    ),
    *(
        Clash(halves=(half,), beside=MIXED, why=why, ways=ways)
        for half, why, ways in (
            (CANONICAL, "the rows of each step are dealt to the ranks", without_or_by_splits("canonical_ranks")),
            (LAST_WRAP, "each rank has its own rows of each dataset", _repeated),
        )
    ),
    Clash(
        halves=(STEPS,),
        beside=MIXED_ROWS,
        why="the rows of an epoch decide its steps",
        ways=_steps_in_rows,
    ),
    Clash(
        halves=(EVEN_PAD, LAST_PAD),
        beside=SINGLE,
        why="each dataset has a last batch of its own",
        ways=_dropped,
    ),
)


def check_part(options: Options, part: str, uncountable: Half) -> None:
    """Check that a combination needs no counts, where nothing can count the rows of one of its parts.

    Args:
        options: of the combination.
        part: its label.
        uncountable: why: one of those of `UNCOUNTED`.

    Raises:
        CountsRequiredError: it does.
    """
    clash = COUNTS_NEEDED[uncountable]
    for half in clash.halves:
        if half.holds(options):
            raise clash.between(half.named(options), also=f" ({part})", ways=_uncounted()(options))


def uncounted(options: Options) -> str:
    """Why counting cannot say what an epoch delivers, as a clause; "" if it can."""
    return next((why for half, why in UNCOUNTED if half.holds(options)), "")
