"""Turns a path and options into what a dataset executes: files, splits and a scan, all checked at construction."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Protocol, TypeAlias

import pyarrow as pa

from torch_dataloader_utils import errors
from torch_dataloader_utils.convert.converter import Converter
from torch_dataloader_utils.distributed.exchange import Sharers
from torch_dataloader_utils.errors import EmptyDatasetError, OptionError, UnsupportedTypeError, use
from torch_dataloader_utils.filters.arrow import filter_columns
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.hashing import name_hash
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileKey, Unit
from torch_dataloader_utils.options import Options, ReadOptions, SplitOptions, SubsetOptions, mask_key, progress_of
from torch_dataloader_utils.options.late_clashes import FOREIGN_MEMORY
from torch_dataloader_utils.options.sources import SHARES
from torch_dataloader_utils.options.transform import PLACE, DeclaredTransform, RowsRead, takes_rng
from torch_dataloader_utils.planning.parts import Part, part_rows
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.printing import damage_in_words, listed, shown
from torch_dataloader_utils.reading.blocks import Scan
from torch_dataloader_utils.reading.chosen import RowCopies, RowMask
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.reading.draws import Draws
from torch_dataloader_utils.reading.encoded import read_encoded
from torch_dataloader_utils.reading.failures import Skipping, fills_of
from torch_dataloader_utils.reading.row_count_scan import (
    REMOTE_SCANS,
    Over,
    RowCounts,
    Sharing,
    scan_labels,
    scan_row_counts,
    scan_stored_rows,
    with_counts,
)
from torch_dataloader_utils.reading.row_generator import RowGenerator
from torch_dataloader_utils.reading.row_transform import RowTransform
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.transform_formats import FormattedTransform, formatted, no_rows
from torch_dataloader_utils.reading.transforms import Chained, check_transformed, declared
from torch_dataloader_utils.redaction import printable, redacted
from torch_dataloader_utils.schemas.columns import find_path, named_columns, select_columns, top_level
from torch_dataloader_utils.schemas.depth import has_values
from torch_dataloader_utils.sources.agreement import asks_scan, sharers_of, shares_work, sharing_of
from torch_dataloader_utils.sources.deleted_rows import LiveOpener
from torch_dataloader_utils.sources.group import Group
from torch_dataloader_utils.sources.inspection import files_to_read
from torch_dataloader_utils.sources.limit import first_rows
from torch_dataloader_utils.sources.manifest import FileManifest, listed_manifest
from torch_dataloader_utils.sources.manifest_file import Inspected
from torch_dataloader_utils.sources.numbering import check_counted, numbered, reads_all, stored_rows, unnumbered
from torch_dataloader_utils.sources.partitions import in_partitions
from torch_dataloader_utils.sources.places import keys_of, with_places
from torch_dataloader_utils.sources.row_names import check_added, converter_of
from torch_dataloader_utils.sources.skipped import SkippedFile, skipped_counts, skipped_reasons
from torch_dataloader_utils.sources.tables import TableSnapshot
from torch_dataloader_utils.storage import Storage, usable_cores
from torch_dataloader_utils.values import url_of

_LOG = logging.getLogger("torch_dataloader_utils")
_ENCODED_VALUES = 16_384  # vocabularies up to this size are read as dictionaries; beyond it, plain text is as fast


class RowWeights(Protocol):
    """By what the rows of a source are drawn; picklable.

    Attributes:
        text: a digest of the weights, and how many rows an epoch has.
        in_words: how many rows an epoch draws.
    """

    @property
    def text(self) -> str:
        """See above."""

    @property
    def in_words(self) -> str:
        """See above."""

    def in_epoch(self, source: Source, epoch: int) -> Source:
        """The source with the files and splits that an epoch reads."""


@dataclass(frozen=True)
class Source:
    """What a dataset reads; picklable.

    Attributes:
        files: the files, in order.
        splits: all splits, in file order.
        scan: the settings that all tasks share.
        rows_are_final: whether the planned row counts are those that are read.
        keys: the keys of a batch, in order.
        parts: the datasets of a combination; files and splits are in the same order.
        origin: identifies what the files were taken from if their names do not, such as a snapshot.
        skipped: damaged files that are left out.
        paths: where the files were searched for, or the table's name, without secrets; empty for a combination.
        snapshot: the table snapshot that is read, if the data is a table.
        listing: the storage and the files with their footers, for other loaders of them; copies have none.
        subset: which rows are chosen by `subset`, `fraction` and `limit`, as text; "" for all rows.
        buckets: how batches are cut by length, as text; "" if they are not.
        sequences: of which runs of rows there are windows, as text; "" if there are none.
        listed: seconds it took to list the files and read their footers, or to plan the snapshot.
        group: what a combination was made of; None for a dataset.
        counts_rows: whether a scan may count what a combination needs to know of its rows.
        limited: whether only the first of its rows are read, which no scan of tokens counts.
        unit: what a planned row is.
        weights: by which rows are drawn in each epoch; None: each is read once.
    """

    files: tuple[DataFile, ...]
    splits: Splits
    scan: Scan
    rows_are_final: bool
    keys: tuple[str, ...]
    parts: tuple[Part, ...] = (Part(),)
    origin: str = ""
    skipped: tuple[SkippedFile, ...] = ()
    paths: tuple[str, ...] = field(default=(), repr=False, compare=False)
    snapshot: TableSnapshot | None = field(default=None, repr=False, compare=False)
    listing: tuple[Storage, Inspected] | None = field(default=None, repr=False, compare=False)
    subset: str = ""
    buckets: str = ""
    sequences: str = ""
    listed: float = field(default=0.0, repr=False, compare=False)
    group: Group | None = field(default=None, repr=False, compare=False)
    counts_rows: bool = field(default=False, repr=False, compare=False)
    limited: bool = field(default=False, repr=False, compare=False)
    unit: Unit = Unit.ROW
    weights: RowWeights | None = field(default=None, repr=False, compare=False)

    @property
    def exact(self) -> bool:
        """Whether the planned row counts are those delivered."""
        return self.rows_are_final and self.unit.is_planned

    def in_epoch(self, epoch: int) -> Source:
        """What is read in an epoch: files and splits with as many rows as are drawn of them, if rows are drawn."""
        return self if self.weights is None else self.weights.in_epoch(self, epoch)

    @cached_property
    def by_key(self) -> Mapping[FileKey, DataFile]:
        """The files by key."""
        return {file.info.key: file for file in self.files}

    @cached_property
    def lap_rows(self) -> Mapping[int | str, int]:
        """The rows of each dataset of a combination, by its name or number; empty if unknown, or if they count else."""
        scan, known = self.scan, self.exact and self.splits.rows is not None
        if not isinstance(scan, CombinedScan) or self.unit is not Unit.ROW or not known:
            return {}
        rows = part_rows(self.splits, len(self.parts))
        return dict(zip(scan.names or range(len(rows)), rows, strict=True))

    @property
    def size(self) -> str:
        """Its size as text."""
        rows = "unknown" if self.splits.rows is None else f"{self.splits.rows:,}"
        if self.splits.rows is not None and not self.rows_are_final:
            rows = f"known only after reading (of {rows})"
        return f"files {len(self.files):,}, splits {len(self.splits):,}, {self.unit.planned}s {rows}"


def open_files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: Options,
    listing: tuple[Storage, Inspected] | None = None,
) -> Source:
    """The source over the files at `path`: lists them, reads their footers, and checks the options against them.

    Args:
        path: the files.
        options: of the loader.
        listing: of another source over them, which is not made again, unless other filters left out folders there.
    """
    if listing is not None and listing[1].filters is not None and listing[1].filters is not options.read.filters:
        listing = None
    paths = tuple(redacted(url_of(entry)) for entry in (path if isinstance(path, (list, tuple)) else [path]))
    name = ", ".join(paths)

    def manifest(sharers: Sharers) -> FileManifest:
        nonlocal listing
        listing = listing or files_to_read(path, options.read, sharers, progress_of(options))
        made = listed_manifest(*listing, options.read)
        if not made.has_rows:
            raise EmptyDatasetError(f"{name}: {made.file_count} file(s) were found, but they hold no rows at all.")
        if not made.schema.names:
            raise EmptyDatasetError(f"{name}: {made.file_count} file(s) were found, but they have no columns at all.")
        return made

    made = source_of(manifest, options, name)
    return replace(made, paths=paths, listing=listing)


def open_snapshot(snapshot: TableSnapshot, options: Options) -> Source:
    """The source over a snapshot of a table; the options are checked against it as they are against files."""

    def manifest(sharers: Sharers) -> FileManifest:
        made = snapshot.manifest(options)
        check_added(made.schema, options.read.metadata_columns, snapshot.name)
        return made

    source = source_of(manifest, options, snapshot.name)
    return replace(source, paths=(redacted(snapshot.name),), snapshot=snapshot)


def source_of(make: Callable[[Sharers], FileManifest], options: Options, name: str) -> Source:
    """The source over a manifest; counts rows and collects values if the options require it.

    Args:
        make: returns the manifest, which the given ranks share; if they share a scan, an error it raises is raised on
            all of them.
        options: checked against the data.
        name: the data's name, for messages.
    """
    sharers = sharers_of(options)
    if shares_work(options):
        sharers.meet("create this loader")
    sharing = _sharing(options, sharers)
    with sharing.failing_together():
        began = perf_counter()
        manifest = make(sharers)
        features, counts_rows = options.features, options.shard.count_rows
        options = replace(options, subset=_keyed(options.subset, manifest))
        manifest = _in_turn(_met(features.manifest(manifest, options), options, name), options)
        listed = perf_counter() - began
        _report_files(manifest, name)
        _check_processes(manifest.storage, options)
        scan = _scan(manifest, options)
        _report_missing(manifest, scan.schema.names, name)
        if scan.copies is not None:
            scan.copies.report(manifest.files, manifest.opener, name)
        found = features.known_counts(scan, manifest.files, options, name, limited=False, counted=counts_rows)
        key = features.counted_key(scan)
        _check_nulls(manifest, options, scan.converter)
        count = counts_rows and (key is not None or not _exact(scan, manifest.files)) and found is None
        scanned = _counts(scan, manifest.files, sharing, options, count, key)
    scanned = sharing.joined(scanned)
    files = _counted(manifest.files, scanned, (found or scanned) if count or found else None)
    files = first_rows(features.planned(files), options.subset.limit, count or _exact(scan, files))
    scan = read_encoded(_learned(scan, scanned, name), _ENCODED_VALUES)
    splits = splits_of(files, options.split)
    if not splits:
        _report_empty(name, _why_empty(manifest, options, count), follows=options.follow.follows)
    keys = scan.converter.keys if scan.valid_key is None else (*scan.converter.keys, scan.valid_key)
    counted = count or found is not None or _exact(scan, files)
    # Without rows the counts are known, unless later passes read others: options must fit those, too.
    exact = counted or not (splits or options.follow.follows)
    scan = scan.planned(len(splits), by_number=exact and features.unit is Unit.ROW)
    source = Source(
        files, splits, scan, exact, keys, origin=manifest.origin, skipped=manifest.skipped,
        subset=options.subset.text, listed=listed, counts_rows=counts_rows, limited=options.subset.limit is not None
    )  # fmt: skip
    return features.source(source, scan.converter.keys, options)


def _counted(files: Sequence[DataFile], scanned: RowCounts, live: RowCounts | None) -> tuple[DataFile, ...]:
    """The files with the numbers of rows that a scan found, and with these counts of live rows; None: without."""
    known = numbered(files, scanned)
    return known if live is None else with_counts(known, live)


def _report_empty(name: str, why: str, *, follows: bool) -> None:
    _LOG.log(logging.INFO if follows else logging.WARNING, "%s: %s; the loader is empty", name, why)


def _why_empty(manifest: FileManifest, options: Options, counted: bool) -> str:
    if not manifest.has_rows:
        return "nothing was added" if options.follow.follows else "the table holds no rows"
    if options.subset.by_hash and not manifest.files:
        return f"the subset ({options.subset.text}) holds no rows"
    if options.features.unit is Unit.TOKEN:
        of = "" if manifest.predicate is None else "that the filter keeps "
        return f"the documents {of}hold no token"
    if manifest.predicate is None:
        return "there are no rows in any file"
    return f"the filter matches no {'row' if counted else manifest.opener.segment_name} of any file"


def _check_processes(storage: Storage, options: Options) -> None:
    if storage.per_process and options.worker.worker_mode == "processes" and options.worker.num_workers:
        raise FOREIGN_MEMORY.between("worker_mode='processes'", f"{storage.protocol}://")


def _exact(scan: ScanSpec, files: Sequence[DataFile]) -> bool:
    """Whether all physical rows of the files are delivered, and no others."""
    return not scan.selects_rows and scan.transform_rows == "same" and all(file.layout.known for file in files)


def _sharing(options: Options, sharers: Sharers) -> Sharing:
    """The ranks that share a scan: decided by the options alone, so that all ranks join the exchange or none does."""
    return sharing_of(sharers, "exchange their row counts") if asks_scan(options) else Sharing()


def _row_counts(
    scan: ScanSpec, files: Sequence[DataFile], sharing: Sharing, options: Options, count: bool, key: str | None
) -> RowCounts:
    over = progress_over(scan, options, "counting rows" if count else "collecting values")
    return scan_row_counts(scan, files, sharing, scanning_threads(scan), over, key if count else None)


def scanning_threads(scan: ScanSpec) -> int:
    """How many threads read a scan fastest."""
    return usable_cores() if scan.storage.local else REMOTE_SCANS


def progress_over(scan: ScanSpec, options: Options, work: str) -> Over:
    """Shows the progress of this work over segments."""
    return partial(progress_of(options).over, work=work, unit=f"{scan.opener.segment_name}s")


def _counts(
    scan: ScanSpec, files: Sequence[DataFile], sharing: Sharing, options: Options, count: bool, key: str | None
) -> RowCounts:
    """What this rank counts and collects of the files before any plan."""
    scans = count or scan.converter.unlearned
    made = _row_counts(scan, files, sharing, options, count, key) if scans else RowCounts()
    if unnumbered(scan, files):
        check_counted(files, counts=options.shard.count_rows)
    if unnumbered(scan, files) and made.live_rows and key is None and reads_all(scan):
        made = replace(made, stored=made.live_rows)
    elif unnumbered(scan, files):
        all_rows, whole = stored_rows(scan, files)
        over = progress_over(scan, options, "numbering rows")
        stored = scan_stored_rows(all_rows, whole, sharing, scanning_threads(scan), over)
        made = replace(made, of=stored.of, stored=stored.stored)
    if scan.copies is None or not scan.copies.unlearned:
        return made
    over = progress_over(scan, options, "counting labels")
    labels = scan_labels(scan, files, sharing, scanning_threads(scan), over)
    return replace(made, of=labels.of, labels=labels.labels)


def _learned(scan: ScanSpec, counts: RowCounts, name: str) -> ScanSpec:
    """The scan that knows what was counted and collected; `name` is that of the data."""
    copies = scan.copies
    if copies is not None and copies.unlearned:
        copies = copies.learned(counts.labels, name)
    return replace(scan, copies=copies, converter=scan.converter.learned(counts.values))


def splits_of(files: Sequence[DataFile], options: SplitOptions) -> Splits:
    """All splits of these files, cut as the options say."""
    strategy = options.split_strategy
    if strategy is None or not hasattr(strategy, "split"):
        strategy = TargetSizeSplitStrategy(options.split_bytes, options.split_rows)
    return make_splits(strategy, files)


def _met(manifest: FileManifest, options: Options, name: str) -> FileManifest:
    """The manifest of which a transform that declares what it reads knows, with places if it asks for them."""
    first = _declared(options.read)
    if first is None:
        return manifest
    manifest = with_places(manifest, name) if PLACE in first.reads else manifest
    first.meet(partial(rows_read, manifest.files, options), name)
    return manifest


def _in_turn(manifest: FileManifest, options: Options) -> FileManifest:
    """The manifest whose files know their partitions, if these are read one after another."""
    if not options.shuffle.by_partition:
        return manifest
    return replace(manifest, files=in_partitions(manifest.files, manifest.relative or {}))


def _keyed(options: SubsetOptions, manifest: FileManifest) -> SubsetOptions:
    """The options with the column whose values replace the rows' places, if the manifest has one."""
    if manifest.row_key is None or options.by is not None:
        return options
    return replace(options, **options.hashed(by=[manifest.row_key]))


def _decisive_columns(manifest: FileManifest, chosen: RowMask | None, copies: RowCopies | None) -> tuple[str, ...]:
    """The columns that decide which rows are delivered, and how often."""
    undecided = manifest.predicate is not None and not manifest.decided
    of_filter = filter_columns(manifest.predicate, manifest.schema) if undecided else ()
    of_mask = () if chosen is None else (top_level(manifest.schema, name) for name in chosen.columns)
    of_copies = () if copies is None else (copies.column,)
    return tuple(dict.fromkeys([*of_filter, *of_mask, *of_copies]))


def _scan(manifest: FileManifest, options: Options) -> ScanSpec:
    read = options.read
    deliverable = manifest.deliverable
    given = select_columns(deliverable, _asked(deliverable, read))
    given = options.features.columns(given) if read.transform is None else given
    transform, output = transform_of(given, read)
    converted = options.features.columns(output, whole=True)
    converter = converter_of(converted, manifest.names, options)
    _warn_of_objects(converter)
    chosen, copies = options.features.chosen(manifest, options), options.features.copies(manifest, options)
    predicate_columns = _decisive_columns(manifest, chosen, copies)
    if SHARES in predicate_columns:
        raise OptionError(f"{SHARES!r} decides nothing: how often a row is drawn follows from the rows that are left.")
    needed = {top_level(manifest.schema, name) for name in given.names} | set(predicate_columns)
    needed |= set(options.features.needed(manifest.schema, options))
    _check_values(manifest.schema, needed, given)
    scan = ScanSpec(
        opener=manifest.opener,
        storage=manifest.storage,
        format_options=manifest.format_options,
        schema=pa.schema([item for item in manifest.schema if item.name in needed]),
        partition_names=frozenset(manifest.partition_names) & needed,
        predicate=manifest.predicate,
        decided=manifest.decided,
        predicate_columns=predicate_columns,
        given=given,
        transform=transform,
        transform_rows=read.transform_rows,
        output_schema=output,
        converter=converter if transform is None else converter.of_transform,
        arrow=options.batch.output_format in ("arrow", "dict"),
        valid_key=mask_key(options, converter.keys),
        chosen=chosen,
        copies=copies,
        keys=manifest.keys,
        names=tuple(name for name in read.metadata_columns if name in given.names),
    )
    return _of_rows(scan, manifest, options)


def _of_rows(scan: ScanSpec, manifest: FileManifest, options: Options) -> ScanSpec:
    """The scan that knows which rows it transforms, if draws of these or their errors depend on it.

    Raises:
        OptionError: a column cannot hold what is to fill it.
    """
    read = options.read
    if read.transform is not None and read.transform_random:
        scan = replace(scan, draws=Draws(options.shuffle.shuffle_seed)).with_places(keys_of(manifest))
    if not read.transform_skips:
        return scan
    filled = read.transform_on_error
    fills = {} if filled == "skip" else fills_of(scan.output_schema, filled.value)
    return replace(scan, skipping=Skipping(read.transform_max_errors, fills)).with_places()


def _asked(deliverable: pa.Schema, read: ReadOptions) -> Sequence[str] | None:
    """The columns that are asked for, or that the transform reads; None for all."""
    first = _declared(read)
    if read.columns is not None:
        asked = named_columns(deliverable, read.columns)
        return [*asked, PLACE] if first is not None and PLACE in first.reads else asked
    # It tells what is missing: some of them may be.
    return None if first is None else [name for name in first.reads if find_path(deliverable, name) is not None]


def _declared(read: ReadOptions) -> DeclaredTransform | None:
    """The first function of the transform, if it declares which columns it reads."""
    return declared(read.transform if callable(read.transform) else Chained(tuple(read.transform or ())))


def rows_read(files: Sequence[DataFile], options: Options) -> RowsRead:
    """Which rows are read of these files, so that the same ones are known again."""
    chosen = replace(options.subset, class_weights=None).text
    filters = "" if options.read.filters is None else repr(options.read.filters)
    names = {name_hash(file.info.path, file.info.file_size): file.name_hash for file in files}
    return RowsRead(names, "; ".join(filter(None, [chosen, filters])))


def _warn_of_objects(converter: Converter) -> None:
    """Warn, once for all of them, of columns whose rows become Python objects."""
    if converter.objects:
        columns = listed((f"{key!r} ({type_})" for key, type_ in converter.objects.items()))
        warnings.warn(
            printable(
                f"no tensors for {columns}: batches hold lists of Python objects. Leave such columns out with "
                "columns=, or convert them to numbers, strings or lists of numbers in transform."
            ),
            errors.UnsupportedTypeWarning,
            stacklevel=2,
        )


def _check_values(schema: pa.Schema, needed: Collection[str], given: pa.Schema) -> None:
    """Check that pyarrow can read the columns that are needed.

    Raises:
        UnsupportedTypeError: it has no arrays of the type of one of them.
    """
    unreadable = {kind for kind in set(schema.types) if not has_values(kind)}  # many columns are of few types
    bad = [field for field in schema if field.type in unreadable and field.name in needed] if unreadable else []
    if bad:
        others = [field.name for field in given if has_values(field.type)]
        raise UnsupportedTypeError(
            f"column {bad[0].name!r} is of type {bad[0].type}, whose values pyarrow cannot read: leave it out.",
            remedies=[use(columns=others)] if 0 < len(others) < len(given) else (),
        )


def _check_nulls(manifest: FileManifest, options: Options, converter: Converter) -> None:
    """Raise for nulls that the footers prove, if they would be an error later and nothing could remove them."""
    some = (
        (manifest.predicate is not None and not manifest.decided)
        or options.subset.by_hash
        or options.subset.limit is not None
    )
    if some or options.read.transform is not None or options.subset.class_weights is not None:
        return
    for column, path in manifest.null_evidence.items():
        if column in converter.null_error_columns:
            raise converter.null_error(column, path)


# Log lines about a new dataset: what filters ruled out, damaged files, columns of folders, and missing columns.

_SHOWN = 5  # columns listed in a line


def _report_files(manifest: FileManifest, name: str) -> None:
    _report_pruned(manifest, name)
    _report_skipped(manifest, name)
    _report_folders(manifest, name)


def _report_pruned(manifest: FileManifest, name: str) -> None:
    """Log how much filters ruled out before anything was read.

    Args:
        manifest: the manifest of the files.
        name: the data's name.
    """
    pruned = manifest.pruned
    if pruned.segments_after < pruned.segments_before or pruned.files_after < pruned.files_before:
        _LOG.info(
            "%s: filters keep %d of %d files, and %d of the %d %ss examined",
            name, pruned.files_after, pruned.files_before, pruned.segments_after, pruned.segments_before,
            manifest.opener.segment_name,
        )  # fmt: skip


def _report_skipped(manifest: FileManifest, name: str) -> None:
    """Log which damaged files are left out, and why.

    Args:
        manifest: the manifest of the files.
        name: the data's name.
    """
    skipped = manifest.skipped
    if skipped:
        _LOG.warning(
            "%s: on_error='skip' leaves out %s, and keeps %d: %s",
            name, damage_in_words(*skipped_counts(skipped)), manifest.file_count,
            skipped_reasons(skipped),
        )  # fmt: skip


def _report_folders(manifest: FileManifest, name: str) -> None:
    """Log which columns of files folder names replace, and why folders named `key=value` are no columns.

    Args:
        manifest: the manifest of the files.
        name: the data's name.
    """
    if manifest.unused_folders:
        _LOG.warning(
            "%s: folders named key=value become no columns, because %s. Pass partitioning=None if that is right.",
            name, manifest.unused_folders,
        )  # fmt: skip
    for column, path in manifest.overruled.items():
        _LOG.warning(
            "%s: column %r has the value that the name of the folder has, not those in the files: they differ, first "
            "in %s. Pass partitioning=None to get those of the files.",
            name, column, printable(path),
        )  # fmt: skip


def _report_missing(manifest: FileManifest, columns: Sequence[str], name: str) -> None:
    """Log in one line which columns are missing from files, with the number of these files and the first of them.

    Args:
        manifest: the manifest of the files.
        columns: the columns to be read.
        name: the data's name.
    """
    missing = {column: manifest.missing[column] for column in columns if column in manifest.missing}
    if not missing:
        return
    opener = manifest.opener.inner if isinstance(manifest.opener, LiveOpener) else manifest.opener
    sampled = isinstance(opener, Format) and not opener.typed
    listed = [
        f"{column!r} ({count} of {len(manifest.files)} files, the first is {printable(path)})"
        for column, (count, path) in list(missing.items())[:_SHOWN]
    ]
    more = f"; and {len(missing) - _SHOWN} more columns" if len(missing) > _SHOWN else ""
    _LOG.info(
        "%s: columns missing from some files%s are null there: %s%s",
        name, " (judged by their first MiB)" if sampled else "", "; ".join(listed), more,
    )  # fmt: skip


# The transform that the options give, and the columns that it returns.


Transform: TypeAlias = Callable[..., pa.RecordBatch]


def transform_of(given: pa.Schema, read: ReadOptions) -> tuple[Transform | None, pa.Schema]:
    """The transform of record batches, and its output schema: as given, else that of its result on 0 rows."""
    if read.transform is None:
        return None, given
    functions = (read.transform,) if callable(read.transform) else tuple(read.transform)
    draws = tuple(map(takes_rng, functions)) if read.transform_random else ()
    function = functions[0] if len(functions) == 1 and not draws else Chained(functions, draws)
    schema = read.transform_schema
    if not isinstance(schema, (pa.Schema, type(None))):
        raise OptionError(
            f"Transform(schema={shown(schema)}): expected a pyarrow.Schema of the columns that it returns."
        )
    rows = read.transform_format == "rows"
    transform = RowTransform(function, "rows", given, {}) if rows else formatted(function, read.transform_format, given)
    output = (
        _call_on_nothing(transform, given, RowGenerator.seeded(0, 0) if draws else None) if schema is None else schema
    )
    return (replace(transform, expected=output) if isinstance(transform, FormattedTransform) else transform), output


def _call_on_nothing(transform: Transform, given: pa.Schema, rng: RowGenerator | None) -> pa.Schema:
    nothing = no_rows(given)
    try:
        result = transform(nothing) if rng is None else transform(nothing, rng)
        check_transformed(nothing, result, "same", transform)
    except Exception as error:
        error.add_note(
            "raised by transform on 0 rows, called to learn which columns it returns. If it cannot take 0 rows, pass "
            "Transform(schema=), such as pa.schema({'ids': pa.list_(pa.int64())})."
        )
        raise
    return result.schema
