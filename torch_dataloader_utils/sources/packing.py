"""Checks the options that pack documents against the columns that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.plan import pad_value
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError, leave_out, use
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options import Options, PackOptions, progress_of, repeats_rows
from torch_dataloader_utils.options.packing import Pack
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.reading.packed import Packing
from torch_dataloader_utils.reading.row_count_scan import REMOTE_SCANS, RowCounts, Sharing, scan_row_counts
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.sequence_columns import KEYS
from torch_dataloader_utils.reading.wrapped import Wrapping
from torch_dataloader_utils.schemas.columns import available_columns, find_path, select_columns
from torch_dataloader_utils.sources.tokens import tokens_in_footers, tokens_unknown
from torch_dataloader_utils.storage import usable_cores


def packed(scan: ScanSpec | CombinedScan, keys: Sequence[str], options: Options) -> dict[str, Any]:
    """What changes in a source if its rows are packed as documents; empty if they are not.

    Sequences of whole documents are counted only by reading.

    Args:
        scan: reads the documents.
        keys: the keys of batches, before packing.
        options: of the loader.

    Raises:
        ColumnNotFoundError: a column to pack does not exist.
        UnsupportedTypeError: a column to pack does not hold lists of numbers.
        OptionError: a column is not packed, a name is taken, or a padding value does not fit its column.
    """
    pack = options.pack.pack
    if pack is None:
        return {}
    valid_key, report = _checked(scan, keys, options)
    columns = options.pack.columns or tuple(keys)
    if options.pack.wraps:
        wrapping = Wrapping(columns, pack.length, valid_key)
        return {"scan": _packed(scan, wrapping), "keys": wrapping.keys}
    dtypes = {key: np.dtype(report[key]["dtype"]) for key in columns}
    packing = Packing(_pads(pack, dtypes), pack, options.pack.documents, options.pack.sequences, valid_key)
    return {"scan": _packed(scan, packing), "exact": False, "keys": packing.keys}


def _pads(pack: Pack, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    """What fills up the sequences of each column, as a scalar of its dtype."""
    unknown = [name for name in pack.pads if name not in dtypes]
    if unknown:
        raise OptionError(f"Pack: pad names {unknown[0]!r}: expected one of the columns {list(dtypes)}.")
    other = 0 if isinstance(pack.pad, Mapping) else pack.pad
    values = {key: pack.pads.get(key, other) for key in dtypes}
    return {key: pad_value(f"Pack: pad={{{key!r}: {values[key]!r}}}", values[key], dtypes[key]) for key in dtypes}


def narrowed(schema: pa.Schema, options: Options, *, whole: bool = False) -> pa.Schema:
    """The columns that are packed, if others are left out of batches; else all of them.

    Args:
        schema: of the documents.
        options: of the loader.
        whole: whether structs stay whole of which a field is packed.

    Raises:
        ColumnNotFoundError: a column to pack does not exist.
    """
    pack, columns = options.pack.pack, options.pack.columns
    if pack is None or columns is None:
        return schema
    paths = {name: find_path(schema, name) for name in columns}
    for name, path in paths.items():
        if path is None:
            raise ColumnNotFoundError(f"pack={pack.short()}: no column {name!r}: {available_columns(schema, name)}")
    tops = {path[0] for path in paths.values() if path is not None}
    return pa.schema([field for field in schema if field.name in tops]) if whole else select_columns(schema, columns)


def known_tokens(
    scan: ScanSpec, files: Sequence[DataFile], options: Options, name: str, *, combined: bool = False, counted: bool
) -> RowCounts | None:
    """The tokens of each segment as its live rows, if documents follow one another and footers have them; else None.

    Args:
        scan: reads the documents.
        files: the files.
        options: of the loader, or of the combination that the files are a part of.
        name: of the data, for messages.
        combined: whether they are a part of a combination.
        counted: whether a scan may count them.

    Raises:
        CountsRequiredError: footers do not have them, and they will not be counted.
    """
    pack = options.pack.pack
    if pack is None:
        return None
    _checked(scan, scan.converter.keys, options)
    if not options.pack.wraps:
        return None
    found = tokens_in_footers(scan, files, first_packed(scan, options))
    if found is None and not counted:
        raise tokens_unknown(pack, name, combined)
    return found


def counted_tokens(scan: ScanSpec, files: Sequence[DataFile], options: Options) -> RowCounts:
    """The tokens of each segment as its live rows, from a scan of a part of a combination; each rank makes its own."""
    threads = usable_cores() if scan.storage.local else REMOTE_SCANS
    over = partial(progress_of(options).over, work="counting tokens", unit=f"{scan.opener.segment_name}s")
    return scan_row_counts(scan, files, Sharing(), threads, over, first_packed(scan, options))


def first_packed(scan: ScanSpec, options: Options) -> str:
    """The key of the first column that is packed, whose lists say how many tokens documents have."""
    return (options.pack.columns or scan.converter.keys)[0]


def _checked(
    scan: ScanSpec | CombinedScan, keys: Sequence[str], options: Options
) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """The key of the mask of real rows, and what the columns hold; checks that they can be packed."""
    for part in scan.scans if isinstance(scan, CombinedScan) else (scan,):
        if isinstance(part, ScanSpec) and part.copies is not None:
            raise OptionError(
                "class_weights with pack: a sequence holds documents of several classes.",
                remedies=[leave_out("class_weights"), leave_out("pack")],
            )
    report, valid_key = scan.report(), options.batch.valid_key if repeats_rows(options) else None
    _check_columns(options.pack, keys, report)
    taken = [name for name in KEYS if name in (options.pack.columns or keys) or name == valid_key]
    if taken:
        raise OptionError(f"{taken[0]!r} is a key that pack adds to batches: rename the column, or the valid_key.")
    return valid_key, report


def _packed(scan: ScanSpec | CombinedScan, packing: Packing | Wrapping) -> ScanSpec | CombinedScan:
    """The scan of sequences; these are marked as real, not the documents."""
    if isinstance(scan, CombinedScan):
        parts = tuple(replace(part, valid_key=None) for part in scan.scans)  # type: ignore[type-var]
        return replace(scan, scans=parts, packing=packing)
    return replace(scan, packing=packing, valid_key=None)


def _check_columns(options: PackOptions, keys: Sequence[str], report: Mapping[str, Mapping[str, Any]]) -> None:
    pack, fit = options.pack, [key for key in keys if report[key]["kind"] == "ragged"]
    assert pack is not None
    for key in options.columns or keys:
        if key not in keys:
            raise ColumnNotFoundError(f"pack={pack.short()}: no column {key!r}: expected one of {list(keys)}.")
        if key not in fit:
            kind = report[key].get("arrow", report[key]["kind"])
            ways = [use("leaves out others", pack=pack.replace(columns=fit))] if fit and options.columns is None else []
            raise UnsupportedTypeError(
                f"pack={pack.short()}: column {key!r} is of type {kind}, but what is packed is lists of numbers, one "
                "for each token, which transform can make.",
                remedies=ways,
            )
