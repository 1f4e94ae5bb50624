"""From a path and options to what a dataset executes: files, splits and a scan, all checked at construction."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from torch_dataloader_utils import arrow_ops
from torch_dataloader_utils.errors import EmptyDatasetError, NullValueError, OptionError
from torch_dataloader_utils.model import DataFile, Split
from torch_dataloader_utils.options import Options, ReadOptions
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.reading.convert import Converter, build_converter
from torch_dataloader_utils.reading.scan import ScanSpec, check_transformed
from torch_dataloader_utils.sources.manifest import Manifest, build_manifest

_LOG = logging.getLogger("torch_dataloader_utils")


@dataclass(frozen=True)
class Source:
    """What a dataset reads; picklable.

    Attributes:
        files: the files, in order.
        splits: all splits, in file order.
        scan: what every task has in common.
        exact: whether the plan's rows are the rows that are delivered.
        keys: the keys of a batch, in order.
    """

    files: tuple[DataFile, ...]
    splits: tuple[Split, ...]
    scan: ScanSpec
    exact: bool
    keys: tuple[str, ...]

    @cached_property
    def by_path(self) -> Mapping[str, DataFile]:
        """The files by path."""
        return {file.info.path: file for file in self.files}


def open_files(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: Options) -> Source:
    """The source over the files at `path`: lists them, reads their footers, and checks the options against them."""
    manifest = build_manifest(path, options.read)
    if manifest.total_rows_before_filter == 0:
        raise EmptyDatasetError(f"{path}: {manifest.file_count} file(s) were found, and they hold no rows at all.")
    scan = _scan(manifest, options)
    _check_nulls(manifest, options, scan.converter)
    splits = _splits(manifest.files, options)
    if not splits:
        _LOG.warning("%s: the filter matches no row group of any file; the loader is empty", path)
    exact = not splits or (
        scan.predicate is None
        and not scan.converter.drop_columns
        and options.read.transform_rows == "same"
        and all(file.layout.known for file in manifest.files)
    )
    return Source(manifest.files, splits, scan, exact, scan.converter.keys)


def _splits(files: Sequence[DataFile], options: Options) -> tuple[Split, ...]:
    strategy = options.split.split_strategy
    if strategy is None or not hasattr(strategy, "split"):
        strategy = TargetSizeSplitStrategy(options.split.split_bytes, options.split.split_rows)
    return make_splits(strategy, files)


def _scan(manifest: Manifest, options: Options) -> ScanSpec:
    read = options.read
    given = arrow_ops.select_columns(manifest.schema, read.columns)
    output = _transformed_schema(given, read)
    converter = build_converter(output, options.convert, options.batch.output_format)
    predicate = arrow_ops.as_expression(read.filters, manifest.schema)
    predicate_columns = () if predicate is None else arrow_ops.filter_columns(predicate, manifest.schema)
    needed = {arrow_ops.top_level(manifest.schema, name) for name in given.names} | set(predicate_columns)
    return ScanSpec(
        format=manifest.format,
        storage=manifest.storage,
        format_options=dict(read.format_options or {}),
        schema=pa.schema([item for item in manifest.schema if item.name in needed]),
        partition_names=frozenset(manifest.partition_names) & needed,
        predicate=predicate,
        predicate_columns=predicate_columns,
        given=given,
        transform=read.transform,
        transform_rows=read.transform_rows,
        output_schema=output,
        converter=converter,
        arrow=options.batch.output_format in ("arrow", "dict"),
    )


def _transformed_schema(given: pa.Schema, read: ReadOptions) -> pa.Schema:
    """The schema after the transform: as given, else that of its result on 0 rows."""
    if read.transform is None:
        if read.transform_schema is not None:
            raise OptionError("transform_schema was given without transform.")
        return given
    if read.transform_schema is not None:
        return read.transform_schema
    return _call_on_nothing(read.transform, given)


def _call_on_nothing(transform: Callable[..., object], given: pa.Schema) -> pa.Schema:
    nothing = pa.RecordBatch.from_arrays([pa.array([], item.type) for item in given], schema=given)
    try:
        result = transform(nothing)
        check_transformed(nothing, result, "same")
    except Exception as error:
        error.add_note(
            "raised by transform on a record batch of 0 rows, called to learn its output schema; "
            "pass transform_schema= if it cannot take one."
        )
        raise
    assert isinstance(result, pa.RecordBatch)
    return result.schema


def _check_nulls(manifest: Manifest, options: Options, converter: Converter) -> None:
    """Refuse nulls that the footers prove, where they would be an error later and nothing could remove them."""
    if options.read.filters is not None or options.read.transform is not None:
        return
    for column, path in manifest.null_evidence.items():
        if column in converter.null_error_columns:
            raise NullValueError(converter.null_message(column, path))
