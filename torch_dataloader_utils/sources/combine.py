"""Combines several datasets into one source: files by part, all splits in one list, one scan over all parts."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

from torch_dataloader_utils.distributed.peers import job_peers
from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.model import DataFile, Unit
from torch_dataloader_utils.options import MixOptions, Options, mask_key, progress_of
from torch_dataloader_utils.options.clash import Half
from torch_dataloader_utils.options.clashes import MERGED_BY_WEIGHT, MIXED_SHARDS, RESIZES, WEIGHTED, check_part
from torch_dataloader_utils.options.mix import weights_of
from torch_dataloader_utils.options.weights import WeightTree
from torch_dataloader_utils.planning.parts import Part
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.combined import CombinedScan, SourceKey
from torch_dataloader_utils.reading.row_count_scan import REMOTE_SCANS, RowCounts, Sharing, scan_row_counts, with_counts
from torch_dataloader_utils.reading.samples import SampleScan, columns_of, fields_of
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.group import Group, MemberFacts, Names, labels, weight_trees
from torch_dataloader_utils.sources.meanings import Side, alike
from torch_dataloader_utils.sources.merged import check_weighable
from torch_dataloader_utils.sources.samples import first_samples, is_map_style, is_sharded, sample_files, sharded_alike
from torch_dataloader_utils.sources.source import Source, splits_of
from torch_dataloader_utils.sources.vocabularies import with_one_list
from torch_dataloader_utils.storage import usable_cores

# The datasets of a combination whose members may be combinations: taken out, with names and options checked.

_SHARES = ("weights", "temperature", "batches")  # what a combination may have within another


def flattened(datasets: Sequence[Any], names: Names, options: Options) -> tuple[Group, list[Any]]:
    """What a combination is made of, and all datasets, with those of the combinations among them.

    Args:
        datasets: sources, and map-style datasets.
        names: of these.
        options: of the combination.

    Raises:
        OptionError: a combination has options that it cannot have within another, or two datasets have one name.
    """
    members: list[MemberFacts | Group] = []
    flat: list[Any] = []
    for dataset, name in zip(datasets, names, strict=True):
        if isinstance(dataset, Source) and dataset.group is not None:
            _check_within(dataset, f"the combination {name!r}", options)
            members.append(dataset.group)
            flat += _datasets(dataset, dataset.group)
        else:
            facts = MemberFacts()
            if isinstance(dataset, Source):
                facts = MemberFacts(**{item.name: getattr(dataset, item.name) for item in fields(MemberFacts)})
            members.append(facts)
            flat.append(dataset)
    group = Group(tuple(names), tuple(members), options.mix)
    twice = [path for path, times in Counter(group.paths).items() if times > 1]
    if twice:
        raise OptionError(f"two datasets would have the name {shown(twice[0])}: rename one of them.")
    return group, flat


def _check_within(source: Source, label: str, options: Options) -> None:
    """Check that a combination's options can be those of a part of another.

    Raises:
        OptionError: they cannot.
    """
    _check_unweighted(source, label)
    mix = source.group.mix if source.group is not None else MixOptions()
    for item in fields(MixOptions):
        value = getattr(mix, item.name)
        if item.name not in _SHARES and value != item.default:
            name = item.name if item.metadata["keyword"] else "weights"
            given = value if name == item.name else weights_of(mix)
            where = ', for its datasets by path, such as "text/web"' if name == "repeat" else ""
            raise OptionError(
                f"{label} has {name}={shown(given)}, but within another one only its weights count: pass "
                f"{name}= to the outer combine{where}."
            )
    if mix.phases is not None:
        raise OptionError(
            f"{label} has weights that change, but within another one they are constant: change those of the outer "
            "combine."
        )
    if mix.batches != options.mix.batches:
        raise OptionError(
            f"{label} has batches={mix.batches!r}, but the outer one has batches={options.mix.batches!r}, and one "
            "schedule mixes all datasets: pass the same to both."
        )
    stage = source.scan.stage if isinstance(source.scan, CombinedScan) else None
    if stage is not None:
        raise OptionError(f"{label} has {stage.keyword}: pass it to the outer combine, for all datasets.")


def _datasets(source: Source, group: Group) -> Iterator[Any]:
    """The datasets of a combination, as they were before they were combined."""
    scans = source.scan.scans if isinstance(source.scan, CombinedScan) else ()
    for part, (scan, facts) in enumerate(zip(scans, group.facts, strict=True)):
        if isinstance(scan, SampleScan):
            yield scan.dataset
            continue
        files = (file for file in source.files if file.info.part == part)
        yield Source(
            tuple(replace(file, info=replace(file.info, part=0)) for file in files),
            Splits.of((), ()),  # made anew
            replace(cast(ScanSpec, scan), valid_key=None, source=None),
            facts.exact,
            (),
            skipped=facts.skipped,
            subset=facts.subset,
            counts_rows=facts.counts_rows,
            limited=facts.limited,
        )


Output = dict[str, Any]  # what a batch holds under one key


@dataclass(frozen=True)
class _Member:
    """One dataset of a combination."""

    name: str
    files: tuple[DataFile, ...]
    splits: Splits
    scan: ScanSpec | SampleScan
    exact: bool
    part: Part

    @property
    def counted(self) -> bool:
        """Whether its rows are known before they are read."""
        return self.exact and self.splits.uncounted is None

    @property
    def uncountable(self) -> Half | None:
        """Why no scan can count its rows; None if one can."""
        return _uncountable(self.scan) if isinstance(self.scan, ScanSpec) else None


def combined_source(datasets: Sequence[Any], names: Names, options: Options) -> Source:
    """The source over several datasets.

    Args:
        datasets: sources of files or of combinations, and map-style datasets.
        names: of the datasets: as the user named them, or their numbers.
        options: the options of the combination's loader.

    Raises:
        OptionError: the datasets cannot be combined, or their keys or dtypes differ.
        ShardingError: map-style datasets are sharded differently.
        CountsRequiredError: rows are mixed, but those of a dataset are known only after reading.
        EmptyDatasetError: a map-style dataset has no samples.
    """
    listed = sum(dataset.listed for dataset in datasets if isinstance(dataset, Source))
    group, datasets = flattened(datasets, names, options)
    names, datasets = group.paths, with_one_list(datasets)
    members = _members(datasets, group, options)
    jagged = members[0].scan.jagged
    keys = tuple(source for key in _outputs(members[0].scan) for source in jagged.get(key, (key,)))
    valid_key = mask_key(options, keys)
    of_rows = keys  # before any mask, which sequences have as their own
    keys = keys if valid_key is None else (*keys, valid_key)
    source_key = _source_key(options, keys, names)
    splits = Splits.joined([member.splits for member in members])
    keys = keys if source_key is None else (*keys, source_key.key)
    scans = tuple(_planned(*each, valid_key, len(splits), options) for each in zip(members, names, strict=True))
    scan = CombinedScan(scans, _given_names(names), source_key)
    source = Source(
        files=tuple(splits.files),
        splits=splits,
        scan=scan,
        rows_are_final=all(member.exact for member in members),
        keys=keys,
        parts=tuple(member.part for member in members),
        skipped=tuple(file for dataset in datasets if isinstance(dataset, Source) for file in dataset.skipped),
        subset=_subsets(datasets),
        listed=listed,
        group=group,
    )
    return options.features.source(source, of_rows, options)


def _planned(
    member: _Member, name: str | int, valid_key: str | None, splits: int, options: Options
) -> ScanSpec | SampleScan:
    """The scan of a dataset within a combination of so many splits."""
    scan = replace(member.scan, valid_key=valid_key)
    if isinstance(scan, SampleScan):
        return scan
    by_number, seed = member.exact and options.features.unit is Unit.ROW, options.shuffle.shuffle_seed
    return replace(scan, source=name).planned(splits, by_number=by_number, seed=seed)


def _members(datasets: Sequence[Any], group: Group, options: Options) -> list[_Member]:
    """The datasets as members that fit together: each checked by itself, then against the first.

    Raises:
        OptionError, ShardingError, CountsRequiredError, EmptyDatasetError: as `combined_source`.
    """
    trees, names = weight_trees(group), group.paths
    named = zip(labels(names), datasets, strict=True)
    plain = {_of_kind(label, item): item for label, item in named if not isinstance(item, Source)}
    sharded_alike(plain, options.shard.total_shards)
    MIXED_SHARDS.check(options)
    members = [
        _member(dataset, number, label, options)
        for number, (dataset, label) in enumerate(zip(datasets, labels(names), strict=True))
    ]
    if options.mixes_rows:
        options.features.check_parts([(member.name, member.counted, member.uncountable) for member in members], options)
    else:
        for member in members:
            if member.uncountable is not None and not member.counted:
                check_part(options, member.name, member.uncountable)
        members = _weighted(members, trees[0], options)
    outputs = [_outputs(member.scan) for member in members]
    for member, output in zip(members, outputs, strict=True):
        _check_keys(members[0].name, outputs[0], member.name, output)
    if not _is_arrow(options):  # there types are compared
        members = _alike(members, datasets, list(outputs[0]))
    for member, output in zip(members, outputs, strict=True):
        _check_same(members[0].name, outputs[0], member.name, output)
        if _is_arrow(options) and list(output) != list(outputs[0]):
            raise OptionError(
                f"Arrow batches need one order of columns: {members[0].name} has {list(outputs[0])}, {member.name} has "
                f"{list(output)}. Set columns= to order them."
            )
    num_ranks = _known_ranks(options)
    for member in members:
        if num_ranks is not None:
            member.part.check_ranks(num_ranks)
    return members


def _alike(members: list[_Member], datasets: Sequence[Any], keys: Sequence[str]) -> list[_Member]:
    """The datasets with numbers that stand for the same under each key."""
    sides = [
        Side(member.name, member.scan, _declares(member.scan, dataset))
        for member, dataset in zip(members, datasets, strict=True)
    ]
    scans = alike(sides, keys)
    return [replace(member, scan=scan) for member, scan in zip(members, scans, strict=True)]


def _declares(scan: ScanSpec | SampleScan, dataset: Any) -> bool:
    """Whether `schema=` may declare what the columns of a dataset's batches are."""
    if not (isinstance(scan, ScanSpec) and isinstance(dataset, Source)) or scan.transform is not None:
        return False
    return dataset.snapshot is None and getattr(scan.opener, "typed", True)


def _weighted(members: list[_Member], tree: WeightTree, options: Options) -> list[_Member]:
    """The datasets with the weights of their splits; unchanged if none were given."""
    if not tree.chosen:
        return members
    if MERGED_BY_WEIGHT.beside.holds(options):
        raise MERGED_BY_WEIGHT.between("weights", MERGED_BY_WEIGHT.beside.named(options))
    weights = tree.weights
    if weights is None or not tree.is_flat:
        if tree.needs_rows:
            check_weighable([(member.name, member.splits.rows is not None) for member in members])
        weights = tuple(map(float, tree.of_datasets([member.splits.rows or 0 for member in members])))
    parts = [replace(member.part, weight=weight) for member, weight in zip(members, weights, strict=True)]
    return [replace(member, part=part) for member, part in zip(members, parts, strict=True)]


def _subsets(datasets: Sequence[Any]) -> str:
    """Which rows of each dataset are chosen; "" if all rows of all are."""
    texts = [dataset.subset if isinstance(dataset, Source) else "" for dataset in datasets]
    return "; ".join(text or "all" for text in texts) if any(texts) else ""


def _known_ranks(options: Options) -> int | None:
    """The number of ranks if it is already known; otherwise it is checked at first use."""
    if options.shard.num_ranks is not None:
        return options.shard.num_ranks
    peers = options.shard.peers or job_peers()
    return None if peers is None else peers.world.num_ranks


def _given_names(names: Names) -> tuple[str, ...]:
    """The names that the user gave; empty if the datasets have only numbers."""
    return tuple(name for name in names if isinstance(name, str))


def _source_key(options: Options, keys: Sequence[str], names: Names) -> SourceKey | None:
    key = options.mix.source_key
    if key is None:
        return None
    if key in keys:
        raise OptionError(
            f"source_key={key!r} is already a key of the batches.", remedies=[use(source_key=f"{key}_dataset")]
        )
    return SourceKey(key, (_given_names(names) or None) if _is_arrow(options) else None)


def _member(dataset: Any, number: int, label: str, options: Options) -> _Member:
    if isinstance(dataset, Source):
        return _structured(dataset, number, label, options)
    if is_map_style(dataset):
        return _map_style(dataset, number, label, options)
    within = ". For a combination within another, pass combine({...})" if isinstance(dataset, Mapping) else ""
    raise OptionError(
        f"{label} is {type(dataset).__name__}: expected a source such as a path, a dict with one "
        "({'source': ..., ...}), a loader or dataset, or a map-style one (with __getitem__ and __len__)" + within + "."
    )


def _structured(source: Source, number: int, label: str, options: Options) -> _Member:
    scan = cast(ScanSpec, source.scan)
    if scan.arrow != _is_arrow(options):
        raise OptionError(
            f"output_format={options.batch.output_format!r} with {label}, which was made for "
            f"{'arrow or dict' if scan.arrow else 'torch or numpy'}: use the same output_format for both."
        )
    if scan.stage is not None:
        raise OptionError(f"{label} has {scan.stage.keyword}: pass it to combine, for all datasets.")
    _check_unweighted(source, label)
    files = tuple(replace(file, info=replace(file.info, part=number)) for file in source.files)
    name = label + (f" ({files[0].info.path}, ...)" if files else "")
    features, asked = options.features, options.shard.count_rows or source.counts_rows
    known = {"limited": source.limited, "counted": asked and not source.limited}
    counts = features.known_counts(scan, files, options, name, **known)
    key = features.counted_key(scan)
    if counts is None and (key is not None or (asked and not source.exact and _uncountable(scan) is None)):
        counts = _counted(scan, files, options, key)
    if counts is not None:
        files = features.planned(with_counts(files, counts))
    return _Member(
        name, files, splits_of(files, options.split), scan, source.exact or counts is not None, Part(name=label)
    )


def _check_unweighted(source: Source, label: str) -> None:
    if source.weights is not None:
        raise OptionError(
            f"{label} has row weights, which are those of its own loader: call set_row_weights of the combination, "
            "with the weights of all its rows."
        )


def _uncountable(scan: ScanSpec) -> Half | None:
    """Why no scan can count the rows of this one; None if one can."""
    if scan.copies is not None:
        return WEIGHTED
    return RESIZES if scan.transform_rows == "any" else None


def _counted(scan: ScanSpec, files: Sequence[DataFile], options: Options, key: str | None) -> RowCounts:
    """What plans count of each segment, rows or the values of lists, from a scan; each rank makes its own."""
    threads = usable_cores() if scan.storage.local else REMOTE_SCANS
    unit = options.features.unit.plural
    over = partial(progress_of(options).over, work=f"counting {unit}", unit=f"{scan.opener.segment_name}s")
    return scan_row_counts(scan, files, Sharing(), threads, over, key)


def _map_style(dataset: Any, number: int, label: str, options: Options) -> _Member:
    name = _of_kind(label, dataset)
    if options.worker.worker_mode == "processes" and options.worker.num_workers:
        _check_pickles(dataset, name)
    samples = first_samples(dataset, name)
    keys = fields_of(samples, name)
    columns = columns_of(samples, keys, name)
    size = sum(column.nbytes for column in columns.values()) // len(samples) + 1
    files = sample_files(dataset, number, name, size, options.split.split_rows)
    split = replace(options.split, split_strategy=None)
    # Without a shuffle, one split per shard, unless split_rows or split_bytes was given.
    if not options.shuffle.permutes and split.split_bytes == options.shuffle.split_bytes:
        split = replace(split, split_bytes=2**62)
    part = Part(name=label)
    if is_sharded(dataset):
        part = replace(part, total_shards=dataset.total_shards, dist_world_size=dataset.dist_world_size)
    return _Member(
        name, files, splits_of(files, split), SampleScan(dataset, name, keys, _is_arrow(options)), True, part
    )


def _of_kind(label: str, dataset: object) -> str:
    """A map-style dataset, for messages."""
    return f"{label} ({type(dataset).__name__})"


def _is_arrow(options: Options) -> bool:
    return options.batch.output_format in ("arrow", "dict")


class _Nowhere(io.RawIOBase):
    """A sink that discards its bytes."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


def _check_pickles(dataset: Any, name: str) -> None:
    try:
        pickle.Pickler(_Nowhere(), protocol=5).dump(dataset)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{name} cannot be pickled ({error}), but worker_mode='processes' sends it to each worker: make it "
            "picklable (no lambdas, locks or open files), or read in threads.",
            remedies=[use(worker_mode="threads")],
        ) from error


def _outputs(scan: ScanSpec | SampleScan) -> dict[str, Output]:
    """What a batch holds under each key."""
    if scan.arrow:
        return {item.name: {"type": item.type, "nullable": item.nullable} for item in scan.output_schema}
    codes = scan.converter.codes if isinstance(scan, ScanSpec) else {}
    sources = scan.converter.sources if isinstance(scan, ScanSpec) else {}
    outputs: dict[str, Output] = {}
    for key, leaf in scan.report().items():
        outputs[key] = {name: leaf[name] for name in ("kind", "dtype", "shape", "padding", "jagged") if name in leaf}
        if leaf["dtype"] == "object":
            outputs[key]["type"] = leaf["arrow"]
        vocabularies = [codes[source].vocabulary for source in sources.get(key, ()) if source in codes]
        if vocabularies:
            outputs[key]["vocabulary"] = [None if values is None else values.to_pylist() for values in vocabularies]
    return outputs


def _in_words(output: Output, differing: Collection[str]) -> str:
    return ", ".join(f"{word} {output.get(word)}" for word in sorted(differing))


def _check_keys(first: str, expected: Mapping[str, Output], name: str, given: Mapping[str, Output]) -> None:
    if expected.keys() != given.keys():
        raise OptionError(
            f"the datasets of a combination must have the same keys: {first} has {list(expected)}, {name} has "
            f"{list(given)}. Select or rename columns with columns= or transform."
        )


def _check_same(first: str, expected: Mapping[str, Output], name: str, given: Mapping[str, Output]) -> None:
    for key, output in expected.items():
        differing = [word for word in output.keys() | given[key].keys() if output.get(word) != given[key].get(word)]
        if "vocabulary" in differing:
            raise OptionError(
                f"the codes of the key {key!r} have other meanings in {first} than in {name}: give both the same "
                f"strings={{{key!r}: Codes([...])}} (of a stack: one for each of its columns)."
            )
        if differing:
            raise OptionError(
                f"the datasets of a combination must have the same dtypes: the key {key!r} has "
                f"{_in_words(output, differing)} in {first}, but {_in_words(given[key], differing)} in {name}. "
                + (
                    "Declare one type with schema=, or convert it in transform or __getitem__."
                    if "type" in differing
                    else "Cast with dtypes=, or in transform or __getitem__."
                )
            )
