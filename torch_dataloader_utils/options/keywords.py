"""All keywords of `create_dataloader`: which call takes which, and how they become checked groups."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_type_hints

from torch_dataloader_utils.errors import OptionError, UnknownOptionError, leave_out, use
from torch_dataloader_utils.feature import Features
from torch_dataloader_utils.options.buckets import BucketOptions
from torch_dataloader_utils.options.clashes import LENGTHS, uncounted
from torch_dataloader_utils.options.even import even_of, of_even
from torch_dataloader_utils.options.groups import (
    BatchOptions,
    ConvertOptions,
    ReadOptions,
    ShardOptions,
    SplitOptions,
    WorkerOptions,
)
from torch_dataloader_utils.options.mix import MixOptions, of_weights, weights_of
from torch_dataloader_utils.options.packing import PackOptions
from torch_dataloader_utils.options.retired import check_retired
from torch_dataloader_utils.options.sequences import SequenceOptions
from torch_dataloader_utils.options.sharding import sharding_of
from torch_dataloader_utils.options.shuffle import ShuffleOptions, shuffle_of
from torch_dataloader_utils.options.sources import Delta, Files, FollowOptions, Iceberg, SourceValue, check_catalog
from torch_dataloader_utils.options.subset import SubsetOptions
from torch_dataloader_utils.options.together import check_together
from torch_dataloader_utils.options.transform import of_transform, transform_of
from torch_dataloader_utils.options.workers import of_worker_mode, worker_mode_of
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Check, Checked, checked, declared, plain_value

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """All options of one loader, grouped; and the features that they ask for.

    Attributes:
        datasets: how many a combination has, with those of the combinations within it; 0: they are of none.
        part: what messages call the part of a combination that they are of; "" if they are of none.
        part_is_packed: whether the combination of which it is a part packs documents.
        part_skips: whether a transform of a part of a combination may fail for rows.
        features: what they change of the loader.
        keywords: those that were given, for another loader with some of them replaced; copies have none.
    """

    read: ReadOptions
    subset: SubsetOptions
    split: SplitOptions
    shard: ShardOptions
    shuffle: ShuffleOptions
    batch: BatchOptions
    bucket: BucketOptions
    pack: PackOptions
    sequence: SequenceOptions
    convert: ConvertOptions
    worker: WorkerOptions
    follow: FollowOptions
    mix: MixOptions = field(default_factory=MixOptions)
    datasets: int = 0
    part: str = ""
    part_is_packed: bool = False
    part_skips: bool = False
    features: Features = field(default_factory=Features, compare=False)  # made of the others
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "keywords": {}}  # such as a process group, which no other process can use

    @property
    def uncounted(self) -> str:
        """Why `count_rows` cannot count what an epoch delivers, as a clause; "" if it can."""
        return uncounted(self)

    @property
    def skips_rows(self) -> bool:
        """Whether rows for which a transform fails are no errors."""
        return self.part_skips or self.read.transform_skips

    @property
    def mixes_rows(self) -> bool:
        """Whether rows of datasets are mixed, not splits; those of a single one, only if it is repeated or cut off."""
        least = 1 if any(half.holds(self) for half in LENGTHS) else 2
        return self.mix.batches != "splits" and self.datasets >= least

    @property
    def streams(self) -> bool:
        """Whether datasets are mixed without end, by what is made of their rows and counted only then."""
        made = self.bucket.batch_tokens is not None or (self.pack.pack is not None and not self.pack.wraps)
        cut = self.pack.wraps and (self.pack.uncounted or self.shard.steps_per_epoch is not None)
        return self.mixes_rows and (made or cut)

    @property
    def chooses_anchors(self) -> bool:
        """Whether a subset chooses windows by their anchors, not rows: unless it takes whole sequences."""
        windows, subset = self.sequence.sequences, self.subset
        return windows is not None and subset.by_hash and not (subset.by and set(subset.by) <= set(windows.keys))

    def given(self, keyword: str) -> Any:
        """The value of a keyword, as it can be given."""
        if keyword in _GIVEN:
            return _GIVEN[keyword](self)
        return getattr(getattr(self, _HOMES[keyword]), keyword)


_GROUPS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(Options).items() if isinstance(kind, type) and issubclass(kind, Checked)
}
_HOMES = {item.name: name for name, kind in _GROUPS.items() for item in fields(kind)}
# Keywords whose value the groups hold in another form.
_GIVEN: Mapping[str, Callable[[Options], Any]] = {
    "even": lambda options: even_of(options.shard),
    "sharding": lambda options: sharding_of(options.shard.sharding),
    "shuffle": lambda options: shuffle_of(options.shuffle.shuffle),
    "transform": lambda options: transform_of(options.read),
    "weights": lambda options: weights_of(options.mix),
    "worker_mode": lambda options: worker_mode_of(options.worker),
}


def repeats_rows(options: Options) -> bool:
    """Whether a pass may repeat rows as padding."""
    shard = options.shard
    laps = shard.steps_per_epoch is not None and not options.streams
    return shard.even == "pad" or options.batch.last_batch in ("pad", "wrap") or laps


def masks_rows(options: Options) -> bool:
    """Whether rows have the mask `valid_key`: a pass may repeat rows, or a transform may fail for some."""
    # Documents for which it fails are in no sequence.
    return repeats_rows(options) or (options.skips_rows and options.pack.pack is None)


def mask_in_batches(options: Options) -> str | None:
    """The key of the mask that batches have; None if they have none, or if labels tell which rows are repeats."""
    pack = options.pack.pack
    return options.batch.valid_key if masks_rows(options) and (pack is None or pack.keys is None) else None


def mask_key(options: Options, keys: Sequence[str]) -> str | None:
    """The key of the mask of real rows; None if there is none.

    Args:
        options: of the loader.
        keys: the other keys of batches.

    Raises:
        OptionError: it is one of them.
    """
    key = options.batch.valid_key
    if not masks_rows(options):
        return None
    if key in keys:
        raise OptionError(
            f"valid_key={key!r} is the name of a column, but the mask of real rows needs a separate name.",
            remedies=[use(valid_key="is_real" if "is_real" not in keys else "is_real_row")],
        )
    return key


# Options of files that a table does not take, because its metadata determine them.
_NOT_OF_GROWTH = ("format", "partitioning", "schema", "manifest")

# Options of what grows, which is said where it is named.
_OF_GROWTH = tuple(item.name for item in fields(FollowOptions))

# The calls that make loaders: of files, of a table of any format, an Iceberg or a Delta table, of several datasets.
Call = Literal["stream", "files", "table", "iceberg", "delta", "combine"]
# What each call reads, whose fields are keywords of the call; a catalog has 0.2.0's name there.
_KINDS: dict[Call, type[SourceValue]] = {"files": Files, "iceberg": Iceberg, "delta": Delta}
_FLAT = {"catalog": "catalog_config"}
_FUNCTIONS: dict[Call, str] = {
    "stream": "stream",
    "files": "StructuredDataset.create_dataloader",
    "table": "StructuredDataset.create_dataloader",
    "iceberg": "IcebergDataset.create_dataloader",
    "delta": "DeltaDataset.create_dataloader",
    "combine": "combine",
}
_LEFT_OUT: dict[Call, tuple[str, ...]] = {
    "stream": (*_NOT_OF_GROWTH, *_OF_GROWTH, "metadata_columns"),
    "files": (),
    "table": (*_NOT_OF_GROWTH, "on_error"),
    "iceberg": (*_NOT_OF_GROWTH, *_OF_GROWTH),  # the value of the table has them
    "delta": (*_NOT_OF_GROWTH, "filesystem", *_OF_GROWTH),  # deltalake has clients of its own
    "combine": (*_NOT_OF_GROWTH, *_OF_GROWTH, "metadata_columns"),
}


def options_of(call: Call) -> dict[str, Field[Any]]:
    """The declarations of the options that a call takes, by keyword, in the order of the groups.

    Options for the tables of one format only are first, and so are those for mixing.
    """
    groups = [kind for kind in _GROUPS.values() if kind is not MixOptions]
    if call == "combine":
        groups = [MixOptions, *groups]
    own = declared(_KINDS[call]) if call in ("iceberg", "delta") else []
    for item in own:
        item.name = _flat(item.name)
    items = [*own, *(item for kind in groups for item in fields(kind) if item.name not in _LEFT_OUT[call])]
    return {item.name: item for item in items if item.metadata["keyword"]}


def option_defaults(call: Call = "files") -> dict[str, Any]:
    """The keywords of a call with their defaults."""
    return {name: item.default for name, item in options_of(call).items()}


def parse_options(keywords: Mapping[str, Any], call: Call = "files", datasets: int = 0) -> Options:
    """The grouped, checked options of these keywords.

    Args:
        keywords: the keywords.
        call: the call that was given them.
        datasets: how many it combines.

    Raises:
        UnknownOptionError: a keyword does not exist; the message names the one that was probably meant.
        OptionError: a value cannot work.
    """
    return _options(_known(keywords, option_defaults(call), _FUNCTIONS[call]), datasets=datasets)


def parse_call(call: Call, first: Any, keywords: Mapping[str, Any]) -> tuple[Any, Options]:
    """What a call reads, and the grouped, checked options of its loader.

    Args:
        call: "files", "iceberg" or "delta".
        first: the first argument of the call.
        keywords: the others, with the fields of what is read among them.
    """
    _check_client(_KINDS[call], keywords)
    kind, known = _KINDS[call], _known(keywords, option_defaults(call), _FUNCTIONS[call])
    own = {field: known.pop(name) for field in kind.fields if (name := _flat(field)) in known}
    if "catalog" in own:
        check_catalog(first, own["catalog"], _flat("catalog"))
    source = kind(plain_value(first), **own)
    return source, _with(source, known)


def parse_stream(
    source: SourceValue | None, keywords: Mapping[str, Any], *, part: str = "", part_is_packed: bool = False
) -> Options:
    """The grouped, checked options of a loader of what `stream` was given; None is a table of another format.

    Args:
        source: what is read.
        keywords: the keywords.
        part: its label, if it is a part of a combination.
        part_is_packed: whether that packs documents.

    Raises:
        UnknownOptionError: a keyword does not exist, or is a field of the source.
    """
    _check_client(type(source), keywords)
    own = {} if source is None else {name: value for name, value in keywords.items() if name in source.fields}
    if own and source is not None:
        text = ", ".join(f"{name}={shown(value)}" for name, value in own.items())
        raise UnknownOptionError(
            f"{text}: not a keyword of stream, but of its source: stream({source.replace(**own)!r}, ...)."
        )
    known = _known(keywords, option_defaults("stream"), _FUNCTIONS["stream"])
    facts = {"part": part, "part_is_packed": part_is_packed}
    return _options(known, **facts) if source is None else _with(source, known, **facts)


# Keywords that decide what a listing holds, and the name of what is read.
_LISTS = ("storage_options", "filesystem", "cache", "format_options", "on_error")
_READS = ("source", "path", "table", "datasets")
# Keywords that select columns and rows of what is listed.
SELECTS = frozenset(("columns", "filters"))
# With these, rows are the same in any order.
_ROWS = frozenset((*SELECTS, *_LISTS, "transform", "subset", "fraction", "limit", "nulls", "timeout"))


def parse_replaced(source: SourceValue | None, options: Options, changes: Mapping[str, Any]) -> Options:
    """The options of another loader of the same listing.

    Args:
        source: what is read, as for `parse_stream`.
        options: of the loader that there is.
        changes: the keywords that differ.

    Raises:
        UnknownOptionError: a keyword does not exist, or is a field of the source.
        OptionError: it says what is read or listed.
    """
    for name in _READS:
        if name in changes:
            raise OptionError(f"replace({name}=...): a loader of other data is made by stream({name}, ...).")
    made = parse_stream(source, {**options.keywords, **changes})
    for name in _LISTS:
        if name in changes and getattr(made.read, name) != getattr(options.read, name):
            raise OptionError(
                f"replace({name}=...): both loaders share their files and footers, about which {name} decides: make a "
                f"new loader by stream(source, {name}=...).",
                remedies=[leave_out(name)],
            )
    return replace(made, features=options.features.of(made))


def parse_rows(
    source: SourceValue | None, options: Options, changes: Mapping[str, Any] = MappingProxyType({})
) -> Options:
    """The options of a loader that reads the same rows in file order, alone and as they are stored, but for changes."""
    kept = {name for name in options.keywords if name in _ROWS or (name == "count_rows" and options.subset.limit)}
    given = {name: options.keywords[name] for name in kept}
    alone = {"num_ranks": 1, "rank": 0, "num_workers": 0, "output_format": "arrow"}
    made = parse_stream(source, {**given, **alone, **changes})
    return replace(made, features=options.features.of(made))


def _check_client(kind: type, keywords: Mapping[str, Any]) -> None:
    """Check that no filesystem is given where none is used."""
    if kind is Delta and "filesystem" in keywords:
        raise UnknownOptionError(
            "'filesystem' is not an option for Delta tables, because deltalake reads the log with a client of its own: "
            "pass storage_options.",
            remedies=[leave_out("filesystem")],
        )


def _with(source: SourceValue, known: Mapping[str, Any], **facts: Any) -> Options:
    """The options of a loader, with what the source says of them."""
    own = {"follow": source.follow, "appended": source.appended} if isinstance(source, Iceberg) else {}
    if isinstance(source, Delta):
        own = {"follow": source.follow}
    own |= {name: getattr(source, name) for name in ("metadata_columns",) if name in source.fields}
    if isinstance(source, Files):
        own = {name: getattr(source, name) for name in list(Files.fields)[1:]}
    return replace(_options({**known, **own}, **facts), keywords=known)


def _known(keywords: Mapping[str, Any], known: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The keywords with plain values, after a check that all of them are known."""
    check_retired(keywords)
    for name in keywords:
        if name in known:
            continue
        kinds = [kind for kind in (Files, Iceberg, Delta) if name in list(kind.fields)[1:]]
        if kinds and function == "combine":
            texts = [f"{kind.__name__}({next(iter(kind.fields))}, {name}=...)" for kind in kinds]
            raise UnknownOptionError(f"{name!r} belongs to what a part reads: {' or '.join(texts)}.")
        if name in _NOT_OF_GROWTH:
            raise UnknownOptionError(
                f"{name!r} is an option for files: leave it out, because the table's metadata determines it."
            )
        if kinds and function == "stream":
            texts = [f"stream({kind.__name__}(table, {name}=...))" for kind in kinds]
            raise UnknownOptionError(f"{name!r} belongs to a table: {' or '.join(texts)}.")
        if name == "version" and function == "IcebergDataset.create_dataloader":
            raise UnknownOptionError(
                "'version' is an option for Delta tables: an Iceberg table takes snapshot_id= or as_of=."
            )
        if name == "version":
            raise UnknownOptionError("'version' is an option for Delta tables: use DeltaDataset.create_dataloader.")
        if function == "DeltaDataset.create_dataloader" and name in ("snapshot_id", "ref"):
            raise UnknownOptionError(
                f"{name!r} is an option for Iceberg tables: a Delta table takes version= or as_of=."
            )
        if name in (*map(_flat, Iceberg.fields), *_OF_GROWTH):
            raise UnknownOptionError(f"{name!r} is an option for Iceberg tables: use IcebergDataset.create_dataloader.")
        raise UnknownOptionError(f"unknown option {name!r}: {advice(name, known, function)}")
    return {name: plain_value(value) for name, value in keywords.items()}


# Keywords whose value says several things that the groups hold.
_HELD: Mapping[str, Check] = {
    "even": of_even,
    "transform": of_transform,
    "weights": of_weights,
    "worker_mode": of_worker_mode,
}


def _held(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the groups hold for these keywords."""
    held: dict[str, Any] = {}
    for name, value in given.items():
        held |= checked(name, _HELD[name], value, "what help() says of it") if name in _HELD else {name: value}
    return held


def _options(given: Mapping[str, Any], **facts: Any) -> Options:
    """The options of these keywords; `facts`: the fields of `Options` that no keyword says."""
    keywords = _held(given)
    options = Options(**{name: _group(kind, keywords) for name, kind in _GROUPS.items()}, **facts)
    check_together(options)
    split, shuffle, read = options.split, options.shuffle.settled, options.read
    size = shuffle.split_bytes if split.split_bytes is None else split.split_bytes
    if read.columns is not None:  # these place what is added anyway
        read = replace(read, columns=list(dict.fromkeys([*read.columns, *read.metadata_columns])))
    return replace(options, read=read, split=replace(split, split_bytes=size), shuffle=shuffle, keywords=given)


def _group(kind: type[T], keywords: Mapping[str, Any]) -> T:
    """The group of this kind, made from the keywords that belong to it."""
    return kind(**{name: keywords[name] for name in _names(kind) if name in keywords})


def _flat(field: str) -> str:
    """The keyword of a field of what is read."""
    return _FLAT.get(field, field)


def _names(kind: type) -> list[str]:
    return [item.name for item in fields(kind)]


# Advice for a keyword that does not exist: what it is called here, or the keyword that it misspells.


# With a lower threshold, different words match: "batch_bytes" and "split_bytes", "split" and "split_rows".
_ALIKE = 0.85

_TORCH = "it is an option of torch's DataLoader; "
_FEWER = "use limit=n for the first n rows, fraction=0.1 for a sample, or steps_per_epoch=n for n steps in every epoch."
_PARTS = "use subset=Subsets({'train': 0.9, 'val': 0.1})['train'], or give files, such as path='data/train/'."
_SECRETS = "credentials are keys of storage_options={...}."
_TEXT = "options of a file format are keys of format_options={...}."
_SHARDS = "use num_ranks and rank; under a launcher both are found without you."
_EPOCHS = "an epoch is one loop over the loader; dataset.set_epoch(epoch) says which."
_LABELS = "a batch is a dict of all columns: take batch['label'] in your loop."
_STOP = "use stop='first' (until the first dataset ends) or stop='all' (until each has been read)."
_PACK = "use pack=2048, which packs documents into sequences of so many tokens."
_STRATEGY = "use pack=2048, which keeps documents whole, or pack=Pack(2048, method='wrap'), which cuts one stream."
_PAD = (
    "use lists='padded', which fills up labels with -100 and others with 0, or lists=Padded(-100), "
    "or pack=Pack(2048, pad={'labels': -100})."
)
_BAR = "use show_progress=True, which shows a bar for each epoch."

# Keywords of other libraries and launchers, and what to do here, in a sentence each.
_HINTS = {
    "drop_last": f"{_TORCH}use last_batch='drop' (the last batch of a rank) or even='drop' (equal steps on all ranks).",
    "prefetch_factor": f"{_TORCH}use prefetch_bytes (a bound in decoded bytes).",
    "sampler": f"{_TORCH}use shuffle=True; to draw rows by weight, class_weights or loader.set_row_weights.",
    "batch_sampler": f"{_TORCH}use batch_size and shuffle=True.",
    "generator": f"{_TORCH}use shuffle_seed.",
    "worker_init_fn": f"{_TORCH}use transform (it runs in the workers).",
    "drop_remainder": "use last_batch='drop' (the last batch of a rank) or even='drop' (equal steps on all ranks).",
    "local_rank": "use rank, which is the global one.",
    "streaming": "data are always streamed: leave it out.",
    "skip": "use loader.skip_steps(first, last) to skip batches, or filters to leave rows out.",
    "tokenizer": "tokenize in transform, which runs in the workers.",
    "infinite": "use steps_per_epoch=n: rows begin again when they end.",
    "weights": "use combine([dataset, ...], weights=[...]), which mixes datasets.",
    "pad_to_multiple_of": "use lists=Padded(multiple=8).",
    "max_length": "use lists='padded' to pad lists, or cut them in transform.",
    "recursive": "folders are read with all folders below them: leave it out.",
    "resume": "use loader.load_state_dict(state).",
    **dict.fromkeys(("split", "train", "test", "val", "valid", "validation"), _PARTS),
    **dict.fromkeys(("test_size", "train_size", "validation_split", "train_test_split"), _PARTS),
    **dict.fromkeys(("frac", "subsample", "sample_fraction"), _FEWER),
    **dict.fromkeys(("take", "head", "nrows", "n_rows", "max_rows", "max_samples", "num_samples"), _FEWER),
    **dict.fromkeys(("credentials", "key", "secret", "token", "endpoint_url", "region_name", "anon"), _SECRETS),
    **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), _SECRETS),
    **dict.fromkeys(("delimiter", "sep", "header", "encoding", "quotechar", "null_values", "on_bad_lines"), _TEXT),
    **dict.fromkeys(("num_shards", "shard_index", "shard_id", "shard_count", "num_replicas"), _SHARDS),
    **dict.fromkeys(("epoch", "epochs", "num_epochs", "repeat"), _EPOCHS),
    **dict.fromkeys(("progress", "progress_bar", "tqdm"), _BAR),
    **dict.fromkeys(("packing", "max_seq_length", "seq_length", "sequence_length", "block_size"), _PACK),
    **dict.fromkeys(("pad_token_id", "padding_value"), _PAD),
    "packing_strategy": _STRATEGY,
    **dict.fromkeys(("label", "labels", "target", "label_column", "target_column"), _LABELS),
}  # fmt: skip

# The same for keywords of `combine`.
_OF_COMBINE = {
    **dict.fromkeys(("probabilities", "probs", "proportions", "ratios"), "use weights, whose shares are exact."),
    **dict.fromkeys(("stopping_strategy", "stop_criteria", "strategy"), _STOP),
    "epoch_size": "use rows_per_epoch, counted over all ranks.",
}

# Other names for our keywords.
_SYNONYMS = {
    "buffer_size": "shuffle_buffer_size",
    "data_files": "path",
    "file_format": "format",
    "features": "columns",
    "fields": "columns",
    "map": "transform",
    "map_fn": "transform",
    "max_tokens": "batch_tokens",
    "max_tokens_per_batch": "batch_tokens",
    "num_proc": "num_workers",
    "num_threads": "num_workers",
    "paths": "path",
    "predicate": "filters",
    "preprocess": "transform",
    "query": "filters",
    "seed": "shuffle_seed",
    "select": "columns",
    "token_budget": "batch_tokens",
    "transforms": "transform",
    "usecols": "columns",
    "where": "filters",
    "workers": "num_workers",
    "world_size": "num_ranks",
}


def advice(name: str, known: Collection[str], function: str) -> str:
    """A sentence that says what to use instead of an unknown keyword.

    Args:
        name: the keyword.
        known: the keywords that exist.
        function: the name of what takes them; its help lists them.
    """
    if function == "combine" and name in _OF_COMBINE:
        return _OF_COMBINE[name]
    if name in _HINTS:
        return _HINTS[name]
    if name in _SYNONYMS:
        return f"use {_SYNONYMS[name]}."
    begun = [option for option in known if option.startswith(f"{name}_")]
    # Of several that begin so, the most similar: `batch` is batch_size, not batch_tokens.
    close = difflib.get_close_matches(name, begun or known, n=1, cutoff=_ALIKE if not begun else 0.0)
    return f"did you mean {close[0]!r}?" if close else f"see help({function}) for all options."
