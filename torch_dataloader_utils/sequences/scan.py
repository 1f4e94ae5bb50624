"""Finds the runs of data that are in the order of their keys and times: one scan of these columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import Example, OptionError, UnsupportedTypeError, use
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, DataFileInfo
from torch_dataloader_utils.options.sequences import Windows, nanoseconds
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.reading.chosen import RowMask
from torch_dataloader_utils.reading.places import FileKeys
from torch_dataloader_utils.reading.row_count_scan import Over, Sharing, narrowed, over_segments
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.task_reader import TaskReader
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.schemas.columns import column_path, select_columns, top_level, type_at
from torch_dataloader_utils.schemas.value_hashes import is_hashed, key_hashes

U64 = npt.NDArray[np.uint64]
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class SegmentRuns:
    """The runs of one segment, as far as its own rows tell.

    Attributes:
        rows: its live rows.
        starts: the rows with which a run begins, int64 [runs], from 0.
        keys: the hash of the key of each run, uint64 [runs].
        ends: the times of the first and the last row.
        falls: a row whose time is before that of the row before it, although they have one key; -1 for none.
        stretches: how often a row has another key than the row before it; `starts` and `keys` are empty if a key
            comes back.
        distinct: how many keys there are.
        anchors: which rows are chosen as anchors, a bit each; None for all.
    """

    rows: int
    starts: I64
    keys: U64
    ends: tuple[Any, Any] | None
    falls: int
    stretches: int
    distinct: int
    anchors: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Clustered:
    """What a scan found: live rows and runs, in the order of the files.

    Attributes:
        live: of each file, the live rows of each of its segments.
        first: the number of each run's first row among all live rows, int64 [runs].
        rows: the rows of each run, int64 [runs].
        why: why the data are not in the order of their keys and times; "" if they are.
        anchors: which live rows are chosen as anchors, bool [rows]; None for all.
    """

    live: tuple[tuple[int, ...], ...]
    first: I64
    rows: I64
    why: str = ""
    anchors: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class TimeColumn:
    """The column of order, and how its values become numbers.

    Attributes:
        name: the column.
        kind: its type.
        gap: the largest step within a run, in the numbers' unit; None for any.
    """

    name: str
    kind: pa.DataType
    gap: float | Fraction | None

    def numbers(self, column: pa.ChunkedArray) -> npt.NDArray[Any]:
        """The values, none of them null, as numbers in ascending order of time: [n]."""
        if pa.types.is_temporal(self.kind):
            column = pc.cast(column, pa.int32() if self.kind.bit_width == 32 else pa.int64())
        return np.asarray(column.to_numpy())

    def parts(self, earlier: Any, later: Any) -> Any:
        """Whether steps are larger than the gap: bools [n], where `later` is not before `earlier`."""
        if self.gap is None:
            return np.zeros(np.shape(later), np.bool_)
        if np.asarray(later).dtype.kind == "f":
            return later - earlier > float(self.gap)
        steps = np.asarray(later).astype(np.uint64) - np.asarray(earlier).astype(np.uint64)  # exact, whatever the width
        return steps > np.uint64(min(int(self.gap), 2**64 - 1))


def time_column(windows: Windows, schema: pa.Schema) -> TimeColumn:
    """The column of order.

    Raises:
        ColumnNotFoundError: there is none.
        UnsupportedTypeError: its values are neither numbers nor times, or a column of `by` cannot be a key.
        OptionError: the gap is a duration, but the column has no times.
    """
    for name in windows.keys:
        kind = type_at(schema, column_path(schema, name))
        if not is_hashed(kind):
            raise UnsupportedTypeError(
                f"Windows(by={name!r}) is a column of {kind}: expected whole numbers, strings, bytes, dates, "
                "timestamps or bools."
            )
    kind = type_at(schema, column_path(schema, windows.order))
    types = pa.types
    if not (types.is_integer(kind) or types.is_floating(kind) or _is_time(kind)):
        raise UnsupportedTypeError(
            f"Windows(order={windows.order!r}) is a column of {kind}: expected numbers, dates or timestamps."
        )
    return TimeColumn(windows.order, kind, _gap(windows, kind))


def _is_time(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_duration(kind))


def _gap(windows: Windows, kind: pa.DataType) -> float | Fraction | None:
    gap = windows.gap
    if not isinstance(gap, str):
        return gap
    if not _is_time(kind):
        raise OptionError(
            f"Windows(gap={gap!r}): {windows.order!r} is a column of {kind}, which has no unit of time: give the gap "
            "as a number."
        )
    exact = nanoseconds(gap)
    assert exact is not None
    if pa.types.is_date(kind):
        return exact / (86_400 * 10**9 if kind.bit_width == 32 else 10**6)
    return exact * _PER_SECOND[kind.unit] / 10**9


def clustered(
    scan: ScanSpec,
    files: Sequence[DataFile],
    of: tuple[Windows, TimeColumn],
    sharing: Sharing,
    threads: int,
    over: Over,
    chosen: RowMask | None = None,
) -> Clustered:
    """The runs of these files, whose rows are read in place if those of a key are together and in order.

    Args:
        scan: of the loader.
        files: of all ranks.
        of: which rows are a sequence, and what a run is.
        sharing: the ranks that share the work.
        threads: that read.
        over: shows the progress over a number of segments.
        chosen: chooses rows as anchors; None for all.

    Raises:
        OptionError: a key or a time is null; names the file.
    """
    windows, time = of
    spec = _with_anchors(live_columns(scan, [*windows.keys, windows.order], _whole(scan, chosen)), files, chosen)

    def work(reader: TaskReader, file: DataFileInfo, place: int) -> SegmentRuns:
        table = reader.live(file.key, place)[1]
        found = segment_runs(table, windows, time, file.path)
        return found if chosen is None else replace(found, anchors=np.packbits(chosen.mask(table).to_numpy(False)))

    with sharing.failing_together():
        own = over_segments(spec, files, sharing, threads, over, work)
    found: dict[int, list[SegmentRuns]] = {}
    for part in sharing.gathered(own):
        found |= part
    ordered = [found[place] for place in range(len(files))]
    joined = joined_runs(ordered, time, [file.info.path for file in files])
    return joined if chosen is None else replace(joined, anchors=_anchors(part for of in ordered for part in of))


def _anchors(parts: Iterable[SegmentRuns]) -> npt.NDArray[np.bool_]:
    """Which live rows are chosen as anchors."""
    bits = [np.unpackbits(part.anchors, count=part.rows) for part in parts if part.anchors is not None]
    return np.concatenate([np.zeros(0, np.uint8), *bits]).astype(np.bool_)


def _whole(scan: ScanSpec, chosen: RowMask | None) -> list[str]:
    """The columns of the top level by which anchors are chosen."""
    names = () if chosen is None else chosen.columns
    return [top_level(scan.schema, name) for name in names if name != PLACE]


def _with_anchors(spec: ScanSpec, files: Sequence[DataFile], chosen: RowMask | None) -> ScanSpec:
    """The scan that also reads the places of rows, if these decide."""
    if chosen is None or PLACE not in chosen.columns:
        return spec
    return replace(spec, keys=None).with_places(FileKeys({file.info.path: file.name_hash for file in files}))


def live_columns(scan: ScanSpec, names: Sequence[str], whole: Iterable[str] = ()) -> ScanSpec:
    """The scan of these columns of live rows, and of what says which rows are live.

    Args:
        scan: of the loader.
        names: the columns.
        whole: columns of the top level that are read, too.
    """
    narrow = narrowed(replace(scan, stage=None))
    wanted = list(select_columns(scan.schema, list(dict.fromkeys([*whole, *names]))))
    given = [item for item in scan.given if item.name in _dropping(narrow) and item not in wanted]
    needed = {top_level(scan.schema, item.name) for item in (*wanted, *given)} | set(narrow.predicate_columns)
    schema = pa.schema([item for item in scan.schema if item.name in needed])
    return replace(narrow, schema=schema, given=pa.schema([*wanted, *given]), transform=None, encoded=frozenset())


def _dropping(scan: ScanSpec) -> frozenset[str]:
    return frozenset(scan.converter.drop_columns)


def segment_runs(table: pa.Table, windows: Windows, time: TimeColumn, path: str) -> SegmentRuns:
    """The runs of the live rows of a segment.

    Args:
        table: has the columns of keys and time.
        windows: which rows are a sequence.
        time: the column of order.
        path: of the file, for errors.

    Raises:
        OptionError: a key or a time is null.
    """
    rows = table.num_rows
    for name in (*windows.keys, windows.order):
        _check_known(table.column(name), name, windows, path)
    if not rows:
        return SegmentRuns(0, np.zeros(0, np.int64), np.zeros(0, np.uint64), None, -1, 0, 0)
    times = time.numbers(table.column(windows.order))
    keys = keys_of_rows(table, windows)
    other = keys[1:] != keys[:-1]
    falls = np.flatnonzero(~other & (times[1:] < times[:-1]))
    parted = other | (~other & time.parts(times[:-1], times[1:]))
    heads = keys[np.concatenate([[0], np.flatnonzero(other) + 1])]
    distinct, ends = len(np.unique(heads)), (times[0].item(), times[-1].item())
    if distinct < len(heads) or len(falls):
        where = int(falls[0]) + 1 if len(falls) else -1
        return SegmentRuns(rows, np.zeros(0, np.int64), np.zeros(0, np.uint64), ends, where, len(heads), distinct)
    starts = np.concatenate([[0], np.flatnonzero(parted) + 1])
    return SegmentRuns(rows, starts, keys[starts], ends, -1, len(heads), distinct)


def keys_of_rows(table: pa.Table, windows: Windows) -> U64:
    """The hash of the key of each row."""
    if not windows.keys:
        return np.zeros(table.num_rows, np.uint64)
    return key_hashes([table.column(name) for name in windows.keys])


def _check_known(column: pa.ChunkedArray, name: str, windows: Windows, path: str) -> None:
    """Check that no value is null, nor NaN."""
    floating = pa.types.is_floating(column.type)
    bad = pc.is_null(column, nan_is_null=True) if floating else pc.is_null(column)
    if not pc.any(bad, min_count=0).as_py():
        return
    field, known = f"pc.field({name!r})", pc.field(name).is_valid()
    text = f"{field}.is_valid()"
    if floating:
        text, known = f"~{field}.is_null(nan_is_null=True)", ~pc.field(name).is_null(nan_is_null=True)
    what, row = "null or NaN" if floating else "null", pc.index(bad, True).as_py()
    role = "order" if name == windows.order else "by"
    why = "its place in time is unknown" if role == "order" else "windows would join rows of unknown keys"
    raise OptionError(
        f"{printable(path)}: {name!r}, the column of Windows({role}=), is {what} in row {row} of those read together: "
        f"{why}. Leave such rows out (import pyarrow.compute as pc).",
        remedies=[use(filters=Example(text, known))],
    )


def joined_runs(found: Sequence[Sequence[SegmentRuns]], time: TimeColumn, paths: Sequence[str]) -> Clustered:
    """The runs of all segments, those joined that go on in the next segment.

    Args:
        found: of each file, the runs of each segment.
        time: the column of order.
        paths: of the files, for `why`.
    """
    live = tuple(tuple(part.rows for part in parts) for parts in found)
    nothing = Clustered(live, np.zeros(0, np.int64), np.zeros(0, np.int64))
    parts = [(part, path) for of_file, path in zip(found, paths, strict=True) for part in of_file if part.rows]
    why = next((_fall(time, path) for part, path in parts if part.falls >= 0), "")
    if any(not len(part.starts) for part, _ in parts):
        return replace(nothing, why=why or _scattered([part for part, _ in parts]))
    firsts, keys, heads, row, last = [], [], [], 0, None
    for part, path in parts:
        assert part.ends is not None
        goes_on = last is not None and last[0] == part.keys[0]
        if goes_on and last is not None and part.ends[0] < last[1]:
            return replace(nothing, why=_fall(time, path))
        cut = 1 if goes_on and last is not None and not bool(time.parts(_one(last[1]), _one(part.ends[0]))[0]) else 0
        firsts.append(part.starts[cut:] + row)
        head = np.concatenate([[not goes_on], part.keys[1:] != part.keys[:-1]])
        heads.append(head[cut:])
        keys.append(part.keys[cut:])
        row, last = row + part.rows, (part.keys[-1], part.ends[1])
    first = np.concatenate([np.zeros(0, np.int64), *firsts]).astype(np.int64)
    of_keys = np.concatenate([np.zeros(0, np.uint64), *keys])[np.concatenate([np.zeros(0, np.bool_), *heads])]
    distinct = len(np.unique(of_keys))
    if distinct < len(of_keys):
        return replace(nothing, why=_scattered_in(len(of_keys), distinct))
    return Clustered(live, first, np.diff(first, append=row))


def _one(value: Any) -> npt.NDArray[Any]:
    return np.array([value], np.uint64 if isinstance(value, int) and value >= 2**63 else None)


def _fall(time: TimeColumn, path: str) -> str:
    return f"in {printable(path)}, {time.name!r} falls from a row to the next of the same key"


def _scattered(parts: Sequence[SegmentRuns]) -> str:
    worst = max(parts, key=lambda part: part.stretches / max(part.distinct, 1))
    return _scattered_in(worst.stretches, worst.distinct)


def _scattered_in(stretches: int, distinct: int) -> str:
    return (
        f"the rows of a key lie apart, in {stretches / max(distinct, 1):.1f} places on average, so that a window would "
        "be read from about as many"
    )
