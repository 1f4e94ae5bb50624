"""Windows over time as a feature: checked against the columns that are read, and what they change of a loader."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.batching.batches import BatchMaker
from torch_dataloader_utils.convert.plan import pad_value
from torch_dataloader_utils.errors import ColumnNotFoundError, Example, OptionError, UnsupportedTypeError, use
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.model import DataFile, Unit
from torch_dataloader_utils.options import Options, repeats_rows
from torch_dataloader_utils.options.by_column import with_leaf
from torch_dataloader_utils.options.sequences import EDGE, Windows
from torch_dataloader_utils.options.sources import FILE, SHARES
from torch_dataloader_utils.options.strings import Codes
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.printing import listed, plural, shown
from torch_dataloader_utils.reading.row_count_scan import RowCounts, with_counts
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.transforms import reads_place
from torch_dataloader_utils.schemas.columns import available_columns, find_path, top_level
from torch_dataloader_utils.sequences.batches import WindowMaker
from torch_dataloader_utils.sequences.columns import FUTURE, VALID_FUTURE, VALID_PAST, WindowKeys
from torch_dataloader_utils.sequences.runs import TimeRuns
from torch_dataloader_utils.sequences.scan import Clustered, TimeColumn, clustered, time_column
from torch_dataloader_utils.sequences.sorting import RowOrder, SortedCopy
from torch_dataloader_utils.sequences.stage import WindowStage
from torch_dataloader_utils.sources.agreement import sharers_of, sharing_of
from torch_dataloader_utils.sources.source import Source, open_files, progress_over, scanning_threads, splits_of
from torch_dataloader_utils.storage.file_locks import AVAILABLE, NEEDED

_LOG = logging.getLogger("torch_dataloader_utils")
_WORK = "finding windows"


@dataclass(frozen=True)
class TimeWindows(Feature):
    """Windows of rows that follow one another in time. A row of a plan is the anchor of one.

    Attributes:
        windows: which there are.
    """

    windows: Windows

    @property
    def unit(self) -> Unit:
        """Windows, each by its anchor."""
        return Unit.WINDOW

    def needed(self, schema: pa.Schema, options: Options) -> Sequence[str]:
        """The columns of keys and times, and those by which a subset chooses anchors.

        Raises:
            ColumnNotFoundError: there is no such column.
        """
        for name in (*self.windows.keys, self.windows.order):
            if find_path(schema, name) is None:
                role = "order" if name == self.windows.order else "by"
                raise ColumnNotFoundError(
                    f"Windows({role}={name!r}): no such column: {available_columns(schema, name)}"
                )
        chosen = options.features.anchors(options)
        names = [*self.windows.keys, self.windows.order, *(() if chosen is None else chosen.columns)]
        return [top_level(schema, name) for name in names if name != PLACE]

    def source(self, source: Source, keys: Sequence[str], options: Options) -> Source:
        """The windows of these rows.

        Raises:
            ColumnNotFoundError, UnsupportedTypeError, OptionError: they cannot be made of the columns.
        """
        scan = source.scan
        assert isinstance(scan, ScanSpec)
        time = time_column(self.windows, scan.schema)
        window_keys = keys_of(self.windows, keys, scan.report(), options)
        _check_subset(self.windows, options)
        copy = self._copy(source, scan, time, options)
        if copy is not None and copy.is_there:
            return self._of_copy(copy, source, scan, options)
        found = self._found(scan, source.files, time, options)
        if found.why:
            if copy is None:
                raise self._not_in_order(found.why)
            copy.write(progress_over(scan, options, "sorting rows"))
            return self._of_copy(copy, source, scan, options)
        runs = TimeRuns(self.windows, found.first, found.rows)
        runs = runs if found.anchors is None else runs.choosing(found.anchors)
        files = _counted(source.files, found.live)
        planned = _counted(source.files, _anchors(runs, found.live))
        before = _running([file.info.record_count or 0 for file in planned])
        stage = WindowStage(
            runs,
            window_keys,
            files,
            dict(zip((file.info.key for file in planned), before, strict=False)),
            scan.valid_key,
        )
        splits = splits_of(planned, options.split)
        if len(runs.rows) and not splits:
            _LOG.warning("sequences: no run has the %d rows of a window; the loader is empty", sum(self.windows.least))
        scan = replace(_without(scan, self.needed(scan.schema, options)), stage=stage)
        scan = scan.planned(len(splits), by_number=True)
        of_batches = window_keys.of_batches(self.windows.horizon)
        of_batches = of_batches if scan.valid_key is None else (*of_batches, scan.valid_key)
        windows = self.windows.replace(sort=None).short()
        text = f"{windows}: {plural(len(runs.rows), 'run')} of {plural(int(runs.rows.sum()), 'row')}"
        return replace(
            source, files=planned, splits=splits, scan=scan, keys=of_batches, rows_are_final=True, unit=self.unit,
            sequences=text,
        )  # fmt: skip

    def _found(self, scan: ScanSpec, files: Sequence[DataFile], time: TimeColumn, options: Options) -> Clustered:
        """The runs of the data."""
        sharing = sharing_of(sharers_of(options), "exchange the runs of their windows", _WORK)
        over, chosen = progress_over(scan, options, _WORK), options.features.anchors(options)
        return clustered(scan, files, (self.windows, time), sharing, scanning_threads(scan), over, chosen)

    def _not_in_order(self, why: str) -> OptionError:
        windows, key = self.windows, ", ".join(self.windows.keys)
        folder = Example("folder", os.path.join(tempfile.gettempdir(), "sorted"))
        return OptionError(
            f"sequences: {why}. Windows are read in place where the rows of a key are together, in the order of "
            f"{windows.order!r}: sort the data by {f'{key}, ' if key else ''}{windows.order}, or let a sorted copy be "
            f"written, once, to a local folder, by Windows(..., sort={folder!r}).",
            remedies=[use(sequences={**windows.to_dict(), "sort": folder})],
        )

    def _copy(self, source: Source, scan: ScanSpec, time: TimeColumn, options: Options) -> SortedCopy | None:
        """The sorted copy, if one is asked for.

        Raises:
            OptionError: a transform knows rows by their places, which a copy does not keep; or this is Windows.
        """
        if self.windows.sort is None:
            return None
        if not AVAILABLE:
            raise OptionError(
                f"Windows(sort=) {NEEDED} Sort the data before they are read, or use WSL.",
                remedies=[use("reads data in order", sequences=self.windows.replace(sort=None))],
            )
        if reads_place(scan.transform):
            raise OptionError(
                "Windows(sort=) with a transform that was fitted on the same rows: it knows them by their places in "
                "the files, which differ in a sorted copy. Tell them apart by columns, as TargetEncode(by=[...]) "
                "does, or sort the data before they are fitted."
            )
        rows = "" if options.chooses_anchors else options.subset.text
        identity = "; ".join((source.origin, rows, options.convert.nulls_text))
        order, needed = RowOrder(self.windows, time), self.needed(scan.schema, options)
        return SortedCopy(scan, source.files, order, self.windows.sort, identity, needed)

    def _of_copy(self, copy: SortedCopy, source: Source, scan: ScanSpec, options: Options) -> Source:
        """The windows of the sorted copy."""
        given = tuple(item.name for item in scan.given if item.name != PLACE)
        given_names = tuple(name for name in options.read.metadata_columns if name == SHARES)  # others are in the copy
        of_source = ("filters", "schema", "storage_options", "filesystem", "manifest", "cache", "format_options")
        plain: dict[str, Any] = {**dict.fromkeys((*of_source, "partitioning")), "format": "ipc", "on_error": "raise"}
        read = replace(options.read, columns=given, metadata_columns=given_names, **plain)
        convert = options.convert
        if FILE in scan.converter.codes:
            names = Codes(tuple(scan.converter.vocabulary(FILE)))
            convert = replace(convert, strings=with_leaf(convert.strings, "list", FILE, names))
        subset = options.subset if options.chooses_anchors else replace(options.subset, subset=None, fraction=None)
        sequence = replace(options.sequence, sequences=self.windows.replace(sort=None))
        options = replace(options, read=read, convert=convert, subset=subset, sequence=sequence)
        made = open_files(copy.path, replace(options, features=options.features.of(options)))
        kept = ("origin", "skipped", "paths", "snapshot", "listing", "subset", "listed")
        text = f"{made.sequences}, in a sorted copy: {copy.path}"
        return replace(made, sequences=text, **{name: getattr(source, name) for name in kept})

    def batches(self, maker: BatchMaker) -> BatchMaker:
        """Batches of windows."""
        return WindowMaker(maker, self.windows)


def time_windows(options: Options) -> TimeWindows | None:
    """The feature of `sequences`; None without it."""
    windows = options.sequence.sequences
    return None if windows is None else TimeWindows(windows)


def keys_of(
    windows: Windows, keys: Sequence[str], report: Mapping[str, Mapping[str, Any]], options: Options
) -> WindowKeys:
    """The keys of batches; checks that windows can be made of these columns.

    Args:
        windows: which windows there are.
        keys: of the rows.
        report: the content of the rows by key.
        options: of the loader.

    Raises:
        ColumnNotFoundError: a column that is named does not exist.
        UnsupportedTypeError: windows cannot be made of a column.
        OptionError: a key is there twice, or a column cannot hold what is to fill it.
    """
    pads = windows.pad if isinstance(windows.pad, Mapping) else {}
    for role, named in (("static", windows.static), ("future", windows.future or ()), ("pad", pads)):
        for name in named:
            if name not in keys:
                raise ColumnNotFoundError(
                    f"Windows({role}=): batches have no key {name!r}: expected one of {list(keys)}."
                )
    own = {*windows.static, *windows.keys, *({SHARES} & set(options.read.metadata_columns))}  # a window is drawn whole
    static = tuple(key for key in keys if key in own)
    past = tuple(key for key in keys if key not in static)
    if not past:
        raise OptionError(f"sequences: all columns of batches, {list(keys)}, have one value for a window: read others.")
    for role, named in (("future", windows.future or ()), ("pad", pads)):
        for name in named:
            if name in static:
                raise OptionError(
                    f"Windows({role}=): {name!r} has one value for a window, as the columns of by and static have."
                )
    _check_numbers(windows, {key: report[key] for key in past})
    future = past if windows.future is None else tuple(key for key in past if key in windows.future)
    future = future if windows.horizon else ()
    padded = windows.pad is not None
    fills = {key: _fill(windows, key, report[key]) for key in past} if padded and windows.pad != EDGE else {}
    made = WindowKeys(past, future, static, fills, padded, tuple(keys))
    mask = [options.batch.valid_key] if repeats_rows(options) else []
    of_batches = [*made.of_batches(windows.horizon), *mask]
    twice = next((key for place, key in enumerate(of_batches) if key in of_batches[:place]), None)
    if twice is not None:
        added = f"the keys that end in {FUTURE}, {VALID_PAST} and {VALID_FUTURE}"
        raise OptionError(f"sequences: {twice!r} would be twice in batches: it adds {added}. Rename the column.")
    return made


def _check_numbers(windows: Windows, contents: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that windows can be made of these keys: numbers, and lists of one length."""
    kinds = {key: of.get("arrow", of["kind"]) for key, of in contents.items() if of["kind"] != "dense"}
    if not kinds:
        return
    all_text = all(str(kind) in ("string", "large_string") for kind in kinds.values())
    fields: dict[str, Any] = {"static": [*windows.static, *kinds]}
    if windows.future is not None:
        fields["future"] = [key for key in windows.future if key not in kinds] or None
    if isinstance(windows.pad, Mapping):
        fields["pad"] = {key: value for key, value in windows.pad.items() if key not in kinds}
    raise UnsupportedTypeError(
        f"sequences: {listed(f'column {key!r} is of type {kind}' for key, kind in kinds.items())}, but windows are "
        "made of numbers, and of lists of one length, which Files(path, schema=) can declare.",
        remedies=[
            *([use("whole numbers", strings="codes")] if all_text else []),
            use("one value for a window", sequences=windows.replace(**fields)),
        ],
    )


def _fill(windows: Windows, key: str, content: Mapping[str, Any]) -> Any:
    value = windows.pad.get(key, 0) if isinstance(windows.pad, Mapping) else windows.pad
    if content["dtype"] == "bool" and not isinstance(windows.pad, Mapping):
        value = 0  # masks of nulls are beside other columns: what is said of all is not said of them
    ways = [use(sequences=windows.replace(pad=EDGE)), use(sequences=windows.replace(pad={key: 0}))]
    return pad_value(f"Windows(pad={shown(value)}) in column {key!r}", value, np.dtype(content["dtype"]), *ways)


def _check_subset(windows: Windows, options: Options) -> None:
    """Check that a subset takes sequences or windows; warn if windows of several subsets share rows.

    Raises:
        OptionError: it takes files or segments, which hold parts of sequences.
    """
    subset = options.subset
    if not options.chooses_anchors:
        return
    whole = [use("takes whole sequences", **subset.hashed(by=list(windows.keys)))] if windows.keys else []
    if subset.unit != "row":
        raise OptionError(
            f"sequences with a subset by {subset.unit}: it would hold parts of sequences.",
            remedies=[*whole, use("takes windows", **subset.hashed())],
        )
    if subset.subset is not None and windows.stride < windows.length + windows.horizon:
        text = str(whole[0]) if whole else f"filters on {windows.order!r}"
        _LOG.warning(
            "the subset chooses windows one by one, and those that share rows may be in several subsets, so that what "
            "is trained on leaks into validation. Use %s.", text,
        )  # fmt: skip


def _counted(files: Sequence[DataFile], counts: Sequence[Sequence[int]]) -> tuple[DataFile, ...]:
    """The files with these counts of their segments; without those that have none."""
    return with_counts(files, RowCounts(live_rows={place: tuple(of) for place, of in enumerate(counts)}))


def _anchors(runs: TimeRuns, live: Sequence[Sequence[int]]) -> list[list[int]]:
    """How many windows have their anchor in each segment, of each file."""
    ends = np.cumsum([0, *(rows for of_file in live for rows in of_file)])
    counts = iter(np.diff(runs.anchors_before(ends)).tolist())
    return [[next(counts) for _ in of_file] for of_file in live]


def _running(counts: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


def _without(scan: ScanSpec, names: Sequence[str]) -> ScanSpec:
    """The scan that reads these columns no more, unless they are delivered or decide which rows are."""
    kept = {top_level(scan.schema, item.name) for item in scan.given} | set(scan.predicate_columns)
    gone = set(names) - kept
    schema = pa.schema([item for item in scan.schema if item.name not in gone])
    return replace(scan, schema=schema, partition_names=scan.partition_names - gone, encoded=scan.encoded - gone)
