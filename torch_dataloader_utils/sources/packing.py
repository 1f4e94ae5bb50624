"""Checks the options that pack documents against the columns that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from torch_dataloader_utils.convert.plan import check_padded_names, pad_value
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError, leave_out, use
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options import Options, PackOptions, progress_of, repeats_rows
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.reading.packed import Packing
from torch_dataloader_utils.reading.row_count_scan import REMOTE_SCANS, RowCounts, Sharing, scan_row_counts
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.sequence_columns import KEYS
from torch_dataloader_utils.reading.wrapped import Wrapping
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
    pack = options.pack
    if pack.pack is None or pack.pack_length is None:
        return {}
    valid_key, report = _checked(scan, keys, options)
    if pack.wraps:
        wrapping = Wrapping(tuple(pack.pack), pack.pack_length, valid_key)
        return {"scan": _packed(scan, wrapping), "keys": wrapping.keys}
    values = options.pad.pad_values or {}
    check_padded_names(values, pack.pack)
    pads = {key: pad_value(key, values.get(key, 0), np.dtype(report[key]["dtype"])) for key in pack.pack}
    packing = Packing(pads, pack.pack_length, pack.pack_long, pack.documents, pack.sequences, valid_key)
    return {"scan": _packed(scan, packing), "exact": False, "keys": packing.keys}


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
    if not options.pack.wraps:
        return None
    _checked(scan, scan.converter.keys, options)
    found = tokens_in_footers(scan, files, options.pack)
    if found is None and not counted:
        raise tokens_unknown(name, combined)
    return found


def counted_tokens(scan: ScanSpec, files: Sequence[DataFile], options: Options) -> RowCounts:
    """The tokens of each segment as its live rows, from a scan of a part of a combination; each rank makes its own."""
    threads = usable_cores() if scan.storage.local else REMOTE_SCANS
    over = partial(progress_of(options).over, work="counting tokens", unit=f"{scan.opener.segment_name}s")
    return scan_row_counts(scan, files, Sharing(), threads, over, next(iter(options.pack.pack or ())))


def _checked(
    scan: ScanSpec | CombinedScan, keys: Sequence[str], options: Options
) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """The key of the mask of real rows, and what the columns hold; checks that they can be packed."""
    for part in scan.scans if isinstance(scan, CombinedScan) else (scan,):
        if isinstance(part, ScanSpec) and part.copies is not None:
            raise OptionError(
                "class_weights with pack: a sequence holds documents of several classes.",
                remedies=[leave_out("class_weights"), leave_out("pack", "pack_length")],
            )
    report, valid_key = scan.report(), options.batch.valid_key if repeats_rows(options) else None
    _check_columns(options.pack, keys, report)
    _check_names(options, keys, report, valid_key, combined=isinstance(scan, CombinedScan))
    return valid_key, report


def _packed(scan: ScanSpec | CombinedScan, packing: Packing | Wrapping) -> ScanSpec | CombinedScan:
    """The scan of sequences; these are marked as real, not the documents."""
    if isinstance(scan, CombinedScan):
        parts = tuple(replace(part, valid_key=None) for part in scan.scans)  # type: ignore[type-var]
        return replace(scan, scans=parts, packing=packing)
    return replace(scan, packing=packing, valid_key=None)


def _check_columns(pack: PackOptions, keys: Sequence[str], report: Mapping[str, Mapping[str, Any]]) -> None:
    for key in pack.pack or ():
        if key not in keys:
            raise ColumnNotFoundError(f"pack names {key!r}: expected one of the columns {list(keys)}.")
        if report[key]["kind"] != "ragged":
            raise UnsupportedTypeError(
                f"pack names {key!r}, a column of {report[key].get('arrow', report[key]['kind'])}: expected lists of "
                "numbers, one per token. Make them in transform."
            )


def _check_names(
    options: Options,
    keys: Sequence[str],
    report: Mapping[str, Mapping[str, Any]],
    valid_key: str | None,
    *,
    combined: bool,
) -> None:
    packed = list(options.pack.pack or ())
    others = [key for key in keys if key not in packed]
    if others:
        message = (
            f"pack={packed}, but batches also have {', '.join(map(repr, others))}: a sequence holds several rows, so "
            "columns that are not packed have no place in it."
        )
        too = [use(pack=[*packed, *others])] if all(report[key]["kind"] == "ragged" for key in others) else []
        if combined:
            raise OptionError(f"{message} Pass columns={packed} to the create_dataloader of each dataset.")
        if options.read.transform is not None:  # which may need columns that it does not return
            raise OptionError(f"{message} Let transform return only those that are packed.", remedies=too)
        raise OptionError(message, remedies=[use(columns=packed), *too])
    taken = [name for name in KEYS if name in packed or name == valid_key]
    if taken:
        raise OptionError(f"{taken[0]!r} is a key that pack adds to batches: rename the column, or the valid_key.")
