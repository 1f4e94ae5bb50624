"""Applies the options that choose some of the rows to the files of a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import itemgetter

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, use
from torch_dataloader_utils.filters.arrow import filter_columns
from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.options import SubsetOptions
from torch_dataloader_utils.reading.class_copies import ClassCopies
from torch_dataloader_utils.schemas.columns import available_columns, find_path, top_level
from torch_dataloader_utils.schemas.merge import is_text
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, chosen_file
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.storage import usable_cores
from torch_dataloader_utils.subsets.choice import Choice, choice_of
from torch_dataloader_utils.subsets.hashing import name_hash, number_hash
from torch_dataloader_utils.subsets.keys import ChosenKeys, check_keys

_LABELS = {int: "a whole number, such as 1", str: "a string, such as '1'", bool: "True or False"}


def keyed(options: SubsetOptions, manifest: FileManifest) -> SubsetOptions:
    """The options with the column whose values replace the rows' places, if the manifest has one."""
    if manifest.row_key is None or options.by is not None:
        return options
    return replace(options, **options.hashed(by=[manifest.row_key]))


def chosen_keys(manifest: FileManifest, options: SubsetOptions) -> ChosenKeys | None:
    """The rows to read by the values of key columns; None if they are chosen by their places.

    Raises:
        ColumnNotFoundError: there is no such column.
        OptionError: a column has a type that is not hashed.
    """
    choice = choice_of(options)
    if choice is None or options.by is None:
        return None
    check_keys(options.by, manifest.schema)
    return ChosenKeys(choice, options.by)


def named(manifest: FileManifest, options: SubsetOptions) -> FileManifest:
    """The manifest whose files have the hashes of their names, if copies of their rows are drawn."""
    if options.class_weights is None:
        return manifest
    relative = manifest.relative or {}
    return replace(
        manifest, files=tuple(replace(file, name_hash=name_hash(_name(file, relative))) for file in manifest.files)
    )


def class_copies(manifest: FileManifest, options: SubsetOptions) -> ClassCopies | None:
    """How many copies rows get by their class; None unless `class_weights` is given.

    Raises:
        ColumnNotFoundError: there is no such column.
        OptionError: the column's type has no labels, or not these.
    """
    if options.class_weights is None:
        return None
    ((column, weights),) = options.class_weights.items()
    if column not in manifest.schema.names:
        if find_path(manifest.schema, column) is not None:
            raise OptionError(
                f"class_weights: {column!r} is a field of a struct: expected a column of the file or table."
            )
        raise ColumnNotFoundError(f"class_weights: no column {column!r}: {available_columns(manifest.schema, column)}")
    kind = manifest.schema.field(column).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    python: type = int
    if types.is_boolean(plain):
        python = bool
    elif is_text(plain):
        python = str
    elif not types.is_integer(plain):
        raise OptionError(
            f"class_weights: column {column!r} has type {kind}: expected labels that are strings, whole numbers "
            "or bools."
        )
    for label in weights:
        if label is not None and type(label) is not python:
            raise OptionError(
                f"class_weights: label {label!r} of column {column!r}, of type {kind}: expected {_LABELS[python]}."
            )
    try:
        labels = pa.array(list(weights), plain)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise OptionError(f"class_weights: a label does not fit column {column!r} of type {kind}: {error}") from error
    return ClassCopies(column, labels, tuple(map(float, weights.values())), options.seed)


def decisive_columns(manifest: FileManifest, chosen: ChosenKeys | None, copies: ClassCopies | None) -> tuple[str, ...]:
    """The columns that decide which rows are delivered, and how often."""
    undecided = manifest.predicate is not None and not manifest.decided
    of_filter = filter_columns(manifest.predicate, manifest.schema) if undecided else ()
    of_subset = () if chosen is None else (top_level(manifest.schema, name) for name in chosen.columns)
    of_classes = () if copies is None else (copies.column,)
    return tuple(dict.fromkeys([*of_filter, *of_subset, *of_classes]))


def subset_of(manifest: FileManifest, options: SubsetOptions) -> FileManifest:
    """The manifest with only the files, segments or rows that are chosen by their place.

    Raises:
        OptionError: the rows of the table have no place that stays.
    """
    choice = choice_of(options)
    if choice is None or options.by is not None:
        return manifest
    if manifest.relative is None and options.unit != "file":
        given = next(f"{name}={value.short()}" for name, value in options.hashed(unit=options.unit).items())
        raise OptionError(
            f"{given} by {options.unit} with an Iceberg table: its rows move when the table is rewritten. "
            "Choose them by the values of a key column. (Rows of tables of format version 3 have ids.)",
            remedies=[use("chooses files", **options.hashed(unit="file"))],
        )
    names = [_name(file, manifest.relative or {}) for file in manifest.files]
    if options.unit != "row":
        _check_names(names, options)
    opener = manifest.opener
    if options.unit == "row" and not isinstance(opener, LiveOpener):
        opener = LiveOpener(opener)
    choose = partial(_chosen, choice=choice, unit=options.unit)
    with ThreadPoolExecutor(usable_cores(), "subset") as pool:
        files = tuple(file for file in pool.map(choose, manifest.files, names) if file.layout.segments)
    return replace(manifest, files=files, opener=opener)


def _name(file: DataFile, relative: Mapping[str, str]) -> str:
    """The path of a file below the given folder; of one given by name its last part, so that folders can be moved."""
    return relative.get(file.info.path, file.info.path.rsplit("/", 1)[-1])


def _check_names(names: Sequence[str], options: SubsetOptions) -> None:
    name, count = max(Counter(names).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise OptionError(
            f"unit={options.unit!r}: {count} of the given files are called {name!r}, so all of them would be in one "
            "subset. Give the folder that contains them, or a glob, as path, or choose single rows.",
            remedies=[use(**options.hashed())],
        )


def _chosen(file: DataFile, path: str, choice: Choice, unit: str) -> DataFile:
    """The file with only its chosen rows or segments; without segments if none is chosen."""
    name = name_hash(path)
    if unit == "row":
        return chosen_file(file, choice, name)

    def holds(segment: Segment) -> bool:
        return choice.holds_one(name if unit == "file" else number_hash(name, segment.number))

    segments = tuple(filter(holds, file.layout.segments))
    return replace(file, layout=replace(file.layout, segments=segments))


def first_rows(files: Sequence[DataFile], limit: int | None, exact: bool) -> tuple[DataFile, ...]:
    """The files with only the first `limit` rows of all, in order; None for all.

    Args:
        files: the files, with counts of the rows that are delivered.
        limit: the number of rows.
        exact: whether the counts are those of the rows that are delivered.

    Raises:
        OptionError: the counts are not known.
    """
    if limit is None:
        return tuple(files)
    if not exact or not all(file.layout.counted or file.layout.known for file in files):
        raise OptionError(
            f"limit={limit}: how many rows each file delivers is known only after reading it, because of a filter, a "
            "key, or a format without row counts.",
            remedies=[use("counts once", count_rows=True)],
        )
    kept: list[DataFile] = []
    for file in files:
        if limit == 0:
            break
        rows = sum(_live(segment, file.layout.counted) for segment in file.layout.segments)
        kept.append(file if rows <= limit else _beginning(file, limit))
        limit -= min(rows, limit)
    return tuple(kept)


def _live(segment: Segment, counted: bool) -> int:
    return int((segment.live_rows if counted else segment.rows) or 0)


def _beginning(file: DataFile, limit: int) -> DataFile:
    """The file with only its first `limit` rows: readers of counted segments never take rows after the counts."""
    layout, kept, left = file.layout, [], limit
    for segment in layout.segments:
        if left:
            rows = min(_live(segment, layout.counted), left)
            kept.append(replace(segment, live_rows=rows))
            left -= rows
    layout = replace(layout, segments=tuple(kept), counted=True)
    return replace(file, info=replace(file.info, record_count=limit), layout=layout)
